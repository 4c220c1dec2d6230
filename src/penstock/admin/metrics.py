"""Figures as Prometheus text.

The families are built for each scrape from plain numbers; there is no registry and no metric object anywhere else. Rendering the
text takes milliseconds for a thousand partitions, so it happens on a thread. docs/reference/metrics.md is generated from `SECTIONS`.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate
from typing import TypeVar

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from penstock.admin.figures import Figures, Sources, gather
from penstock.broker.pipelines import LAG_UNKNOWN, PipelineInfo, Stage
from penstock.net.stats import ListenerStats, QuicListenerStats
from penstock.stats import Histogram

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

PREFIX = "penstock_"
PIPELINE_STAGES_EXPORTED_MAX = 1_000

LISTENER_COUNTERS = (
    ("received_bytes", "bytes_in", "Bytes received from clients."),
    ("sent_bytes", "bytes_out", "Bytes sent to clients."),
    ("connections_opened", "connections_total", "Connections accepted."),
    ("connections_refused", "connections_refused", "Connections refused because max_connections was reached."),
    ("tls_handshake_failures", "handshake_failures", "Connections whose TLS handshake failed."),
    ("protocol_errors", "protocol_errors", "Connections closed because the peer violated its protocol."),
    ("session_errors", "session_errors", "Connections closed by an internal error of the broker."),
    ("backpressure_pauses", "read_pauses", "Times reading from a connection paused because too much was in flight."),
    (
        "accept_pauses",
        "accept_pauses",
        "Times accepting paused because the system was out of descriptors or memory.",
    ),
)
QUIC_COUNTERS = (
    ("streams_opened", "streams_total", "Streams opened by either side."),
    ("streams_aborted", "streams_aborted", "Streams that a client reset or stopped."),
    ("quic_retries", "retries_sent", "Retry packets sent to validate the address of a client."),
    ("quic_handshakes_dropped", "handshakes_dropped", "Handshakes dropped because too many were in progress."),
    ("quic_datagrams_dropped", "datagrams_dropped", "Datagrams that belong to no connection."),
    ("quic_rebindings", "rebindings", "Times a client continued from another port (NAT rebinding)."),
)
PUSH_RESULTS = (
    ("delivered", "sent_records"),
    ("dropped", "dropped_events"),
    ("oversized", "oversized_events"),
    ("skipped", "skipped_events"),
)
CLOSED_REASONS = (
    ("idle", "closed_idle"),
    ("frame_timeout", "closed_header"),
    ("unread", "closed_unread"),
    ("shutdown", "closed_unanswered"),
    ("reset", "resets"),
)

Series = Iterable[tuple[Sequence[str], float | None]]
"""Values of labels with the figure; None if it is not known."""
_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)


class Metrics:
    """Renders the figures of one broker, one scrape at a time: a second scraper waits instead of doubling the work."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._scraping = asyncio.Lock()
        self._process = ProcessCollector(registry=None)

    async def render(self) -> bytes:
        async with self._scraping:
            figures = await gather(self._sources)
            return await asyncio.to_thread(generate_latest, _Scrape(figures, self._process))

    async def collect(self) -> list[Metric]:
        """Return every family of a scrape, for who exports them in another form."""
        async with self._scraping:
            figures = await gather(self._sources)
            return await asyncio.to_thread(lambda: list(_Scrape(figures, self._process).collect()))


@dataclass(frozen=True, slots=True)
class _Scrape:
    figures: Figures
    process: ProcessCollector

    def collect(self) -> Iterator[Metric]:
        yield from families(self.figures)
        yield from self.process.collect()


def families(figures: Figures) -> Iterator[Metric]:
    """Yield every metric family of a scrape."""
    for section in SECTIONS.values():
        yield from section(figures)


def _broker(figures: Figures) -> Iterator[Metric]:
    versions = (version("penstock"), platform.python_version())
    yield _gauges("build_info", "Always 1; the labels name the version.", ["version", "python"], [(versions, 1)])
    yield from _background(figures)
    yield _gauge("event_loop_tasks", "Unfinished asyncio tasks; grows with open connections only.", figures.loop_tasks)
    yield _histogram(
        "event_loop_lag_seconds",
        "How late timers of the event loop run; everything is delayed by this.",
        figures.loop_lag,
    )


