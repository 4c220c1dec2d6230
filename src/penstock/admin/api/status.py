"""How the broker is: readiness, what it has counted, the last hour, its configuration."""

from __future__ import annotations

import shutil
from typing import Any

from penstock.admin.alerts import Severity
from penstock.admin.api.table import Call, Reply, endpoint
from penstock.admin.figures import addresses
from penstock.broker.access.checks import BROKER, Declaration, Operation, ResourceKind, authorize, is_allowed
from penstock.broker.cluster import Cluster
from penstock.stats import Histogram

DESCRIBE_BROKER = Declaration(Operation.DESCRIBE, ResourceKind.BROKER)
READ_CONFIGURATION = Declaration(Operation.ADMIN, ResourceKind.BROKER)


class ListenerState(Reply, frozen=True):
    name: str
    address: str
    """Where it listens; empty until it has started."""
    connections: int
    received_bytes: int
    sent_bytes: int
    received_records: int
    """That clients sent to be stored, refused ones included."""
    sent_records: int
    requests: int
    errors: int


class Latency(Reply, frozen=True):
    """A histogram since the start: how many took at most this many seconds, by bound; the last count is of all."""

    bounds_s: list[float]
    counts: list[int]
    total_s: float


class Status(Reply, frozen=True):
    version: str
    node: str
    ready: bool
    readiness: dict[str, Any]
    """As `/readyz` tells it, with the partitions and tasks that fail."""
    started_ms: int
    now_ms: int
    topics: int
    partitions: int
    partitions_failed: int
    appended_records: int
    """Since the start, as all counts here."""
    appended_bytes: int
    commits: int
    commit_errors: int
    subscriptions: int
    in_flight: int
    dead_letters: int
    open_transactions: int
    delayed: int
    disk_free_bytes: int | None
    disk_total_bytes: int | None
    disk_full_in_s: float | None
    """At the pace of the last hour; null if the disk does not fill, or it is too early to tell."""
    flush: Latency
    loop_lag: Latency
    listeners: list[ListenerState]


class Samples(Reply, frozen=True):
    """The last hour, one sample every ten seconds, the oldest first. Counts are since the start."""

    at_ms: list[int]
    appended_records: list[int]
    appended_bytes: list[int]
    received_bytes: list[int]
    """By all listeners."""
    sent_bytes: list[int]
    received_records: list[int]
    """By all listeners, refused ones included."""
    sent_records: list[int]
    disk_free_bytes: list[int]
    """-1 if the log is not in files."""


class AlertState(Reply, frozen=True):
    name: str
    """As in the suggested alerts for Prometheus."""
    severity: Severity
    summary: str
    action: str
    """What to do."""
    since_ms: int


class SettingState(Reply, frozen=True):
    name: str
    value: str
    origin: str


@endpoint("GET", "/status", asks=Cluster.status)
async def get_status(call: Call) -> Status:
    """Return how the broker is and what it has counted since its start."""
    broker, sources = call.broker, call.given.sources
    cluster = broker.cluster.status(call.principal)
    engine, readiness = sources.engine.stats, call.given.readiness()
    files = sources.engine.files
    disk = None if files is None else shutil.disk_usage(files.directory)
    started = addresses(sources.listeners)
    listeners = [
        ListenerState(
            name,
            started.get(name, ""),
            listener.stats.connections_open,
            listener.stats.bytes_in,
            listener.stats.bytes_out,
            sources.sessions[name].received_records,
            sources.sessions[name].sent_records,
            sum(sources.sessions[name].requests_by_name().values()),
            sources.sessions[name].errors,
        )
        for name, listener in sources.listeners.items()
    ]
    return Status(
        call.given.version,
        cluster.name,
        bool(readiness["ready"]),
        readiness,
        call.given.started_ms,
        call.given.clock.now_ms(),
        cluster.topics,
        cluster.partitions,
        cluster.partitions_failed,
        engine.appended_records,
        engine.appended_bytes,
        engine.commits,
        engine.commit_errors,
        broker.subscriptions.count,
        broker.subscriptions.in_flight,
        broker.dead_letters.stats.sent,
        broker.transactions.stats.open,
        broker.schedule.pending,
        None if disk is None else disk.free,
        None if disk is None else disk.total,
        call.given.history.disk_full_in_s(),
        _latency(engine.flush_seconds),
        _latency(sources.loop_lag),
        listeners,
    )


def _latency(histogram: Histogram) -> Latency:
    return Latency([float(bound) for bound in histogram.bounds], list(histogram.counts), histogram.total)


@endpoint("GET", "/history", asks=DESCRIBE_BROKER)
async def get_history(call: Call) -> Samples:
    """Return what the broker counted in the last hour, for plots."""
    authorize(call.broker.access, call.principal, DESCRIBE_BROKER.operation, BROKER)
    history = call.given.history
    return Samples(
        list(history.times_ms),
        list(history.appended_records),
        list(history.appended_bytes),
        list(history.received_bytes),
        list(history.sent_bytes),
        list(history.received_records),
        list(history.sent_records),
        list(history.disk_free_bytes),
    )


@endpoint("GET", "/alerts", asks=DESCRIBE_BROKER)
async def list_alerts(call: Call) -> list[AlertState]:
    """List what is wrong now: the suggested alerts that are on. Those about groups are for who may list groups."""
    policy, principal = call.broker.access, call.principal
    authorize(policy, principal, DESCRIBE_BROKER.operation, BROKER)
    groups_shown = is_allowed(policy, principal, Operation.ADMIN, BROKER)
    return [
        AlertState(rule.name, rule.severity, summary, rule.action, since_ms)
        for rule, summary, since_ms in call.given.alerts.on
        if groups_shown or not rule.about_groups
    ]


@endpoint("GET", "/configuration", asks=READ_CONFIGURATION)
async def get_configuration(call: Call) -> list[SettingState]:
    """Return every setting with its origin. Secrets are hidden."""
    authorize(call.broker.access, call.principal, READ_CONFIGURATION.operation, BROKER)
    return [SettingState(name, each.value, each.origin) for name, each in call.given.configuration.items()]
