"""How the broker is: readiness, what it has counted, its configuration, and the pipelines that report to it."""

from __future__ import annotations

import shutil
from typing import Any

from penstock.admin.api.table import Call, Reply, endpoint
from penstock.broker.access.checks import BROKER, Declaration, Operation, ResourceKind, authorize
from penstock.broker.cluster import Cluster
from penstock.broker.pipelines import Pipelines
from penstock.stats import Histogram

READ_CONFIGURATION = Declaration(Operation.ADMIN, ResourceKind.BROKER)


class ListenerState(Reply, frozen=True):
    name: str
    connections: int
    received_bytes: int
    sent_bytes: int
    requests: int
    errors: int


class Latency(Reply, frozen=True):
    """A histogram since the start: how many took at most so many seconds, by bound; the last count is of all."""

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
    flush: Latency
    loop_lag: Latency
    listeners: list[ListenerState]


class SettingState(Reply, frozen=True):
    name: str
    value: str
    origin: str


class StageState(Reply, frozen=True):
    name: str
    state: str
    rows: int
    rejects: int
    lag: int | None
    batches: int
    batch_ms: int


class PipelineState(Reply, frozen=True):
    name: str
    owner: str
    run: str
    state: str
    message: str
    alive: bool
    stopping: bool
    started_ms: int
    updated_ms: int
    stages: list[StageState]


@endpoint("GET", "/status", asks=Cluster.status)
async def get_status(call: Call) -> Status:
    """Return how the broker is and what it has counted since its start."""
    broker, sources = call.broker, call.given.sources
    cluster = broker.cluster.status(call.principal)
    engine, readiness = sources.engine.stats, call.given.readiness()
    files = sources.engine.files
    disk = None if files is None else shutil.disk_usage(files.directory)
    listeners = [
        ListenerState(
            name,
            listener.stats.connections_open,
            listener.stats.bytes_in,
            listener.stats.bytes_out,
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
        len(broker.subscriptions),
        broker.subscriptions.in_flight,
        broker.dead_letters.stats.sent,
        broker.transactions.stats.open,
        broker.schedule.pending,
        None if disk is None else disk.free,
        None if disk is None else disk.total,
        _latency(engine.flush_seconds),
        _latency(sources.loop_lag),
        listeners,
    )


def _latency(histogram: Histogram) -> Latency:
    return Latency([float(bound) for bound in histogram.bounds], list(histogram.counts), histogram.total)


@endpoint("GET", "/configuration", asks=READ_CONFIGURATION)
async def get_configuration(call: Call) -> list[SettingState]:
    """Return every setting with its origin. Secrets are hidden."""
    authorize(call.broker.access, call.principal, READ_CONFIGURATION.operation, BROKER)
    return [SettingState(name, each.value, each.origin) for name, each in call.given.configuration.items()]


@endpoint("GET", "/pipelines", asks=Pipelines.reported)
async def list_pipelines(call: Call) -> list[PipelineState]:
    """Return what pipelines last said of themselves."""
    return [
        PipelineState(
            each.name,
            each.owner,
            each.run,
            each.state,
            each.message,
            each.alive,
            each.stopping,
            each.started_ms,
            each.updated_ms,
            [
                StageState(
                    stage.name,
                    stage.state,
                    stage.rows,
                    stage.rejects,
                    stage.lag if stage.lag >= 0 else None,
                    stage.batches,
                    stage.batch_ms,
                )
                for stage in each.stages
            ],
        )
        for each in call.broker.pipelines.reported(call.principal)
    ]
