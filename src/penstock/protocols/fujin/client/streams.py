"""A client's streams: writers, whose requests are answered in order, and readers, whose answers are found by their ids.

Bytes are handled as they arrive, without a task or a future per message. A stream that has failed stays failed; the client
opens another.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Final, NamedTuple

from penstock.clients.quic import QuicStream
from penstock.errors import ConnectionLost, PenstockError, ProtocolViolation, ShuttingDown
from penstock.futures import shield
from penstock.protocols.fujin.codec.reply_decoding import (
    Answer,
    Batch,
    Connected,
    Delivered,
    Done,
    Goodbye,
    ReplyDecoder,
    Settled,
    StopRequested,
    expected_replies,
)
from penstock.protocols.fujin.codec.request_encoding import (
    AMBIGUOUS_BYTES,
    CONNECT_WRITER,
    DISCONNECT,
    NO_HEADERS,
    encode_connect_reader,
    encode_fetch,
    encode_request,
    encode_settle,
    encode_writes,
)
from penstock.protocols.fujin.errors import error_of
from penstock.protocols.fujin.wire import NOTHING_TO_FETCH, Request

WAITING_MAX: Final = 16_384
"""Messages that were pushed and not yet asked for. With auto commit the server is held back long before."""
WAITING_HIGH: Final = 1_024
WAITING_LOW: Final = 256
DISCONNECT_S_MAX: Final = 1.0
"""A server that does not take part in closing is not waited for any longer."""


class _Exchange(NamedTuple):
    """Requests that were written together, and who waits for their replies."""

    expected: bytes
    """What answers them where all go well."""
    requests: int
    results: list[PenstockError | None]
    finished: asyncio.Future[None]


class ClientStream(ABC):
    """What both kinds have in common."""

    def __init__(self) -> None:
        self._stream: QuicStream | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ids = 1
        self.failure: PenstockError | None = None
        """Why it is of no use any more."""
        self.stop_requested = False
        """The server stops: end what is under way, and ask another, or this one later."""
        self._leaving = False
        """DISCONNECT was said."""

    def attach(self, stream: QuicStream, hello: bytes) -> None:
        self._stream = stream
        stream.send(hello)
        stream.on_data(self._received)

    @property
    def usable(self) -> bool:
        return self.failure is None and not self.stop_requested

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether nothing is under way for whose end a server that stops should be made to wait."""

    def _leave_if_asked(self) -> None:
        """A server that stops waits until everyone has left: it is not made to wait for a program that does nothing just now."""
        stream = self._stream
        if self.stop_requested and self.idle and self.failure is None and stream is not None and stream.can_send:
            self._say_goodbye(stream)

    def _say_goodbye(self, stream: QuicStream) -> None:
        if not self._leaving:
            self._leaving = True
            stream.send(DISCONNECT)

    @property
    def stream(self) -> QuicStream:
        if self.failure is not None:
            raise self.failure
        assert self._stream is not None
        return self._stream

    def _next_ids(self, count: int) -> int:
        first = self._ids
        self._ids = (first + count) & 0xFFFFFFFF
        return first

    def _received(self, data: bytes) -> None:
        if self.failure is not None:
            return
        if not data:
            self.fail(ConnectionLost("the broker ended the stream; what was in flight may have been carried out"))
            self._end()
            return
        try:
            self._take(data)
        except ProtocolViolation as violation:
            self.fail(violation)
        self._leave_if_asked()

    @abstractmethod
    def _take(self, data: bytes) -> None:
        """Handle what the server said."""

    def fail(self, error: PenstockError) -> None:
        if self.failure is None:
            self.failure = error
            self._failed(error)
            if not self._over.done():
                self._over.set_result(None)

    @abstractmethod
    def _failed(self, error: PenstockError) -> None:
        """Fail the requests that wait for a reply."""

    def abandon(self) -> None:
        """Nobody wants it any more, and the server may not even have answered: it is cut off, and nothing is waited for."""
        stream = self._stream
        if self.failure is None:
            self.fail(ConnectionLost("the stream was given up"))
        if stream is not None:
            if stream.can_send:
                stream.reset()
            stream.stop_receiving()

    async def disconnect(self) -> None:
        """Say DISCONNECT, and wait until the server has answered what it had and said it too."""
        stream = self._stream
        if self.failure is not None or stream is None or not stream.can_send:
            return
        self._say_goodbye(stream)
        try:
            async with asyncio.timeout(DISCONNECT_S_MAX):
                await shield(self._over)
        except TimeoutError:
            self.fail(ConnectionLost("the broker did not confirm the DISCONNECT"))
        self._end()

    def _end(self) -> None:
        if self._stream is not None and self._stream.can_send:
            self._stream.end()


