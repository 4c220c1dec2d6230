"""The broker as protocols see it: every operation, each taking the principal first and passing the one access check.

This class only puts the parts together. Topics live in the engine, routing in `records`, offsets, members and lag in `groups`; what
each operation needs of the access policy stands above it. A refusal is raised at the call, also where the rest of the operation is
awaited. Nothing here knows a protocol, opens a socket or reads a file.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from penstock.background import Background, run_to_completion
from penstock.broker.access.accounts import Accounts
from penstock.broker.access.api_keys import ApiKeys
from penstock.broker.access.checks import (
    SYSTEM,
    AccessPolicy,
    AccessRules,
    Operation,
    Principal,
    Resource,
    ResourceKind,
    is_allowed,
    on_broker,
    on_group,
    on_topic,
    on_topic_group,
)
from penstock.broker.access.explaining import Explaining
from penstock.broker.access.policy import AccessSettings
from penstock.broker.cache.cache import Cache
from penstock.broker.cluster import Cluster
from penstock.broker.deliveries.deadletters import DeadLetters
from penstock.broker.deliveries.policy import DeliveryPolicy
from penstock.broker.deliveries.subscriptions import Subscriptions
from penstock.broker.groups.coordinator import Coordinator
from penstock.broker.groups.groups import GroupInfo, Groups
from penstock.broker.groups.lag import LAGS_MAX, Lag, LagReport, Lags, RecordAges
from penstock.broker.groups.monitoring import Monitoring
from penstock.broker.groups.resets import Resets
from penstock.broker.idempotence.producers import IdempotentProducers
from penstock.broker.keyed_locks import KeyedLocks
from penstock.broker.leading import Leader, Leading
from penstock.broker.limits import BrokerLimits
from penstock.broker.part import Context
from penstock.broker.pipelines import Pipelines
from penstock.broker.records.faults import Faults
from penstock.broker.records.producer import ANY_PARTITION, Producer
from penstock.broker.records.spreading import ALL_ROWS, OnPlaced, Placement
from penstock.broker.schedule.schedule import Schedule
from penstock.broker.schemas.operations import Schemas
from penstock.broker.schemas.reference import parse_reference
from penstock.broker.schemas.registry import Registry
from penstock.broker.schemas.validation import Validation
from penstock.broker.topics.changes import TopicChanges
from penstock.broker.topics.quota import TopicQuota
from penstock.broker.topics.settings import TopicDescription, check_topic_config, describe
from penstock.broker.tracing import Tracing, ending, error_of_placed
from penstock.broker.transactions.staging import Staging
from penstock.broker.transactions.transactions import Transactions
from penstock.clock import Clock
from penstock.errors import GroupNotFound, InvalidRequest, NotLeading, TopicExists
from penstock.log.api import Batch, Engine, LogFiles, Partition, Snapshot, TopicConfig, TopicInfo, follow_all
from penstock.names import is_internal, validate_topic_name
from penstock.workers import WorkerPool


class ReadableTopic(NamedTuple):
    info: TopicInfo
    partitions: Sequence[Partition]
    files: LogFiles | None
    """Where the log lies, for readers on the same machine."""


class Broker:
    """One broker over an engine that is started before it and closed after it.

    Users' roles and ACLs decide who may do what, unless another policy is given.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock,
        limits: BrokerLimits,
        access: AccessRules | None = None,
        access_settings: AccessSettings | None = None,
        topic_defaults: TopicConfig | None = None,
        deliveries: DeliveryPolicy | None = None,
        background: Background | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.tracing = tracing
        self.background = background = background or Background()
        self.workers = WorkerPool()
        """For work of this broker and its sessions that takes too long for the event loop."""
        self._clock = clock
        self._accounts = Accounts(
            engine, clock, access, access_settings or AccessSettings(), limits, background, self.workers
        )
        self.access: AccessPolicy = self._accounts.access
        self.users = self._accounts.users
        self.acls = self._accounts.acls
        self.audit = self._accounts.audit
        self.logins = self._accounts.logins
        self.limits = limits
        self.topic_defaults = topic_defaults or TopicConfig()
        self._engine = engine
        self._producer = Producer(engine, limits)
        self._groups = Groups(engine, clock, limits, background)
        self.group_stats = self._groups.stats
        ages = RecordAges(clock)
        self._lags = Lags(engine, self._groups, ages)
        self._topic_changes: KeyedLocks[str] = KeyedLocks()
        """By name: a topic is created, altered, bound to a schema or deleted by one caller at a time."""
        self._stop_watching: Callable[[], None] | None = None
        self._quota = TopicQuota(engine, limits)
        self._registry = Registry(engine, clock, limits, background=background)
        self._validation = Validation(self._registry, background)

        context = Context(engine, clock, limits, self.access, self.audit, background, self.workers, tracing)
        self.cluster = Cluster(context)
        self.coordinator = Coordinator(context, self._groups)
        self.schemas = Schemas(
            context, self._registry, self._validation, rules=self._accounts.rules, topic_changes=self._topic_changes
        )
        self.producers = IdempotentProducers(context, self._producer, self._validation)
        self.transactions = Transactions(context, self._producer, self._validation, self._groups)
        self.staging = Staging(context, self._validation)
        self.schedule = Schedule(context, self._producer, self._validation)
        self.dead_letters = DeadLetters(
            context,
            self._producer,
            self._validation,
            ensure_topic=partial(self.ensure_topic, SYSTEM),
            delete_topic=self._delete_topic,
        )
        self.subscriptions = Subscriptions(
            context, self.dead_letters, policy=deliveries or DeliveryPolicy(), ensure_topic=self.ensure_topic
        )
        self.topics = TopicChanges(context, self._quota, self._topic_changes)
        self.monitoring = Monitoring(context, self._groups, self.coordinator, self.subscriptions, self._lags, ages)
        self.resets = Resets(context, self._groups, self.coordinator, self.subscriptions)
        self.api_keys = ApiKeys(context, self._accounts.directory, self.logins)
        self.explaining = Explaining(
            self._accounts.directory,
            rules=self._accounts.rules,
            access=self.access,
            roles_of_key=self.api_keys.roles_of,
        )
        self.pipelines = Pipelines(context)
        self.cache = Cache(clock=clock, limits=limits, access=self.access)
        self.leader: Leader | None = None
        """For a node that does not lead; given by who knows how to reach it."""
        self.leading = Leading(
            engine,
            background,
            followed=(self._accounts, self.api_keys),
            tidied=(self._groups, self._registry),
            led=(
                self.coordinator,
                self.producers,
                self.transactions,
                self.dead_letters,  # before anything is appended to the topics of dead letters
                self.staging,
                self.schedule,
                self.subscriptions,
                self.pipelines,
            ),
        )

    async def start(self) -> None:
        """Load what the broker keeps in the log. Raises where a part of that cannot be read."""
        check_topic_config(self.topic_defaults)
        await self.leading.start()
        self._stop_watching = self._engine.watch_topics(self._topic_changed)

    @property
    def leads(self) -> bool:
        """Whether this node decides, of all that share the log."""
        return self.leading.leads

    async def close(self) -> None:
        """Take no more commits and wait for those in flight. Work in threads is ended."""
        if self._stop_watching is not None:
            self._stop_watching()
        await self.leading.stop_watching()
        self.workers.close()
        await self.background.finish()
        await self.leading.close_led()
        await self._validation.close()
        await self.leading.close_followed()

    # -- topics -----------------------------------------------------------------------------------------------------------

    def has_topic(self, name: str) -> bool:
        """Whether a topic exists: for a session to decide what to ask for next, which is then checked."""
        return name in self._engine.topics()

    @on_broker(Operation.DESCRIBE)
    def topic_names(self, principal: Principal) -> list[str]:
        """The topics this principal may know of, sorted; internal ones are left out."""
        rules = self._accounts.rules
        return sorted(
            name
            for name in self._engine.topics()
            if not is_internal(name)
            and is_allowed(rules, principal, Operation.DESCRIBE, Resource(ResourceKind.TOPIC, name))
        )

    @on_topic(Operation.DESCRIBE)
    def describe_topic(self, principal: Principal, name: str) -> TopicDescription:
        return describe(self._engine, self._engine.topic(name))

    @on_topic(Operation.DESCRIBE)
    async def follow_topic(self, principal: Principal, name: str) -> TopicDescription:
        """Describe a topic with the bounds of its partitions as they are now: `describe_topic` takes them as they are known here."""
        if name not in self._engine.topics():
            await self._engine.catch_up()
        await follow_all(self._engine.partitions(self._engine.topic(name)))
        return describe(self._engine, self._engine.topic(name))

    @on_topic(Operation.CREATE)
    @run_to_completion
    async def create_topic(
        self, principal: Principal, name: str, config: TopicConfig, schema: str | None = None
    ) -> TopicInfo:
        """Create a topic, bound to a schema where one is given ("orders", "orders:3").

        Raises TopicExists, InvalidTopicName, InvalidRequest for settings out of bounds, LimitExceeded, SchemaNotFound.
        """
        if not self._engine.leads and self._engine.deposed is None:
            return await self._create_elsewhere(principal, name, config, schema)
        async with self._topic_changes.of(name):
            create = partial(self._create, principal, name, config)
            if schema is None:
                return await create()
            reference = parse_reference(schema)
            self._validation.check_reference(reference)
            return await self._registry.bind_while(name, reference, create)

    @on_topic(Operation.WRITE)
    async def ensure_topic(self, principal: Principal, name: str) -> None:
        """Create a topic that is missing, with one partition and the defaults. Several callers at once create it once."""
        if name not in self._engine.topics():
            await self.background.complete(self._create_missing(principal, name))

    async def _create_missing(self, principal: Principal, name: str) -> None:
        if not self._engine.leads and self._engine.deposed is None:
            by_writer = replace(principal, trusted=True)  # who may write to a topic may have it made
            with suppress(TopicExists):
                await self._create_elsewhere(by_writer, name, replace(self.topic_defaults, partitions=1), None)
            return
        async with self._topic_changes.of(name):
            if name not in self._engine.topics():
                await self._create(principal, name, replace(self.topic_defaults, partitions=1))

    async def _create_elsewhere(
        self, principal: Principal, name: str, config: TopicConfig, schema: str | None
    ) -> TopicInfo:
        """Have the node that leads create a topic. Raises TopicExists, NotLeading if that node cannot be asked, and what it refuses."""
        validate_topic_name(name)  # in the words of here: those of an answer are FlyMQ's
        await self._engine.catch_up()
        if name in self._engine.topics():
            raise TopicExists(f"topic {name} exists already: choose another name, or delete it first")
        if self.leader is None:
            raise NotLeading("this node does not lead, and does not know how to reach the one that does")
        await self.leader.create_topic(principal, name, config, schema)
        await self._engine.catch_up()
        return self._engine.topic(name)

    @on_topic(Operation.DELETE)
    @run_to_completion
    async def delete_topic(self, principal: Principal, name: str) -> None:
        """Delete a topic with its records and the offsets that groups committed in it."""
        await self._delete_topic(principal, name)

    async def _delete_topic(self, principal: Principal, name: str) -> None:
        async with self._topic_changes.of(name):
            await self._engine.delete_topic(self._engine.topic(name).name)
            await self._groups.forget_topic(name)
            await self.subscriptions.forget_topic(name)
            await self._registry.forget_topic(name)
        self.audit.note(principal, "topic.delete", name)

    @on_broker(Operation.ADMIN)
    async def snapshot(self, principal: Principal) -> Snapshot:
        """Keep every topic, internal ones too, as it is between two commits: for a backup or a check on the same machine.

        Raises LimitExceeded, NotSupported on a log that is not in files.
        """
        snapshot = await self._engine.snapshot()
        self.audit.note(principal, "snapshot.create", snapshot.id)
        return snapshot

    @on_broker(Operation.ADMIN)
    async def release_snapshot(self, principal: Principal, snapshot_id: str) -> None:
        """Remove a snapshot, as soon as no reader holds it; one that is gone already is no error."""
        await self._engine.release_snapshot(snapshot_id)

    # -- records ----------------------------------------------------------------------------------------------------------

    @on_topic(Operation.WRITE)
    def produce(
        self,
        principal: Principal,
        topic: str,
        partition: int | Sequence[int],
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[bytes | None] | None = None,
        expiries: Sequence[int] | None = None,
        *,
        units: Sequence[int] | None = None,
        schema: str | None = None,
        done: OnPlaced,
    ) -> bool:
        """Append records to a topic, to one partition or to one for each record; -1 goes by the key, or in turn without one.

        Records must follow the schema that the topic is bound to, and the one given here.

        `units` has the number of records of each request, if requests hold several: a record at fault refuses its request. By default
        it refuses only itself.

        Raises what concerns all records, and then nothing was appended: the topic is missing or not open to the principal, there are no
        records, or columns differ in length. Otherwise `done` is called once, on the loop, after this returns and after the commit of
        the last part. It gets a Placement for each part, of which any may have failed, and for the records that are refused (too
        large, without the key that the topic asks for, not as the schema says, for a partition that does not exist); or, if
        records went to many partitions and all arrived, columns with the place of each.

        Return whether it is already known that some records are refused.
        """
        batch = Batch(values, keys, headers, expiries)
        if self.tracing is not None:
            batch, end = self.tracing.produce(topic, batch)
            done = ending(end, done, error_of_placed)
        if schema is None and not self._validation.applies_to(topic):
            return self._producer.produce(topic, partition, batch, units, done)
        return self._produce_checked(topic, partition, batch, units, schema, done)

    @on_topic(Operation.WRITE)
    def produce_together(
        self,
        principal: Principal,
        topic: str,
        values: Sequence[bytes | None],
        key: bytes | None = None,
        *,
        units: Sequence[int] | None = None,
        done: OnPlaced,
    ) -> None:
        """Append records that share a key, or have none, as `produce` does, but all to one partition: that of the key, else the next in
        turn."""
        batch = Batch(values, None if key is None else [key] * len(values))
        partition = self._producer.one_partition(topic, key)
        if self.tracing is not None:
            batch, end = self.tracing.produce(topic, batch)
            done = ending(end, done, error_of_placed)
        if self._validation.applies_to(topic):
            self._produce_checked(topic, partition, batch, units, None, done)
        else:
            self._producer.produce(topic, partition, batch, units, done)

    def _produce_checked(
        self,
        topic: str,
        partition: int | Sequence[int],
        batch: Batch,
        units: Sequence[int] | None,
        schema: str | None,
        done: OnPlaced,
    ) -> bool:
        """Append the records that follow the topic's schema and the one given."""
        refused = False

        def append(faults: Faults | None, stamped: Batch) -> None:
            nonlocal refused
            refused = self._producer.produce(topic, partition, stamped, units, done, faults)

        self._validation.screen(
            topic,
            None if schema is None else parse_reference(schema),
            batch,
            units,
            append,
            lambda error: done([Placement(ANY_PARTITION, ALL_ROWS, error)]),
        )
        return refused

    @on_topic(Operation.READ)
    def partition(self, principal: Principal, topic: str, index: int) -> Partition:
        """The partition, for reading. Raises TopicNotFound or PartitionNotFound."""
        return self._engine.partition(topic, index)

    def now_ms(self) -> int:
        """The clock that records expire by. Open to everybody."""
        return self._clock.now_ms()

    @on_topic(Operation.READ)
    def readable_topic(self, principal: Principal, name: str) -> ReadableTopic:
        """A topic for readers that share its partitions out among them. Raises TopicNotFound."""
        info = self._engine.topic(name)
        return ReadableTopic(info, self._engine.partitions(info), self._engine.files)

    # -- a group's own place ----------------------------------------------------------------------------------------------

    @on_topic_group(Operation.COMMIT)
    def commit_offset(
        self, principal: Principal, topic: str, group: str, partition: int, offset: int
    ) -> asyncio.Future[None]:
        """Note the next offset the group reads; done when that is committed. Creates the group, and asks for no existing topic."""
        return self._groups.commit(topic, group, partition, offset)

    @on_topic(Operation.READ)
    def committed_offset(self, principal: Principal, topic: str, group: str, partition: int) -> int | None:
        """The next offset the group reads, None if it has committed none. Raises GroupNotFound."""
        return self._groups.committed(topic, group, partition)

    @on_topic(Operation.READ)
    async def start_position(self, principal: Principal, topic: str, group: str, partition: int, mode: str) -> int:
        """Where a reader begins: at the "earliest" record, after the "latest", or where the group has "committed".

        A group that has committed nothing, or less than retention has left, begins at the earliest record.
        """
        handle = self._engine.partition(topic, partition)
        await follow_all([handle])
        if mode == "earliest":
            return handle.start_offset
        if mode == "latest":
            return handle.committed_end
        if mode != "committed":
            raise InvalidRequest(f"unknown subscribe mode: {mode} (use earliest, latest or committed)")
        try:
            committed = self._groups.committed(topic, group, partition)
        except GroupNotFound:
            committed = None
        return max(committed or 0, handle.start_offset)

    @on_topic(Operation.READ)
    def subscribe(self, principal: Principal, topic: str, group: str, session_id: str) -> None:
        """Count a session as a member of the group until `unsubscribe`."""
        self._engine.topic(topic)
        self._groups.join(topic, group, session_id)

    def unsubscribe(self, session_id: str) -> None:
        """The session has ended: it is a member of nothing any more. Never fails; the id is the session's own."""
        self._groups.leave(session_id)

    @on_topic_group(Operation.COMMIT)
    async def seek_to_time(
        self, principal: Principal, topic: str, group: str, partition: int, timestamp_ms: int
    ) -> int:
        """The first offset at or after a time, committed for the group unless its name is empty."""
        offset = await self._engine.partition(topic, partition).offset_at(timestamp_ms)
        if group:
            await self._groups.commit(topic, group, partition, offset)
        return offset

    @on_topic(Operation.READ)
    async def lag(self, principal: Principal, topic: str, group: str, partition: int) -> Lag:
        """How many records the group is behind. Raises GroupNotFound."""
        try:
            return await self._lags.lag(topic, group, partition)
        except GroupNotFound:
            subscribed = self.subscriptions.group_infos(group, topic)
            if not subscribed:
                raise
            handle = self._engine.partition(topic, partition)
            await follow_all([handle])
            position = subscribed[0].offsets[partition].offset
            behind = handle.committed_end - max(position, handle.start_offset)
            return Lag(position, handle.committed_end, max(0, behind))

    @on_topic_group(Operation.COMMIT)
    @run_to_completion
    async def reset_offset(
        self, principal: Principal, topic: str, group: str, partition: int, mode: str, offset: int | None = None
    ) -> int:
        """Set the group to the "earliest" record, after the "latest", or to an "offset"; returns where it is now.

        Raises InvalidRequest while members read the topic: they would commit their own positions.
        """
        self.coordinator.check_unused(group, topic, "reset")
        handle = self._engine.partition(topic, partition)
        await follow_all([handle])
        if mode == "earliest":
            position = handle.start_offset
        elif mode == "latest":
            position = handle.committed_end
        elif mode == "offset" and offset is not None:
            position = offset
        else:
            missing = " without an offset" if mode == "offset" else ""
            raise InvalidRequest(f"unknown reset mode: {mode}{missing} (use earliest, latest or offset with a number)")
        await self._groups.commit(topic, group, partition, position)
        details = {"topic": topic, "partition": str(partition), "offset": str(position)}
        self.audit.note(principal, "group.reset", group, details=details)
        return position

    # -- everybody's groups -----------------------------------------------------------------------------------------------

    @on_broker(Operation.ADMIN)
    def list_groups(self, principal: Principal) -> Iterator[GroupInfo]:
        """Iterate over every group, once for each topic it reads, by topic and name; subscriptions among them.

        To be taken without waiting in between.
        """
        return _by_topic_and_name(self._groups.infos(), self.subscriptions.group_infos())

    @on_group(Operation.ADMIN)
    def describe_group(self, principal: Principal, group: str, topic: str | None = None) -> list[GroupInfo]:
        """The group in one topic, or in each topic it reads. Raises GroupNotFound."""
        subscribed = self.subscriptions.group_infos(group, topic)
        try:
            return [*_by_topic_and_name(self._groups.describe(group, topic), subscribed)]
        except GroupNotFound:
            if not subscribed:
                raise
            return [*_by_topic_and_name((), subscribed)]

    @on_group(Operation.ADMIN)
    @run_to_completion
    async def delete_group(self, principal: Principal, group: str, topic: str | None = None) -> None:
        """Forget the group's offsets, sessions and subscriptions in one topic, or in all.

        Raises GroupNotFound, InvalidRequest while the group has members.
        """
        self.coordinator.check_unused(group, topic, "delete")
        found = await self.subscriptions.delete_group(group, topic)
        if topic is None:
            found |= await self.coordinator.forget(group)
        try:
            await self._groups.delete(group, topic)
        except GroupNotFound:
            if not found:
                raise
        self.audit.note(principal, "group.delete", group, details={"topic": topic or "*"})

    @on_broker(Operation.ADMIN)
    async def group_lags(self, principal: Principal, lags_max: int = LAGS_MAX) -> LagReport:
        """How far groups are behind, in records and seconds: at most `lags_max` partitions, for metrics."""
        return await self._lags.report(lags_max)

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _topic_changed(self, name: str) -> None:
        """A topic has appeared, changed or vanished, by an operation of this broker or of another node."""
        if name not in self._engine.topics():
            self._producer.forget_topic(name)
        self.subscriptions.topic_changed(name)

    async def _create(self, principal: Principal, name: str, config: TopicConfig) -> TopicInfo:
        validate_topic_name(name)
        check_topic_config(config)
        if name in self._engine.topics():
            raise TopicExists(f"topic {name} exists already: choose another name, or delete it first")
        with self._quota.reserved(name, config.partitions):
            info = await self._engine.create_topic(name, config)
        self.audit.note(principal, "topic.create", name, details={"partitions": str(config.partitions)})
        return info


def _by_topic_and_name(groups: Iterable[GroupInfo], subscribed: Iterable[GroupInfo]) -> Iterator[GroupInfo]:
    """Merge sorted groups with subscriptions; of several in one topic that have the same name, keep the first."""

    def name(info: GroupInfo) -> tuple[str, str]:
        return info.topic, info.group

    merged = heapq.merge(groups, sorted(subscribed, key=name), key=name)
    return (next(same) for _, same in itertools.groupby(merged, name))
