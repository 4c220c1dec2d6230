"""The reply to METRICS: the figures of this listener in Prometheus' text form, under the names deployed brokers have for them.

All 23 names are there, because dashboards look for them. What this broker does in another way, or does not count by protocol, stays 0;
the admin address has the figures of the whole broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.broker.groups.lag import LagReport
from penstock.protocols.rustlog.wire import JSON_NAMES, Opcode
from penstock.stats import DURATION_BOUNDS_S, Histogram, SessionStats

_NOT_COUNTED_HERE = {
    "throttled_consumers_total": "Fetches put off because a consumer asked for too much",
    "slow_consumers_total": "Consumers found to be slow",
    "segments_deleted_total": "Segments deleted by retention",
    "bytes_reclaimed_total": "Bytes freed by retention",
    "compaction_runs_total": "Runs of compaction",
    "compaction_skipped_segments_total": "Segments that compaction left alone",
    "retention_noop_runs_total": "Runs of retention that found nothing to delete",
    "checkpoint_corruption_total": "Damaged checkpoints",
    "compaction_segments_rewritten_total": "Segments rewritten by compaction",
    "compaction_records_dropped_total": "Records dropped by compaction",
    "compaction_bytes_rewritten_total": "Bytes rewritten by compaction",
}
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(slots=True)
class RustLogStats(SessionStats):
    """What the sessions of one listener count; plain numbers, exported on scrape. Errors are requests answered with ERROR."""

    requests: list[int] = field(default_factory=lambda: [0] * 256)
    """By opcode, unknown ones too; JSON that names no request is under 0."""
    sessions_open: int = 0
    produced_records: int = 0
    """Records that are stored."""
    produced_bytes: int = 0
    fetched_bytes: int = 0
    produce_seconds: Histogram = field(default_factory=lambda: Histogram(DURATION_BOUNDS_S))
    fetch_seconds: Histogram = field(default_factory=lambda: Histogram(DURATION_BOUNDS_S))

    def requests_by_name(self) -> dict[str, int]:
        """Only what has been asked for; what is not in the contract together, as `unknown`."""
        known = {int(opcode): opcode.name.lower() for opcode in JSON_NAMES if opcode is not Opcode.ERROR}
        named: dict[str, int] = {}
        for opcode, count in enumerate(self.requests):
            if count:
                name = known.get(opcode, "unknown")
                named[name] = named.get(name, 0) + count
        return named


def metrics_text(stats: RustLogStats, lags: LagReport | None) -> str:
    return "".join(f"{line}\n" for line in _lines(stats, lags))


def _lines(stats: RustLogStats, lags: LagReport | None) -> Iterator[str]:
    counters = {
        "messages_produced_total": ("Records written", stats.produced_records),
        "messages_fetched_total": ("Records read", stats.sent_records),
        "bytes_in_total": ("Payload bytes written", stats.produced_bytes),
        "bytes_out_total": ("Bytes of replies with records", stats.fetched_bytes),
    }
    for name, (explanation, number) in counters.items():
        yield from _metric(name, "counter", explanation, number)
    yield from _metric("active_connections", "gauge", "Open connections", stats.sessions_open)
    for name, explanation in _NOT_COUNTED_HERE.items():
        yield from _metric(name, "counter", explanation, 0)
    for operation, seconds in (("fetch", stats.fetch_seconds), ("produce", stats.produce_seconds)):
        for suffix, quantile in _QUANTILES.items():
            explanation = f"Time of a {operation} in nanoseconds, {suffix}"
            yield from _metric(
                f"{operation}_latency_ns_{suffix}", "gauge", explanation, _quantile_ns(seconds, quantile)
            )
    yield "# HELP consumer_lag Records a group has yet to read"
    yield "# TYPE consumer_lag gauge"
    for lag in () if lags is None else lags.lags:
        labels = f'topic="{_label(lag.topic)}",partition="{lag.partition}",group="{_label(lag.group)}"'
        yield f"consumer_lag{{{labels}}} {lag.records}"


def _metric(name: str, kind: str, explanation: str, number: int) -> Iterator[str]:
    yield f"# HELP {name} {explanation}"
    yield f"# TYPE {name} {kind}"
    yield f"{name} {number}"


def _quantile_ns(seconds: Histogram, quantile: float) -> int:
    """The bound below which this part of the observations lies, 0 if there are none."""
    rank = quantile * seconds.count
    seen = 0
    for bound, count in zip((*seconds.bounds, seconds.bounds[-1]), seconds.counts, strict=True):
        seen += count
        if count and seen >= rank:
            return round(bound * 1e9)
    return 0


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
