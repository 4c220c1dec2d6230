"""Atomic appends as Kafka transactions.

A transaction is begun on its partitions, its records are written to all of them at once, and it is ended. Each needs a transactional id of
its own while it runs; there is a pool of them. What fails before the end is requested is not stored: the id is taken again, which
aborts what was begun. The answer is given once every partition shows the records, which is a moment after the end was decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.background import Tasks
from penstock.errors import InvalidRequest, OutcomeUnknown, PenstockError, Unreachable
from penstock.log.api import Appended, Batch, Partition
from penstock.log.kafka.appends import Atomic, Pending, Share, Stored, Transaction
from penstock.log.kafka.batches import encode_batch, join_batches
from penstock.log.kafka.client import KafkaClient, Produced, ProducerId
from penstock.log.kafka.faults import (
    FENCED,
    SEQUENCE_MODULUS,
    Code,
    KafkaFault,
    Unanswered,
    not_sent,
    refusal_of,
    topic_gone,
)
from penstock.log.kafka.lock import TRANSACTION_MS, NodeLock
from penstock.log.kafka.partition import KafkaPartition
from penstock.log.kafka.reader import RETRY_S_MAX, Reader

POOL_SIZE: Final = 8
"""Transactions that run at a time."""
_PAUSE_S_MIN: Final = 0.001
_BEGIN_AGAIN: Final = frozenset({*FENCED, Code.INVALID_PRODUCER_ID_MAPPING, Code.INVALID_TXN_STATE})
"""The transaction is over, because it took too long, or its id was forgotten: nothing of it is stored."""

Refused = Mapping[Atomic | Pending, PenstockError]


class _Late(Exception):
    """Timed out before the end was requested: nothing is stored."""


class _Writer:
    """A transactional id and what belongs to it."""

    __slots__ = ("dirty", "id", "producer", "sequences")

    def __init__(self, transactional_id: str) -> None:
        self.id = transactional_id
        self.producer = ProducerId(-1, -1)
        self.sequences: dict[KafkaPartition, int] = {}
        self.dirty = True
        """Whether it must be taken again before it is used."""


class Transactions:
    """The pool, and the steps of a transaction."""

    def __init__(self, client: KafkaClient, reader: Reader, lock: NodeLock, transactional_ids: Sequence[str]) -> None:
        self._client = client
        self._reader = reader
        self._lock = lock
        self._writers = [_Writer(each) for each in transactional_ids]
        self._free: asyncio.LifoQueue[_Writer] = asyncio.LifoQueue()
        self._endings = Tasks()

    async def start(self) -> None:
        """Take every id, which aborts what a node before this one left open."""
        await asyncio.gather(*(self._take(writer) for writer in self._writers))
        await self._lock.check()
        self._free = asyncio.LifoQueue()
        for writer in self._writers:
            self._free.put_nowait(writer)

    async def ended(self) -> None:
        """Wait until every end that was requested is certain. Nobody waits for those that took too long, and they still have their id."""
        await self._endings.finish()

    async def stop(self) -> None:
        for task in self._endings:
            task.cancel()
        await asyncio.gather(*self._endings, return_exceptions=True)

    def forget(self, partition: KafkaPartition) -> None:
        """The partition is gone."""
        for writer in self._writers:
            writer.sequences.pop(partition, None)

    async def _take(self, writer: _Writer) -> None:
        writer.dirty = True
        writer.producer = await self._reader.patiently(
            "beginning a transaction", lambda: self._client.init_producer(writer.id, TRANSACTION_MS)
        )
        writer.sequences.clear()
        writer.dirty = False

    async def run(
        self, transaction: Transaction, deadline: float, now_ms: Callable[[], int]
    ) -> tuple[Transaction, Refused]:
        """Commit a transaction; returns what of it is stored, and why the rest is not.

        Raises a PenstockError: nothing is stored, or OutcomeUnknown.
        """
        writer = await self._free.get()
        kept = False
        try:
            transaction, refused = _leave_out_faulty(transaction)
            while transaction.shares:
                if writer.dirty:
                    await self._take(writer)
                    # A node that claimed the topics before has taken this id, too, and would have it taken away.
                    await self._lock.check()
                writer.dirty = True  # until it is committed: what is begun must be aborted otherwise
                try:
                    await self._write(writer, transaction, deadline, now_ms)
                except _Late:
                    raise not_sent("Kafka did not answer in time") from None
                except KafkaFault as fault:
                    if fault.code not in _BEGIN_AGAIN:
                        raise refusal_of(fault, transaction.shares[0].partition) from fault
                    await self._lock.check()
                    continue
                ending = self._endings.run(self._end(writer, transaction))
                remaining = max(0.0, deadline - asyncio.get_running_loop().time())
                await asyncio.wait([ending], timeout=remaining)
                if not ending.done():
                    kept = True
                    ending.add_done_callback(lambda _: self._free.put_nowait(writer))
                    raise _unknown(ending)
                if ending.result():
                    writer.dirty = False
                    break
                await self._lock.check()
        except Unreachable as error:
            raise not_sent(str(error)) from error
        except KafkaFault as fault:
            raise refusal_of(fault, transaction.shares[0].partition) from fault
        else:
            return transaction, refused
        finally:
            if not kept:
                self._free.put_nowait(writer)

    # -- writing -----------------------------------------------------------------------------------------------------------

    async def _write(
        self, writer: _Writer, transaction: Transaction, deadline: float, now_ms: Callable[[], int]
    ) -> None:
        """Begin the transaction and write its records. Raises _Late, KafkaFault."""
        shares = transaction.shares
        for share in shares:
            share.stored.clear()
        timestamp_ms = now_ms()
        await self._until(
            deadline,
            lambda: self._client.add_to_transaction(
                writer.id, writer.producer, [share.partition.place for share in shares]
            ),
            shares,
        )
        await self._produce(writer, [(share, share.early()) for share in shares], deadline, timestamp_ms)
        places: dict[Atomic, dict[Partition, Appended]] = {}
        for share in shares:
            for pending, place in share.places():
                if pending.atomic is not None:
                    places.setdefault(pending.atomic, {})[share.partition] = place
        await self._produce(writer, [(share, share.late(places)) for share in shares], deadline, timestamp_ms)

    async def _produce(
        self, writer: _Writer, batches: Sequence[tuple[Share, Batch | None]], deadline: float, timestamp_ms: int
    ) -> None:
        waiting: dict[Share, tuple[Batch, bytes]] = {}
        for share, batch in batches:
            if batch is not None:
                partition = share.partition
                data = encode_batch(
                    batch,
                    timestamp_ms,
                    writer.producer,
                    writer.sequences.get(partition, 0),
                    transactional=True,
                    compress=partition.config.compression == "zstd",
                )
                waiting[share] = batch, data

        async def attempt() -> None:
            faults: list[KafkaFault | Unanswered] = []
            by_leader: dict[int, list[Share]] = {}
            for share in waiting:
                by_leader.setdefault(self._reader.leader(share.partition.place), []).append(share)
            requests = [
                self._client.produce(node, [(share.partition.place, waiting[share][1]) for share in theirs], writer.id)
                for node, theirs in by_leader.items()
            ]
            answers = await asyncio.gather(*requests, return_exceptions=True)
            for theirs, answer in zip(by_leader.values(), answers, strict=True):
                if isinstance(answer, Unanswered | KafkaFault):
                    faults.append(answer)
                    continue
                if isinstance(answer, BaseException):
                    raise answer
                for share in theirs:
                    result = answer[share.partition.place]
                    if isinstance(result, Produced):
                        batch, _ = waiting.pop(share)
                        place = timestamp_ms if result.timestamp_ms < 0 else result.timestamp_ms
                        share.stored.append(Stored(result.offset, place, batch))
                        following = writer.sequences.get(share.partition, 0) + batch.count
                        writer.sequences[share.partition] = following % SEQUENCE_MODULUS
                    else:
                        faults.append(result)
            if faults:
                raise next((each for each in faults if isinstance(each, KafkaFault) and not each.retriable), faults[0])

        if waiting:
            await self._until(deadline, attempt, list(waiting))

    async def _until(self, deadline: float, attempt: Callable[[], object], shares: Sequence[Share]) -> None:
        """Do a step until it is answered. Raises _Late, or the KafkaFault that is final."""
        loop = asyncio.get_running_loop()
        pause_s = _PAUSE_S_MIN
        while True:
            try:
                await attempt()  # type: ignore[misc]
            except (KafkaFault, Unanswered) as error:
                if isinstance(error, KafkaFault):
                    gone = next((share.partition for share in shares if share.partition.deleted), None)
                    if error.code == Code.UNKNOWN_TOPIC_OR_PARTITION and gone is not None:
                        raise topic_gone(gone) from error
                    if not error.retriable:
                        raise
                if loop.time() + pause_s > deadline:
                    raise _Late from error
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S_MAX)
                if not isinstance(error, KafkaFault) or error.code != Code.CONCURRENT_TRANSACTIONS:
                    await self._client.refresh()
            else:
                return

    # -- the end -----------------------------------------------------------------------------------------------------------

    async def _end(self, writer: _Writer, transaction: Transaction) -> bool:
        """Commit; returns whether it is, once that is certain: asked until every partition shows it."""
        decided = doubtful = False
        pause_s = _PAUSE_S_MIN
        while True:
            try:
                await self._client.end_transaction(writer.id, writer.producer, commit=True)
            except Unanswered:
                doubtful = True
            except KafkaFault as fault:
                if not fault.retriable:
                    if decided or not doubtful:
                        return decided
                    return await self._is_visible(transaction)
                doubtful = True  # the coordinator may have decided it all the same
            else:
                if decided:
                    return True
                decided = True
                continue
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)

    async def _is_visible(self, transaction: Transaction) -> bool:
        """Whether the records can be read, asked once the transaction is over either way."""
        share = transaction.shares[0]
        stored, place = share.stored[0], share.partition.place
        while True:
            try:
                _, stable_end = await self._reader.bounds(place)
                if stable_end > stored.offset:
                    blocks = await self._reader.read(place, stored.offset, stored.offset + 1, 1)
                    return bool(blocks) and blocks[0].base_offset == stored.offset
            except Unreachable:
                pass
            await asyncio.sleep(RETRY_S_MAX)


def _leave_out_faulty(transaction: Transaction) -> tuple[Transaction, dict[Atomic | Pending, PenstockError]]:
    """The transaction without what cannot be encoded, which is found only by trying."""
    faulty: dict[Pending, PenstockError] = {}
    for share in transaction.shares:
        try:
            batch = share.early()
            if batch is not None:
                encode_batch(batch, 0)
        except Exception:  # noqa: BLE001 - whatever a batch holds that cannot be encoded is the fault of who made it
            faulty |= {pending: error for pending in share.appends if (error := _fault_of(pending)) is not None}
    if not faulty:
        return transaction, {}
    return transaction.without(set(faulty)), {pending.atomic or pending: error for pending, error in faulty.items()}


def _fault_of(pending: Pending) -> InvalidRequest | None:
    if isinstance(pending.batch, Batch):
        try:
            encode_batch(join_batches([pending.batch]), 0)
        except Exception as error:  # noqa: BLE001 - see above
            return InvalidRequest(f"the records cannot be stored: {error}")
    return None


def _unknown(ending: asyncio.Task[bool]) -> OutcomeUnknown:
    async def settle() -> bool:
        return await asyncio.shield(ending)

    error = OutcomeUnknown("Kafka has not answered in time: whether the records are stored is known once it does")
    error.settle = settle
    return error
