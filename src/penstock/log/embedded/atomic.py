"""An append to several partitions on its way to a commit.

Its parts wait in their partitions, each as an append of its own that knows the whole. Late parts, which tell where the others are, wait
with the whole instead if they may stay in the journal (see `checkpoint.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from penstock.errors import InvalidRequest, NotWritten, PenstockError
from penstock.log.api import (
    Appended,
    Batch,
    BatchFor,
    BlockBatch,
    LateBatch,
    OnAllAppended,
    OnAppended,
    Partition,
)
from penstock.log.embedded.journal import JournalEntry, late_entry

if TYPE_CHECKING:
    from penstock.log.embedded.commit import Committer
    from penstock.log.embedded.partition import EmbeddedPartition

_NOWHERE: Final = Appended(-1, 0)


class Waiting(NamedTuple):
    """An append on its way to the next commit."""

    batch: Batch | BlockBatch | LateBatch
    done: OnAppended
    whole: AtomicAppend | None
    """What it is a part of, if it must not be written alone."""


class LatePart(NamedTuple):
    """A part of an atomic append that tells of the others."""

    at: int
    """Which one it is."""
    partition: EmbeddedPartition
    batch: LateBatch


class LateRecord(NamedTuple):
    partition: EmbeddedPartition
    key: bytes
    value: bytes

    def journal_entry(self) -> JournalEntry:
        partition = self.partition
        return late_entry(partition.topic_id, partition.index, partition.writer.next_offset, self.key, self.value)


class AtomicAppend:
    """An append to several partitions. While its parts wait, one of them may be refused; then none of them is written."""

    __slots__ = (
        "_done",
        "_error",
        "_left",
        "_results",
        "late",
        "late_records",
        "leader",
        "number",
        "places",
        "refusal",
    )

    def __init__(
        self, parts: int, done: OnAllAppended, leader: EmbeddedPartition, late: Sequence[LatePart] = ()
    ) -> None:
        """`late` are parts that are to be left in the journal, if nothing prevents it; `leader` is one of those that are not."""
        self.refusal: PenstockError | None = None
        self.places: dict[Partition, Appended] = {}
        """Where its parts are laid out, for those that tell of it; the commit thread's own."""
        self.number = 0
        """Those with late parts are numbered in the order in which they were made."""
        self.leader = leader
        self.late = late
        self.late_records: list[LateRecord] = []
        """Once everything else of the commit is laid out."""
        self._done = done
        self._left = parts - len(late)
        self._results = [_NOWHERE] * parts
        self._error: PenstockError | None = None

    def done_for(self, part: int) -> OnAppended:
        def part_done(result: Appended | PenstockError) -> None:
            if isinstance(result, Appended):
                self._results[part] = result
            elif self._error is None:
                self._error = result
            self._left -= 1
            if self._left == 0:
                self._done(self._error or self._results)

        return part_done

    def take_late(self) -> list[tuple[EmbeddedPartition, Waiting]]:
        """The late parts as appends that wait, as the others do."""
        late, self.late = self.late, ()
        self._left += len(late)
        return [(partition, Waiting(batch, self.done_for(at), self)) for at, partition, batch in late]

    def make_late(self) -> None:
        """Make the records of the late parts. Raises NotWritten if one has no partition any more."""
        self.late_records = []
        for _, partition, late in self.late:
            if partition.failure is not None or partition.deleted:
                raise NotWritten(f"nothing was written, because {partition} takes no records any more")
            batch = late.make(self.places)
            [value], [key] = batch.values, batch.keys or [None]
            if key is None or value is None or batch.headers is not None or batch.expiries is not None:
                raise InvalidRequest(f"a late record of {partition} is not a key and a value alone")
            self.late_records.append(LateRecord(partition, key, value))


def start_atomic(
    loop: asyncio.AbstractEventLoop,
    committer: Committer,
    parts: Sequence[BatchFor],
    done: OnAllAppended,
) -> None:
    """Queue an append for the next commit, as `Engine.append_atomic` says."""
    stored: list[tuple[int, EmbeddedPartition]] = []
    late: list[LatePart] = []
    if not parts or len({partition for partition, _ in parts}) != len(parts):
        raise InvalidRequest("an atomic append names each partition once, and at least one")
    for at, (named, batch) in enumerate(parts):
        partition = cast("EmbeddedPartition", named)  # an atomic append stays within one engine
        _ = batch.size_bytes  # raises for a bug of the caller, before a part of it is queued
        refusal = partition.refusal()
        if refusal is not None:
            loop.call_soon(done, refusal)
            return
        if type(batch) is LateBatch and partition.defers_late:
            late.append(LatePart(at, partition, batch))
        else:
            stored.append((at, partition))
    if not stored:
        raise InvalidRequest("an atomic append of late records has nothing that they could tell of")
    whole = AtomicAppend(len(parts), done, stored[0][1], late)
    for at, partition in stored:
        partition.append(parts[at].batch, whole.done_for(at), whole)
    if late:
        whole.number = committer.expect_late(late)
