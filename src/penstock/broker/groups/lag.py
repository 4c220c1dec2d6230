"""Consumer lag: how far a group is behind, in records and in time.

Every partition of the topic counts. A group that has committed no offset in a partition has all of its records to read: its lag is
counted from the log start offset.

Time is the age of the first record the group has not committed, which may be on disk. What was looked up is kept, so a group that stands
still costs one lookup however often it is asked about. A report has a bounded number of rows and of lookups: it feeds metrics, which must
stay cheap when the broker is not well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.broker.groups.offsets import GroupInfo, Offsets
from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.log.api import Engine, Partition, follow_all

LAGS_MAX: Final = 2_000
LOOKUPS_MAX: Final = 500
"""Per report; each may read a block from disk. Rows beyond it have no age until a later report has looked them up."""
TIMESTAMPS_KEPT_MAX: Final = 10_000


class Lag(NamedTuple):
    committed: int | None
    """The next offset to read, None if the group has committed none: it is then at the start of the partition."""
    committed_end: int
    records: int


class PartitionLag(NamedTuple):
    partition: int
    committed: int | None
    """None if the group has committed no offset."""
    committed_end: int | None
    """None if there is no such topic or partition (any more), and then `records` and `seconds` are too."""
    records: int | None
    seconds: float | None
    """Age of the first record that is not committed, 0 if there is none, None if it is not known (yet) or cannot be read."""


class GroupLag(NamedTuple):
    topic: str
    group: str
    partition: int
    records: int
    seconds: float | None


class LagReport(NamedTuple):
    lags: list[GroupLag]
    left_out: int
    """Groups that are not in the report, or not with all their partitions."""


class Lookups:
    """How many timestamps one report may still look up."""

    def __init__(self) -> None:
        self.left = LOOKUPS_MAX


class RecordAges:
    """Ages of records, by the place of each."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timestamps_ms: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        """By topic id, partition and offset, the one that was used last at the end."""

    async def age_s(self, topic_id: str, partition: Partition, offset: int, lookups: Lookups) -> float | None:
        """Return the age of the record at an offset, None if it cannot be read or there are no lookups left."""
        place = topic_id, partition.index, offset
        timestamp_ms = self._timestamps_ms.get(place)
        if timestamp_ms is None:
            if not lookups.left:
                return None
            lookups.left -= 1
            try:
                timestamp_ms = await partition.timestamp_of(offset)
            except PenstockError:
                return None  # damaged, deleted, or passed by retention since
            if timestamp_ms is None:
                return None
            self._timestamps_ms[place] = timestamp_ms
            if len(self._timestamps_ms) > TIMESTAMPS_KEPT_MAX:
                self._timestamps_ms.popitem(last=False)
        self._timestamps_ms.move_to_end(place)
        return max(0, self._clock.now_ms() - timestamp_ms) / 1000

    async def oldest_s(self, topic_id: str, places: Iterable[tuple[Partition, int]], lookups: Lookups) -> float | None:
        """Return the age of the oldest of some records, 0 if there are none, None if one of them is not known."""
        oldest_s = 0.0
        for partition, offset in places:
            age_s = await self.age_s(topic_id, partition, offset, lookups)
            if age_s is None:
                return None
            oldest_s = max(oldest_s, age_s)
        return oldest_s


class Lags:
    def __init__(self, engine: Engine, offsets: Offsets, ages: RecordAges) -> None:
        self._engine = engine
        self._offsets = offsets
        self._ages = ages

    async def report(self, rows_max: int) -> LagReport:
        """Return the lags of groups whose topics exist, in no order."""
        infos: list[GroupInfo] = []
        rows = seen = 0
        for info in self._offsets.unsorted_infos():
            seen += 1
            topic = self._engine.topics().get(info.topic)
            if topic is not None:
                infos.append(info)
                rows += topic.config.partitions
                if rows >= rows_max:
                    break
        lookups = Lookups()
        lags: list[GroupLag] = []
        for info in infos:
            partitions = await self.of_group(info, lookups, rows_max - len(lags))
            lags += [
                GroupLag(info.topic, info.group, each.partition, each.records, each.seconds)
                for each in partitions
                if each.records is not None
            ]
        return LagReport(lags, len(self._offsets) - seen + (rows > rows_max))

    async def of_group(
        self, info: GroupInfo, lookups: Lookups, partitions_max: int | None = None
    ) -> list[PartitionLag]:
        """Return the lag in every partition of the topic; if that does not exist, in those that have offsets."""
        committed = {each.partition: each.offset for each in info.offsets}
        topic = self._engine.topics().get(info.topic)
        indexes = sorted(committed) if topic is None else range(topic.config.partitions)
        lags: list[PartitionLag] = []
        for index in indexes[:partitions_max]:
            try:
                handle = self._engine.partition(info.topic, index)
                await follow_all([handle])
            except PenstockError:
                lags.append(PartitionLag(index, committed.get(index), None, None, None))
                continue
            end = handle.committed_end
            offset = _position(handle, committed.get(index))
            behind = [(handle, offset)] if offset < end else []
            seconds = await self._ages.oldest_s("" if topic is None else topic.id, behind, lookups)
            lags.append(PartitionLag(index, committed.get(index), end, end - offset, seconds))
        return lags


def lag_in(partition: Partition, committed: int | None) -> Lag:
    """Return how far a group is behind that has committed this offset in a partition, which is followed."""
    end = partition.committed_end
    return Lag(committed, end, end - _position(partition, committed))


def _position(partition: Partition, committed: int | None) -> int:
    """Where the group is among the records that are there: retention may have passed it, and a commit may lie beyond the end."""
    return min(max(committed or 0, partition.start_offset), partition.committed_end)
