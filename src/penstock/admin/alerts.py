"""What is wrong now: the suggested alerts (`deploy/prometheus/alerts.yaml`), evaluated by the broker itself for people without Prometheus.

Rules are evaluated with each sample of the history, every ten seconds. A rule yields what it is about and says in words what it sees; an
alert is on once that has held for as long as the rule asks. Rates are taken over the samples of a window, which are a few numbers each.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Literal, NamedTuple

from penstock.admin.figures import Sources
from penstock.admin.history import SAMPLE_EVERY_S, History
from penstock.stats import Histogram

Severity = Literal["critical", "warning"]

LAG_S_MAX: Final = 300.0
UNSETTLED_MAX: Final = 10_000
SLOW_S: Final = 0.1
DISK_S_MIN: Final = 86_400.0
DISK_FREE_BYTES_MIN: Final = 64 << 20
"""With less, writes are about to be refused, or are already: then the disk fills no further, and no rate tells of it."""
SUBJECTS_MAX: Final = 100
"""Per rule: if more is wrong, the first ones are reported."""
QUANTILE: Final = 0.99


class Finding(NamedTuple):
    subject: str
    """What it is about, by which the next evaluation knows it again."""
    summary: str


class Rule(NamedTuple):
    name: str
    severity: Severity
    for_s: float
    """How long it must have held."""
    action: str
    """What to do."""
    find: Callable[[Alerts], Iterator[Finding]]
    about_groups: bool = False
    """Names groups or subscriptions, which not everybody may know of."""


class Alert(NamedTuple):
    rule: Rule
    summary: str
    since_ms: int


class Window:
    """Counts over the last samples: how much each has grown."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._samples: deque[list[int]] = deque(maxlen=int(window_s / SAMPLE_EVERY_S) + 1)

    def add(self, counts: list[int]) -> None:
        self._samples.append(counts)

    def grown(self) -> list[int]:
        if not self._samples:
            return []
        return [now - before for before, now in zip(self._samples[0], self._samples[-1], strict=True)]


class Alerts:
    """Evaluates the rules after each sample of a history."""

    def __init__(self, sources: Sources, history: History) -> None:
        self.sources = sources
        self.history = history
        self.flushes, self.loop_lags = Window(300.0), Window(300.0)
        self.corrupt_blocks, self.internal_errors = Window(3600.0), Window(900.0)
        self._since_ms: dict[tuple[str, str], int] = {}
        self._on: list[Alert] = []

    @property
    def on(self) -> list[Alert]:
        """The alerts that are on, the critical ones first."""
        return self._on

    def evaluate(self, now_ms: int) -> None:
        sources = self.sources
        self.flushes.add(list(sources.engine.stats.flush_seconds.counts))
        self.loop_lags.add(list(sources.loop_lag.counts))
        self.corrupt_blocks.add([sources.engine.stats.corrupt_blocks])
        self.internal_errors.add([each.internal_errors for each in sources.sessions.values()])
        since_ms: dict[tuple[str, str], int] = {}
        on: list[Alert] = []
        for rule in RULES:
            for finding in islice(rule.find(self), SUBJECTS_MAX):
                key = rule.name, finding.subject
                since_ms[key] = min(self._since_ms.get(key, now_ms), now_ms)  # the clock may have been set back
                if now_ms - since_ms[key] >= rule.for_s * 1000:
                    on.append(Alert(rule, finding.summary, since_ms[key]))
        self._since_ms = since_ms
        self._on = sorted(on, key=lambda each: each.rule.severity)


def _cannot_write(alerts: Alerts) -> Iterator[Finding]:
    for (topic, partition), failure in alerts.sources.engine.failed.reasons().items():
        yield Finding(f"{topic}/{partition}", f"Partition {partition} of {topic} refuses writes: {failure}")


def _disk_fills_up(alerts: Alerts) -> Iterator[Finding]:
    left_s = alerts.history.disk_full_in_s()
    if left_s is not None and left_s < DISK_S_MIN:
        yield Finding("", f"At the rate of the last hour, the disk will be full in {left_s / 3600:.0f} hours")


def _disk_full(alerts: Alerts) -> Iterator[Finding]:
    free_bytes = alerts.history.disk_free_bytes[-1] if alerts.history.disk_free_bytes else -1
    if 0 <= free_bytes < DISK_FREE_BYTES_MIN:
        yield Finding("", f"The disk has {free_bytes >> 20} MiB left")


def _task_fails(alerts: Alerts) -> Iterator[Finding]:
    for task, failure in alerts.sources.broker.background.failing.items():
        yield Finding(task, f"Background task {task} fails: {failure}")


def _dead_letters_held_up(alerts: Alerts) -> Iterator[Finding]:
    waiting = alerts.sources.broker.subscriptions.exhausted
    if waiting:
        yield Finding("", f"Records wait to become dead letters: {waiting}")


def _corrupt_blocks(alerts: Alerts) -> Iterator[Finding]:
    found = sum(alerts.corrupt_blocks.grown())
    if found:
        yield Finding("", f"Blocks with wrong checksums were read in the last hour: {found}")