class WriterStream(ClientStream):
    """One writer. Replies come in the order of requests."""

    def __init__(self, *, with_headers: bool, in_transaction: bool = False) -> None:
        super().__init__()
        self._with_headers = with_headers
        self._in_transaction = in_transaction
        self._decoder = ReplyDecoder()
        self._exchanges: deque[_Exchange] = deque()
        self._matched_bytes = 0
        """How much has come of what the first exchange expects, all of it as expected."""
        self._form_shown = False

    @property
    def hello(self) -> bytes:
        return CONNECT_WRITER

    @property
    def idle(self) -> bool:
        return not self._exchanges and not self._in_transaction

    async def write(
        self, topic: str, values: Sequence[bytes], headers_fields: Sequence[bytes] | None = None
    ) -> list[PenstockError | None]:
        """Write records, pipelined, with the encoded headers of each, if there are any; of each, why it was refused, or None."""
        stream, before = self.stream, b""
        if self._with_headers and not self._form_shown:
            self._form_shown = True
            if (headers_fields is None or headers_fields[0] == NO_HEADERS) and len(values[0]) >= AMBIGUOUS_BYTES:
                before = self._show_form(topic)
        fields = headers_fields or repeat(NO_HEADERS if self._with_headers else b"")
        first = self._next_ids(len(values))
        exchange = self._await_replies(expected_replies(first, len(values)), len(values))
        await stream.write(before + encode_writes(first, topic, values, fields))
        await exchange.finished
        return exchange.results or [None] * len(values)

    def _show_form(self, topic: str) -> bytes:
        """A large body would be mistaken for that of a client without headers. A WRITE that is refused shows that this one has them."""
        number = self._next_ids(1)
        self._await_replies(expected_replies(number, 1), 1)
        return encode_writes(number, topic, [b""], [NO_HEADERS])

    async def request(self, request: Request) -> None:
        """BEGIN, COMMIT or ROLLBACK. Raises what the broker refuses with."""
        stream, number = self.stream, self._next_ids(1)
        data = encode_request(request, number)
        exchange = self._await_replies(bytes((int(request) - 1,)) + data[1:] + b"\0", 1)
        await stream.write(data)
        await exchange.finished
        for error in exchange.results:
            if error is not None:
                raise error

    def _await_replies(self, expected: bytes, requests: int) -> _Exchange:
        exchange = _Exchange(expected, requests, [], asyncio.get_running_loop().create_future())
        self._exchanges.append(exchange)
        return exchange

    def _take(self, data: bytes) -> None:
        """Replies to a whole exchange that went well are known by comparing them with what was expected; others are decoded."""
        position = 0
        while position < len(data) and self._exchanges and not self._decoder.partial:
            exchange = self._exchanges[0]
            if exchange.results:
                break
            matched = self._matched_bytes
            step = min(len(data) - position, len(exchange.expected) - matched)
            if data[position : position + step] != exchange.expected[matched : matched + step]:
                data, position = exchange.expected[:matched] + data[position:], 0
                self._matched_bytes = 0
                break
            position += step
            self._matched_bytes += step
            if self._matched_bytes < len(exchange.expected):
                return
            self._matched_bytes = 0
            self._exchanges.popleft()
            if not exchange.finished.done():
                exchange.finished.set_result(None)
        for answer in self._decoder.feed(data[position:]):
            self._answered(answer)

    def _answered(self, answer: Answer) -> None:
        if isinstance(answer, StopRequested):
            self.stop_requested = True
        elif isinstance(answer, Goodbye):
            self.fail(ConnectionLost("closed by the broker"))
            self._end()
        elif isinstance(answer, Done) and self._exchanges:
            exchange = self._exchanges[0]
            exchange.results.append(None if answer.error is None else error_of(answer.error))
            if len(exchange.results) == exchange.requests:
                self._exchanges.popleft()
                if not exchange.finished.done():
                    exchange.finished.set_result(None)
        else:
            raise ProtocolViolation(f"{type(answer).__name__} is not a reply to any request")

    def _failed(self, error: PenstockError) -> None:
        exchanges, self._exchanges = self._exchanges, deque()
        for exchange in exchanges:
            if not exchange.finished.done():
                exchange.finished.set_exception(error)
                exchange.finished.exception()  # the caller may have been cancelled


