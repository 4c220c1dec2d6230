"""Idempotent producers: each request is stored once, however often it is sent, also across a crash of the broker.

The broker hands out the ids, at random, and keeps them: only so is a producer that it has forgotten told from one that is new, and a
request that is sent again refused rather than stored twice. The sequence numbers are those of requests, not of partitions, because the
broker chooses the partitions of records without a key: a repeated request finds where they went by its number.

Records and the entry that tells where they are go to the log in one append over several partitions, whose entry is made once their
offsets are decided and may show in the table later (`LateBatch`). In a topic without fsync that would cost the flush that the topic does
without. There the answer is kept in memory only, and a request that is sent again after a crash is refused if an earlier run of the
broker may have stored it.

The number of producers and the bytes of their answers are bounded. Beyond either limit, the least recently used producers of the principal
with the largest share are evicted (`shares`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import msgspec

from penstock.broker.access.checks import Operation, Principal, on_broker, on_topic
from penstock.broker.idempotence.sequences import IN_FLIGHT_MAX, Sequences, Verdict
from penstock.broker.idempotence.shares import Shares
from penstock.broker.idempotence.stored import (
    NOT_STORED,
    PRODUCER_SLOT,
    PRODUCERS_TOPIC,
    REASON_CHARACTERS_MAX,
    Place,
    ProducerKey,
    StoredProducer,
    StoredRequest,
    Written,
    compressed,
    encode,
    kept_reasons,
    written,
)
from penstock.broker.part import Context, Part
from penstock.broker.records.faults import Faults
from penstock.broker.records.producer import Accepted, Producer
from penstock.broker.schemas.reference import parse_reference
from penstock.broker.schemas.validation import Validation
from penstock.broker.table import TABLE_CONFIG, ensure_internal_topic, once_known, read_state
from penstock.broker.tracing import ending
from penstock.broker.transactions.transaction_records import TransactionRecords
from penstock.errors import (
    CorruptMetadata,
    InvalidRequest,
    OutcomeUnknown,
    OutOfOrderSequence,
    PenstockError,
    ShuttingDown,
    UnknownProducer,
)
from penstock.futures import set_outcome
from penstock.log.api import Appended, Batch, BatchFor, LateBatch, Partition
from penstock.log.block import Block
from penstock.names import NAME_BYTES_MAX

FORGOTTEN_PER_APPEND_MAX: Final = 1024
"""Producers that are removed from the log at a time."""
_PLACE_BYTES_MAX: Final = 32
"""Per place in an entry."""
_FIELDS_BYTES_MAX: Final = 96 + NAME_BYTES_MAX
"""Fields of a bounded size in a key and an entry."""
_REASON_BYTES_MAX: Final = 4 * REASON_CHARACTERS_MAX + 64
_STORED_SOMEWHERE: Final = "the records are stored, but the log has not told at which offsets"
_ENTRY_BYTES: Final = 64
"""What an entry or a producer takes in memory besides its bytes, about."""

OnWritten = Callable[[Written | PenstockError], None]
_Answer = bytes | OutcomeUnknown
"""The entry of a request that was stored, or that nobody knows whether it was: it is not stored again in this run."""


@dataclass(slots=True)
class ProducerStats:
    """Plain numbers, exported on scrape."""

    registered: int = 0
    repeated: int = 0
    """Requests that were sent again and had been stored."""
    refused: int = 0
    """Requests of producers that are not known, or with a number that is out of order."""
    forgotten: int = 0


class Sequenced(Protocol):
    """Which request of which producer it is."""

    @property
    def producer(self) -> bytes: ...

    @property
    def sequence(self) -> int: ...

    @property
    def floor(self) -> int:
        """The lowest number without an answer."""

    @property
    def resent(self) -> bool:
        """Whether it was sent before."""


class _Producer:
    """A producer in memory."""

    __slots__ = ("forgotten", "id", "last_ms", "owner", "sequences", "size_bytes", "slots")

    def __init__(self, producer_id: bytes, owner: str, now_ms: int, *, from_log: bool = False) -> None:
        self.id = producer_id
        self.owner = owner
        self.last_ms = now_ms
        self.sequences: Sequences[_Answer, OnWritten] = Sequences(from_log=from_log)
        self.slots = 0
        """A bit for each slot that has a record in the log."""
        self.size_bytes = 0
        """Of the answers that are kept."""
        self.forgotten = False

    def measure(self) -> int:
        """Return by how much the size of the answers has changed."""
        before, size_bytes = self.size_bytes, 0
        for answer in self.sequences.answers.values():
            size_bytes += _ENTRY_BYTES + (len(answer) if type(answer) is bytes else 0)
        self.size_bytes = size_bytes
        return size_bytes - before

    def keys(self) -> list[bytes]:
        """Of all its records in the log."""
        slots = [slot for slot in range(IN_FLIGHT_MAX) if self.slots >> slot & 1]
        return [encode(ProducerKey(self.id, slot)) for slot in (PRODUCER_SLOT, *slots)]


class IdempotentProducers(Part):
    def __init__(self, context: Context, producer: Producer, validation: Validation) -> None:
        super().__init__(context)
        self.stats = ProducerStats()
        self.select = producer.select
        self.handle = self._engine.partition
        self.append_atomic = self._engine.append_atomic
        self._validation = validation
        self._partition: Partition | None = None
        self._known: OrderedDict[bytes, _Producer] = OrderedDict()
        """By id, the one whose last request is the oldest first."""
        self._newest: _Producer | None = None
        """The last of them, if it is known."""
        self._shares = Shares(self._limits.producers_max, self._limits.producers_bytes_max)
        self._size_bytes = 0
        self._none_idle_until_ms = 0
        """No producer has been idle for too long before this time."""
        self._writes = 0
        self._drained: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._known)

    @property
    def size_bytes(self) -> int:
        """Of the answers that are kept in memory."""
        return self._size_bytes

    # -- opening and closing ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the producers. Raises CorruptBlock if a part of them cannot be read."""
        partition = await ensure_internal_topic(self._engine, PRODUCERS_TOPIC, TABLE_CONFIG)
        stray: dict[bytes, None] = {}
        async for block in read_state(self._engine, PRODUCERS_TOPIC):
            self._load(block, stray)
        for known in self._known.values():
            self._size_bytes += known.measure()
            self._shares.add(known.owner, known.id, known.size_bytes)
        self._partition = partition
        self._delete(list(stray))
        self._forget_old()

    def _load(self, block: Block, stray: dict[bytes, None]) -> None:
        """`stray` gets the keys of requests whose producer was forgotten, which a compaction may leave behind."""
        keys = block.keys() or [None] * block.count
        for offset, key, value, time_ms in zip(block.offsets(), keys, block.values(), block.timestamps(), strict=True):
            try:
                named = _KEYS.decode(key or b"")
                entry = None if value is None else _ENTRIES.decode(value)
            except msgspec.MsgspecError as error:
                raise CorruptMetadata(
                    f"table {PRODUCERS_TOPIC} has a record at offset {offset} that this release cannot read ({error}): "
                    "start the release that wrote it, or a newer one"
                ) from error
            known = self._known.get(named.producer)
            if isinstance(entry, StoredProducer):
                self._known[named.producer] = _Producer(named.producer, entry.owner, time_ms, from_log=True)
            elif entry is None and named.slot == PRODUCER_SLOT:
                self._known.pop(named.producer, None)
            elif known is None:
                assert key is not None
                stray.pop(key, None) if entry is None else stray.setdefault(key)
            elif isinstance(entry, StoredRequest):
                assert value is not None
                if entry.floor > known.sequences.floor:
                    known.sequences.settle_below(entry.floor)
                known.sequences.end(entry.sequence, value)
                known.slots |= 1 << named.slot
                known.last_ms = time_ms
                self._known.move_to_end(named.producer)

    async def close(self) -> None:
        """Take no more requests and wait for those in flight."""
        self._partition = None
        if self._writes:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    # -- producers --------------------------------------------------------------------------------------------------------

    @on_broker(Operation.WRITE)
    async def register(self, principal: Principal) -> bytes:
        """Return the id of a new producer, which only this principal may use. It is known from now on, also after a crash."""
        partition = self._open()
        producer_id = uuid.uuid4().bytes
        now_ms = self._clock.now_ms()
        registered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(result: Appended | PenstockError | None) -> None:
            self._ended()
            if not isinstance(result, PenstockError):
                self._known[producer_id] = self._newest = _Producer(producer_id, principal.name, now_ms)
                self._shares.add(principal.name, producer_id)
                self.stats.registered += 1
                self._forget_old()
            set_outcome(registered, result if isinstance(result, PenstockError) else None)

        self._writes += 1
        key, value = ProducerKey(producer_id, PRODUCER_SLOT), StoredProducer(principal.name, now_ms)
        partition.append(Batch([encode(value)], [encode(key)]), lambda result: once_known(result, done))
        await registered
        return producer_id

    def _find(self, principal: Principal, producer_id: bytes) -> _Producer:
        known = self._known.get(producer_id)
        now_ms = self._clock.now_ms()
        if (
            known is None
            or known.owner != principal.name
            or (now_ms > self._none_idle_until_ms and self._is_idle(known, now_ms))
        ):
            raise UnknownProducer(
                f"producer {producer_id.hex()} is unknown: it was never registered, belongs to another principal, or was forgotten "
                "because it was idle or others came; register again, and send again only what was certainly not stored"
            )
        known.last_ms = now_ms
        if known is not self._newest:
            self._newest = known
            self._known.move_to_end(producer_id)
            self._shares.used(known.owner, producer_id)
        return known

    def _is_idle(self, known: _Producer, now_ms: int) -> bool:
        return now_ms - known.last_ms > self._limits.producers_idle_ms and not known.sequences.in_flight

    def _forget_old(self) -> None:
        """Forget those that are idle or too many."""
        limits, now_ms = self._limits, self._clock.now_ms()
        keys: list[bytes] = []
        while self._known and len(keys) < FORGOTTEN_PER_APPEND_MAX:
            gone = next(iter(self._known.values()))
            if not self._is_idle(gone, now_ms):
                if len(self._known) <= limits.producers_max and (
                    self._size_bytes <= limits.producers_bytes_max or len(self._known) == 1
                ):
                    self._none_idle_until_ms = gone.last_ms + limits.producers_idle_ms
                    break
                gone = self._known[self._shares.first_to_go(gone.owner)]
            del self._known[gone.id]
            gone.forgotten = True
            self._shares.remove(gone.owner, gone.id, gone.size_bytes)
            self._size_bytes -= gone.size_bytes
            self.stats.forgotten += 1
            keys += gone.keys()
        self._delete(keys)

    def _delete(self, keys: Sequence[bytes]) -> None:
        """Remove records from the log. If that fails, the next start finds them, which does no harm."""
        if keys and self._partition is not None:
            self._writes += 1
            self._partition.append(Batch([None] * len(keys), keys), lambda _: self._ended())

    def _open(self) -> Partition:
        if self._partition is None:
            raise ShuttingDown("the broker is starting or stopping: try again")
        return self._partition

    def _ended(self) -> None:
        self._writes -= 1
        if not self._writes and self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

    # -- writing ----------------------------------------------------------------------------------------------------------

    @on_topic(Operation.WRITE)
    def produce(
        self,
        principal: Principal,
        topic: str,
        request: Sequenced,
        partition: int,
        batch: Batch,
        *,
        schema: str | None = None,
        done: OnWritten,
    ) -> None:
        """Append records as `Records.produce` does, once: a request that was stored before is answered as it was then.

        A request of which nothing is stored may be sent again under its number, or left. Raises UnknownProducer, OutOfOrderSequence,
        and what concerns all records, or hands it to `done`. `done` is called once, after this returns.
        """
        entries = self._partition or self._open()
        try:
            known = self._find(principal, request.producer)
            verdict = known.sequences.admit(request.sequence, request.floor, resent=request.resent)
        except (UnknownProducer, OutOfOrderSequence):
            self.stats.refused += 1
            raise
        if verdict is Verdict.REPEATED:
            self._answer_again(known, topic, request, len(batch), done)
        elif verdict is Verdict.IN_FLIGHT:
            self.stats.repeated += 1
            known.sequences.wait(request.sequence, done)
        else:
            self._begin(known, entries, topic, request, partition, batch, schema, done)

    def _answer_again(self, known: _Producer, topic: str, request: Sequenced, count: int, done: OnWritten) -> None:
        answer = known.sequences.answers[request.sequence]
        if isinstance(answer, OutcomeUnknown):
            asyncio.get_running_loop().call_soon(done, answer)
            return
        entry = _REQUESTS.decode(answer)
        if (entry.topic, entry.count) != (topic, count):
            raise InvalidRequest(
                f"sequence {request.sequence} was {entry.count} records for topic {entry.topic}, and is now {count} for {topic}: "
                "a request that is sent again must be the same"
            )
        self.stats.repeated += 1
        asyncio.get_running_loop().call_soon(done, written(entry))

    def _begin(
        self,
        known: _Producer,
        entries: Partition,
        topic: str,
        request: Sequenced,
        partition: int,
        batch: Batch,
        schema: str | None,
        done: OnWritten,
    ) -> None:
        if request.resent and known.sequences.may_be_forgotten(request.sequence):
            durability = self._engine.topic(topic).config.durability
            if durability.mode != "fsync":
                raise OutcomeUnknown(
                    f"outcome unknown: the broker was restarted since these records were sent first, and topic {topic} has durability "
                    f"{durability}: look whether they are stored before you send them again"
                )
        if self._tracing is not None:
            batch, end = self._tracing.produce(topic, batch)
            done = ending(end, done, _error_of)
        write = _Write(self, known, entries, request, topic, batch.count)
        known.sequences.begin(request.sequence, done)
        self._writes += 1
        try:
            if schema is None and not self._validation.applies_to(topic):
                write.append(partition, batch, None)
            else:
                self._validation.screen(
                    topic,
                    None if schema is None else parse_reference(schema),
                    batch,
                    None,
                    lambda faults, stamped: write.append(partition, stamped, faults),
                    write.fail,
                )
        except BaseException:
            known.sequences.end(request.sequence, None)
            self._ended()
            raise

    def settle(self, known: _Producer, sequence: int, entry: bytes | None, outcome: Written | PenstockError) -> None:
        """A request has ended; `entry` is its answer, if something was stored."""
        answer: _Answer | None = entry
        if entry is None and isinstance(outcome, OutcomeUnknown):
            answer = OutcomeUnknown(outcome.message)
        waiters = known.sequences.end(sequence, answer)
        self._ended()
        for waiter in waiters:
            waiter(outcome)
        if known.forgotten:
            return
        grown_bytes = known.measure()
        if grown_bytes:
            self._size_bytes += grown_bytes
            self._shares.grown(known.owner, grown_bytes)
        if self._size_bytes > self._limits.producers_bytes_max or known.last_ms > self._none_idle_until_ms:
            self._forget_old()


