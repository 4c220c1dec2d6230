"""Appends on their way to Kafka.

Each partition has a queue and at most one record batch in flight: so a batch that is sent again is recognized by its sequence number, and
nothing overtakes it. What waits meanwhile makes up the next batch. The same bytes are sent again until they are answered; an
append that waits too long fails with an unknown outcome, which can be settled later (`OutcomeUnknown.settle`).

An atomic append waits until it is at the head of all its queues. It then becomes a transaction, together with what follows it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from penstock.background import Tasks
from penstock.clock import Clock
from penstock.errors import (
    InvalidRequest,
    NotWritten,
    OutcomeUnknown,
    PenstockError,
)
from penstock.log.api import (
    Appended,
    Batch,
    BatchFor,
    BlockBatch,
    EngineStats,
    LateBatch,
    OnAllAppended,
    OnAppended,
    Partition,
)
from penstock.log.kafka.appends import Atomic, Pending, Share, Transaction
from penstock.log.kafka.batches import encode_batch, join_batches
from penstock.log.kafka.claims import Claim
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
from penstock.log.kafka.gathering import gather_transaction
from penstock.log.kafka.partition import KafkaPartition
from penstock.log.kafka.reader import RETRY_S_MAX, RETRY_S_MIN, UNKNOWN_S_MAX

BATCH_BYTES: Final = 256 << 10
"""A batch is closed at this size: Kafka returns it whole, whatever is read of it. A larger append is one batch all the same."""
REQUEST_BYTES: Final = 8 << 20
"""Batches for one broker that go in one request."""
SWEEP_S: Final = 1.0
_OF_THE_RECORDS: Final = frozenset({Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE, Code.INVALID_RECORD})
"""Refusals that depend on the records alone: the batch was not stored before either."""
_UNANSWERED: Final = "Kafka does not answer, and what was sent before waits for it; send again later"
TAKEN_OVER: Final = (
    "another Penstock node has taken over this cluster, so this one writes nothing more: stop one of them"
)
"""For a broker that has the topics for itself."""
LED_BY_ANOTHER: Final = (
    "another Penstock node has the place of this one now, so this one writes nothing more until it has started again, which it does by "
    "itself: connect again, to any node"
)
"""For one node of several."""

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Flight:
    """A batch that was sent and is not answered yet."""

    partition: KafkaPartition
    appends: list[Pending]
    batch: Batch
    data: bytes
    began: float
    timestamp_ms: int
    given_up: bool = False
    doubtful: bool = False
    """Whether it may be stored although it was not answered so: it was sent before, and is sent again."""
    settled: asyncio.Future[bool] | None = field(default=None)


class Sender:
    """The queues of all partitions, and what is in flight."""

    def __init__(self, client: KafkaClient, clock: Clock, stats: EngineStats, append_s_max: float) -> None:
        self.producer = ProducerId(-1, -1)
        """Of plain appends to what every node may write. Others have that of the claim, and are refused once another node has taken it."""
        self._client = client
        self._clock = clock
        self._stats = stats
        self._append_s_max = append_s_max
        self._loop = asyncio.get_running_loop()
        self._ready: dict[KafkaPartition, None] = {}
        self._scheduled = False
        self._flights: set[Flight] = set()
        self._again: list[Flight] = []
        self._tasks = Tasks()
        self._resending: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._outstanding = 0
        """Appends that were not answered, an atomic one as one."""
        self._fenced: str | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self.taken_over = TAKEN_OVER
        """What is said of writes once another node has taken over."""
        self.on_fenced: Callable[[str], None] = lambda _: None
        """Told once that another node has taken over."""

    # -- queues ------------------------------------------------------------------------------------------------------------

    def append(self, partition: KafkaPartition, batch: Batch | BlockBatch, done: OnAppended) -> None:
        if self._fenced is not None:
            self._loop.call_soon(done, NotWritten(self._fenced))
            return
        self._count()
        partition.queue.append(Pending(batch, done, self._loop.time()))
        self._submit(partition)

    def append_atomic(self, parts: Sequence[BatchFor], done: OnAllAppended, claim: Claim) -> None:
        """Append by a transaction of the claim, which covers those partitions that need one."""
        if self._fenced is not None:
            self._loop.call_soon(done, NotWritten(self._fenced))
            return
        self._count()
        atomic = Atomic([_ours(part.partition) for part in parts], [part.batch for part in parts], done, claim)
        for partition, batch in zip(atomic.partitions, atomic.batches, strict=True):
            partition.queue.append(Pending(batch, None, self._loop.time(), atomic))
            self._submit(partition)

    def _count(self) -> None:
        self._outstanding += 1
        self._idle.clear()
        if self._sweep is None:
            self._sweep = self._loop.call_later(SWEEP_S, self._give_up_late)

    def _answered(self) -> None:
        self._outstanding -= 1
        if not self._outstanding:
            self._idle.set()

    async def drained(self) -> None:
        """Wait until everything is answered."""
        await self._idle.wait()

    async def stop(self) -> None:
        """Drop what is in flight; nobody waits for it."""
        if self._sweep is not None:
            self._sweep.cancel()
        tasks = [*self._tasks, *([self._resending] if self._resending is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _submit(self, partition: KafkaPartition) -> None:
        if not partition.busy:
            self._ready[partition] = None
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._send_ready)

    def _send_ready(self) -> None:
        self._scheduled = False
        ready, self._ready = self._ready, {}
        flights: list[Flight] = []
        for partition in ready:
            if partition.deleted or partition.failure is not None or self._fenced is not None:
                self.refuse_queued(partition)
            while partition.queue and not partition.busy:
                if partition.queue[0].atomic is not None:
                    transaction = gather_transaction(partition.queue[0].atomic)
                    if transaction is None:
                        break
                    _ = self._tasks.run(self._transact(transaction))
                else:
                    flight = self._gather(partition)
                    if flight is not None:
                        flights.append(flight)
        self._send(flights)

    def refuse_queued(self, partition: KafkaPartition) -> None:
        """The topic was deleted, or nothing is written any more: answer what waits."""
        refusal = partition.refusal() or NotWritten(self._fenced or "the broker is stopping")
        while partition.queue:
            pending = partition.queue[0]
            if pending.atomic is not None:
                self._refuse_atomic(pending.atomic, refusal)
            else:
                partition.queue.popleft()
                self._answer(pending, refusal)

    def _refuse_atomic(self, atomic: Atomic, refusal: PenstockError) -> None:
        for partition in atomic.partitions:
            partition.queue = type(partition.queue)(each for each in partition.queue if each.atomic is not atomic)
            self._submit(partition)
        self._answer_atomic(atomic, refusal)

    def _answer(self, pending: Pending, result: Appended | PenstockError) -> None:
        done, pending.done = pending.done, None
        if done is not None:
            self._answered()
            self._call(done, result)

    def _answer_atomic(self, atomic: Atomic, result: Mapping[Partition, Appended] | PenstockError) -> None:
        done, atomic.done = atomic.done, None
        if done is not None:
            self._answered()
            self._call(done, result)

    def _call(self, done: Callable[..., None], result: object) -> None:
        try:
            done(result)
        except Exception:
            log.exception("append_callback_failed")

    # -- plain appends -----------------------------------------------------------------------------------------------------

    def _gather(self, partition: KafkaPartition) -> Flight | None:
        """The next batch of a partition: what waits at the head of its queue. None if nothing of it could be encoded."""
        queue = partition.queue
        appends = [queue.popleft()]
        size = appends[0].batch.size_bytes
        while queue and not appends[0].alone:
            following = queue[0]
            size += following.batch.size_bytes
            if following.atomic is not None or following.alone or size > BATCH_BYTES:
                break
            appends.append(queue.popleft())
        now_ms = self._clock.now_ms()
        try:
            batch, data = self._encode(partition, appends, now_ms)
        except Exception as error:  # noqa: BLE001 - whatever a batch holds that cannot be encoded is the fault of who made it
            if len(appends) > 1:
                self._put_back(partition, appends)
            else:
                self._answer(appends[0], InvalidRequest(f"the records cannot be stored: {error}"))
            return None
        partition.busy = True
        flight = Flight(partition, appends, batch, data, appends[0].at, now_ms)
        self._flights.add(flight)
        return flight

    def _encode(self, partition: KafkaPartition, appends: Sequence[Pending], now_ms: int) -> tuple[Batch, bytes]:
        batch = join_batches([_given(pending) for pending in appends])
        compress = partition.config.compression == "zstd"
        producer = self.producer if partition.claim is None else partition.claim.producer
        return batch, encode_batch(batch, now_ms, producer, partition.sequence, compress=compress)

    def _put_back(self, partition: KafkaPartition, appends: Sequence[Pending]) -> None:
        """One of them is at fault: each is sent by itself."""
        for pending in reversed(appends):
            pending.alone = True
            partition.queue.appendleft(pending)

    def _send(self, flights: Sequence[Flight]) -> None:
        by_leader: dict[int, list[Flight]] = {}
        for flight in flights:
            leader = self._client.leader(flight.partition.place)
            if leader is None:
                self._send_again(flight)
            else:
                by_leader.setdefault(leader, []).append(flight)
        for node, theirs in by_leader.items():
            request: list[Flight] = []
            size = 0
            for flight in theirs:
                if request and size + len(flight.data) > REQUEST_BYTES:
                    _ = self._tasks.run(self._request(node, request))
                    request, size = [], 0
                request.append(flight)
                size += len(flight.data)
            _ = self._tasks.run(self._request(node, request))

    async def _request(self, node: int, flights: Sequence[Flight]) -> None:
        began = self._loop.time()
        try:
            answers = await self._client.produce(node, [(flight.partition.place, flight.data) for flight in flights])
        except Exception as error:  # what is not sent again would hold up its partition forever
            if not isinstance(error, Unanswered):
                log.exception("produce_failed")
            for flight in flights:
                flight.doubtful = True
                self._send_again(flight)
            return
        self._stats.flush_seconds.observe(self._loop.time() - began)
        for flight in flights:
            answer = answers.get(flight.partition.place)
            if isinstance(answer, Produced):
                self._stored(flight, answer)
            else:
                self._refused(flight, answer or KafkaFault(Code.UNKNOWN_TOPIC_OR_PARTITION))

    def _stored(self, flight: Flight, answer: Produced) -> None:
        partition, batch = flight.partition, flight.batch
        partition.sequence = (partition.sequence + batch.count) % SEQUENCE_MODULUS
        timestamp_ms = flight.timestamp_ms if answer.timestamp_ms < 0 else answer.timestamp_ms
        self._note(batch)
        partition.landed(answer.offset, timestamp_ms, batch)

        def told() -> None:
            self._settle(flight, stored=True)
            offset = answer.offset
            for pending in flight.appends:
                self._answer(pending, Appended(offset, timestamp_ms))
                offset += len(pending.batch)

        self._landed(flight)
        partition.when_visible(answer.offset + batch.count, told)

    def _note(self, batch: Batch) -> None:
        stats = self._stats
        stats.commits += 1
        stats.appended_records += batch.count
        stats.appended_bytes += batch.size_bytes
        stats.commit_records.observe(batch.count)

    def _landed(self, flight: Flight) -> None:
        self._flights.discard(flight)
        flight.partition.busy = False
        if flight.partition.queue:
            self._submit(flight.partition)

    def _refused(self, flight: Flight, fault: KafkaFault) -> None:
        unknown = fault.code == Code.UNKNOWN_TOPIC_OR_PARTITION
        if unknown and (flight.partition.deleted or self._loop.time() - flight.began > UNKNOWN_S_MAX):
            self._failed(flight, topic_gone(flight.partition))
        elif fault.retriable:
            flight.doubtful = True  # the leader may have it all the same
            self._send_again(flight)
        elif fault.code in FENCED:
            self.fence()
            unknown_outcome = OutcomeUnknown(f"whether the records are stored is unknown: {self._fenced}")
            self._failed(flight, unknown_outcome if flight.doubtful else NotWritten(self._fenced or ""))
        elif fault.code == Code.UNKNOWN_SERVER_ERROR or (flight.doubtful and fault.code not in _OF_THE_RECORDS):
            # The next batch would have the sequence number of this one, and be taken for it if this one is stored.
            self._stats.commit_errors += 1
            flight.partition.fail(f"Kafka refuses a batch that it may have stored before ({fault}); restart the node")
            self._failed(flight, OutcomeUnknown(f"whether the records are stored is unknown: {fault}"))
        elif fault.code in {Code.OUT_OF_ORDER_SEQUENCE, Code.DUPLICATE_SEQUENCE, Code.UNKNOWN_PRODUCER_ID}:
            self._stats.commit_errors += 1
            flight.partition.fail(f"Kafka has lost track of what this node wrote ({fault}); restart the node")
            self._failed(flight, OutcomeUnknown(f"whether the records are stored is unknown: {fault}"))
        elif len(flight.appends) > 1 and not flight.given_up:
            self._put_back(flight.partition, flight.appends)
            self._landed(flight)
        else:
            self._failed(flight, refusal_of(fault, flight.partition))

    def _failed(self, flight: Flight, error: PenstockError) -> None:
        if not isinstance(error, OutcomeUnknown):
            self._settle(flight, stored=False)
        elif flight.settled is not None and not flight.settled.done():
            flight.settled.set_exception(error)
            flight.settled.exception()  # perhaps nobody asks
        self._landed(flight)
        for pending in flight.appends:
            self._answer(pending, error)

    def _settle(self, flight: Flight, *, stored: bool) -> None:
        if flight.settled is not None and not flight.settled.done():
            flight.settled.set_result(stored)

    # -- sending again -----------------------------------------------------------------------------------------------------

    def _send_again(self, flight: Flight) -> None:
        if flight.partition.deleted:
            self._failed(flight, topic_gone(flight.partition))
            return
        self._again.append(flight)
        if self._resending is None:
            self._resending = self._loop.create_task(self._resend())

    async def _resend(self) -> None:
        pause_s = RETRY_S_MIN
        while self._again:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)
            await self._client.refresh()
            again, self._again = self._again, []
            self._send(again)  # what nobody leads now comes back at once, and the rest when it is not answered
            if not self._again:
                await asyncio.sleep(pause_s)
        self._resending = None

    def _give_up_late(self) -> None:
        """Tell those who have waited too long. What is in flight stays there until it is answered."""
        self._sweep = None
        late = self._loop.time() - self._append_s_max
        for flight in self._flights:
            if flight.began < late and not flight.given_up:
                flight.given_up = True
                self._stats.commit_errors += 1
                self._give_up(flight)
            for pending in [each for each in flight.partition.queue if each.at < late]:
                if pending.atomic is not None:
                    self._refuse_atomic(
                        pending.atomic,
                        not_sent(_UNANSWERED),
                    )
                else:
                    flight.partition.queue.remove(pending)
                    self._answer(
                        pending,
                        not_sent(_UNANSWERED),
                    )
        if self._outstanding:
            self._sweep = self._loop.call_later(SWEEP_S, self._give_up_late)

    def _give_up(self, flight: Flight) -> None:
        settled = flight.settled = self._loop.create_future()

        async def settle() -> bool:
            return await asyncio.shield(settled)

        error = OutcomeUnknown(
            f"Kafka has not answered for {self._append_s_max:g} s: whether the records are stored is known once it answers"
        )
        error.settle = settle
        for pending in flight.appends:
            self._answer(pending, error)

    def fence(self, why: str | None = None) -> None:
        """Write nothing more."""
        if self._fenced is None:
            self._fenced = why or self.taken_over
            self.on_fenced(self._fenced)

    # -- atomic appends ----------------------------------------------------------------------------------------------------

    async def _transact(self, transaction: Transaction) -> None:
        """Run a transaction to its end, answer what is in it, and free its partitions."""
        began = self._loop.time()
        deadline = began + self._append_s_max
        try:
            transactions = transaction.atomics[0].claim.transactions
            written, refused = await transactions.run(transaction, deadline, self._clock.now_ms)
        except PenstockError as error:
            self._stats.commit_errors += 1
            self._transaction_failed(transaction, error)
            return
        except Exception:
            log.exception("transaction_failed")
            self._transaction_failed(transaction, OutcomeUnknown("an error in this node; its log has it"))
            return
        for append, refusal in refused.items():
            if isinstance(append, Atomic):
                self._answer_atomic(append, refusal)
            else:
                self._answer(append, refusal)
        self._stats.flush_seconds.observe(self._loop.time() - began)
        for share in written.shares:
            for stored in share.stored:
                self._note(stored.batch)
                share.partition.landed(
                    stored.offset, stored.timestamp_ms, stored.batch, marked=stored is share.stored[-1]
                )
        self._tell_when_visible(written)
        self._free(transaction)

    def _tell_when_visible(self, transaction: Transaction) -> None:
        waiting = {atomic: len(atomic.partitions) for atomic in transaction.atomics if atomic.done is not None}

        def told(share: Share) -> None:
            for pending, place in share.places():
                atomic = pending.atomic
                if atomic is None:
                    self._answer(pending, place)
                elif atomic in waiting:
                    atomic.places[share.partition] = place
                    waiting[atomic] -= 1
                    if not waiting[atomic]:
                        self._answer_atomic(atomic, atomic.places)

        for share in transaction.shares:
            if share.stored:
                last = share.stored[-1]
                share.partition.when_visible(last.offset + last.batch.count, partial(told, share))

    def _transaction_failed(self, transaction: Transaction, error: PenstockError) -> None:
        """Nothing of it is stored, or that is unknown. If several were in it and one is at fault, each is tried by itself."""
        certain = not isinstance(error, OutcomeUnknown) and not isinstance(error, NotWritten)
        if certain and len(transaction.atomics) + sum(len(share.plain) for share in transaction.shares) > 1:
            for share in transaction.shares:
                for pending in reversed(share.appends):
                    if pending.atomic is not None:
                        pending.atomic.alone = True
                    else:
                        pending.alone = True
                    if pending.atomic is None or pending.atomic.done is not None:
                        share.partition.queue.appendleft(pending)
        else:
            for share in transaction.shares:
                for pending in share.plain:
                    self._answer(pending, error)
            for atomic in transaction.atomics:
                self._answer_atomic(atomic, error)
        self._free(transaction)

    def _free(self, transaction: Transaction) -> None:
        for share in transaction.shares:
            share.partition.busy = False
            if share.partition.queue:
                self._submit(share.partition)


def _ours(partition: object) -> KafkaPartition:
    assert isinstance(partition, KafkaPartition)
    return partition


def _given(pending: Pending) -> Batch | BlockBatch:
    assert not isinstance(pending.batch, LateBatch)
    return pending.batch
