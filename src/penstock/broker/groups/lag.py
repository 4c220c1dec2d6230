"""Lag: how far a group is behind, in records and in time.

Records are a subtraction. Time is the age of the first record the group has not committed, which may be on disk; what was looked
up is kept until the group moves, so a group that stands still costs one lookup however often it is asked about. A report takes a
bounded number of rows and of lookups: it feeds metrics, which must stay cheap when the broker is not well.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

from penstock.broker.groups.groups import Groups, OffsetKey
from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.log.api import Engine, Partition

LAGS_MAX: Final = 2_000
# Of one report; each may read a block from disk. Rows beyond it have no age until a later report has looked them up.
LOOKUPS_MAX: Final = 500


class Lag(NamedTuple):
    committed: int | None
    """The next offset to read, None where the group has committed none: it is then at the start of the partition."""
    committed_end: int
    records: int


class GroupLag(NamedTuple):
    topic: str
    group: str
    partition: int
    records: int
    seconds: float | None
    """Age of the first record not committed, 0 where there is none, None where it is not known (yet) or cannot be read."""


class LagReport(NamedTuple):
    lags: list[GroupLag]
    left_out: int
    """Rows beyond the bound."""


class _First(NamedTuple):
    """The first record that a group has not committed."""

    topic_id: str
    offset: int
    timestamp_ms: int


class Lags:
    def __init__(self, engine: Engine, groups: Groups, clock: Clock) -> None:
        self._engine = engine
        self._groups = groups
        self._clock = clock
        self._firsts: dict[OffsetKey, _First] = {}
        """As of the last report, so its rows bound it."""

    def lag(self, topic: str, group: str, partition: int) -> Lag:
        handle = self._engine.partition(topic, partition)
        committed = self._groups.committed(topic, group, partition)
        return Lag(committed, handle.committed_end, handle.committed_end - _position(handle, committed or 0))

    async def report(self, lags_max: int) -> LagReport:
        rows = list(islice(self._groups.offsets(), lags_max))
        lags: list[GroupLag] = []
        firsts: dict[OffsetKey, _First] = {}
        lookups = 0
        for key, entry in rows:
            try:
                partition = self._engine.partition(key.topic, key.partition)
            except PenstockError:
                continue  # an offset of a topic that does not exist, or no longer since the report began
            offset = _position(partition, entry.offset)
            records = partition.committed_end - offset
            seconds: float | None = 0.0
            if records:
                first = self._firsts.get(key)
                if first is None or first[:2] != (entry.topic_id, offset):
                    lookups += 1
                    first = await _first(partition, entry.topic_id, offset) if lookups <= LOOKUPS_MAX else None
                if first is None:
                    seconds = None
                else:
                    firsts[key] = first
                    seconds = max(0, self._clock.now_ms() - first.timestamp_ms) / 1000
            lags.append(GroupLag(key.topic, key.group, key.partition, records, seconds))
        self._firsts = firsts
        return LagReport(lags, max(0, self._groups.offset_count - len(rows)))


def _position(partition: Partition, offset: int) -> int:
    """Where the group is among the records that are there: retention may have passed it, and a commit may lie beyond the end."""
    return min(max(offset, partition.start_offset), partition.committed_end)


async def _first(partition: Partition, topic_id: str, offset: int) -> _First | None:
    try:
        timestamp_ms = await partition.timestamp_of(offset)
    except PenstockError:
        return None  # damaged, deleted, or passed by retention since
    return None if timestamp_ms is None else _First(topic_id, offset, timestamp_ms)
