"""Moving where a consumer group or a subscription continues in a topic: to the earliest or latest record, an offset, a time, or some
records further or back.

What would change is known before anything does, partition by partition, and is what a preview tells. Both are refused while somebody
reads: members of a group would commit their own positions, and readers of a subscription hold deliveries that the reset would forget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, get_args

from penstock.broker.limits import INT64_MAX
from penstock.errors import InvalidRequest
from penstock.log.api import Engine, Partition, follow_all

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


async def handles_to_reset(
    engine: Engine, topic: str, target: ResetTarget, partition: int | None
) -> Sequence[Partition]:
    """Return the partitions that a reset is about, with their bounds as they are now. Raises TopicNotFound, PartitionNotFound."""
    if target.mode in ("offset", "time") and target.value < 0:
        raise InvalidRequest(f"{target.mode} {target.value} is out of range: use 0 to {INT64_MAX}")
    info = engine.topic(topic)
    handles = engine.partitions(info) if partition is None else [engine.partition(topic, partition)]
    await follow_all(handles)
    return handles


async def move_of(handle: Partition, before: int | None, target: ResetTarget) -> Move:
    """Return what a reset changes in a partition where the group or subscription is at `before`."""
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


def audited(topic: str, target: ResetTarget, partition: int | None) -> dict[str, str]:
    """Return what the audit trail keeps of a reset."""
    return {"topic": topic, "partition": "*" if partition is None else str(partition), "to": str(target)}