def _group_lag(alerts: Alerts) -> Iterator[Finding]:
    for key, series in alerts.history.lags("group"):
        if series.seconds[-1] > LAG_S_MAX:  # not if it is unknown, which is NaN
            minutes = series.seconds[-1] / 60
            yield Finding(f"{key.name}\n{key.topic}", f"Group {key.name} is {minutes:.0f} min behind in {key.topic}")


def _subscription_lag(alerts: Alerts) -> Iterator[Finding]:
    for key, series in alerts.history.lags("subscription"):
        if series.records[-1] > UNSETTLED_MAX:
            summary = f"Subscription {key.name} has {series.records[-1]} unsettled records in {key.topic}"
            yield Finding(f"{key.name}\n{key.topic}", summary)


def _slow_disk(alerts: Alerts) -> Iterator[Finding]:
    if _quantile_s(alerts.sources.engine.stats.flush_seconds, alerts.flushes.grown()) > SLOW_S:
        yield Finding("", "One flush in a hundred takes over 100 ms")


def _event_loop_lag(alerts: Alerts) -> Iterator[Finding]:
    if _quantile_s(alerts.sources.loop_lag, alerts.loop_lags.grown()) > SLOW_S:
        yield Finding("", "The event loop is over 100 ms late")


def _internal_errors(alerts: Alerts) -> Iterator[Finding]:
    for listener, count in zip(alerts.sources.sessions, alerts.internal_errors.grown(), strict=True):
        if count:
            yield Finding(listener, f"Requests on {listener} failed by a fault of the broker: {count}")


def _pipeline_down(alerts: Alerts) -> Iterator[Finding]:
    for each in alerts.sources.broker.pipelines.infos():
        if not each.alive:
            yield Finding(each.name, f"Pipeline {each.name} reports no run")


def _late_rows(alerts: Alerts) -> Iterator[Finding]:
    for key, count in alerts.history.late_rows():
        if count:
            summary = f"Pipeline {key.pipeline} left {count} late or future rows out of {key.stage} in the last hour"
            yield Finding(f"{key.pipeline}\n{key.stage}", summary)


def _quantile_s(histogram: Histogram, counts: list[int]) -> float:
    """The bound below which 99 in 100 are, 0 without any."""
    seen, total = 0, sum(counts)
    if not total:
        return 0.0
    for bound, count in zip(histogram.bounds, counts, strict=False):
        seen += count
        if seen >= QUANTILE * total:
            return float(bound)
    return math.inf


MINUTE_S: Final = 60.0
RULES: Final = (
    Rule(
        "PenstockCannotWrite",
        "critical",
        0.0,
        "A flush failed. Check the disk, then restart: acknowledged records are safe.",
        _cannot_write,
    ),
    Rule(
        "PenstockDiskFull",
        "critical",
        0.0,
        "Shorten retention, delete topics, or give the data directory more space: writes are refused until there is some.",
        _disk_full,
    ),
    Rule(
        "PenstockDiskFillsUp",
        "warning",
        30 * MINUTE_S,
        "Shorten retention, or give the data directory more space.",
        _disk_fills_up,
    ),
    Rule(
        "PenstockBackgroundTaskFails",
        "warning",
        1 * MINUTE_S,
        "The broker's log has the error. It is retried.",
        _task_fails,
    ),
    Rule(
        "PenstockDeadLettersHeldUp",
        "warning",
        5 * MINUTE_S,
        "Raise limits.topics_max or delete topics: their dead-letter topic cannot be created or written.",
        _dead_letters_held_up,
    ),
    Rule(
        "PenstockCorruptBlocks",
        "critical",
        0.0,
        "Run penstock verify, and restore what is damaged from a backup.",
        _corrupt_blocks,
    ),
    Rule(
        "PenstockConsumerLag",
        "warning",
        10 * MINUTE_S,
        "Look at the group's consumers.",
        _group_lag,
        about_groups=True,
    ),
    Rule(
        "PenstockSubscriptionLag",
        "warning",
        10 * MINUTE_S,
        "Its readers are slow, gone, or do not acknowledge.",
        _subscription_lag,
        about_groups=True,
    ),
    Rule(
        "PenstockSlowDisk",
        "warning",
        10 * MINUTE_S,
        "Every acknowledgement waits for a flush: look at what else uses the disk.",
        _slow_disk,
    ),
    Rule(
        "PenstockEventLoopLag",
        "warning",
        10 * MINUTE_S,
        "The broker has more to do than one core can: spread the load over several brokers.",
        _event_loop_lag,
    ),
    Rule(
        "PenstockInternalErrors",
        "warning",
        0.0,
        "The broker's log has the details: report it.",
        _internal_errors,
    ),
    Rule(
        "PenstockPipelineDown",
        "warning",
        10 * MINUTE_S,
        "Restart it with penstock pipeline run: it resumes where it stopped.",
        _pipeline_down,
    ),
    Rule(
        "PenstockPipelineLateRows",
        "warning",
        0.0,
        "Raise watermark_ms of the query if rows are late; look in silver for the source of rows from the future.",
        _late_rows,
    ),
)
"""In the order in which they are reported, within one severity. PenstockDown is not here: a broker that is down evaluates nothing."""
