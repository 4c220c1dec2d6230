"""Figures as Prometheus text.

The families are built for each scrape from plain numbers; there is no registry and no metric object anywhere else. Rendering the
text takes milliseconds for a thousand partitions, so it happens on a thread. docs/reference/metrics.md is generated from `SECTIONS`.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from penstock.admin.figures import Figures, Sources, gather
from penstock.broker.pipelines import LAG_UNKNOWN
from penstock.net.stats import QuicListenerStats
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
CLOSED_REASONS = (
    ("idle", "closed_idle"),
    ("frame_timeout", "closed_header"),
    ("unread", "closed_unread"),
    ("shutdown", "closed_unanswered"),
    ("reset", "resets"),
)


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
    build = GaugeMetricFamily(
        PREFIX + "build_info", "Always 1; the labels name the version.", labels=["version", "python"]
    )
    build.add_metric([version("penstock"), platform.python_version()], 1)
    yield build
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
    size = GaugeMetricFamily(PREFIX + "disk_size_bytes", "Size of the file system of the data directory.")
    free = GaugeMetricFamily(PREFIX + "disk_free_bytes", "Free space of the file system of the data directory.")
    if figures.disk.size_bytes:
        size.add_metric([], figures.disk.size_bytes)
        free.add_metric([], figures.disk.free_bytes)
    yield from (size, free)


def _partitions(figures: Figures) -> Iterator[Metric]:
    labels = ["topic", "partition"]
    start = GaugeMetricFamily(
        PREFIX + "partition_start_offset", "Log start offset: the lowest offset that can be read.", labels=labels
    )
    end = GaugeMetricFamily(
        PREFIX + "partition_end_offset", "High watermark: the offset after the last committed record.", labels=labels
    )
    size = GaugeMetricFamily(PREFIX + "partition_size_bytes", "Size of the partition on disk.", labels=labels)
    for row in figures.partitions:
        values = [row.topic, str(row.partition)]
        start.add_metric(values, row.start_offset)
        end.add_metric(values, row.end_offset)
        size.add_metric(values, row.size_bytes)
    yield from (start, end, size)
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
    records = GaugeMetricFamily(
        PREFIX + "group_lag_records", "Consumer lag: records that the group has not committed.", labels=labels
    )
    seconds = GaugeMetricFamily(
        PREFIX + "group_lag_seconds",
        "Age of the oldest record that the group has not committed, if known.",
        labels=labels,
    )
    for row in figures.lags.lags:
        values = [row.group, row.topic, str(row.partition)]
        records.add_metric(values, row.records)
        if row.seconds is not None:
            seconds.add_metric(values, row.seconds)
    yield from (records, seconds)
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
    lag = GaugeMetricFamily(
        PREFIX + "subscription_lag_records", "Records that are not settled in the subscription.", labels=labels
    )
    seconds = GaugeMetricFamily(
        PREFIX + "subscription_lag_seconds", "Age of the oldest record that is not settled.", labels=labels
    )
    in_flight = GaugeMetricFamily(
        PREFIX + "subscription_in_flight", "Deliveries that wait for their acknowledgement.", labels=labels
    )
    redeliveries = CounterMetricFamily(
        PREFIX + "subscription_redeliveries", "Deliveries of records that were delivered before.", labels=labels
    )
    dead_letters = CounterMetricFamily(
        PREFIX + "subscription_dead_letters", "Records of the subscription that became dead letters.", labels=labels
    )
    for row in figures.subscription_statuses:
        values = [row.name.removeprefix("#"), row.topic]
        lag.add_metric(values, row.lag)
        if row.seconds is not None:
            seconds.add_metric(values, row.seconds)
        in_flight.add_metric(values, row.in_flight)
        redeliveries.add_metric(values, row.redeliveries)
        dead_letters.add_metric(values, row.dead_letters)
    yield from (lag, seconds, in_flight, redeliveries, dead_letters)
    yield _gauge(
        "subscription_lags_left_out",
        "Subscriptions without series of their own in this scrape.",
        max(0, figures.subscriptions - len(figures.subscription_statuses)),
    )


def _background(figures: Figures) -> Iterator[Metric]:
    failures = CounterMetricFamily(
        PREFIX + "background_failures", "Failed runs of the background task.", labels=["task"]
    )
    failing = GaugeMetricFamily(
        PREFIX + "background_failing",
        "1 if the last run of the background task failed, else 0; the broker is not ready meanwhile.",
        labels=["task"],
    )
    for task, count in figures.background_failures.items():
        failures.add_metric([task], count)
        failing.add_metric([task], task in figures.background_failing)
    yield from (failures, failing)


def _transactions(figures: Figures) -> Iterator[Metric]:
    stats = figures.transactions
    yield _gauge("transactions_open", "Open transactions.", stats.open)
    yield _gauge("transactions_open_bytes", "Memory of the records of open transactions.", stats.open_bytes)
    yield _counter("transactions_begun", "Transactions begun.", stats.begun)
    ended = CounterMetricFamily(
        PREFIX + "transactions_ended", "Transactions by outcome: committed, rolled_back, timed_out.", labels=["result"]
    )
    for result in ("committed", "rolled_back", "timed_out"):
        ended.add_metric([result], getattr(stats, result))
    yield ended


def _producers(figures: Figures) -> Iterator[Metric]:
    known, answers_bytes, stats = figures.producers
    yield _gauge("producers", "Idempotent producers that the broker knows.", known)
    yield _gauge("producers_answers_bytes", "Memory of answers that may be asked for again.", answers_bytes)
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
    dropped = CounterMetricFamily(
        PREFIX + "staged_tickets_dropped",
        "Task attempts whose records were dropped, by reason: aborted, expired.",
        labels=["reason"],
    )
    dropped.add_metric(["aborted"], stats.aborted_tickets)
    dropped.add_metric(["expired"], stats.expired_tickets)
    yield dropped


def _pipelines(figures: Figures) -> Iterator[Metric]:
    up = GaugeMetricFamily(
        PREFIX + "pipeline_up", "1 while a run of the pipeline reports, else 0.", labels=["pipeline"]
    )
    labels = ["pipeline", "stage"]
    rows = CounterMetricFamily(PREFIX + "pipeline_rows", "Records read by the current or last run.", labels=labels)
    rejects = CounterMetricFamily(
        PREFIX + "pipeline_rejects", "Records of the current or last run that became dead letters.", labels=labels
    )
    batches = CounterMetricFamily(PREFIX + "pipeline_batches", "Batches of the current or last run.", labels=labels)
    lag = GaugeMetricFamily(
        PREFIX + "pipeline_lag_records", "Lag of the stage in records; absent before its first batch.", labels=labels
    )
    seconds = GaugeMetricFamily(PREFIX + "pipeline_batch_seconds", "Duration of the last batch.", labels=labels)
    left_out = exported = 0
    for pipeline in figures.pipelines:
        if exported + len(pipeline.stages) >= PIPELINE_STAGES_EXPORTED_MAX:
            left_out += 1
            continue
        exported += 1 + len(pipeline.stages)
        up.add_metric([pipeline.name], pipeline.alive)
        for stage in pipeline.stages:
            values = [pipeline.name, stage.name]
            rows.add_metric(values, stage.rows)
            rejects.add_metric(values, stage.rejects)
            batches.add_metric(values, stage.batches)
            if stage.lag != LAG_UNKNOWN:
                lag.add_metric(values, stage.lag)
            seconds.add_metric(values, stage.batch_ms / 1000)
    yield from (up, rows, rejects, batches, lag, seconds)
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
    logins = CounterMetricFamily(
        PREFIX + "logins", "Logins by result: succeeded, failed, throttled.", labels=["result"]
    )
    for result in ("succeeded", "failed", "throttled"):
        logins.add_metric([result], getattr(figures.logins, result))
    events = CounterMetricFamily(
        PREFIX + "audit_events",
        "Audit events by result: written, folded into another event, dropped.",
        labels=["result"],
    )
    for result in ("written", "folded", "dropped"):
        events.add_metric([result], getattr(figures.audit, result))
    yield from (logins, events)


def _listeners(figures: Figures) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        PREFIX + "listener_info", "Always 1; the labels name the address.", labels=["listener", "address"]
    )
    for name, address in figures.addresses.items():
        info.add_metric([name, address], 1)
    yield info
    connections = GaugeMetricFamily(PREFIX + "connections", "Open connections.", labels=["listener"])
    for name, stats in figures.listeners.items():
        connections.add_metric([name], stats.connections_open)
    yield connections
    for metric, attribute, text in LISTENER_COUNTERS:
        family = CounterMetricFamily(PREFIX + metric, text, labels=["listener"])
        for name, stats in figures.listeners.items():
            family.add_metric([name], getattr(stats, attribute))
        yield family
    closed = CounterMetricFamily(
        PREFIX + "connections_cut",
        "Connections that ended early, by reason: idle, frame_timeout, unread (replies), shutdown, reset.",
        labels=["listener", "reason"],
    )
    for name, stats in figures.listeners.items():
        for reason, attribute in CLOSED_REASONS:
            closed.add_metric([name, reason], getattr(stats, attribute))
    yield closed
    yield from _quic_listeners(figures)


def _quic_listeners(figures: Figures) -> Iterator[Metric]:
    listeners = {name: stats for name, stats in figures.listeners.items() if isinstance(stats, QuicListenerStats)}
    streams = GaugeMetricFamily(PREFIX + "streams", "Open streams.", labels=["listener"])
    handshakes = GaugeMetricFamily(PREFIX + "quic_handshakes", "Handshakes in progress.", labels=["listener"])
    for name, stats in listeners.items():
        streams.add_metric([name], stats.streams_open)
        handshakes.add_metric([name], stats.handshakes_open)
    yield from (streams, handshakes)
    for metric, attribute, text in QUIC_COUNTERS:
        family = CounterMetricFamily(PREFIX + metric, text, labels=["listener"])
        for name, stats in listeners.items():
            family.add_metric([name], getattr(stats, attribute))
        yield family


def _requests(figures: Figures) -> Iterator[Metric]:
    received = CounterMetricFamily(
        PREFIX + "received_records", "Records received from clients, refused ones included.", labels=["listener"]
    )
    sent = CounterMetricFamily(
        PREFIX + "sent_records",
        "Records sent to clients. A Spark job on the broker's machine reads files, which is not counted.",
        labels=["listener"],
    )
    requests = CounterMetricFamily(PREFIX + "requests", "Requests received.", labels=["listener", "operation"])
    errors = CounterMetricFamily(PREFIX + "request_errors", "Requests answered with an error.", labels=["listener"])
    internal = CounterMetricFamily(
        PREFIX + "internal_errors",
        "Requests answered with an internal error; the log has the details.",
        labels=["listener"],
    )
    for name, row in figures.requests.items():
        received.add_metric([name], row.received_records)
        sent.add_metric([name], row.sent_records)
        for operation, count in row.by_operation.items():
            requests.add_metric([name, operation], count)
        errors.add_metric([name], row.errors)
        internal.add_metric([name], row.internal_errors)
    yield from (received, sent, requests, errors, internal)


def _pushes(figures: Figures) -> Iterator[Metric]:
    open_now = GaugeMetricFamily(
        PREFIX + "push_subscribers", "Connected subscribers (Felix) and readers (Fujin).", labels=["listener"]
    )
    events = CounterMetricFamily(
        PREFIX + "push_events",
        "Events by result: delivered, dropped (slow subscriber), oversized, skipped (empty).",
        labels=["listener", "result"],
    )
    encoded = CounterMetricFamily(
        PREFIX + "push_encoded_events",
        "Events encoded; subscribers that read the same form share one.",
        labels=["listener"],
    )
    closed = CounterMetricFamily(
        PREFIX + "push_subscribers_closed", "Subscriptions closed because the subscriber was slow.", labels=["listener"]
    )
    pings = CounterMetricFamily(
        PREFIX + "ping_timeouts", "Connections closed because a PING was not answered.", labels=["listener"]
    )
    for name, stats in figures.pushes.items():
        open_now.add_metric([name], stats.subscribers)
        events.add_metric([name, "delivered"], stats.sent_records)
        events.add_metric([name, "dropped"], stats.dropped_events)
        events.add_metric([name, "oversized"], stats.oversized_events)
        events.add_metric([name, "skipped"], stats.skipped_events)
        encoded.add_metric([name], stats.encoded_events)
        closed.add_metric([name], stats.closed_subscribers)
        pings.add_metric([name], stats.ping_timeouts)
    yield from (open_now, events, encoded, closed, pings)


def _cache(figures: Figures) -> Iterator[Metric]:
    entries, size_bytes, stats = figures.cache
    yield _gauge("cache_entries", "Cached values.", entries)
    yield _gauge("cache_bytes", "Memory of cached values.", size_bytes)
    gets = CounterMetricFamily(PREFIX + "cache_gets", "Cache reads by result: hit, miss.", labels=["result"])
    gets.add_metric(["hit"], stats.hits)
    gets.add_metric(["miss"], stats.misses)
    yield gets
    yield _counter("cache_puts", "Cache writes.", stats.puts)
    removed = CounterMetricFamily(
        PREFIX + "cache_removed", "Cached values removed, by reason: expired, evicted.", labels=["reason"]
    )
    removed.add_metric(["expired"], stats.expired)
    removed.add_metric(["evicted"], stats.evicted)
    yield removed


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


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
