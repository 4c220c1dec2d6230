"""Appends while they wait and while they are written: alone, as parts of an atomic one, and gathered into a transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.log.api import Appended, Batch, BlockBatch, LateBatch, OnAllAppended, OnAppended, Partition
from penstock.log.kafka.batches import join_batches

if TYPE_CHECKING:
    from penstock.log.kafka.claims import Claim
    from penstock.log.kafka.partition import KafkaPartition


class Atomic:
    """An atomic append: all parts or none. `done` is None once it was answered."""

    __slots__ = ("alone", "batches", "claim", "done", "partitions", "places")

    def __init__(
        self,
        partitions: Sequence[KafkaPartition],
        batches: Sequence[Batch | BlockBatch | LateBatch],
        done: OnAllAppended,
        claim: Claim,
    ) -> None:
        self.partitions = partitions
        self.claim = claim
        self.batches = batches
        self.done: OnAllAppended | None = done
        self.alone = False
        """Whether it is written by itself, because a transaction with others was refused."""
        self.places: dict[Partition, Appended] = {}


class Pending:
    """An append, or one part of an atomic one, in the queue of its partition. `done` is None once it was answered."""

    __slots__ = ("alone", "at", "atomic", "batch", "done")

    def __init__(
        self, batch: Batch | BlockBatch | LateBatch, done: OnAppended | None, at: float, atomic: Atomic | None = None
    ) -> None:
        self.batch = batch
        self.done = done
        self.at = at
        """When it was made."""
        self.atomic = atomic
        self.alone = False
        """Whether it is sent by itself, because a batch with others was refused."""


class Stored(NamedTuple):
    """A record batch that was written."""

    offset: int
    timestamp_ms: int
    batch: Batch


class Share:
    """What a transaction writes to one partition: a batch, and a second one from the first part on that is made late."""

    __slots__ = ("appends", "partition", "stored")

    def __init__(self, partition: KafkaPartition, appends: list[Pending]) -> None:
        self.partition = partition
        self.appends = appends
        self.stored: list[Stored] = []

    @property
    def plain(self) -> list[Pending]:
        """Appends that only happen to be in it."""
        return [pending for pending in self.appends if pending.atomic is None]

    def early(self) -> Batch | None:
        """The records before the first that is made late."""
        batches = []
        for pending in self.appends:
            if isinstance(pending.batch, LateBatch):
                break
            batches.append(pending.batch)
        return join_batches(batches) if batches else None

    def late(self, places: Mapping[Atomic, Mapping[Partition, Appended]]) -> Batch | None:
        """The other records; each late one is told where the parts of its append are stored."""
        batches: list[Batch | BlockBatch] = []
        for pending in self.appends:
            if isinstance(pending.batch, LateBatch):
                assert pending.atomic is not None
                batches.append(pending.batch.made(places.get(pending.atomic, {})))
            elif batches:
                batches.append(pending.batch)
        return join_batches(batches) if batches else None

    def places(self) -> Iterator[tuple[Pending, Appended]]:
        """Where each append is, of those that are stored."""
        stored = iter(self.stored)
        here = next(stored, None)
        if here is None:
            return
        offset = here.offset
        for pending in self.appends:
            if offset == here.offset + here.batch.count:
                here = next(stored, None)
                if here is None:
                    return
                offset = here.offset
            yield pending, Appended(offset, here.timestamp_ms)
            offset += len(pending.batch)


class Transaction(NamedTuple):
    """Atomic appends that are written together, and what lay between them in the queues."""

    shares: list[Share]
    atomics: list[Atomic]

    def without(self, faulty: set[Pending]) -> Transaction:
        """The same but for some appends, and all parts of the atomic ones among them."""
        gone = {pending.atomic for pending in faulty} - {None}
        shares = [
            Share(
                share.partition,
                [
                    each
                    for each in share.appends
                    if each not in faulty and (each.atomic is None or each.atomic not in gone)
                ],
            )
            for share in self.shares
        ]
        return Transaction(
            [share for share in shares if share.appends], [atomic for atomic in self.atomics if atomic not in gone]
        )