def _log(figures: Figures) -> Iterator[Metric]:
    stats = figures.engine
    yield _counter("appended_records", "Records committed to the log.", stats.appended_records)
    yield _counter("appended_bytes", "Bytes committed to the log.", stats.appended_bytes)
    yield _counter("commits", "Commits; each writes one block to every partition that it covers.", stats.commits)
    yield _counter("commit_errors", "Commits that failed.", stats.commit_errors)
    yield _counter("corrupt_blocks", "Blocks whose checksum did not match on read.", stats.corrupt_blocks)
    yield _counter("torn_tails", "Partitions whose torn tail was cut at start.", stats.torn_tails)
    yield _histogram("commit_records", "Records in one commit.", stats.commit_records)
    yield _histogram("flush_duration_seconds", "Duration of a flush to disk.", stats.flush_seconds)
    known = [((), figures.disk)] if figures.disk.size_bytes else []
    text = "Size of the file system of the data directory."
    yield _gauges("disk_size_bytes", text, [], ((at, disk.size_bytes) for at, disk in known))
    text = "Free space of the file system of the data directory."
    yield _gauges("disk_free_bytes", text, [], ((at, disk.free_bytes) for at, disk in known))


def _partitions(figures: Figures) -> Iterator[Metric]:
    labels = ["topic", "partition"]
    rows = [((row.topic, str(row.partition)), row) for row in figures.partitions]
    text = "Log start offset: the lowest offset that can be read."
    yield _gauges("partition_start_offset", text, labels, ((at, row.start_offset) for at, row in rows))
    text = "High watermark: the offset after the last committed record."
    yield _gauges("partition_end_offset", text, labels, ((at, row.end_offset) for at, row in rows))
    text = "Size of the partition on disk."
    yield _gauges("partition_size_bytes", text, labels, ((at, row.size_bytes) for at, row in rows))
    yield _gauge("topics", "Topics, internal ones included.", figures.topics)
    yield _gauge("partitions", "Partitions of all topics.", len(figures.partitions) + figures.partitions_left_out)
    yield _gauge("partitions_failed", "Partitions that refuse writes.", figures.partitions_failed)
    yield _gauge(
        "partitions_left_out",
        "Partitions beyond the first 1000, which have no series of their own.",
        figures.partitions_left_out,
    )


def _groups(figures: Figures) -> Iterator[Metric]:
    labels = ["group", "topic", "partition"]
    rows = [((row.group, row.topic, str(row.partition)), row) for row in figures.lags.lags]
    text = "Consumer lag: records that the group has not committed."
    yield _gauges("group_lag_records", text, labels, ((at, row.records) for at, row in rows))
    text = "Age of the oldest record that the group has not committed, if known."
    yield _gauges("group_lag_seconds", text, labels, ((at, row.seconds) for at, row in rows))
    yield _gauge(
        "group_lags_left_out",
        "Groups, counted once for each topic, not all of whose partitions have series in this scrape.",
        figures.lags.left_out,
    )
    yield _gauge("group_members", "Members of consumer groups that share partitions.", figures.group_members)
    yield _counter("group_rebalances", "New target assignments of consumer groups.", figures.groups.rebalances)
    yield _counter(
        "group_sessions_expired",
        "Members that sent no heartbeat within their session timeout.",
        figures.groups.expired_sessions,
    )
    yield _counter(
        "group_commits_fenced",
        "Commits of members that did not own the partition any more.",
        figures.groups.fenced_commits,
    )
    yield _counter(
        "group_offsets_truncated",
        "Committed offsets moved back at start because the log lost its tail.",
        figures.groups.truncated_offsets,
    )


def _lifetimes(figures: Figures) -> Iterator[Metric]:
    schedule, letters = figures.schedule, figures.dead_letters
    yield _gauge("delayed_pending", "Delayed records that are pending.", figures.delayed_pending)
    yield _counter("delayed_accepted", "Delayed records accepted.", schedule.accepted)
    yield _counter("delayed_delivered", "Delayed records written to their topics.", schedule.delivered)
    yield _counter("delayed_cancelled", "Delayed records cancelled before their time.", schedule.cancelled)
    yield _histogram("delayed_lateness_seconds", "How late a delayed record became readable.", schedule.lateness_s)
    yield _counter("dead_letters_sent", "Records written as dead letters.", letters.sent)
    yield _gauge(
        "dead_letters_waiting",
        "Records that could not be written as dead letters yet; they count towards subscriptions.in_flight_max.",
        figures.dead_letters_waiting,
    )
    yield _counter("dead_letters_replayed", "Dead letters replayed to their topics.", letters.replayed)
    yield from _subscriptions(figures)
    yield _gauge(
        "subscriptions",
        "Subscriptions (BlipMQ) and groups with acknowledgements (Fujin, Felix).",
        figures.subscriptions,
    )
    yield _gauge("subscriptions_in_flight", "Deliveries in flight: not acknowledged yet.", figures.in_flight)
    yield _counter("subscriptions_delivered", "Deliveries, including redeliveries.", figures.deliveries.delivered)
    yield _counter("subscriptions_acknowledged", "Deliveries acknowledged.", figures.deliveries.acknowledged)
    yield _counter(
        "subscriptions_truncated",
        "Cursors of subscriptions moved back at start because the log lost its tail.",
        figures.deliveries.truncated,
    )


