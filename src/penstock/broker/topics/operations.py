"""Topics as protocols see them: every operation takes the principal first and passes the access check.

Each is done or not done, also across a crash: the engine sees to that. Subscriptions hear of new partitions from the engine, as of those
that another node adds; readers of other kinds find them when they next ask for the topic.

A node that follows has the one that leads create topics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from penstock.background import run_to_completion
from penstock.broker.access.checks import (
    AccessRules,
    Operation,
    Principal,
    Resource,
    ResourceKind,
    is_allowed,
    on_broker,
    on_topic,
)
from penstock.broker.keyed_locks import KeyedLocks
from penstock.broker.leading import Leader
from penstock.broker.part import Context, Part
from penstock.broker.schemas.reference import parse_reference
from penstock.broker.schemas.registry import Registry
from penstock.broker.schemas.validation import Validation
from penstock.broker.topics.quota import TopicQuota
from penstock.broker.topics.settings import (
    TopicDescription,
    changed_settings,
    check_topic_config,
    describe,
    parse_topic_config,
)
from penstock.errors import InvalidRequest, NotLeading, TopicExists
from penstock.log.api import TopicConfig, TopicInfo, follow_all
from penstock.names import is_internal, validate_topic_name

ALL_PARTITIONS = -1


class Topics(Part):
    def __init__(
        self,
        context: Context,
        registry: Registry,
        validation: Validation,
        *,
        rules: AccessRules,
        defaults: TopicConfig,
    ) -> None:
        """`rules` answer what `access` does, without noting refusals in the audit trail."""
        super().__init__(context)
        self._registry = registry
        self._validation = validation
        self._rules = rules
        self._quota = TopicQuota(context.engine, context.limits)
        self.defaults = defaults
        """The settings of a new topic that are not given."""
        self.changes: KeyedLocks[str] = KeyedLocks()
        """By name: a topic is created, altered, bound to a schema or deleted by one caller at a time."""
        self.leader: Leader | None = None
        """For a node that does not lead; given by who knows how to reach it."""
        self.on_deleted: Sequence[Callable[[str], Awaitable[None]]] = ()
        """What else keeps something of a topic, and forgets it."""

    # -- looking ----------------------------------------------------------------------------------------------------------

    def exists(self, name: str) -> bool:
        """Whether a topic exists: for a session to decide what to ask for next, which is then checked."""
        return name in self._engine.topics()

    @on_broker(Operation.DESCRIBE)
    def names(self, principal: Principal) -> list[str]:
        """The topics this principal may know of, sorted; internal ones are left out."""
        return sorted(
            name
            for name in self._engine.topics()
            if not is_internal(name)
            and is_allowed(self._rules, principal, Operation.DESCRIBE, Resource(ResourceKind.TOPIC, name))
        )

    @on_topic(Operation.DESCRIBE)
    def describe(self, principal: Principal, name: str) -> TopicDescription:
        return describe(self._engine, self._engine.topic(name))

    @on_topic(Operation.DESCRIBE)
    async def find(self, principal: Principal, name: str) -> TopicInfo:
        """Return a topic, also one that another node has just created."""
        if name not in self._engine.topics():
            await self._engine.catch_up()
        return self._engine.topic(name)

    @on_topic(Operation.DESCRIBE)
    async def follow(self, principal: Principal, name: str) -> TopicDescription:
        """Describe a topic with the bounds of its partitions as they are now: `describe` takes them as they are known here."""
        await follow_all(self._engine.partitions(await self.find(principal, name)))
        return describe(self._engine, self._engine.topic(name))

    # -- creating and deleting --------------------------------------------------------------------------------------------

    @on_topic(Operation.CREATE)
    @run_to_completion
    async def create(
        self, principal: Principal, name: str, config: TopicConfig, schema: str | None = None
    ) -> TopicInfo:
        """Create a topic, bound to a schema where one is given ("orders", "orders:3").

        Raises TopicExists, InvalidTopicName, InvalidRequest for settings out of bounds, LimitExceeded, SchemaNotFound.
        """
        if not self._engine.leads and self._engine.deposed is None:
            return await self._create_elsewhere(principal, name, config, schema)
        async with self.changes.of(name):
            create = partial(self._create, principal, name, config)
            if schema is None:
                return await create()
            reference = parse_reference(schema)
            self._validation.check_reference(reference)
            return await self._registry.bind_while(name, reference, create)

    @on_topic(Operation.WRITE)
    async def ensure(self, principal: Principal, name: str) -> None:
        """Create a topic that is missing, with one partition and the defaults. Several callers at once create it once."""
        if name not in self._engine.topics():
            await self.background.complete(self._create_missing(principal, name))

    @on_topic(Operation.DELETE)
    @run_to_completion
    async def delete(self, principal: Principal, name: str) -> None:
        """Delete a topic with its records and the offsets that groups committed in it."""
        await self.remove(principal, name)

    async def remove(self, principal: Principal, name: str) -> None:
        """Delete a topic for an operation of another part, which the principal may call."""
        async with self.changes.of(name):
            await self._engine.delete_topic(self._engine.topic(name).name)
            for forget in self.on_deleted:
                await forget(name)
        self._audit.note(principal, "topic.delete", name)

    async def _create_missing(self, principal: Principal, name: str) -> None:
        if not self._engine.leads and self._engine.deposed is None:
            by_writer = replace(principal, trusted=True)  # who may write to a topic may have it made
            with suppress(TopicExists):
                await self._create_elsewhere(by_writer, name, replace(self.defaults, partitions=1), None)
            return
        async with self.changes.of(name):
            if name not in self._engine.topics():
                await self._create(principal, name, replace(self.defaults, partitions=1))

    async def _create_elsewhere(
        self, principal: Principal, name: str, config: TopicConfig, schema: str | None
    ) -> TopicInfo:
        """Have the node that leads create a topic. Raises TopicExists, NotLeading if that node cannot be asked, and what it refuses."""
        validate_topic_name(name)  # in the words of here: those of an answer are FlyMQ's
        await self._engine.catch_up()
        if name in self._engine.topics():
            raise _exists(name)
        if self.leader is None:
            raise NotLeading("this node does not lead, and does not know how to reach the one that does")
        await self.leader.create_topic(principal, name, config, schema)
        await self._engine.catch_up()
        return self._engine.topic(name)

    async def _create(self, principal: Principal, name: str, config: TopicConfig) -> TopicInfo:
        validate_topic_name(name)
        check_topic_config(config)
        if name in self._engine.topics():
            raise _exists(name)
        with self._quota.reserved(name, config.partitions):
            info = await self._engine.create_topic(name, config)
        self._audit.note(principal, "topic.create", name, details={"partitions": str(config.partitions)})
        return info

    # -- changing ---------------------------------------------------------------------------------------------------------

    @on_topic(Operation.CREATE)
    @run_to_completion
    async def alter(self, principal: Principal, name: str, settings: Iterable[tuple[str, str]]) -> TopicInfo:
        """Change settings of a topic; those that are not given stay as they are.

        Retention and segment sizes hold for what is there already. Compression holds for what is written from now on.
        Raises TopicNotFound, InvalidRequest for settings that are unknown or out of bounds.
        """
        given = list(settings)
        if any(setting == "partitions" for setting, _ in given):
            raise InvalidRequest("partitions are not a setting that can be altered: add partitions instead")
        async with self.changes.of(name):
            config = self._engine.topic(name).config
            return await self._change(principal, name, parse_topic_config(given, config))

    @on_topic(Operation.CREATE)
    @run_to_completion
    async def add_partitions(self, principal: Principal, name: str, partitions: int) -> TopicInfo:
        """Give a topic more partitions, until it has this many. Records stay where they are; keys may map to other partitions.

        Raises TopicNotFound, InvalidRequest for fewer than there are, LimitExceeded.
        """
        async with self.changes.of(name):
            config = self._engine.topic(name).config
            if partitions < config.partitions:
                raise InvalidRequest(
                    f"topic {name} has {config.partitions} partitions, and partitions cannot be removed: "
                    f"ask for more than {config.partitions}, not {partitions}"
                )
            return await self._change(principal, name, replace(config, partitions=partitions))

    @on_topic(Operation.CREATE)
    @run_to_completion
    async def configure(self, principal: Principal, name: str, config: TopicConfig) -> TopicInfo:
        """Give a topic this configuration, partitions included. Raises what `alter` and `add_partitions` do."""
        async with self.changes.of(name):
            return await self._change(principal, name, config)

    @on_topic(Operation.DELETE)
    @run_to_completion
    async def truncate(
        self,
        principal: Principal,
        name: str,
        mode: str,
        position: int = 0,
        partition: int = ALL_PARTITIONS,
    ) -> None:
        """Delete the records before a position, in one partition or in all.

        By `mode`, the position is an "offset" in one partition, a "time" in milliseconds since 1970, or the "end": no record is left.
        Raises TopicNotFound, PartitionNotFound, OffsetOutOfRange for an offset beyond the end, InvalidRequest.
        """
        async with self.changes.of(name):
            before = await self._offsets(self._engine.topic(name), mode, position, partition)
            await self._engine.truncate_topic(name, before)
        details = {str(index): str(offset) for index, offset in sorted(before.items())}
        self._audit.note(principal, "topic.truncate", name, details=details)

    async def _offsets(self, info: TopicInfo, mode: str, position: int, partition: int) -> Mapping[int, int]:
        """Return the offset that each partition is truncated to."""
        indexes = range(info.config.partitions) if partition == ALL_PARTITIONS else [partition]
        handles = {index: self._engine.partition(info.name, index) for index in indexes}
        if mode == "end":
            for handle in handles.values():
                await handle.follow()  # nothing that was acknowledged anywhere before this is left
            return {index: handle.committed_end for index, handle in handles.items()}
        if mode == "time":
            return {index: await handle.offset_at(position) for index, handle in handles.items()}
        if mode != "offset":
            raise InvalidRequest(f"unknown truncation mode: {mode} (use offset, time or end)")
        if len(handles) > 1:
            raise InvalidRequest(
                f"topic {info.name} has {len(handles)} partitions, and an offset is a place in one of them: "
                "name the partition, or give a time"
            )
        return dict.fromkeys(handles, position)

    async def _change(self, principal: Principal, name: str, config: TopicConfig) -> TopicInfo:
        check_topic_config(config)
        before = self._engine.topic(name)
        changed = changed_settings(before.config, config)
        if not changed:
            return before
        with self._quota.reserved(name, max(config.partitions, before.config.partitions)):
            info = await self._engine.alter_topic(name, config)
        settings = {setting: after for setting, (_, after) in changed.items()}
        self._audit.note(principal, "topic.alter", name, details=settings)
        return info


def _exists(name: str) -> TopicExists:
    return TopicExists(f"topic {name} exists already: choose another name, or delete it first")
