"""An append to several partitions on its way to a commit.

Its parts wait in their partitions, each as an append of its own that knows the whole; late parts, which tell where the others are, beside
them if they may stay in the journal (see `checkpoint.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
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


class AtomicAppend:
    """An append to several partitions. While its parts wait, one of them may be refused; then none of them is written."""

    __slots__ = ("_done", "_error", "_results", "failure", "left", "places", "refusal")

    def __init__(self, parts: int, done: OnAllAppended) -> None:
        self.refusal: PenstockError | None = None
        self.failure: str | None = None
        """Why nobody knows whether it is stored."""
        self.places: dict[Partition, Appended] = {}
        """Where its parts are laid out, for those that tell of it; the commit thread's own."""
        self.left = parts
        """How many are still to be answered."""
        self._done = done
        self._results = [_NOWHERE] * parts
        self._error: PenstockError | None = None

    def part_done(self, part: int, result: Appended | PenstockError) -> None:
        if isinstance(result, Appended):
            self._results[part] = result
        elif self._error is None:
            self._error = result
        self.left -= 1
        if self.left == 0:
            self._done(self._error or self._results)


class LatePart:
    """A part of an atomic append that is to stay in the journal. Nobody waits for it."""

    __slots__ = ("_at", "_batch", "key", "partition", "value", "whole")

    def __init__(self, whole: AtomicAppend, at: int, partition: EmbeddedPartition, batch: LateBatch) -> None:
        """`at` is which part of the whole it is."""
        whole.left -= 1
        self.whole = whole
        self.partition = partition
        self._at = at
        self._batch = batch
        self.key = self.value = b""
        """Of its record, once everything else of the commit is laid out."""

    def as_append(self) -> Waiting:
        """Return it as an append to its partition, as the other parts are."""
        self.whole.left += 1
        return Waiting(self._batch, partial(self.whole.part_done, self._at), self.whole)

    def make(self) -> None:
        """Make its record. Raises NotWritten if that has no partition any more."""
        partition = self.partition
        if partition.failure is not None or partition.deleted:
            raise NotWritten(f"nothing was written, because {partition} takes no records any more")
        batch = self._batch.make(self.whole.places)
        [value], [key] = batch.values, batch.keys or [None]
        if key is None or value is None or batch.headers is not None or batch.expiries is not None:
            raise InvalidRequest(f"a late record of {partition} is not a key and a value alone")
        self.key, self.value = key, value


def start_atomic(
    loop: asyncio.AbstractEventLoop,
    committer: Committer,
    parts: Sequence[BatchFor],
    done: OnAllAppended,
) -> None:
    """Queue an append for the next commit, as `Engine.append_atomic` says."""
    late = 0
    partitions = set()
    for named, batch in parts:
        _ = batch.size_bytes  # raises for a bug of the caller, before a part of it is queued
        late += type(batch) is LateBatch
        partition = cast("EmbeddedPartition", named)  # an atomic append stays within one engine
        partitions.add(partition)
        if partition.closed or partition.failure is not None:
            refusal = partition.refusal()
            assert refusal is not None
            loop.call_soon(done, refusal)
            return
    if not parts or len(partitions) != len(parts):
        raise InvalidRequest("an atomic append names each partition once, and at least one")
    if late == len(parts):
        raise InvalidRequest("an atomic append of late records has nothing that they could tell of")
    whole = AtomicAppend(len(parts), done)
    for at, (named, batch) in enumerate(parts):
        partition = cast("EmbeddedPartition", named)
        if type(batch) is LateBatch and committer.defers(partition, batch):
            committer.late_gathered.setdefault(partition, []).append(LatePart(whole, at, partition, batch))
        else:
            partition.append_part(Waiting(batch, partial(whole.part_done, at), whole))