def _subscriptions(figures: Figures) -> Iterator[Metric]:
    labels = ["subscription", "topic"]
    rows = [((row.name.removeprefix("#"), row.topic), row) for row in figures.subscription_statuses]
    text = "Records that are not settled in the subscription."
    yield _gauges("subscription_lag_records", text, labels, ((at, row.lag) for at, row in rows))
    text = "Age of the oldest record that is not settled."
    yield _gauges("subscription_lag_seconds", text, labels, ((at, row.seconds) for at, row in rows))
    text = "Deliveries that wait for their acknowledgement."
    yield _gauges("subscription_in_flight", text, labels, ((at, row.in_flight) for at, row in rows))
    text = "Deliveries of records that were delivered before."
    yield _counters("subscription_redeliveries", text, labels, ((at, row.redeliveries) for at, row in rows))
    text = "Records of the subscription that became dead letters."
    yield _counters("subscription_dead_letters", text, labels, ((at, row.dead_letters) for at, row in rows))
    yield _gauge(
        "subscription_lags_left_out",
        "Subscriptions without series of their own in this scrape.",
        max(0, figures.subscriptions - len(figures.subscription_statuses)),
    )


def _background(figures: Figures) -> Iterator[Metric]:
    text = "Failed runs of the background task."
    failures = figures.background_failures
    yield _counters("background_failures", text, ["task"], (((task,), count) for task, count in failures.items()))
    text = "1 if the last run of the background task failed, else 0; the broker is not ready meanwhile."
    failing = (((task,), task in figures.background_failing) for task in failures)
    yield _gauges("background_failing", text, ["task"], failing)


def _transactions(figures: Figures) -> Iterator[Metric]:
    stats = figures.transactions
    yield _gauge("transactions_open", "Open transactions.", stats.open)
    yield _gauge("transactions_open_bytes", "Memory of the records of open transactions.", stats.open_bytes)
    yield _counter("transactions_begun", "Transactions begun.", stats.begun)
    text = "Transactions by outcome: committed, rolled_back, timed_out."
    ended = {"committed": stats.committed, "rolled_back": stats.rolled_back, "timed_out": stats.timed_out}
    yield _counts("transactions_ended", text, "result", ended)


def _producers(figures: Figures) -> Iterator[Metric]:
    known, answers_bytes, stats = figures.producers
    yield _gauge("producers", "Idempotent producers that the broker knows.", known)
    yield _gauge("producers_answers_bytes", "Memory of answers that may be requested again.", answers_bytes)
    yield _counter("producers_registered", "Idempotent producers registered.", stats.registered)
    yield _counter(
        "producers_forgotten",
        "Idempotent producers forgotten: idle, or beyond limits.producers_max or limits.producers_bytes_max.",
        stats.forgotten,
    )
    yield _counter("producer_requests_repeated", "Requests that were sent again and had been stored.", stats.repeated)
    yield _counter(
        "producer_requests_refused",
        "Requests of producers that are not known, or with a number out of order.",
        stats.refused,
    )


def _staging(figures: Figures) -> Iterator[Metric]:
    stats = figures.staging
    yield _gauge("staged_tickets", "Task attempts with staged records.", stats.tickets)
    yield _gauge("staged_bytes", "Bytes of staged records.", stats.staged_bytes)
    yield _counter("staged_commits", "Commits that published staged records.", stats.commits)
    yield _counter("staged_commits_repeated", "Repeated commits, which published nothing.", stats.repeated_commits)
    yield _counter("staged_records_published", "Staged records published.", stats.published_records)
    text = "Task attempts whose records were dropped, by reason: aborted, expired."
    dropped = {"aborted": stats.aborted_tickets, "expired": stats.expired_tickets}
    yield _counts("staged_tickets_dropped", text, "reason", dropped)


