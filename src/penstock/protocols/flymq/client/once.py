"""The idempotent producer of a client: requests are numbered, and sent again after a lost connection.

Requests are handed to the connection in the order of their numbers, so that a new one never overtakes one that is sent again: at once if
there is nothing to wait for, otherwise by one task. Records of single sends that come in one turn of the loop, or while all requests that
may be in flight are, go together in one request. A record that follows one that went alone does not wait for others.

The broker hands out the id of the producer. If it has forgotten it, a request that was sent only once is certainly not stored: it is
numbered again under another id. One that was sent before fails, because whether it was stored is unknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from struct import Struct
from typing import NamedTuple

from penstock.clients.arguments import CHUNK_BYTES, CHUNK_RECORDS_MAX
from penstock.clients.pipeline import Exchange
from penstock.clients.records import RecordMetadata
from penstock.clients.requests import Requests
from penstock.clients.retry import SUBMISSIONS_MAX, Attempts, NewAttempts
from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationRequired,
    ConnectionLost,
    NotLeading,
    NotSupported,
    PenstockError,
    ProtocolViolation,
    RequestTimeout,
    ShuttingDown,
    UnknownProducer,
    Unreachable,
)
from penstock.protocols.flymq.client.exchanges import Channel, Replies, mismatch
from penstock.protocols.flymq.client.producing import Outgoing, Result
from penstock.protocols.flymq.codec.frames import Reply
from penstock.protocols.flymq.codec.produce_once import decode_stored_together, encode_produce_once
from penstock.protocols.flymq.errors import decode_error, error_for
from penstock.protocols.flymq.operations.limits import PRODUCED_ONCE_HEADERS_MAX
from penstock.protocols.flymq.operations.operation import decode_reply, encode_request
from penstock.protocols.flymq.operations.records import ProduceOnce, RegisterProducer
from penstock.protocols.flymq.wire import ERROR, HEADER_BYTES
from penstock.record_headers import HEADERS_PER_RECORD_MAX

CHUNKS_AHEAD_MAX = 16
"""Requests of one call that are encoded and have no answer."""
HEADER_BYTES_ENOUGH = (PRODUCED_ONCE_HEADERS_MAX - HEADERS_PER_RECORD_MAX) * 6
"""Once a request has this many bytes of headers, no further record goes with it: a header takes six bytes at least."""
PRODUCER_BYTES = 16
_NUMBERS = Struct(f">{PRODUCER_BYTES}sQQ?")
"""Id, sequence, floor, whether it was sent before: what a request is given when its turn comes."""
_NUMBERS_AT = HEADER_BYTES + 4
_NUMBERS_END = _NUMBERS_AT + _NUMBERS.size

_BEFORE_NUMBERS = (AccessDenied, AuthenticationFailed, AuthenticationRequired, NotLeading, ShuttingDown)
"""Errors raised before the sequence number is checked: they do not tell whether an earlier attempt was stored."""


class NotIdempotent(NotSupported):
    """The server has no idempotent producers, or none for this user. Nothing was sent."""


class _Producer:
    """An id, and the requests that were numbered under it."""

    __slots__ = ("id", "in_flight_max", "next", "unanswered")

    def __init__(self, producer_id: bytes, in_flight_max: int) -> None:
        self.id = producer_id
        self.in_flight_max = in_flight_max
        self.next = 0
        self.unanswered: dict[int, OnceExchange] = {}
        """By number, in order."""

    @property
    def floor(self) -> int:
        return next(iter(self.unanswered), self.next)


class OnceExchange(Exchange[Replies]):
    """One PRODUCE_ONCE."""

    __slots__ = (
        "_error",
        "_results",
        "_waiters",
        "answered",
        "doubt",
        "ids",
        "lost",
        "on_end",
        "producer",
        "records",
        "sequence",
        "topic",
    )

    def __init__(
        self,
        outgoing: Outgoing,
        first: int,
        last: int,
        *,
        timeout_s: float,
        answered: asyncio.Future[list[Result]] | None = None,
        waiters: Sequence[asyncio.Future[Result]] = (),
    ) -> None:
        """`answered` gets the metadata or the error of each record, in order, or what concerns all of them; `waiters` are the futures of
        single sends, one for each record."""
        super().__init__(_encoded(outgoing, first, last), replies=1, timeout_s=timeout_s, repeatable=True)
        self.topic = outgoing.topic
        self.records = last - first
        self.answered = answered
        self._waiters = waiters
        self.on_end: Callable[[OnceExchange, PenstockError | None], None] | None = None
        """Called with the reason if there is no reply."""
        self.producer: _Producer | None = None
        self.sequence = -1
        self.ids = 0
        """Under how many ids it was numbered."""
        self.lost: PenstockError | None = None
        """Why it has to be sent again."""
        self.doubt: PenstockError | None = None
        """The loss of a connection to which it was written: it may have been stored."""
        self._results: list[Result] = []
        self._error: PenstockError | None = None

    def number(self, producer: _Producer) -> None:
        """Take the next number of a producer."""
        self.producer = producer
        self.sequence = producer.next
        producer.next += 1
        producer.unanswered[self.sequence] = self
        self.ids += 1

    def prepare(self) -> None:
        """Get ready to be sent, or sent again."""
        assert self.producer is not None
        numbers = _NUMBERS.pack(self.producer.id, self.sequence, self.producer.floor, self.doubt is not None)
        self.data = b"".join((self.data[:_NUMBERS_AT], numbers, self.data[_NUMBERS_END:]))
        if self.finished.done():
            self.begin_again()
        self.lost = None

    def accept(self, message: Replies, first: int, count: int) -> None:
        if isinstance(message, Reply) and message.opcode == ProduceOnce.opcode:
            self._results = self._decoded(message.payload)
        elif isinstance(message, Reply) and message.opcode == ERROR:
            self._error = error_for(decode_error(message.payload))
        else:
            raise mismatch(ProduceOnce.opcode, message)

    def succeed(self) -> None:
        # The caller first, before the room in the connection is counted again.
        if self.on_end is not None:
            self.on_end(self, None)
        super().succeed()

    def fail(self, error: PenstockError) -> None:
        ended = self.finished.done()
        super().fail(error)
        if self.on_end is not None and not ended:
            self.on_end(self, error)

    @property
    def given_up(self) -> bool:
        """Whether its caller was cancelled. Of several sends, the others still wait."""
        return self.answered is not None and self.answered.done()

    @property
    def refusal(self) -> PenstockError | None:
        """The error that the broker answered with."""
        return self._error

    def settle(self, error: PenstockError | None = None) -> None:
        """Fail the waiting calls."""
        error = error or self._error
        if self.producer is not None:
            self.producer.unanswered.pop(self.sequence, None)
        if self.answered is None:
            _deal_out(self._waiters, self._results if error is None else [_again(error) for _ in self._waiters])
        elif not self.answered.done():
            if error is None:
                self.answered.set_result(self._results)
            else:
                self.answered.set_exception(error)
                self.answered.exception()  # seen, even where nobody waits any more

    def renumbered(self) -> None:
        """Forget the producer and the answer, to be sent under another id."""
        assert self.producer is not None
        self.producer.unanswered.pop(self.sequence, None)
        self.producer, self._error = None, None
        self.awaited = 1

    def _decoded(self, payload: bytes) -> list[Result]:
        together = decode_stored_together(payload)
        if together is not None:
            topic, (partition, first, timestamp_ms) = self.topic, together
            return [
                RecordMetadata(topic, partition, offset, timestamp_ms) for offset in range(first, first + self.records)
            ]
        stored = decode_reply(ProduceOnce, payload)
        partitions = stored.partitions or [place[0] for place in stored.places[:1]] * self.records
        nexts = {partition: [offset, timestamp_ms] for partition, offset, timestamp_ms in stored.places}
        failures = {failure.row: failure.error for failure in stored.failures}
        results: list[Result] = []
        if len(partitions) != self.records:
            raise ProtocolViolation(f"the reply to {self.records} records does not tell where each of them is")
        for row, partition in enumerate(partitions):
            if row in failures:
                results.append(error_for(failures[row]))
                continue
            place = nexts.get(partition)
            if place is None:
                raise ProtocolViolation(f"the reply to {self.records} records does not tell where record {row} is")
            results.append(RecordMetadata(self.topic, partition, place[0], place[1]))
            place[0] += 1
        return results


def _encoded(outgoing: Outgoing, first: int, last: int) -> bytes:
    """A request whose numbers are still to be filled in."""
    topic, values, partition = outgoing.topic, outgoing.values[first:last], outgoing.partition
    ttl_ms, schema = outgoing.ttl_ms or 0, outgoing.schema or ""
    if not outgoing.keys and not outgoing.headers:
        data = encode_produce_once(topic, values, partition, ttl_ms, schema)
        if data is not None:
            return data
    keys = outgoing.keys[first:last] if outgoing.keys else ()
    headers = outgoing.headers[first:last] if outgoing.headers else ()
    return encode_request(
        ProduceOnce(bytes(PRODUCER_BYTES), 0, 0, False, topic, values, keys, headers, partition, ttl_ms, schema)
    )


def _chunks(outgoing: Outgoing) -> Iterator[tuple[int, int]]:
    """Bounds of what goes in one request."""
    for first, last in outgoing.chunks(0):
        header_bytes = 0
        for row, cell in enumerate(outgoing.headers[first:last] if outgoing.headers else (), first):
            header_bytes += len(cell or b"")
            if header_bytes >= HEADER_BYTES_ENOUGH:
                yield first, row + 1
                first, header_bytes = row + 1, 0
        if first < last:
            yield first, last


class _Together(NamedTuple):
    """What records must have in common to go in one request."""

    topic: str
    partition: int
    schema: str | None
    ttl_ms: int | None


class _Gathered:
    """Records of single sends that wait for their request."""

    __slots__ = ("_first", "_rows", "common", "header_bytes", "size_bytes", "waiters")

    def __init__(self, common: _Together, first: Outgoing) -> None:
        """`first` is still to be added."""
        self.common = common
        self._first = first
        self.waiters: list[asyncio.Future[Result]] = []
        self.size_bytes = 0
        self.header_bytes = 0
        self._rows: list[tuple[bytes | None, bytes | None, bytes | None]] = []

    def add(self, record: Outgoing) -> asyncio.Future[Result]:
        cells = (
            record.values[0],
            None if record.keys is None else record.keys[0],
            None if record.headers is None else record.headers[0],
        )
        waiter: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._rows.append(cells)
        self.waiters.append(waiter)
        self.size_bytes += sum(map(len, filter(None, cells)))
        self.header_bytes += len(cells[2] or b"")
        return waiter

    def has_room_for(self, record: Outgoing) -> bool:
        """Whether both fit into one request, however large the record is that is allowed by itself."""
        cells = (record.values[0], *(record.keys or ()), *(record.headers or ()))
        return self.size_bytes + sum(map(len, filter(None, cells))) <= 2 * CHUNK_BYTES

    @property
    def is_full(self) -> bool:
        return (
            len(self._rows) >= CHUNK_RECORDS_MAX
            or self.size_bytes >= CHUNK_BYTES
            or self.header_bytes >= HEADER_BYTES_ENOUGH
        )

    def exchange(self, timeout_s: float) -> OnceExchange | None:
        """The request for those that still wait, if any does."""
        if len(self._rows) == 1 and not self.waiters[0].done():
            return self._request(self._first, 1, self.waiters, timeout_s)
        rows = [row for row, waiter in zip(self._rows, self.waiters, strict=True) if not waiter.done()]
        waiters = [waiter for waiter in self.waiters if not waiter.done()]
        if not rows:
            return None
        values, keys, headers = ([row[column] for row in rows] for column in range(3))
        outgoing = Outgoing(
            self.common.topic,
            values,
            None if keys.count(None) == len(keys) else keys,
            None if headers.count(None) == len(headers) else headers,
            self.common.partition,
            self.common.schema,
            self.common.ttl_ms,
        )
        return self._request(outgoing, len(rows), waiters, timeout_s)

    def _request(
        self, outgoing: Outgoing, records: int, waiters: Sequence[asyncio.Future[Result]], timeout_s: float
    ) -> OnceExchange | None:
        try:
            return OnceExchange(outgoing, 0, records, timeout_s=timeout_s, waiters=waiters)
        except PenstockError as error:
            _deal_out(waiters, [_again(error) for _ in waiters])
            return None


def _deal_out(waiters: Sequence[asyncio.Future[Result]], results: Sequence[Result]) -> None:
    for waiter, result in zip(waiters, results, strict=True):
        if not waiter.done():
            waiter.set_result(result)


def _again(error: PenstockError) -> PenstockError:
    """The same error for one more caller: an exception that is raised in two places gathers the tracebacks of both."""
    return type(error)(error.message)


class OnceSender:
    """Sends the records of one client. Methods raise NotIdempotent if the server cannot store them once."""

    def __init__(self, requests: Requests[Replies], channel: Channel, attempts: NewAttempts) -> None:
        self._requests = requests
        self._new_attempts = attempts
        self._outage: Attempts | None = None
        """Attempts to send since the last answer, once a connection was lost."""
        self._channel = channel
        self._timeout_s = channel.timeout_s
        self._producer: _Producer | None = None
        self._gathered: dict[_Together, _Gathered] = {}
        self._queue: deque[OnceExchange] = deque()
        """Requests without a number, in order."""
        self._lost: dict[OnceExchange, None] = {}
        """Requests that have to be sent again."""
        self._unknown: list[OnceExchange] = []
        """Requests whose producer the broker has forgotten, which were certainly not stored."""
        self._task: asyncio.Task[None] | None = None
        """Does what has to wait."""
        self._scheduled = False
        self._sends_singly = False
        """Whether the last request was one record alone, and nothing is in flight or waits."""

    async def send(self, record: Outgoing) -> Result:
        """Store one record; return where it is, or why it is not stored."""
        if self._sends_singly and self._task is None and not self._scheduled:
            waiter: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
            self._queue.append(OnceExchange(record, 0, 1, timeout_s=self._timeout_s, waiters=[waiter]))
            self._advance()
        else:
            waiter = self._gather(record)
        result = await waiter
        if isinstance(result, NotIdempotent):
            raise result
        return result

    def _gather(self, record: Outgoing) -> asyncio.Future[Result]:
        common = _Together(record.topic, record.partition, record.schema, record.ttl_ms)
        gathered = self._gathered.get(common)
        if gathered is not None and not gathered.has_room_for(record):
            self._seal()
            gathered = None
        if gathered is None:
            gathered = self._gathered[common] = _Gathered(common, record)
        waiter = gathered.add(record)
        if gathered.is_full:
            self._seal()
        self._wake()
        return waiter

    async def send_many(self, outgoing: Outgoing) -> list[Result]:
        """Store records, in order; return where each is, or why it is not stored."""
        sent: list[tuple[OnceExchange, asyncio.Future[list[Result]]]] = []
        stopped: PenstockError | None = None
        try:
            for first, last in _chunks(outgoing):
                if len(sent) >= CHUNKS_AHEAD_MAX:
                    stopped = await _lost_by(sent[-CHUNKS_AHEAD_MAX][1])
                if stopped is not None:
                    break
                self._seal()
                answered: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
                exchange = OnceExchange(outgoing, first, last, timeout_s=self._timeout_s, answered=answered)
                sent.append((exchange, answered))
                self._queue.append(exchange)
                self._wake()
            results: list[Result] = []
            for exchange, answered in sent:
                try:
                    results += await answered
                except PenstockError as error:
                    if isinstance(error, NotIdempotent) and not results:
                        raise
                    results += [error] * exchange.records
        except asyncio.CancelledError:
            for _, answered in sent:
                answered.cancel()  # what was not sent will not be
            raise
        return results if stopped is None else results + [stopped] * (len(outgoing.values) - len(results))

    # -- handing requests to the connection --------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Schedule sending for the end of this iteration of the loop, so that all records of the iteration go in one request."""
        if self._task is None and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self) -> None:
        self._scheduled = False
        if self._producer is None or self._lost or self._unknown or self._hand_over(self._producer):
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _hand_over(self, producer: _Producer) -> bool:
        """Number and send what may be in flight. Return whether the next request has to wait for room or a connection."""
        while len(producer.unanswered) < producer.in_flight_max:
            if not self._queue:
                self._seal()
            if not self._queue:
                break
            exchange = self._queue[0]
            if exchange.given_up:
                self._queue.popleft()
            elif self._requests.has_room_for(exchange):
                self._requests.submit_now(exchange, after=self._number_next(producer))
            else:
                return True
        return False

    def _number_next(self, producer: _Producer) -> OnceExchange | None:
        """Make the next request ready to be sent; return the one that it must not overtake."""
        before = next(reversed(producer.unanswered.values()), None)
        exchange = self._queue.popleft()
        exchange.number(producer)
        self._prepare(exchange)
        self._sends_singly = False
        return before

    def _prepare(self, exchange: OnceExchange) -> None:
        exchange.prepare()
        exchange.on_end = self._ended

    async def _run(self) -> None:
        failure: PenstockError | None = None
        try:
            while await self._step():
                pass
        except PenstockError as error:
            failure = error
        except BaseException:
            failure = ConnectionLost("the client has ended; what was in flight may have been carried out")
            raise
        finally:
            self._task = None
            if failure is not None:
                self._fail_all(failure)

    async def _step(self) -> bool:
        """Do what is to be done next; False if there is nothing, or that has to wait for an answer."""
        if self._lost:
            await self._send_again()
            return True
        if self._unknown:
            unknown, self._unknown = self._unknown, []
            for exchange in unknown:
                exchange.renumbered()
            # Their answers may come in several reads: behind those of the reads before, and in front of what was never sent.
            before = [self._queue.popleft() for _ in takewhile(lambda each: each.ids, tuple(self._queue))]
            self._queue.extendleft(reversed([*before, *unknown]))
        if self._producer is None:
            if not self._queue and not self._gathered:
                return False
            await self._register()
            return True
        if not self._hand_over(self._producer):
            return False
        exchange = self._queue[0]
        await self._submit(exchange, self._number_next(self._producer))
        return True

    async def _register(self) -> None:
        try:
            registered = await self._channel.ask(RegisterProducer())
        except (NotSupported, AccessDenied, AuthenticationRequired) as error:
            raise NotIdempotent(error.message) from error
        if len(registered.producer) != PRODUCER_BYTES:
            raise ProtocolViolation(f"the id of a producer has {len(registered.producer)} bytes, not {PRODUCER_BYTES}")
        self._producer = _Producer(registered.producer, max(1, registered.in_flight_max))

    async def _send_again(self) -> None:
        """Send what was lost with a connection, in order, and nothing else until that is done."""
        before: OnceExchange | None = None
        may_go_on = True
        if self._outage is None:
            self._outage = self._new_attempts(None)  # the first time at once
        else:
            may_go_on = await self._outage.another()
        for exchange in sorted(self._lost, key=lambda each: each.sequence):
            del self._lost[exchange]
            if exchange.given_up:
                exchange.settle()
            elif not may_go_on:
                exchange.settle(exchange.doubt or exchange.lost)
            else:
                self._prepare(exchange)
                await self._submit(exchange, before)
                before = exchange
        if not may_go_on:
            self._outage = None

    async def _submit(self, exchange: OnceExchange, before: OnceExchange | None) -> None:
        try:
            await self._requests.submit(exchange, after=before)
        except PenstockError as error:
            exchange.settle(exchange.doubt or error)
            raise

    def _ended(self, exchange: OnceExchange, error: PenstockError | None) -> None:
        """A request has got its reply, or will not get one."""
        if isinstance(error, ConnectionLost):
            exchange.lost = error
            if exchange.written:
                exchange.doubt = error
            self._lost[exchange] = None
            self._wake()
            return
        self._outage = None
        if error is not None or exchange.refusal is None:
            self._settle(exchange, error)
            return
        unknown = isinstance(exchange.refusal, UnknownProducer)
        if unknown and self._producer is exchange.producer:
            self._producer = None
        if unknown and exchange.doubt is None and exchange.ids < SUBMISSIONS_MAX:
            self._unknown.append(exchange)
            self._wake()
            return
        self._settle(exchange, exchange.doubt if isinstance(exchange.refusal, _BEFORE_NUMBERS) else None)

    def _settle(self, exchange: OnceExchange, error: PenstockError | None) -> None:
        exchange.settle(error)
        if self._queue or self._gathered:
            self._wake()
        else:
            self._sends_singly = exchange.records == 1 and self._producer is not None and not self._producer.unanswered

    def _seal(self) -> None:
        """Make requests of the records that have gathered."""
        gathered, self._gathered = self._gathered, {}
        for each in gathered.values():
            exchange = each.exchange(self._timeout_s)
            if exchange is not None:
                self._queue.append(exchange)

    def _fail_all(self, error: PenstockError) -> None:
        """There is no connection to be had: those that were sent before may have been stored."""
        self._seal()
        lost, self._lost = self._lost, {}
        for exchange in lost:
            exchange.settle(exchange.doubt or _again(error))
        unknown, self._unknown = self._unknown, []
        queue, self._queue = self._queue, deque()
        for exchange in (*unknown, *queue):
            exchange.settle(_again(error))


async def _lost_by(answered: asyncio.Future[list[Result]]) -> PenstockError | None:
    """Wait for an answer; return the error if none came, so that it is of no use to continue."""
    try:
        await answered
    except (ConnectionLost, NotIdempotent, RequestTimeout, Unreachable) as error:
        return error
    except PenstockError:
        pass
    return None
