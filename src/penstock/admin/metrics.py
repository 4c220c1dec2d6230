"""Figures as Prometheus text.

The families are made anew for each scrape from plain numbers; there is no registry and no metric object anywhere else. Making the
text takes milliseconds for a thousand partitions, so it happens on a thread.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterator
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
    ("connections_refused", "connections_refused", "Connections closed at once because the listener had its maximum."),
    ("tls_handshake_failures", "handshake_failures", "Connections that ended in the TLS handshake."),
    ("protocol_errors", "protocol_errors", "Connections ended because the peer broke its protocol."),
    ("session_errors", "session_errors", "Connections ended by an unexpected error of the broker."),
    ("backpressure_pauses", "read_pauses", "Times a socket was left unread because too much was in flight."),
    (
        "accept_pauses",
        "accept_pauses",
        "Times accepting paused because the system had no descriptor or memory to give.",
    ),
)
QUIC_COUNTERS = (
    ("streams_opened", "streams_total", "Streams opened, by either side."),
    ("streams_aborted", "streams_aborted", "Streams that a client reset or refused."),
    ("quic_retries", "retries_sent", "Clients asked to show that their address is their own."),
    ("quic_handshakes_dropped", "handshakes_dropped", "Handshakes not begun because too many were under way."),
    ("quic_datagrams_dropped", "datagrams_dropped", "Datagrams that belong to no connection."),
    ("quic_rebindings", "rebindings", "Times a client continued from another port."),
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


@dataclass(frozen=True, slots=True)
class _Scrape:
    figures: Figures
    process: ProcessCollector

    def collect(self) -> Iterator[Metric]:
        yield from families(self.figures)
        yield from self.process.collect()


def families(figures: Figures) -> Iterator[Metric]:
    """Every metric family of a scrape."""
    build = GaugeMetricFamily(PREFIX + "build_info", "The version that runs.", labels=["version", "python"])
    build.add_metric([version("penstock"), platform.python_version()], 1)
    yield build
    yield from _log(figures)
    yield from _partitions(figures)
    yield from _groups(figures)
    yield from _lifetimes(figures)
    yield from _schemas(figures)
    yield from _transactions(figures)
    yield from _staging(figures)
    yield from _pipelines(figures)
    yield from _access(figures)
    yield from _listeners(figures)
    yield from _requests(figures)
    yield from _pushes(figures)
    yield from _cache(figures)
    yield from _background(figures)
    yield _gauge("event_loop_tasks", "Tasks of the event loop that are not done.", figures.loop_tasks)
    yield _histogram("event_loop_lag_seconds", "How late timers of the event loop ran.", figures.loop_lag)


def _log(figures: Figures) -> Iterator[Metric]:
    stats = figures.engine
    yield _counter("appended_records", "Records committed to the log.", stats.appended_records)
    yield _counter("appended_bytes", "Bytes committed to the log.", stats.appended_bytes)
    yield _counter("commits", "Commits, each a block in every partition it wrote to.", stats.commits)
    yield _counter("commit_errors", "Commits that failed.", stats.commit_errors)
    yield _counter("corrupt_blocks", "Blocks whose checksum did not match when they were read.", stats.corrupt_blocks)
    yield _counter("torn_tails", "Partitions whose unfinished last block was cut off at start.", stats.torn_tails)
    yield _histogram("commit_records", "Records of one commit.", stats.commit_records)
    yield _histogram("flush_duration_seconds", "Time one flush to disk took.", stats.flush_seconds)


def _partitions(figures: Figures) -> Iterator[Metric]:
    labels = ["topic", "partition"]
    start = GaugeMetricFamily(PREFIX + "partition_start_offset", "The lowest offset that can be read.", labels=labels)
    end = GaugeMetricFamily(
        PREFIX + "partition_end_offset", "The offset after the last committed record.", labels=labels
    )
    size = GaugeMetricFamily(PREFIX + "partition_size_bytes", "Bytes the partition holds on disk.", labels=labels)
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
        "partitions_left_out", "Partitions without series of their own in this scrape.", figures.partitions_left_out
    )


def _groups(figures: Figures) -> Iterator[Metric]:
    labels = ["group", "topic", "partition"]
    records = GaugeMetricFamily(PREFIX + "group_lag_records", "Records the group has not committed yet.", labels=labels)
    seconds = GaugeMetricFamily(
        PREFIX + "group_lag_seconds", "Age of the oldest record the group has not committed yet.", labels=labels
    )
    for row in figures.lags.lags:
        values = [row.group, row.topic, str(row.partition)]
        records.add_metric(values, row.records)
        if row.seconds is not None:
            seconds.add_metric(values, row.seconds)
    yield from (records, seconds)
    yield _gauge("group_lags_left_out", "Group lags without series of their own in this scrape.", figures.lags.left_out)
    yield _counter(
        "group_offsets_truncated",
        "Committed offsets moved back at start to where the log was cut.",
        figures.groups.truncated_offsets,
    )


def _lifetimes(figures: Figures) -> Iterator[Metric]:
    schedule, letters = figures.schedule, figures.dead_letters
    yield _gauge("delayed_pending", "Delayed records that wait for their time.", figures.delayed_pending)
    yield _counter("delayed_accepted", "Delayed records accepted.", schedule.accepted)
    yield _counter("delayed_delivered", "Delayed records written to their topics.", schedule.delivered)
    yield _counter("delayed_cancelled", "Delayed records cancelled before their time.", schedule.cancelled)
    yield _histogram(
        "delayed_lateness_seconds", "How long after its time a delayed record was readable.", schedule.lateness_s
    )
    yield _counter("dead_letters_sent", "Records put aside as dead letters.", letters.sent)
    yield _gauge(
        "dead_letters_waiting",
        "Records that are to become dead letters and could not be written yet.",
        figures.dead_letters_waiting,
    )
    yield _counter("dead_letters_replayed", "Dead letters written to their topics again.", letters.replayed)
    lag = GaugeMetricFamily(
        PREFIX + "subscription_lag_records",
        "Records that are not settled in the subscription.",
        labels=["subscription", "topic"],
    )
    for row in figures.subscription_lags:
        lag.add_metric([row.name, row.topic], row.records)
    yield lag
    yield _gauge(
        "subscription_lags_left_out",
        "Subscriptions without series of their own in this scrape.",
        figures.subscriptions - len(figures.subscription_lags),
    )
    yield _gauge("subscriptions", "Subscriptions that exist.", figures.subscriptions)
    yield _gauge("subscriptions_in_flight", "Deliveries that wait for their acknowledgement.", figures.in_flight)
    yield _counter("subscriptions_delivered", "Deliveries, repetitions included.", figures.deliveries.delivered)
    yield _counter("subscriptions_acknowledged", "Deliveries acknowledged.", figures.deliveries.acknowledged)
    yield _counter(
        "subscriptions_truncated",
        "Cursors of subscriptions moved back at start to where the log was cut.",
        figures.deliveries.truncated,
    )


def _background(figures: Figures) -> Iterator[Metric]:
    failures = CounterMetricFamily(
        PREFIX + "background_failures", "Runs of background tasks that failed.", labels=["task"]
    )
    failing = GaugeMetricFamily(
        PREFIX + "background_failing", "1 if the last run of the background task failed, else 0.", labels=["task"]
    )
    for task, count in figures.background_failures.items():
        failures.add_metric([task], count)
        failing.add_metric([task], task in figures.background_failing)
    yield from (failures, failing)


def _transactions(figures: Figures) -> Iterator[Metric]:
    stats = figures.transactions
    yield _gauge("transactions_open", "Transactions that are open.", stats.open)
    yield _gauge("transactions_open_bytes", "Memory that their records take.", stats.open_bytes)
    yield _counter("transactions_begun", "Transactions begun.", stats.begun)
    ended = CounterMetricFamily(PREFIX + "transactions_ended", "Transactions, by how they ended.", labels=["result"])
    for result in ("committed", "rolled_back", "timed_out"):
        ended.add_metric([result], getattr(stats, result))
    yield ended


def _staging(figures: Figures) -> Iterator[Metric]:
    stats = figures.staging
    yield _gauge("staged_tickets", "Attempts of tasks that have records staged.", stats.tickets)
    yield _gauge("staged_bytes", "Bytes of records that are staged.", stats.staged_bytes)
    yield _counter("staged_commits", "Commits that published staged records.", stats.commits)
    yield _counter("staged_commits_repeated", "Commits of epochs that were committed before.", stats.repeated_commits)
    yield _counter("staged_records_published", "Staged records that were published.", stats.published_records)
    dropped = CounterMetricFamily(PREFIX + "staged_tickets_dropped", "Tickets dropped, by why.", labels=["reason"])
    dropped.add_metric(["aborted"], stats.aborted_tickets)
    dropped.add_metric(["expired"], stats.expired_tickets)
    yield dropped


def _pipelines(figures: Figures) -> Iterator[Metric]:
    up = GaugeMetricFamily(PREFIX + "pipeline_up", "Whether a run of the pipeline reports.", labels=["pipeline"])
    labels = ["pipeline", "stage"]
    rows = CounterMetricFamily(PREFIX + "pipeline_rows", "Records that the last run has read.", labels=labels)
    rejects = CounterMetricFamily(PREFIX + "pipeline_rejects", "Those of them that became dead letters.", labels=labels)
    batches = CounterMetricFamily(PREFIX + "pipeline_batches", "Batches of the last run.", labels=labels)
    lag = GaugeMetricFamily(PREFIX + "pipeline_lag_records", "Records that wait to be read.", labels=labels)
    seconds = GaugeMetricFamily(PREFIX + "pipeline_batch_seconds", "Time that the last batch took.", labels=labels)
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
    yield _gauge("pipelines_left_out", "Pipelines without series of their own in this scrape.", left_out)


def _schemas(figures: Figures) -> Iterator[Metric]:
    stats = figures.validation
    yield _counter("schema_checked_records", "Records checked against a schema.", stats.checked_records)
    yield _counter("schema_refused_writes", "Writes of which a record did not follow its schema.", stats.refused_writes)
    yield _counter("schema_worker_checks", "Writes that a worker process checked.", stats.worker_runs)


def _access(figures: Figures) -> Iterator[Metric]:
    logins = CounterMetricFamily(PREFIX + "logins", "Logins, by how they ended.", labels=["result"])
    for result in ("succeeded", "failed", "throttled"):
        logins.add_metric([result], getattr(figures.logins, result))
    events = CounterMetricFamily(PREFIX + "audit_events", "Events of the audit trail.", labels=["result"])
    for result in ("written", "folded", "dropped"):
        events.add_metric([result], getattr(figures.audit, result))
    yield from (logins, events)


def _listeners(figures: Figures) -> Iterator[Metric]:
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
        PREFIX + "connections_cut", "Connections that neither side meant to end.", labels=["listener", "reason"]
    )
    for name, stats in figures.listeners.items():
        for reason, attribute in CLOSED_REASONS:
            closed.add_metric([name, reason], getattr(stats, attribute))
    yield closed
    yield from _quic_listeners(figures)


def _quic_listeners(figures: Figures) -> Iterator[Metric]:
    listeners = {name: stats for name, stats in figures.listeners.items() if isinstance(stats, QuicListenerStats)}
    streams = GaugeMetricFamily(PREFIX + "streams", "Open streams.", labels=["listener"])
    handshakes = GaugeMetricFamily(PREFIX + "quic_handshakes", "Handshakes under way.", labels=["listener"])
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
    requests = CounterMetricFamily(PREFIX + "requests", "Requests received.", labels=["listener", "operation"])
    errors = CounterMetricFamily(PREFIX + "request_errors", "Requests answered with an error.", labels=["listener"])
    internal = CounterMetricFamily(
        PREFIX + "internal_errors",
        "Requests answered with an error that is the broker's own fault.",
        labels=["listener"],
    )
    for name, row in figures.requests.items():
        for operation, count in row.by_operation.items():
            requests.add_metric([name, operation], count)
        errors.add_metric([name], row.errors)
        internal.add_metric([name], row.internal_errors)
    yield from (requests, errors, internal)


def _pushes(figures: Figures) -> Iterator[Metric]:
    open_now = GaugeMetricFamily(
        PREFIX + "push_subscribers", "Subscribers that events are sent to.", labels=["listener"]
    )
    events = CounterMetricFamily(
        PREFIX + "push_events", "Events for subscribers, by what became of them.", labels=["listener", "result"]
    )
    encoded = CounterMetricFamily(
        PREFIX + "push_encoded_events",
        "Events laid out, each once for all who read the same form.",
        labels=["listener"],
    )
    closed = CounterMetricFamily(
        PREFIX + "push_subscribers_closed", "Subscribers that were ended for being slow.", labels=["listener"]
    )
    pings = CounterMetricFamily(
        PREFIX + "ping_timeouts", "Connections closed because a ping was not answered.", labels=["listener"]
    )
    for name, stats in figures.pushes.items():
        open_now.add_metric([name], stats.subscribers)
        events.add_metric([name, "delivered"], stats.delivered_events)
        events.add_metric([name, "dropped"], stats.dropped_events)
        events.add_metric([name, "oversized"], stats.oversized_events)
        events.add_metric([name, "skipped"], stats.skipped_events)
        encoded.add_metric([name], stats.encoded_events)
        closed.add_metric([name], stats.closed_subscribers)
        pings.add_metric([name], stats.ping_timeouts)
    yield from (open_now, events, encoded, closed, pings)


def _cache(figures: Figures) -> Iterator[Metric]:
    entries, size_bytes, stats = figures.cache
    yield _gauge("cache_entries", "Values in the cache.", entries)
    yield _gauge("cache_bytes", "Memory that they take.", size_bytes)
    gets = CounterMetricFamily(PREFIX + "cache_gets", "Values asked for.", labels=["result"])
    gets.add_metric(["hit"], stats.hits)
    gets.add_metric(["miss"], stats.misses)
    yield gets
    yield _counter("cache_puts", "Values put.", stats.puts)
    removed = CounterMetricFamily(PREFIX + "cache_removed", "Values that are gone, by why.", labels=["reason"])
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