def _pipelines(figures: Figures) -> Iterator[Metric]:
    left_out = 0
    shown: list[PipelineInfo] = []
    rows: list[tuple[tuple[str, str], Stage]] = []
    for each in figures.pipelines:
        if len(shown) + len(rows) + len(each.stages) >= PIPELINE_STAGES_EXPORTED_MAX:
            left_out += 1
            continue
        shown.append(each)
        rows += [((each.name, stage.name), stage) for stage in each.stages]
    text = "1 while a run of the pipeline reports, else 0."
    yield _gauges("pipeline_up", text, ["pipeline"], (((each.name,), each.alive) for each in shown))
    labels = ["pipeline", "stage"]
    text = "Records read by the current or last run."
    yield _counters("pipeline_rows", text, labels, ((at, stage.rows) for at, stage in rows))
    text = "Records of the current or last run that became dead letters."
    yield _counters("pipeline_rejects", text, labels, ((at, stage.rejects) for at, stage in rows))
    text = "Rows of the current or last run that did not meet an expectation and were dropped."
    yield _counters("pipeline_dropped", text, labels, ((at, stage.dropped) for at, stage in rows))
    text = "Rows of the current or last run that came after their window was done and were dropped (watermark_ms)."
    yield _counters("pipeline_late", text, labels, ((at, stage.late) for at, stage in rows))
    text = "Rows of the current or last run that are dated too far ahead and were left out (future_ms)."
    yield _counters("pipeline_future", text, labels, ((at, stage.future) for at, stage in rows))
    text = "Batches of the current or last run."
    yield _counters("pipeline_batches", text, labels, ((at, stage.batches) for at, stage in rows))
    text = "Lag of the stage in records; absent before its first batch."
    lags = ((at, None if stage.lag == LAG_UNKNOWN else stage.lag) for at, stage in rows)
    yield _gauges("pipeline_lag_records", text, labels, lags)
    text = "Duration of the last batch."
    yield _gauges("pipeline_batch_seconds", text, labels, ((at, stage.batch_ms / 1000) for at, stage in rows))
    yield _gauge(
        "pipelines_left_out", "Pipelines beyond the first 1000 stages, which have no series of their own.", left_out
    )


def _schemas(figures: Figures) -> Iterator[Metric]:
    stats = figures.validation
    yield _counter("schema_checked_records", "Records checked against a schema.", stats.checked_records)
    yield _counter(
        "schema_refused_writes", "Writes refused because a record did not match its schema.", stats.refused_writes
    )
    yield _counter(
        "schema_worker_checks",
        "Writes checked by a worker process because they are large or their schema is costly.",
        stats.worker_runs,
    )


def _access(figures: Figures) -> Iterator[Metric]:
    logins, audit = figures.logins, figures.audit
    text = "Logins by result: succeeded, failed, throttled."
    results = {"succeeded": logins.succeeded, "failed": logins.failed, "throttled": logins.throttled}
    yield _counts("logins", text, "result", results)
    text = "Audit events by result: written, folded into another event, dropped."
    results = {"written": audit.written, "folded": audit.folded, "dropped": audit.dropped}
    yield _counts("audit_events", text, "result", results)


def _listeners(figures: Figures) -> Iterator[Metric]:
    text = "Always 1; the labels name the address."
    yield _gauges("listener_info", text, ["listener", "address"], ((at, 1) for at in figures.addresses.items()))
    rows = [((name,), stats) for name, stats in figures.listeners.items()]
    yield _gauges("connections", "Open connections.", ["listener"], ((at, row.connections_open) for at, row in rows))
    yield from _listener_counters(LISTENER_COUNTERS, rows)
    yield _counters(
        "connections_cut",
        "Connections that ended early, by reason: idle, frame_timeout, unread (replies), shutdown, reset.",
        ["listener", "reason"],
        (((*at, reason), getattr(row, attribute)) for at, row in rows for reason, attribute in CLOSED_REASONS),
    )
    over_quic = [(at, row) for at, row in rows if isinstance(row, QuicListenerStats)]
    yield _gauges("streams", "Open streams.", ["listener"], ((at, row.streams_open) for at, row in over_quic))
    text = "Handshakes in progress."
    yield _gauges("quic_handshakes", text, ["listener"], ((at, row.handshakes_open) for at, row in over_quic))
    yield from _listener_counters(QUIC_COUNTERS, over_quic)