class _Write:
    """One request on its way to the log."""

    # Of a request whose records are in several partitions, or of which some are refused.
    _column: Sequence[int] = ()
    _packed = b""
    """The column as it is stored."""
    _refused: Sequence[tuple[int, PenstockError]] = ()
    _reasons: tuple[tuple[int, str, str], ...] = ()
    """What is stored of the errors."""
    _left = 0
    """Appends without an answer, in a topic without fsync."""

    _parts: Sequence[BatchFor]
    _places: tuple[Place, ...]
    _entry: bytes
    """What tells of the places, once they are decided."""

    def __init__(
        self,
        owner: IdempotentProducers,
        known: _Producer,
        entries: Partition,
        request: Sequenced,
        topic: str,
        count: int,
    ) -> None:
        self._owner = owner
        self._known = known
        self._entries = entries
        """Where its own entry goes."""
        self._request = request
        self._topic = topic
        self._count = count

    def append(self, partition: int, batch: Batch, faults: Faults | None) -> None:
        """Append the rows that are sound. Raises what concerns the call as a whole."""
        accepted = self._owner.select(self._topic, partition, batch, faults)
        if accepted.faults is not None:
            self._refused = sorted(accepted.faults.errors.items())
        if not accepted.partitions:
            outcome = Written([NOT_STORED] * self._count, (), self._refused)
            asyncio.get_running_loop().call_soon(self._settle, None, outcome)
            return
        indexes = accepted.partitions
        if not self._refused and indexes.count(indexes[0]) == self._count:
            parts = [BatchFor(self._owner.handle(self._topic, indexes[0]), accepted.batch)]
        else:
            spread = self._spread(accepted)
            parts = [BatchFor(self._owner.handle(self._topic, index), part) for index, part in spread.items()]
        if accepted.topic.config.durability.mode == "fsync":
            self._append_logged(parts)
        else:
            self._append_unlogged(parts)

    def fail(self, error: PenstockError) -> None:
        """Nothing of it is stored."""
        self._settle(None, error)

    def _spread(self, accepted: Accepted) -> dict[int, Batch]:
        column = iter(accepted.partitions)
        refused = dict(self._refused)
        self._column = [NOT_STORED if row in refused else next(column) for row in range(self._count)]
        batch = accepted.batch
        values = list(batch.values)  # they are picked one by one, which is slow for a column of one piece
        rows = Batch(values, batch.keys, batch.headers, batch.expiries, size_bytes=batch.size_bytes)
        records = TransactionRecords()
        records.add(self._topic, accepted.topic.id, accepted.partitions, rows)
        return {destination.partition: part for destination, part in records.batches()}

    def _append_logged(self, parts: Sequence[BatchFor]) -> None:
        slot = self._request.sequence % IN_FLIGHT_MAX
        key = encode(ProducerKey(self._request.producer, slot))
        self._parts = parts
        size_bytes = _FIELDS_BYTES_MAX + _PLACE_BYTES_MAX * len(parts)
        if self._column:
            self._reasons, self._packed = kept_reasons(self._refused), compressed(self._column)
            size_bytes += len(self._packed) + _REASON_BYTES_MAX * len(self._reasons)
        late = LateBatch(key, self._make, size_bytes)
        self._owner.append_atomic([*parts, BatchFor(self._entries, late)], self._logged)
        self._known.slots |= 1 << slot

    def _make(self, found: Mapping[Partition, Appended]) -> bytes:
        places = []
        for partition, _ in self._parts:
            appended = found[partition]
            places.append(Place(partition.index, appended.base_offset, appended.timestamp_ms))
        self._places = tuple(places)
        self._entry = self._encoded(self._places)
        return self._entry

    def _logged(self, result: Mapping[Partition, Appended] | PenstockError | None) -> None:
        if isinstance(result, PenstockError):
            once_known(result, self._logged_after_all)
            return
        outcome = Written(self._column, self._places, self._refused)
        self._owner.settle(self._known, self._request.sequence, self._entry, outcome)

    def _logged_after_all(self, result: Mapping[Partition, Appended] | PenstockError | None) -> None:
        """What looked like an error is known now."""
        if isinstance(result, PenstockError):
            self.fail(result)
        else:
            self._logged(result)

    def _append_unlogged(self, parts: Sequence[BatchFor]) -> None:
        places: list[Place] = []
        failures: dict[int, PenstockError] = {}
        self._left = len(parts)

        def done_for(index: int) -> Callable[[Appended | PenstockError | None], None]:
            def done(result: Appended | PenstockError | None) -> None:
                if isinstance(result, Appended):
                    places.append(Place(index, result.base_offset, result.timestamp_ms))
                else:
                    failures[index] = result or OutcomeUnknown(_STORED_SOMEWHERE)
                self._left -= 1
                if not self._left:
                    self._settle_unlogged(places, failures)

            return done

        for part in parts:
            assert not isinstance(part.batch, LateBatch)
            part.partition.append(part.batch, partial(once_known, known=done_for(part.partition.index)))

    def _settle_unlogged(self, places: Sequence[Place], failures: Mapping[int, PenstockError]) -> None:
        if not places:
            # Only if every part is known to be missing, the request is: what one part refuses says nothing of the others.
            errors = sorted(failures.values(), key=lambda error: not isinstance(error, OutcomeUnknown))
            self._settle(None, errors[0])
            return
        if failures:
            failed = [(row, failures[index]) for row, index in enumerate(self._column) if index in failures]
            self._refused = sorted([*self._refused, *failed], key=lambda each: each[0])
            self._column = [NOT_STORED if index in failures else index for index in self._column]
        self._reasons, self._packed = kept_reasons(self._refused), compressed(self._column)
        self._settle(self._encoded(tuple(places)), Written(self._column, places, self._refused))

    def _encoded(self, places: tuple[Place, ...]) -> bytes:
        request = self._request
        return encode(
            StoredRequest(
                request.sequence, request.floor, self._topic, self._count, self._packed, places, self._reasons
            )
        )

    def _settle(self, entry: bytes | None, outcome: Written | PenstockError) -> None:
        self._owner.settle(self._known, self._request.sequence, entry, outcome)


_KEYS: Final = msgspec.msgpack.Decoder(ProducerKey)
_ENTRIES: Final = msgspec.msgpack.Decoder(StoredProducer | StoredRequest)
_REQUESTS: Final = msgspec.msgpack.Decoder(StoredRequest)


def _error_of(outcome: Written | PenstockError) -> PenstockError | None:
    return outcome if isinstance(outcome, PenstockError) else next((error for _, error in outcome.refused), None)
