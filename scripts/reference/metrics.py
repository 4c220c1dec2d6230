"""docs/reference/metrics.md: every metric with its type, labels and help text, from the families that `/metrics` renders."""

from __future__ import annotations

from typing import Any, get_origin, get_type_hints

from prometheus_client.core import Metric

from penstock.admin.figures import CacheFigures, Figures, ProducerFigures
from penstock.admin.metrics import SECTIONS
from penstock.broker.cache.cache import CacheStats
from penstock.broker.groups.lag import LagReport
from penstock.broker.idempotence.producers import ProducerStats
from penstock.stats import DURATION_BOUNDS_S, Histogram
from scripts.reference.markdown import DOCS, GENERATED, code, document, prose, table

PAGE = DOCS / "reference" / "metrics.md"
INTRODUCTION = f"""\
# Metrics reference

{GENERATED}

The admin address serves these at `/metrics` in the Prometheus text format. Counters start at 0 with the
broker. [Monitoring](../monitoring.md) has health checks, suggested alerts and the log.
"""
PROCESS = """\
## Process

`process_*`: memory, CPU time, open file descriptors and start time of the process, as every Prometheus
client exports them.
"""


def page() -> str:
    nothing = no_figures()
    sections = [
        document(f"## {title}", table(["metric", "type", "labels", "meaning"], map(_row, families(nothing))))
        for title, families in SECTIONS.items()
    ]
    return document(INTRODUCTION, *sections, PROCESS)


def no_figures() -> Figures:
    """Return the figures of a broker without listeners, topics or traffic."""
    given: dict[str, Any] = {
        "lags": LagReport([], 0),
        "cache": CacheFigures(0, 0, CacheStats()),
        "producers": ProducerFigures(0, 0, ProducerStats()),
        "loop_lag": Histogram(DURATION_BOUNDS_S),
    }
    for name, hint in get_type_hints(Figures).items():
        if name not in given:
            given[name] = (get_origin(hint) or hint)()
    return Figures(**given)


def _row(family: Metric) -> tuple[str, ...]:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    labels = vars(family)["_labelnames"]
    return code(name), family.type, ", ".join(map(code, labels)), prose(family.documentation)
