"""What is stored of a subscription: how far each partition is read, and what of that is not settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from penstock.broker.groups.truncation import valid_position
from penstock.broker.limits import INT64_MAX
from penstock.log.api import Partition

TAG_GAP: Final = 1 << 32
"""Tags of a partition that are left out when its log epoch changes: more than it can have delivered since its cursor was stored."""


class Unsettled(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive offsets that were delivered equally often and are not settled."""

    first: int
    count: int
    deliveries: int


class StoredCursor(msgspec.Struct, frozen=True, array_like=True):
    """Where one partition is read."""

    start: int
    """Where the subscription began; tags count from here."""
    read_to: int
    unsettled: tuple[Unsettled, ...] = ()
    epoch: int | None = None
    """The partition's log epoch when this was stored; None in entries of releases that did not store it."""
    tag_base: int = 0
    """Tags left out before the one of `start`, divided by the number of partitions."""

    def continued(self, partition: Partition) -> StoredCursor:
        """Return the cursor as it is valid in the log as it is now: itself, unless the log epoch has changed."""
        if (self.epoch or 0) == partition.epoch:
            return self
        cut = valid_position(partition, INT64_MAX, self.epoch)
        return StoredCursor(
            min(self.start, cut),
            min(self.read_to, cut),
            tuple(
                msgspec.structs.replace(run, count=min(run.count, cut - run.first))
                for run in self.unsettled
                if run.first < cut
            ),
            partition.epoch,
            self.tag_base + max(self.read_to - self.start, 0) + TAG_GAP,
        )

    def moved(self, offset: int) -> StoredCursor:
        """Return the cursor as it is once reading continues at another offset, with tags that were never given."""
        return StoredCursor(
            offset, offset, epoch=self.epoch, tag_base=self.tag_base + max(self.read_to - self.start, 0) + TAG_GAP
        )


class StoredSubscription(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    topic_id: str
    qos: int
    cursors: tuple[StoredCursor, ...]
    name: str = ""
    """Readers that give the same name share a subscription; empty if it is known by its number alone."""
    created_ms: int = 0
    owner: str = ""
    """The principal that created it; empty if its listener asks nobody who they are."""

    def group(self, number: int) -> str:
        """Return the name of the group that it is; one without a name is known by its number."""
        return self.name or f"#{number}"

    def moved(self, offsets: Mapping[int, int]) -> StoredSubscription:
        """Return the subscription as it is once these partitions are read from other offsets on."""
        cursors = tuple(
            cursor.moved(offsets[index]) if index in offsets else cursor for index, cursor in enumerate(self.cursors)
        )
        return msgspec.structs.replace(self, cursors=cursors)

    def continued(self, partitions: Sequence[Partition]) -> StoredSubscription:
        """Return the subscription with its cursors as they are valid in the log as it is now, and one for each new partition."""
        cursors = [cursor.continued(partition) for cursor, partition in zip(self.cursors, partitions, strict=False)]
        added = partitions[len(cursors) :]
        if added:
            # Tags depend on the number of partitions, and more may have been given than when the cursors were stored.
            tag_base = TAG_GAP + max((each.tag_base + each.read_to - each.start for each in cursors), default=0)
            cursors = [msgspec.structs.replace(each, tag_base=tag_base) for each in cursors]
            cursors += [StoredCursor(0, 0, epoch=partition.epoch, tag_base=tag_base) for partition in added]
        return msgspec.structs.replace(self, cursors=tuple(cursors))


def runs(offsets: list[tuple[int, int]]) -> tuple[Unsettled, ...]:
    """Offsets with their counts, as runs."""
    runs: list[Unsettled] = []
    first = count = deliveries = 0
    for offset, times in sorted(offsets):
        if count and offset == first + count and times == deliveries:
            count += 1
            continue
        if count:
            runs.append(Unsettled(first, count, deliveries))
        first, count, deliveries = offset, 1, times
    if count:
        runs.append(Unsettled(first, count, deliveries))
    return tuple(runs)
