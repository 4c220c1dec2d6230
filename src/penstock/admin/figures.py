"""What one scrape exports, gathered on the event loop as plain numbers.

Counters are copied and group lags are looked up here, where the broker's objects may be touched; turning the result into text
(`metrics.py`) then needs none of them and happens on another thread. Topics and groups are made by clients, so how many of their
partitions become time series is bounded, and how many were left out is itself exported.
"""

from __future__ import annotations

import asyncio
import copy
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.broker.access.audit import AuditStats
from penstock.broker.access.checks import SYSTEM
from penstock.broker.access.logins import LoginStats
from penstock.broker.broker import Broker
from penstock.broker.cache.cache import CacheStats
from penstock.broker.deliveries.admin import SubscriptionStatus
from penstock.broker.deliveries.deadletters import DeadLetterStats
from penstock.broker.deliveries.restoring import SubscriptionStats
from penstock.broker.groups.lag import LagReport
from penstock.broker.groups.offsets import GroupStats
from penstock.broker.idempotence.producers import ProducerStats
from penstock.broker.pipelines import PipelineInfo
from penstock.broker.schedule.schedule import ScheduleStats
from penstock.broker.schemas.validation import ValidationStats
from penstock.broker.transactions.tickets import StagingStats
from penstock.broker.transactions.transactions import TransactionStats
from penstock.log.api import Engine, EngineStats
from penstock.net.stats import ListenerStats
from penstock.stats import Histogram, PushStats, SessionStats

# Three and two series each: a scrape at the bounds is 400 KB of text, and gathering it holds the loop for a few milliseconds.
PARTITIONS_EXPORTED_MAX = 1_000
LAGS_EXPORTED_MAX = 1_000


class Listener(Protocol):
    """What of a listener is read here."""

    @property
    def stats(self) -> ListenerStats: ...
    @property
    def address(self) -> str:
        """Raises RuntimeError until it has started."""


class RequestFigures(NamedTuple):
    by_operation: dict[str, int]
    errors: int
    internal_errors: int
    received_records: int
    sent_records: int


class CacheFigures(NamedTuple):
    entries: int
    size_bytes: int
    stats: CacheStats


class DiskFigures(NamedTuple):
    """Of the file system of the data directory; 0 if the log is not in files."""

    size_bytes: int = 0
    free_bytes: int = 0


class ProducerFigures(NamedTuple):
    """Of idempotent producers."""

    known: int
    answers_bytes: int
    stats: ProducerStats


class PartitionFigures(NamedTuple):
    topic: str
    partition: int
    start_offset: int
    end_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Figures:
    engine: EngineStats
    disk: DiskFigures
    topics: int
    partitions: list[PartitionFigures]
    partitions_left_out: int
    partitions_failed: int
    lags: LagReport
    groups: GroupStats
    group_members: int
    """Of consumer groups that share partitions."""
    delayed_pending: int
    schedule: ScheduleStats
    dead_letters: DeadLetterStats
    dead_letters_waiting: int
    """Records that are to become dead letters."""
    subscriptions: int
    subscription_statuses: list[SubscriptionStatus]
    in_flight: int
    """Deliveries of all subscriptions that wait for their acknowledgement."""
    deliveries: SubscriptionStats
    cache: CacheFigures
    validation: ValidationStats
    transactions: TransactionStats
    staging: StagingStats
    producers: ProducerFigures
    pipelines: list[PipelineInfo]
    logins: LoginStats
    audit: AuditStats
    listeners: dict[str, ListenerStats]
    addresses: dict[str, str]
    """Of listeners that have started."""
    requests: dict[str, RequestFigures]
    pushes: dict[str, PushStats]
    """Of listeners whose protocol pushes records."""
    background_failures: dict[str, int]
    background_failing: dict[str, str]
    loop_tasks: int
    loop_lag: Histogram


class Sources(NamedTuple):
    """The live objects of one broker that figures are read from."""

    engine: Engine
    broker: Broker
    listeners: Mapping[str, Listener]
    sessions: Mapping[str, SessionStats]
    loop_lag: Histogram


async def gather(sources: Sources) -> Figures:
    lags = await sources.broker.groups.lags(SYSTEM, LAGS_EXPORTED_MAX)
    subscription_statuses = await sources.broker.subscription_admin.first_statuses(SYSTEM, LAGS_EXPORTED_MAX)
    # From here on nothing waits, so the numbers are of one moment.
    engine = sources.engine
    partitions: list[PartitionFigures] = []
    partitions_left_out = 0
    for name, info in sorted(engine.topics().items()):
        exported = min(info.config.partitions, PARTITIONS_EXPORTED_MAX - len(partitions))
        partitions_left_out += info.config.partitions - exported
        for index in range(exported):
            part = engine.partition(name, index)
            partitions.append(PartitionFigures(name, index, part.start_offset, part.committed_end, part.size_bytes))
    return Figures(
        engine=copy.deepcopy(engine.stats),
        disk=_disk(engine),
        topics=len(engine.topics()),
        partitions=partitions,
        partitions_left_out=partitions_left_out,
        partitions_failed=len(engine.failed.reasons()),
        lags=lags,
        groups=copy.copy(sources.broker.groups.stats),
        group_members=sources.broker.coordinator.member_count,
        delayed_pending=sources.broker.schedule.pending,
        schedule=copy.deepcopy(sources.broker.schedule.stats),
        dead_letters=copy.copy(sources.broker.dead_letters.stats),
        dead_letters_waiting=sources.broker.subscriptions.exhausted,
        subscriptions=len(sources.broker.subscriptions),
        subscription_statuses=subscription_statuses,
        in_flight=sources.broker.subscriptions.in_flight,
        deliveries=copy.copy(sources.broker.subscriptions.stats),
        cache=CacheFigures(
            len(sources.broker.cache), sources.broker.cache.size_bytes, copy.copy(sources.broker.cache.stats)
        ),
        validation=copy.copy(sources.broker.schemas.stats),
        transactions=copy.copy(sources.broker.transactions.stats),
        staging=copy.copy(sources.broker.staging.stats),
        producers=ProducerFigures(
            len(sources.broker.producers),
            sources.broker.producers.size_bytes,
            copy.copy(sources.broker.producers.stats),
        ),
        pipelines=sources.broker.pipelines.infos(),
        logins=copy.copy(sources.broker.logins.stats),
        audit=copy.copy(sources.broker.audit.stats),
        listeners={name: copy.copy(listener.stats) for name, listener in sources.listeners.items()},
        addresses=addresses(sources.listeners),
        requests={
            name: RequestFigures(
                stats.requests_by_name(),
                stats.errors,
                stats.internal_errors,
                stats.received_records,
                stats.sent_records,
            )
            for name, stats in sources.sessions.items()
        },
        pushes={name: copy.copy(stats) for name, stats in sources.sessions.items() if isinstance(stats, PushStats)},
        background_failures=sources.broker.background.failures,
        background_failing=sources.broker.background.failing,
        loop_tasks=len(asyncio.all_tasks()),
        loop_lag=copy.deepcopy(sources.loop_lag),
    )


def _disk(engine: Engine) -> DiskFigures:
    if engine.files is None:
        return DiskFigures()
    usage = shutil.disk_usage(engine.files.directory)
    return DiskFigures(usage.total, usage.free)


def addresses(listeners: Mapping[str, Listener]) -> dict[str, str]:
    """Return where those listen that have started."""
    found = {}
    for name, listener in listeners.items():
        with suppress(RuntimeError):  # not started yet
            found[name] = listener.address
    return found
