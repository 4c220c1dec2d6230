"""The metrics of /metrics as OTLP has them: counters are cumulative sums, histograms have their buckets apart.

No metric is declared here: names, texts and labels are those of the families that a scrape would get. A counter has its name without
`_total`, which a Prometheus that receives OTLP adds again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from itertools import pairwise

from opentelemetry.sdk.metrics import export as otlp
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

UNITS = {"seconds": "s", "bytes": "By"}
"""By the last word of a name."""


class MetricsEncoder:
    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._scope = InstrumentationScope("penstock", version("penstock"))
        self._started_ns = time.time_ns()

    def encode(self, families: Iterable[Metric]) -> otlp.MetricsData:
        now_ns = time.time_ns()
        metrics = [metric for family in families if (metric := self._metric(family, now_ns)) is not None]
        scope = otlp.ScopeMetrics(self._scope, metrics, "")
        return otlp.MetricsData([otlp.ResourceMetrics(self._resource, [scope], "")])

    def _metric(self, family: Metric, now_ns: int) -> otlp.Metric | None:
        """Return a family in the form of OTLP, None if it has no series."""
        data: otlp.Sum | otlp.Gauge | otlp.Histogram
        cumulative = otlp.AggregationTemporality.CUMULATIVE
        if family.type == "histogram":
            data = otlp.Histogram([*self._histograms(family.samples, now_ns)], cumulative)
        elif family.type == "counter":
            totals = [sample for sample in family.samples if sample.name.endswith("_total")]
            data = otlp.Sum([*self._numbers(totals, now_ns)], cumulative, is_monotonic=True)
        else:
            data = otlp.Gauge([*self._numbers(family.samples, now_ns)])
        if not data.data_points:
            return None
        return otlp.Metric(family.name, family.documentation, UNITS.get(family.name.rpartition("_")[2], ""), data)

    def _numbers(self, samples: Iterable[Sample], now_ns: int) -> Iterator[otlp.NumberDataPoint]:
        for sample in samples:
            yield otlp.NumberDataPoint(sample.labels, self._started_ns, now_ns, float(sample.value))

    def _histograms(self, samples: Iterable[Sample], now_ns: int) -> Iterator[otlp.HistogramDataPoint]:
        """A family has, for each set of labels, its buckets in rising order, each with all below it, and then count and sum."""
        cumulative: list[tuple[float, int]] = []
        count = 0
        for sample in samples:
            if sample.name.endswith("_bucket"):
                cumulative.append((float(sample.labels["le"]), int(sample.value)))
            elif sample.name.endswith("_count"):
                count = int(sample.value)
            elif sample.name.endswith("_sum"):
                below = [0, *(number for _, number in cumulative)]
                yield otlp.HistogramDataPoint(
                    sample.labels,
                    self._started_ns,
                    now_ns,
                    count,
                    sample.value,
                    [after - before for before, after in pairwise(below)],
                    [bound for bound, _ in cumulative[:-1]],
                    None,  # type: ignore[arg-type]  # optional in OTLP, and not known
                    None,  # type: ignore[arg-type]
                )
                cumulative = []
