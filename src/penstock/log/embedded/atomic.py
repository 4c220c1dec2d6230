"""An append to several partitions on its way to a commit.

Its parts wait in their partitions, each as an append of its own that knows the whole; late parts, which tell where the others are, apart
them if they may stay in the journal (see `checkpoint.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import InvalidRequest, PenstockError
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

AnyBatch = Batch | BlockBatch | LateBatch


class Waiting(msgspec.Struct, frozen=True):
    """An append on its way to the next commit."""

    batch: AnyBatch
    done: OnAppended
    whole: AtomicAppend | None
    """What it is a part of, if it must not be written alone."""


class AtomicAppend:
    """An append to several partitions. While its parts wait, one of them may be refused; then none of them is written."""

    __slots__ = ("_done", "_error", "failure", "left", "places", "refusal")

    def __init__(self, done: OnAllAppended) -> None:
        self.refusal: PenstockError | None = None
        self.failure: str | None = None
        """Why nobody knows whether it is stored."""
        self.places: dict[Partition, Appended] = {}
        """Where its parts are laid out; the commit thread's own until they are answered."""
        self.left = 0
        """How many are still to be answered."""
        self._done = done
        self._error: PenstockError | None = None

    def part_done(self, result: Appended | PenstockError) -> None:
        if self._error is None and isinstance(result, PenstockError):
            self._error = result
        self.left -= 1
        if self.left == 0:
            self._done(self._error or self.places)


class LatePart:
    """A part of an atomic append that is to stay in the journal. Nobody waits for it."""

    __slots__ = ("batch", "key", "partition", "value", "whole")

    def __init__(self, whole: AtomicAppend, partition: EmbeddedPartition, key: bytes, batch: LateBatch) -> None:
        self.whole = whole
        self.partition = partition
        self.key = key
        self.batch = batch
        self.value = b""
        """Of its record, once everything else of the commit is laid out."""

    def as_append(self) -> Waiting:
        """Return it as an append to its partition, as the other parts are."""
        self.whole.left += 1
        return Waiting(self.batch, self.whole.part_done, self.whole)


def start_atomic(
    loop: asyncio.AbstractEventLoop,
    committer: Committer,
    parts: Sequence[BatchFor],
    done: OnAllAppended,
) -> None:
    """Queue an append for the next commit, as `Engine.append_atomic` says."""
    ours: Sequence[tuple[EmbeddedPartition, AnyBatch]] = parts  # type: ignore[assignment]  # it stays within one engine
    partitions = set()
    late = 0
    for partition, batch in ours:
        _ = batch.size_bytes  # raises for a bug of the caller, before a part of it is queued
        late += type(batch) is LateBatch
        partitions.add(partition)
        if partition.closed or partition.failure is not None:
            refusal = partition.refusal()
            assert refusal is not None
            loop.call_soon(done, refusal)
            return
    if not parts or len(partitions) != len(parts):
        raise InvalidRequest("an atomic append names each partition once, and at least one")
    if late == len(parts):
        raise InvalidRequest("an atomic append needs at least one batch besides late records")
    whole = AtomicAppend(done)
    for partition, batch in ours:
        if not (type(batch) is LateBatch and committer.gather_late(whole, partition, batch)):
            whole.left += 1
            partition.append_part(Waiting(batch, whole.part_done, whole))
