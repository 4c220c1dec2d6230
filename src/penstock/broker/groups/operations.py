"""Consumer groups as protocols see them: every operation takes the principal first and passes the access check.

A reader has its own place in a topic under the name of a group: it commits and asks for offsets, seeks and resets. An operator sees
everybody's groups, subscriptions among them, and moves and deletes them. What members of a group share out is in `coordinator`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Iterable, Iterator
from contextlib import suppress

from penstock.background import run_to_completion
from penstock.broker.access.checks import Operation, Principal, on_broker, on_group, on_topic, on_topic_group
from penstock.broker.deliveries.subscriptions import Subscriptions
from penstock.broker.groups.assignment import TopicPartition
from penstock.broker.groups.coordinator import Coordinator
from penstock.broker.groups.lag import LAGS_MAX, Lag, LagReport, Lags, Lookups, lag_in
from penstock.broker.groups.monitoring import Filter, GroupPage, GroupStatus, first_page
from penstock.broker.groups.offsets import CHANGES_PER_APPEND_MAX, GroupInfo, OffsetKey, Offsets
from penstock.broker.groups.resets import Move, ResetTarget, audited, handles_to_reset, move_of
from penstock.broker.part import Context, Part
from penstock.errors import GroupNotFound, InvalidRequest
from penstock.log.api import follow_all


class Groups(Part):
    def __init__(
        self,
        context: Context,
        offsets: Offsets,
        coordinator: Coordinator,
        subscriptions: Subscriptions,
        lags: Lags,
    ) -> None:
        super().__init__(context)
        self._offsets = offsets
        self._coordinator = coordinator
        self._subscriptions = subscriptions
        self._lags = lags
        self.stats = offsets.stats

    # -- a reader's own place ---------------------------------------------------------------------------------------------

    @on_topic_group(Operation.COMMIT)
    def commit(self, principal: Principal, topic: str, group: str, partition: int, offset: int) -> asyncio.Future[None]:
        """Note the next offset the group reads; done when that is committed. Creates the group, and asks for no existing topic."""
        return self._offsets.commit(topic, group, partition, offset)

    @on_topic(Operation.READ)
    def committed(self, principal: Principal, topic: str, group: str, partition: int) -> int | None:
        """The next offset the group reads, None if it has committed none. Raises GroupNotFound."""
        return self._offsets.committed(topic, group, partition)

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
        return max(self._committed(topic, group, partition) or 0, handle.start_offset)

    @on_topic(Operation.READ)
    def subscribe(self, principal: Principal, topic: str, group: str, session_id: str) -> None:
        """Count a session as a member of the group until `unsubscribe`."""
        self._engine.topic(topic)
        self._offsets.join(topic, group, session_id)

    def unsubscribe(self, session_id: str) -> None:
        """The session has ended: it is a member of nothing any more. Never fails; the id is the session's own."""
        self._offsets.leave(session_id)

    @on_topic_group(Operation.COMMIT)
    async def seek_to_time(
        self, principal: Principal, topic: str, group: str, partition: int, timestamp_ms: int
    ) -> int:
        """The first offset at or after a time, committed for the group unless its name is empty."""
        offset = await self._engine.partition(topic, partition).offset_at(timestamp_ms)
        if group:
            await self._offsets.commit(topic, group, partition, offset)
        return offset

    @on_topic(Operation.READ)
    async def lag(self, principal: Principal, topic: str, group: str, partition: int) -> Lag:
        """How many records the group is behind. Raises GroupNotFound."""
        handle = self._engine.partition(topic, partition)
        await follow_all([handle])
        try:
            committed = self._offsets.committed(topic, group, partition)
        except GroupNotFound:
            await self._subscriptions.catch_up(group, topic)
            subscribed = self._subscriptions.group_infos(group, topic)
            if not subscribed:
                raise
            committed = subscribed[0].offsets[partition].offset
        return lag_in(handle, committed)

    @on_topic_group(Operation.COMMIT)
    @run_to_completion
    async def reset_offset(
        self, principal: Principal, topic: str, group: str, partition: int, mode: str, offset: int | None = None
    ) -> int:
        """Set the group to the "earliest" record, after the "latest", or to an "offset"; returns where it is now.

        Raises InvalidRequest while members read the topic: they would commit their own positions.
        """
        self._coordinator.check_unused(group, topic, "reset")
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
        await self._offsets.commit(topic, group, partition, position)
        details = {"topic": topic, "partition": str(partition), "offset": str(position)}
        self._audit.note(principal, "group.reset", group, details=details)
        return position

    # -- everybody's groups -----------------------------------------------------------------------------------------------

    @on_broker(Operation.ADMIN)
    def all(self, principal: Principal) -> Iterator[GroupInfo]:
        """Iterate over every group, once for each topic it reads, by topic and name; subscriptions among them.

        To be taken without waiting in between.
        """
        return _by_topic_and_name(self._offsets.infos(), self._subscriptions.group_infos())

    @on_group(Operation.ADMIN)
    def describe(self, principal: Principal, group: str, topic: str | None = None) -> list[GroupInfo]:
        """The group in one topic, or in each topic it reads. Raises GroupNotFound."""
        subscribed = self._subscriptions.group_infos(group, topic)
        try:
            return [*_by_topic_and_name(self._offsets.describe(group, topic), subscribed)]
        except GroupNotFound:
            if not subscribed:
                raise
            return [*_by_topic_and_name((), subscribed)]

    @on_group(Operation.ADMIN)
    @run_to_completion
    async def delete(self, principal: Principal, group: str, topic: str | None = None) -> None:
        """Forget the group's offsets, sessions and subscriptions in one topic, or in all.

        Raises GroupNotFound, InvalidRequest while the group has members.
        """
        if not self._engine.leads:  # the node that leads does the rest
            if not await self._subscriptions.delete_group(group, topic):
                raise GroupNotFound(f"subscription not found: {group}")
            return
        self._coordinator.check_unused(group, topic, "delete")
        found = await self._delete_subscriptions(principal, group, topic)
        if topic is None:
            found |= await self._coordinator.forget(group)
        try:
            await self._offsets.delete(group, topic)
        except GroupNotFound:
            if not found:
                raise
        self._audit.note(principal, "group.delete", group, details={"topic": topic or "*"})

    @on_broker(Operation.ADMIN)
    async def lags(self, principal: Principal, lags_max: int = LAGS_MAX) -> LagReport:
        """How far groups are behind, in records and seconds: at most `lags_max` partitions, for metrics."""
        return await self._lags.report(lags_max)

    @on_topic_group(Operation.COMMIT)
    @run_to_completion
    async def reset(
        self,
        principal: Principal,
        topic: str,
        group: str,
        target: ResetTarget,
        partition: int | None = None,
        *,
        preview: bool = False,
    ) -> list[Move]:
        """Move the committed offsets of a group in all partitions of a topic, or in one; a group that does not exist is created.

        Raises InvalidRequest while members read the topic, or if there is a subscription of this name but no group; TopicNotFound,
        PartitionNotFound.
        """
        handles = await handles_to_reset(self._engine, topic, target, partition)
        moves = [await move_of(handle, self._committed(topic, group, handle.index), target) for handle in handles]
        for each in moves:
            self._offsets.check(OffsetKey(topic, group, each.partition), each.after)
        self._coordinator.check_unused(group, topic, "reset")
        self._check_no_subscription(topic, group)
        if not preview:
            for at in range(0, len(moves), CHANGES_PER_APPEND_MAX):
                chunk = moves[at : at + CHANGES_PER_APPEND_MAX]
                await self._offsets.commit_all({OffsetKey(topic, group, each.partition): each.after for each in chunk})
            self._audit.note(principal, "group.reset", group, details=audited(topic, target, partition))
        return moves

    @on_broker(Operation.ADMIN)
    async def statuses(self, principal: Principal, wanted: Filter) -> GroupPage:
        """Return groups by topic and name, each once for each topic that it reads."""
        found = [
            info
            for info in self._offsets.infos()
            if wanted.name in ("", info.group)
            and wanted.topic in ("", info.topic)
            and (info.topic, info.group) > wanted.after
        ]
        page = first_page(found, lambda info: self._partitions(info.topic) or len(info.offsets))
        lookups = Lookups()
        return GroupPage([await self._status(info, lookups) for info in page], len(page) < len(found))

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _check_no_subscription(self, topic: str, group: str) -> None:
        """Raises InvalidRequest if a group is about to be created that has the name of a subscription, which is what was meant."""
        with suppress(GroupNotFound):
            self._offsets.describe(group, topic)
            return
        if self._subscriptions.group_infos(group, topic):
            raise InvalidRequest(
                f"{group} is a subscription of topic {topic} and has no committed offsets: move it with penstock subscription reset"
            )

    async def _delete_subscriptions(self, principal: Principal, group: str, topic: str | None) -> bool:
        """Delete the subscriptions of a group on all nodes; return whether there were any."""
        subscriptions = self._subscriptions
        await subscriptions.catch_up(group, topic)
        shards = {each.shard for each in subscriptions.of_group(group, topic)} - set(subscriptions.owned)
        found = await subscriptions.delete_group(group, topic)
        for shard in sorted(shards):
            if subscriptions.owners is not None:
                with suppress(GroupNotFound):  # it has ended meanwhile
                    await subscriptions.owners.delete_subscriptions(shard, principal, group, topic)
                    found = True
        return found

    def _committed(self, topic: str, group: str, partition: int) -> int | None:
        try:
            return self._offsets.committed(topic, group, partition)
        except GroupNotFound:
            return None

    async def _status(self, info: GroupInfo, lookups: Lookups) -> GroupStatus:
        partitions = await self._lags.of_group(info, lookups)
        consumers = self._coordinator.info(info.group)
        members = [] if consumers is None else [each for each in consumers.members if info.topic in each.topics]
        owners = {partition: member.id for member in members for partition in member.owned}
        sessions = len(info.members) - len(members)
        return GroupStatus(
            info.topic,
            info.group,
            max(sessions, 0),
            0 if consumers is None else consumers.generation,
            consumers.state if consumers is not None and members else "stable" if sessions > 0 else "empty",
            members,
            partitions,
            [owners.get(TopicPartition(info.topic, each.partition), "") for each in partitions],
        )

    def _partitions(self, topic: str) -> int:
        info = self._engine.topics().get(topic)
        return 0 if info is None else info.config.partitions


def _by_topic_and_name(groups: Iterable[GroupInfo], subscribed: Iterable[GroupInfo]) -> Iterator[GroupInfo]:
    """Merge sorted groups with subscriptions; of several in one topic that have the same name, keep the first."""

    def name(info: GroupInfo) -> tuple[str, str]:
        return info.topic, info.group

    merged = heapq.merge(groups, sorted(subscribed, key=name), key=name)
    return (next(same) for _, same in itertools.groupby(merged, name))
