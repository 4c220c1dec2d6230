"""Moving where a consumer group or a subscription continues in a topic: to the earliest or latest record, an offset, a time, or some
records further or back.

What would change is known before anything does, partition by partition, and is what a preview tells. Both are refused while somebody
reads: members of a group would commit their own positions, and readers of a subscription hold deliveries that the reset would forget.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal, NamedTuple, get_args

from penstock.background import run_to_completion
from penstock.broker.access.checks import Operation, Principal, on_topic_group
from penstock.broker.deliveries.subscriptions import Subscriptions
from penstock.broker.groups.coordinator import Coordinator
from penstock.broker.groups.groups import CHANGES_PER_APPEND_MAX, Groups, OffsetKey
from penstock.broker.limits import INT64_MAX
from penstock.broker.part import Context, Part
from penstock.errors import GroupNotFound, InvalidRequest
from penstock.log.api import Partition, follow_all

ResetMode = Literal["earliest", "latest", "offset", "time", "shift"]
_MODES: Final[dict[str, ResetMode]] = {mode: mode for mode in get_args(ResetMode)}


class ResetTarget(NamedTuple):
    """Where to continue."""

    mode: ResetMode
    value: int = 0
    """An offset, a time in milliseconds since 1970, or records to go forward (back if negative); ignored by other modes."""

    def __str__(self) -> str:
        return self.mode if self.mode in ("earliest", "latest") else f"{self.mode} {self.value}"


def parse_mode(text: str) -> ResetMode:
    """Raises InvalidRequest."""
    mode = _MODES.get(text)
    if mode is None:
        raise InvalidRequest(f"unknown reset mode: {text} (use {', '.join(_MODES)})")
    return mode


class Move(NamedTuple):
    """What a reset changes in one partition."""

    partition: int
    before: int | None
    """None if the group has committed nothing."""
    after: int
    start_offset: int
    committed_end: int


class Resets(Part):
    def __init__(
        self, context: Context, groups: Groups, coordinator: Coordinator, subscriptions: Subscriptions
    ) -> None:
        super().__init__(context)
        self._groups = groups
        self._coordinator = coordinator
        self._subscriptions = subscriptions

    @on_topic_group(Operation.COMMIT)
    @run_to_completion
    async def reset_group(
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
        handles = await self._handles(topic, target, partition)
        moves = [await _move(handle, self._committed(topic, group, handle.index), target) for handle in handles]
        for each in moves:
            self._groups.check(OffsetKey(topic, group, each.partition), each.after)
        self._coordinator.check_unused(group, topic, "reset")
        self._check_no_subscription(topic, group)
        if not preview:
            for at in range(0, len(moves), CHANGES_PER_APPEND_MAX):
                chunk = moves[at : at + CHANGES_PER_APPEND_MAX]
                await self._groups.commit_all({OffsetKey(topic, group, each.partition): each.after for each in chunk})
            self._audit.note(principal, "group.reset", group, details=_details(topic, target, partition))
        return moves

    @on_topic_group(Operation.COMMIT, "subscription")
    @run_to_completion
    async def reset_subscription(
        self,
        principal: Principal,
        topic: str,
        subscription: str,
        target: ResetTarget,
        partition: int | None = None,
        *,
        preview: bool = False,
    ) -> list[Move]:
        """Move a subscription, which is known by its name or by # and its number, in all partitions of its topic or in one.

        Records before the new position count as settled, those from it on are delivered as if for the first time.

        Raises GroupNotFound, InvalidRequest while it has readers or records that wait to become dead letters, PartitionNotFound.
        """
        found = self._subscriptions.find_in_topic(topic, subscription)
        handles = await self._handles(topic, target, partition)
        positions = found.positions
        moves = [await _move(handle, positions[handle.index], target) for handle in handles]
        self._subscriptions.check_unused(found)
        if not preview:
            await self._subscriptions.move(found, {each.partition: each.after for each in moves})
            self._audit.note(principal, "subscription.reset", subscription, details=_details(topic, target, partition))
        return moves

    async def _handles(self, topic: str, target: ResetTarget, partition: int | None) -> Sequence[Partition]:
        if target.mode in ("offset", "time") and target.value < 0:
            raise InvalidRequest(f"{target.mode} {target.value} is out of range: use 0 to {INT64_MAX}")
        info = self._engine.topic(topic)
        handles = self._engine.partitions(info) if partition is None else [self._engine.partition(topic, partition)]
        await follow_all(handles)
        return handles

    def _check_no_subscription(self, topic: str, group: str) -> None:
        """Raises InvalidRequest if a group is about to be created that has the name of a subscription, which is what was meant."""
        with suppress(GroupNotFound):
            self._groups.describe(group, topic)
            return
        with suppress(GroupNotFound):
            self._subscriptions.find_in_topic(topic, group)
            raise InvalidRequest(
                f"{group} is a subscription of topic {topic} and has no committed offsets: move it with penstock subscription reset"
            )

    def _committed(self, topic: str, group: str, partition: int) -> int | None:
        try:
            return self._groups.committed(topic, group, partition)
        except GroupNotFound:
            return None


async def _move(handle: Partition, before: int | None, target: ResetTarget) -> Move:
    start, end = handle.start_offset, handle.committed_end
    match target.mode:
        case "earliest":
            after = start
        case "latest":
            after = end
        case "time":
            after = await handle.offset_at(target.value)
        case "shift":
            after = (start if before is None else before) + target.value
        case _:
            after = target.value
    return Move(handle.index, before, min(max(after, start), end), start, end)


def _details(topic: str, target: ResetTarget, partition: int | None) -> dict[str, str]:
    return {"topic": topic, "partition": "*" if partition is None else str(partition), "to": str(target)}
