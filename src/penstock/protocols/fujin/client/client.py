"""A Fujin client for asyncio programs.

One connection, made when it is needed and made again when it was lost. Writes of all callers share one stream and are pipelined; each
transaction and each reader has a stream of its own. What was written and not answered when a connection is lost fails with
ConnectionLost, because whether it was carried out is unknown; readers connect again by themselves and get what they had not settled.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from types import TracebackType
from typing import Final, Literal, Self, overload

import msgspec

from penstock.clients.arguments import check_topic
from penstock.clients.life import BATCH_RECORDS, AsyncClient, AsyncOpened
from penstock.clients.options import ClientOptions
from penstock.clients.retry import Sleep, resend
from penstock.clients.url import parse_quic_url
from penstock.clock import Clock
from penstock.errors import ConnectionLost, EntryNotFound, InvalidRequest
from penstock.protocols.fujin.client.connection import Link, Records
from penstock.protocols.fujin.client.streams import ReaderStream, WriterStream
from penstock.protocols.fujin.codec.reply_decoding import Delivered
from penstock.protocols.fujin.codec.request_encoding import Headers
from penstock.protocols.fujin.errors import error_of
from penstock.protocols.fujin.wire import IDS_MAX, PORT, Request

SCHEME: Final = "fujin"
FETCH_RECORDS: Final = 256
FAST_S: Final = 0.5
"""`records` fetches larger batches if a program processes one in less, and smaller ones if not."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """A record as it was delivered. `id` is what settles it; None with auto commit."""

    topic: str
    value: bytes
    id: bytes | None = None


class AsyncFujinClient(AsyncClient):
    """A Fujin client for asyncio programs.

    ```python
    async with AsyncFujinClient("fujin://127.0.0.1:4848?ca=penstock-data/dev-certificate.pem") as client:
        await client.send("orders", b"one")
        async with client.transaction() as transaction:
            await transaction.send("orders", b"two")
            await transaction.send("payments", b"three")
        async with client.reader("orders") as reader:
            async for message in reader:
                print(message.value)
                await reader.ack(message)
    ```
    QUIC always uses TLS: `?ca=FILE` names the CA to trust if it is not one of the system's, `?cert=FILE&key=FILE` a client certificate.
    `write_form="code"` is for servers without support for headers. Errors are those of `penstock.errors`. One client
    serves any number of concurrent tasks of one event loop.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: ssl.SSLContext | bool | None = None,
        options: ClientOptions | None = None,
        write_form: Literal["table", "code"] = "table",
        clock: Clock | None = None,
        random: Random | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        address = parse_quic_url(url, SCHEME, port=PORT, tls=tls)
        super().__init__(address, options, clock=clock, random=random, sleep=sleep)
        self._link = Link(
            self._nodes, self._options, self._attempts, self._new_return, with_headers=write_form == "table"
        )

    # -- life ------------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._link.open()

    async def close(self) -> None:
        """Disconnect every stream, then close the connection. Closing again does nothing."""
        await self._link.close()

    # -- writing ---------------------------------------------------------------------------------------------------------

    async def send(self, topic: str, value: bytes, *, headers: Headers = None) -> None:
        """Store one record; it is committed when this returns."""
        rows = self._link.rows(topic, [value], headers)
        await self._link.write(await self._link.shared_writer(), topic, rows)

    async def send_many(self, topic: str, values: Records, *, headers: Headers = None) -> None:
        """Store many records, pipelined, in order: values, with `headers` for all, or triples of None, value and headers.

        Raises the error if all failed for one reason; if some did, BatchFailed, whose `results` has the outcome of each.
        """
        rows = self._link.rows(topic, values, headers)
        if rows.values:
            await self._link.write(await self._link.shared_writer(), topic, rows)

    def transaction(self) -> AsyncTransaction:
        """Return a transaction, for `async with client.transaction() as transaction:`.

        It is committed at the end of the block, and rolled back if an exception leaves the block.
        """
        return AsyncTransaction(self._link)

    # -- reading ---------------------------------------------------------------------------------------------------------

    def reader(self, topic: str, *, pull: bool = False, auto_commit: bool = False) -> AsyncReader:
        """Return a reader in the group that the server has for this name, for `async with client.reader("orders") as reader:`.

        Records are pushed, and `async for message in reader` iterates over them; with `pull`, `reader.fetch` requests them. With
        `auto_commit` a record is acknowledged as soon as it arrives; otherwise call `reader.ack`.
        """
        check_topic(topic)
        return AsyncReader(self._link, topic, pull=pull, auto_commit=auto_commit)

    async def records(
        self, topic: str, *, follow: bool = False, limit: int | None = None
    ) -> AsyncGenerator[Message, None]:
        """Iterate over records, acknowledging each batch when the next is fetched. The batch size adapts to the speed of the loop.

        Without `follow` the iteration ends when the server has had nothing to deliver for as long as it waits (5 s by default).
        """
        asked, handed_out = 1, 0
        async with self.reader(topic, pull=True) as reader:
            while limit is None or handed_out < limit:
                batch = await reader.fetch(asked if limit is None else min(asked, limit - handed_out))
                if not batch and not follow:
                    return
                started_s = self._clock.monotonic()
                done: list[Message] = []
                try:
                    for message in batch:
                        handed_out += 1
                        yield message
                        done.append(message)
                finally:
                    if done:
                        with suppress(EntryNotFound):  # that took too long, or the connection was lost: it comes again
                            await reader.ack(*done)
                fast = self._clock.monotonic() - started_s < FAST_S
                asked = min(asked * 2, FETCH_RECORDS) if fast else max(asked // 2, 1)


class AsyncTransaction:
    """Made by `AsyncFujinClient.transaction`; used once, in an `async with` block."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._writer: WriterStream | None = None

    async def __aenter__(self) -> Self:
        self._writer = await self._link.open_writer(in_transaction=True)
        try:
            await self._request(Request.BEGIN)
        except BaseException:
            self._abandon()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is None:
            return
        if error is not None:
            await self.rollback()
            return
        try:
            await self.commit()
        finally:
            self._abandon()  # where it failed: nobody can try again, and the server need not keep it

    async def send(self, topic: str, value: bytes, *, headers: Headers = None) -> None:
        """Add one record. Raises now if the broker would refuse it."""
        await self._link.write(self._stream, topic, self._link.rows(topic, [value], headers))

    async def send_many(self, topic: str, values: Records, *, headers: Headers = None) -> None:
        """Add many records, which are what `AsyncFujinClient.send_many` takes, and fail as they do there."""
        await self._link.write(self._stream, topic, self._link.rows(topic, values, headers))

    async def commit(self) -> None:
        """Commit all records, as the end of the block does. If it fails, it may be retried."""
        await self._request(Request.COMMIT)
        await self._end()

    async def rollback(self) -> None:
        """Drop everything that was added."""
        await self._end()  # a stream that ends rolls back

    @property
    def _stream(self) -> WriterStream:
        if self._writer is None:
            raise InvalidRequest("this transaction has ended: begin another")
        return self._writer

    async def _request(self, request: Request) -> None:
        await self._link.in_time(partial(self._stream.request, request))

    async def _end(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            await self._link.give_up(writer)

    def _abandon(self) -> None:
        """A stream that is cut off rolls back."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()


class AsyncReader(AsyncOpened):
    """Made by `AsyncFujinClient.reader`; reconnects after a lost connection."""

    def __init__(self, link: Link, topic: str, *, pull: bool, auto_commit: bool) -> None:
        self.topic: str = topic
        self._link = link
        self._pull = pull
        self._auto_commit = auto_commit
        self._stream: ReaderStream | None = None
        self._closed = False

    async def open(self) -> None:
        """Join the group now. Raises TopicNotFound if the topic does not exist and the server does not create it."""
        await self._connected()

    async def close(self) -> None:
        """Leave; what was not settled goes to other readers of the group."""
        self._closed = True
        stream, self._stream = self._stream, None
        if stream is not None:
            await self._link.give_up(stream)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if self._closed:
            raise StopAsyncIteration
        return await self.next()

    @overload
    async def next(self) -> Message: ...
    @overload
    async def next(self, timeout_s: float | None) -> Message | None: ...
    async def next(self, timeout_s: float | None = None) -> Message | None:
        """Return the next message that is pushed, or None if none arrives in time."""
        messages = await self.next_batch(1, timeout_s)
        return messages[0] if messages else None

    async def next_batch(self, max_records: int = BATCH_RECORDS, timeout_s: float | None = None) -> list[Message]:
        """Return the messages that have been pushed, up to a bound, waiting for the first; none if none arrives in time."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._next_batch(max_records)
        except TimeoutError:
            return []

    async def _next_batch(self, max_records: int) -> list[Message]:
        if self._pull:
            raise InvalidRequest("this reader is not pushed to: ask it for records with fetch, or make it without pull")
        attempts = None
        while True:
            stream = await self._connected()
            try:
                delivered = await stream.next(max_records)
            except ConnectionLost:
                # Once at once. A server that lets readers in and then turns them away has some trouble, and is given time.
                if attempts is None:
                    attempts = self._link.attempts(None)
                elif not await attempts.another():
                    raise
            else:
                return [self._message(each) for each in delivered]

    async def fetch(self, max_records: int = FETCH_RECORDS) -> list[Message]:
        """Return up to `max_records` records as soon as there is one; none if none arrived while the server waited.

        If it is cancelled, records that arrive for it are returned by the next call.
        """
        if max_records < 1:
            raise InvalidRequest(f"max_records is {max_records}: ask for at least one")
        batch = await resend(partial(self._fetch, max_records))  # what was on its way was not taken, and comes again
        return [self._message(delivered) for delivered in batch]

    async def _fetch(self, max_records: int) -> list[Delivered]:
        stream = await self._connected()
        return await self._link.in_time(partial(stream.fetch, max_records))

    async def ack(self, *messages: Message | bytes) -> None:
        """Acknowledge messages; the acknowledgement is committed when this returns.

        Raises EntryNotFound if one is not in flight any more: settled already, or requeued after the acknowledgement timeout.
        """
        await self._settle(Request.ACK, messages)

    async def nack(self, *messages: Message | bytes) -> None:
        """Reject messages: they are redelivered after a delay, or become dead letters after the last delivery."""
        await self._settle(Request.NACK, messages)

    async def _settle(self, request: Request, messages: Sequence[Message | bytes]) -> None:
        ids = [message.id if isinstance(message, Message) else message for message in messages]
        known = [each for each in ids if each is not None]
        if len(known) < len(ids):
            raise InvalidRequest("with auto commit there is nothing to acknowledge")
        if not known:
            return
        stream = await self._connected()  # one for all parts: if it is lost, which of them were settled is unknown
        for at in range(0, len(known), IDS_MAX):
            settled = await self._link.in_time(partial(stream.settle, request, known[at : at + IDS_MAX]))
            for _, error in settled.results:
                if error is not None:
                    raise error_of(error)

    async def _connected(self) -> ReaderStream:
        if self._closed:
            raise InvalidRequest("this reader is closed: make another")
        stream = self._stream
        if stream is not None and self._auto_commit and stream.has_arrived:
            return stream  # the server has acknowledged these: they must not be lost with their stream
        if stream is None or not stream.usable:
            if stream is not None:
                await self._link.give_up(stream)
                await self._link.leave_a_server_that_stops()
            stream = self._stream = await self._link.open_reader(
                self.topic, pull=self._pull, auto_commit=self._auto_commit
            )
        return stream

    def _message(self, delivered: Delivered) -> Message:
        return Message(self.topic, delivered.value, delivered.id)
