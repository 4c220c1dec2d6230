"""Changing topics that exist: their settings, the number of their partitions, where they start.

Each operation is done or not done, also across a crash: the engine sees to that. Subscriptions hear of new partitions from the engine, as
of those that another node adds; readers of other kinds find them when they next ask for the topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from penstock.background import run_to_completion
from penstock.broker.access.checks import Operation, Principal, on_topic
from penstock.broker.keyed_locks import KeyedLocks
from penstock.broker.part import Context, Part
from penstock.broker.topics.quota import TopicQuota
from penstock.broker.topics.settings import changed_settings, check_topic_config, parse_topic_config
from penstock.errors import InvalidRequest
from penstock.log.api import TopicConfig, TopicInfo

ALL_PARTITIONS = -1


class TopicChanges(Part):
    def __init__(self, context: Context, quota: TopicQuota, locks: KeyedLocks[str]) -> None:
        """`locks` are those of all changes of topics, by name."""
        super().__init__(context)
        self._quota = quota
        self._locks = locks

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
        async with self._locks.of(name):
            config = self._engine.topic(name).config
            return await self._change(principal, name, parse_topic_config(given, config))

    @on_topic(Operation.CREATE)
    @run_to_completion
    async def add_partitions(self, principal: Principal, name: str, partitions: int) -> TopicInfo:
        """Give a topic more partitions, until it has this many. Records stay where they are; keys may map to other partitions.

        Raises TopicNotFound, InvalidRequest for fewer than there are, LimitExceeded.
        """
        async with self._locks.of(name):
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
        async with self._locks.of(name):
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
        async with self._locks.of(name):
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
