"""The streams of a client, over a connection that is made again when it was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from penstock.clients.arguments import check_topic, chunks, values_of
from penstock.clients.nodes import Nodes
from penstock.clients.options import ClientOptions
from penstock.clients.quic import QuicConnection, QuicStream
from penstock.clients.reconnecting import Reconnecting
from penstock.clients.results import require_success
from penstock.clients.retry import NewAttempts
from penstock.clients.returning import NewReturn
from penstock.errors import InvalidRequest, PenstockError
from penstock.protocols.fujin.client.streams import ReaderStream, WriterStream
from penstock.protocols.fujin.codec.request_encoding import FOLLOWS_CONTRACT, NO_HEADERS, Headers, encode_headers_field
from penstock.protocols.fujin.wire import ALPN, PING

TRIPLES: Final = "Fujin records have no keys: send values, or triples of None, value and headers"

T = TypeVar("T")
Records = Iterable[bytes] | Iterable[tuple[None, bytes, Headers]]
"""Values, or triples of None for the key that records do not have here, value and headers."""


class Rows(NamedTuple):
    """Records that were checked, with the encoded headers of each; None if none has any."""

    values: list[bytes]
    headers_fields: list[bytes] | None


class Link:
    """What all streams of one client share."""

    def __init__(
        self,
        nodes: Nodes,
        options: ClientOptions,
        attempts: NewAttempts,
        new_return: NewReturn,
        *,
        with_headers: bool,
    ) -> None:
        self.attempts = attempts
        self._with_headers = with_headers
        self._connections: Reconnecting[QuicConnection] = Reconnecting(
            nodes,
            options,
            attempts,
            new_return,
            alpn=ALPN,
            begin=_begin,
            is_usable=lambda connection: connection.loss is None,
            is_idle=self._is_idle,
            replaced=self._replaced,
        )
        self._shown: QuicConnection | None = None
        """The connection whose server knows that this client follows the contract."""
        self._writer: WriterStream | None = None
        self._open: set[WriterStream | ReaderStream] = set()
        self._attaching = 0
        """Streams that are being opened."""

    async def open(self) -> None:
        """Connect now, with one attempt, so that a wrong address is heard of at once."""
        await self._connections.open()

    async def close(self) -> None:
        """Send DISCONNECT on every stream, then close the connection. Closing again does nothing."""
        connection = self._connections.close()
        if connection is not None:
            await asyncio.gather(*(stream.disconnect() for stream in self._open))
            connection.close()
            await connection.wait_closed()

    async def in_time(self, work: Callable[[], Awaitable[T]], requests: int = 1, size_bytes: int = 0) -> T:
        """Within the bounds of what may be in flight, and of time."""
        return await self._connections.in_time(work, requests, size_bytes)

    # -- streams ---------------------------------------------------------------------------------------------------------

    async def shared_writer(self) -> WriterStream:
        """The stream for the writes of all callers."""
        self._connections.used()
        writer = self._writer
        if writer is None or not writer.usable:
            await self.leave_a_server_that_stops()
            writer = self._writer = await self.open_writer()
        return writer

    async def open_writer(self, *, in_transaction: bool = False) -> WriterStream:
        writer = WriterStream(with_headers=self._with_headers, in_transaction=in_transaction)
        await self._attach(writer)
        return writer

    async def open_reader(self, topic: str, *, pull: bool, auto_commit: bool) -> ReaderStream:
        reader = ReaderStream(topic, pull=pull, auto_commit=auto_commit)
        await self._attach(reader)
        try:
            await self.in_time(reader.connected)
        except BaseException:
            reader.abandon()  # if it is let in later than that, nobody would read what it is sent
            raise
        return reader

    async def give_up(self, stream: WriterStream | ReaderStream) -> None:
        """Send DISCONNECT on a stream."""
        await stream.disconnect()
        if not stream.stop_requested:
            self._open.discard(stream)

    async def leave_a_server_that_stops(self) -> None:
        """Where a server has asked to be left alone, the next stream goes over another connection."""
        if any(stream.stop_requested for stream in self._open):
            leaving, self._open = self._open, set()
            connection = self._connections.leave()
            self._writer = None
            await asyncio.gather(*(stream.disconnect() for stream in leaving))
            if connection is not None:
                connection.close()

    def _is_idle(self, _: QuicConnection) -> bool:
        """Whether there is no stream but the shared writer, and nothing in flight on that."""
        return not self._attaching and all(
            stream.failure is not None or (stream is self._writer and stream.idle) for stream in self._open
        )

    def _replaced(self, before: QuicConnection) -> None:
        self._writer = None
        self._open.clear()
        before.close()

    async def _attach(self, stream: WriterStream | ReaderStream) -> None:
        self._attaching += 1
        try:
            await self._attach_to_connection(stream)
        finally:
            self._attaching -= 1

    async def _attach_to_connection(self, stream: WriterStream | ReaderStream) -> None:
        self._open = {each for each in self._open if each.failure is None or each.stop_requested}
        connection = await self._connections.get()
        if isinstance(stream, ReaderStream) and self._with_headers and connection is not self._shown:
            await self.in_time(partial(_show_contract, connection))
            self._shown = connection
        stream.attach(await connection.open_stream_when_allowed(), stream.hello)
        self._open.add(stream)

    # -- writing ---------------------------------------------------------------------------------------------------------

    def rows(self, topic: str, records: Records, headers: Headers) -> Rows:
        """Check records before anything is sent. Raises InvalidRequest."""
        check_topic(topic)
        given: list[object] = list(records)
        if given and set(map(type, given)) == {tuple}:
            if headers:
                raise InvalidRequest("headers are given twice: give them with each record, or once for all")
            given, each = map(list, zip(*map(_without_key, given), strict=True))
            fields = list(map(encode_headers_field, each))
        else:
            fields = [encode_headers_field(headers)] * len(given)
        values = values_of(given, TRIPLES)
        if not all(values):
            raise InvalidRequest("an empty record cannot be written over Fujin: give it at least one byte")
        if set(fields) <= {NO_HEADERS}:
            return Rows(values, None)
        if not self._with_headers:
            raise InvalidRequest('write_form = "code" has no headers: leave them out, or connect with "table"')
        return Rows(values, fields)

    async def write(self, writer: WriterStream, topic: str, rows: Rows) -> None:
        """Write the rows, pipelined. Raises what they were refused with."""
        values, fields = rows
        parts = [
            asyncio.ensure_future(self._write(writer, topic, values[first:last], fields and fields[first:last]))
            for first, last in chunks(values, 0)
        ]
        try:
            results = [result for part in await asyncio.gather(*parts) for result in part]
        finally:
            for part in parts:
                part.cancel()
        require_success(results)

    async def _write(
        self, writer: WriterStream, topic: str, values: Sequence[bytes], fields: Sequence[bytes] | None
    ) -> list[PenstockError | None]:
        size_bytes = sum(map(len, values)) + sum(map(len, fields or ()))
        try:
            return await self.in_time(partial(writer.write, topic, values, fields), len(values), size_bytes)
        except PenstockError as error:
            return [error] * len(values)


def _without_key(record: Any) -> tuple[bytes, Headers]:
    if len(record) != 3 or record[0] is not None:
        raise InvalidRequest(TRIPLES)
    _, value, headers = record
    return value, headers


async def _begin(connection: QuicConnection) -> QuicConnection:
    connection.on_stream = _answer_ping
    return connection


async def _show_contract(connection: QuicConnection) -> None:
    """Let the server know that readers of this connection take everything the contract allows, before the first of them connects."""
    stream = await connection.open_stream_when_allowed()
    await stream.write(FOLLOWS_CONTRACT, end=True)
    while await stream.read():
        pass


def _answer_ping(stream: QuicStream) -> None:
    """Streams that the server opens are pings: answered with the same byte, at their end."""

    def answer(data: bytes) -> None:
        if not data and stream.can_send:
            stream.send(PING, end=True)

    stream.on_data(answer)