def _listener_counters(
    counters: Iterable[tuple[str, str, str]], rows: Sequence[tuple[tuple[str], ListenerStats]]
) -> Iterator[Metric]:
    for metric, attribute, text in counters:
        yield _counters(metric, text, ["listener"], [(at, getattr(row, attribute)) for at, row in rows])


def _requests(figures: Figures) -> Iterator[Metric]:
    rows = [((name,), row) for name, row in figures.requests.items()]
    text = "Records received from clients, refused ones included."
    yield _counters("received_records", text, ["listener"], ((at, row.received_records) for at, row in rows))
    text = "Records sent to clients. A Spark job on the broker's machine reads files, which is not counted."
    yield _counters("sent_records", text, ["listener"], ((at, row.sent_records) for at, row in rows))
    by_operation = (((*at, name), count) for at, row in rows for name, count in row.by_operation.items())
    yield _counters("requests", "Requests received.", ["listener", "operation"], by_operation)
    text = "Requests answered with an error."
    yield _counters("request_errors", text, ["listener"], ((at, row.errors) for at, row in rows))
    text = "Requests answered with an internal error; the log has the details."
    yield _counters("internal_errors", text, ["listener"], ((at, row.internal_errors) for at, row in rows))


def _pushes(figures: Figures) -> Iterator[Metric]:
    rows = [((name,), stats) for name, stats in figures.pushes.items()]
    text = "Connected subscribers (Felix) and readers (Fujin)."
    yield _gauges("push_subscribers", text, ["listener"], ((at, row.subscribers) for at, row in rows))
    yield _counters(
        "push_events",
        "Events by result: delivered, dropped (slow subscriber), oversized, skipped (empty).",
        ["listener", "result"],
        (((*at, result), getattr(row, attribute)) for at, row in rows for result, attribute in PUSH_RESULTS),
    )
    text = "Events encoded; subscribers that read the same form share one."
    yield _counters("push_encoded_events", text, ["listener"], ((at, row.encoded_events) for at, row in rows))
    text = "Subscriptions closed because the subscriber was slow."
    yield _counters("push_subscribers_closed", text, ["listener"], ((at, row.closed_subscribers) for at, row in rows))
    text = "Connections closed because a PING was not answered."
    yield _counters("ping_timeouts", text, ["listener"], ((at, row.ping_timeouts) for at, row in rows))


def _cache(figures: Figures) -> Iterator[Metric]:
    entries, size_bytes, stats = figures.cache
    yield _gauge("cache_entries", "Cached values.", entries)
    yield _gauge("cache_bytes", "Memory of cached values.", size_bytes)
    gets = {"hit": stats.hits, "miss": stats.misses}
    yield _counts("cache_gets", "Cache reads by result: hit, miss.", "result", gets)
    yield _counter("cache_puts", "Cache writes.", stats.puts)
    removed = {"expired": stats.expired, "evicted": stats.evicted}
    yield _counts("cache_removed", "Cached values removed, by reason: expired, evicted.", "reason", removed)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _counters(name: str, text: str, labels: Sequence[str], series: Series) -> Metric:
    return _with_series(CounterMetricFamily(PREFIX + name, text, labels=labels), series)


def _counts(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    return _counters(name, text, [label], (((result,), value) for result, value in values.items()))


def _gauges(name: str, text: str, labels: Sequence[str], series: Series) -> Metric:
    return _with_series(GaugeMetricFamily(PREFIX + name, text, labels=labels), series)


def _with_series(family: _Family, series: Series) -> _Family:
    for values, value in series:
        if value is not None:
            family.add_metric(values, value)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    bounds = [*(str(float(bound)) for bound in histogram.bounds), "+Inf"]
    return HistogramMetricFamily(
        PREFIX + name,
        text,
        buckets=list(zip(bounds, accumulate(histogram.counts), strict=True)),
        sum_value=histogram.total,
    )


SECTIONS: dict[str, Callable[[Figures], Iterator[Metric]]] = {
    "Broker": _broker,
    "Log": _log,
    "Partitions": _partitions,
    "Consumer groups": _groups,
    "Subscriptions, delayed records and dead letters": _lifetimes,
    "Transactions": _transactions,
    "Idempotent producers": _producers,
    "Staged writes (Spark)": _staging,
    "Pipelines": _pipelines,
    "Schemas": _schemas,
    "Access and audit": _access,
    "Connections": _listeners,
    "Records and requests": _requests,
    "Pushed records (Fujin, Felix)": _pushes,
    "Cache (Felix)": _cache,
}
"""Families by the heading they have in the reference."""