class ReaderStream(ClientStream):
    """One reader. Messages wait here until they are asked for."""

    def __init__(self, topic: str, *, pull: bool, auto_commit: bool) -> None:
        super().__init__()
        self.hello = encode_connect_reader(topic, pull=pull, auto_commit=auto_commit)
        self._auto_commit = auto_commit
        self._decoder = ReplyDecoder(with_ids=not auto_commit)
        self._connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._messages: deque[Delivered] = deque()
        self._arrived: asyncio.Future[None] | None = None
        self._late: deque[Delivered] = deque()
        """What came for a fetch that nobody waited for any more: it is for the next."""
        self._unsettled: set[bytes] = set()
        """Ids that were handed out and not settled."""
        self._waiting: dict[int, asyncio.Future[Batch | Settled]] = {}

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._unsettled

    @property
    def has_arrived(self) -> bool:
        """Whether records are here that nobody has asked for yet."""
        return bool(self._messages or self._late)

    async def connected(self) -> None:
        """Raises what the broker refuses with."""
        await shield(self._connected)

    async def next(self, records_max: int = 1) -> list[Delivered]:
        """The next messages that were pushed, at least one. Raises ConnectionLost once there will be no more."""
        while not self._messages:
            if self.failure is not None:
                raise self.failure
            if self.stop_requested:
                raise ConnectionLost("the broker stops")
            if self._arrived is None:
                self._arrived = asyncio.get_running_loop().create_future()
            await shield(self._arrived)
        taken = self._hand_out(self._messages, records_max)
        if len(self._messages) <= WAITING_LOW and self._stream is not None and self._stream.is_paused:
            self._stream.resume_receiving()
        return taken

    async def fetch(self, records_max: int) -> list[Delivered]:
        if self._late:
            return self._hand_out(self._late, records_max)
        number = self._next_ids(1)
        answer = await self._ask(number, encode_fetch(number, records_max))
        if not isinstance(answer, Batch):
            raise ProtocolViolation(f"{type(answer).__name__} is not a reply to a FETCH")
        return self._hand_out(deque(answer.messages), len(answer.messages))

    def _hand_out(self, messages: deque[Delivered], records_max: int) -> list[Delivered]:
        taken = [messages.popleft() for _ in range(min(records_max, len(messages)))]
        self._unsettled.update(each.id for each in taken if each.id is not None)
        return taken

    async def settle(self, request: Request, ids: Sequence[bytes]) -> Settled:
        number = self._next_ids(1)
        answer = await self._ask(number, encode_settle(request, number, ids))
        if not isinstance(answer, Settled):
            raise ProtocolViolation(f"{type(answer).__name__} is not a reply to an ACK or NACK")
        return answer

    async def _ask(self, number: int, data: bytes) -> Batch | Settled:
        stream = self.stream
        answered: asyncio.Future[Batch | Settled] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        try:
            await stream.write(data)
            answer = await answered
        finally:
            self._waiting.pop(number, None)
        if answer.error is not None and answer.error != NOTHING_TO_FETCH:
            error = error_of(answer.error)
            self.stop_requested = self.stop_requested or isinstance(error, ShuttingDown)
            raise error
        return answer

    def _take(self, data: bytes) -> None:
        for answer in self._decoder.feed(data):
            if isinstance(answer, Delivered):
                self._messages.append(answer)
            else:
                self._answered(answer)
        if self._messages:
            self._wake()
            if len(self._messages) > WAITING_MAX and not self._auto_commit:
                raise ProtocolViolation(f"more than {WAITING_MAX} messages came without being acknowledged")
            # Answers to acknowledgements come on the same stream, so only a reader that sends none may stop reading.
            if self._auto_commit and len(self._messages) > WAITING_HIGH and self._stream is not None:
                self._stream.pause_receiving()

    def _answered(self, answer: Answer) -> None:
        if isinstance(answer, Connected):
            if not self._connected.done():
                if answer.error is None:
                    self._connected.set_result(None)
                else:
                    self.fail(error_of(answer.error))
        elif isinstance(answer, StopRequested):
            self.stop_requested = True
            self._wake()
        elif isinstance(answer, Goodbye):
            self.fail(ConnectionLost("closed by the broker"))
            self._end()
        elif isinstance(answer, Batch | Settled):
            if isinstance(answer, Settled):
                self._unsettled.difference_update(each for each, _ in answer.results)
            waiting = self._waiting.pop(answer.correlation_id, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)
            elif isinstance(answer, Batch):
                self._late.extend(answer.messages)
        else:
            raise ProtocolViolation(f"{type(answer).__name__} is not a reply to any request")

    def _wake(self) -> None:
        arrived, self._arrived = self._arrived, None
        if arrived is not None and not arrived.done():
            arrived.set_result(None)

    def _failed(self, error: PenstockError) -> None:
        if not self._connected.done():
            self._connected.set_exception(error)
            self._connected.exception()  # the caller may have been cancelled
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()
        self._wake()
