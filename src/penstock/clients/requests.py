"""Requests over a connection that may have to be made again, to the same node or to another one.

What was never written is written to the next connection; what was written and may be carried out twice without harm is written
again; the rest fails with ConnectionLost, because whether it was carried out is unknown. Connecting is one task however many
requests wait for it, retried with growing, jittered delays, bounded in number and in time.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Generic

from penstock.clients.nodes import Nodes, unreachable
from penstock.clients.options import ClientOptions
from penstock.clients.pipeline import Exchange, Message, Pipeline
from penstock.clients.retry import SUBMISSIONS_MAX, NewAttempts
from penstock.clients.returning import NewReturn
from penstock.clients.url import Address
from penstock.clients.window import Window
from penstock.errors import ConnectionLost, InvalidRequest, RequestTimeout, Unreachable
from penstock.futures import shield

OnLost = Callable[[Pipeline[Message]], None]


class Requests(Generic[Message]):
    """The client's end of the conversation. `log_in` is run on each new connection before anything else."""

    def __init__(
        self,
        nodes: Nodes,
        tls: ssl.SSLContext | None,
        new_pipeline: Callable[[str, OnLost[Message]], Pipeline[Message]],
        log_in: Callable[[Pipeline[Message]], Awaitable[None]],
        options: ClientOptions,
        attempts: NewAttempts,
        new_return: NewReturn,
    ) -> None:
        self._address = nodes.address
        self._nodes = nodes
        self._node = nodes.address
        """The one of the last connection."""
        self._tls = tls
        self._new_pipeline = new_pipeline
        self._log_in = log_in
        self._options = options
        self._attempts = attempts
        self._window = Window(options.in_flight_requests_max, options.in_flight_bytes_max)
        self._pipeline: Pipeline[Message] | None = None
        self._connecting: asyncio.Task[Pipeline[Message]] | None = None
        self._open: set[asyncio.Future[None]] = set()
        self._handed_over = 0
        """Exchanges so far."""
        self.stays = False
        """Whether the node keeps something for this connection: the client does not give it up for another."""
        self._return = new_return(uses=self._uses, move=self._move)
        self._closed = False

    async def open(self) -> None:
        """Connect now, with one attempt at each node, so that a wrong address is heard of at once."""
        await self._connect(attempts_max=1)

    async def perform(self, exchange: Exchange[Message]) -> None:
        """Send it and wait until its replies are in.

        Raises ConnectionLost if it was sent and there is no connection to send it again on: it may have been carried out.
        """
        lost: ConnectionLost | None = None
        for submission in range(1, SUBMISSIONS_MAX + 1):
            try:
                await self.submit(exchange)
            except Unreachable:
                if lost is None:
                    raise
                raise lost from None
            try:
                await exchange.finished
                return
            except ConnectionLost as error:
                if submission == SUBMISSIONS_MAX or (exchange.written and not exchange.repeatable):
                    raise
                if exchange.written:
                    lost = error
                exchange.begin_again()

    async def submit(self, exchange: Exchange[Message], *, after: Exchange[Message] | None = None) -> None:
        """Send it, once there is room and a connection, without waiting for replies.

        Where `after` has failed by then, this one fails too, unwritten, so that it cannot overtake.
        """
        requests, size_bytes = exchange.awaited, len(exchange.data)
        await self._window.enter(requests, size_bytes)
        try:
            pipeline = await self._connect(self._options.retry.attempts_max)
        except BaseException:
            self._window.leave(requests, size_bytes)
            raise
        self._hand_over(pipeline, exchange, after, now=False)

    def has_room_for(self, exchange: Exchange[Message]) -> bool:
        """Whether it need not wait, neither for others nor for a connection."""
        return (
            self._pipeline is not None
            and not self._closed
            and self._window.has_room_for(exchange.awaited, len(exchange.data))
        )

    def submit_now(self, exchange: Exchange[Message], *, after: Exchange[Message] | None = None) -> None:
        """Do as `submit` if `has_room_for` it, and write it in this turn of the loop."""
        assert self._pipeline is not None, "there is no connection"
        self._window.enter_now(exchange.awaited, len(exchange.data))
        self._hand_over(self._pipeline, exchange, after, now=True)

    def _hand_over(
        self, pipeline: Pipeline[Message], exchange: Exchange[Message], after: Exchange[Message] | None, *, now: bool
    ) -> None:
        requests, size_bytes = exchange.awaited, len(exchange.data)
        self._handed_over += 1

        def settled(finished: asyncio.Future[None]) -> None:
            self._window.leave(requests, size_bytes)
            self._open.discard(finished)
            if not finished.cancelled():
                finished.exception()  # seen, even where nobody waits any more

        if after is not None and after.finished.done() and (after.finished.cancelled() or after.finished.exception()):
            exchange.fail(ConnectionLost(f"not sent: the connection to {self._address} was lost before its turn came"))
        else:
            pipeline.submit(exchange, now=now)
        self._open.add(exchange.finished)
        exchange.finished.add_done_callback(settled)  # noticed in a later turn, also if it has failed already

    async def close(self) -> None:
        """Let what is in flight finish (each within its own time), then close the connection. Closing again does nothing."""
        self._closed = True
        self._return.stop()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._open:
            await asyncio.wait(self._open)
        if self._pipeline is not None:
            pipeline, self._pipeline = self._pipeline, None
            await pipeline.close()

    # -- connecting ------------------------------------------------------------------------------------------------------

    async def _connect(self, attempts_max: int) -> Pipeline[Message]:
        if self._closed:
            raise InvalidRequest("this client is closed; connect again")
        if self._pipeline is not None:
            return self._pipeline
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect_with_retries(attempts_max))
            self._connecting.add_done_callback(self._connected)
        try:
            return await shield(self._connecting)
        except asyncio.CancelledError:
            if self._closed:
                raise InvalidRequest("this client was closed while it was connecting") from None
            raise

    def _connected(self, connecting: asyncio.Task[Pipeline[Message]]) -> None:
        self._connecting = None
        if not connecting.cancelled():
            connecting.exception()  # seen, even where nobody waits any more

    def _lost(self, pipeline: Pipeline[Message]) -> None:
        if self._pipeline is pipeline:
            self._pipeline = None
            self.stays = False
            self._nodes.leave(self._node)

    async def _connect_with_retries(self, attempts_max: int) -> Pipeline[Message]:
        attempts = self._attempts(attempts_max)
        while True:
            failures: dict[str, BaseException] = {}
            for node in self._nodes.in_turn():
                if failures and not attempts.in_time:
                    break
                try:
                    pipeline = await self._connect_once(node)
                except (OSError, TimeoutError, ConnectionLost, RequestTimeout) as error:
                    failures[node.netloc] = error
                except BaseException as error:
                    if not self._nodes.passes_over(node, error):
                        raise
                    failures[node.netloc] = error
                else:
                    self._pipeline, self._node = pipeline, node
                    self._return.connected(node)
                    return pipeline
            untrusted = all(isinstance(error, ssl.SSLCertVerificationError) for error in failures.values())
            if untrusted or not await attempts.another():
                reasons = {host: self._reason(error) for host, error in failures.items()}
                tried = "" if attempts.count == 1 else f" ({attempts.count} attempts in {attempts.elapsed_s:.1f} s)"
                raise unreachable(self._address, reasons, tried) from next(reversed(failures.values()))

    async def _connect_once(self, node: Address) -> Pipeline[Message]:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._options.connect_timeout_s):
            _, pipeline = await loop.create_connection(
                lambda: self._new_pipeline(str(node), self._lost), node.host, node.port, ssl=self._tls
            )
            try:
                await self._log_in(pipeline)
            except BaseException:
                pipeline.abort()
                raise
        if pipeline.lost is not None:  # accepted, and closed before its first request
            raise pipeline.lost
        return pipeline

    # -- returning to the first node ---------------------------------------------------------------------------------------

    def _uses(self) -> int | None:
        pipeline = self._pipeline
        quiet = pipeline is not None and pipeline.is_idle and not self._open and not self.stays
        return self._handed_over if quiet else None

    async def _move(self, node: Address) -> bool:
        before, uses = self._pipeline, self._handed_over
        after = await self._connect_once(node)
        if before is None or self._pipeline is not before or self._uses() != uses:  # not quiet any more
            after.abort()
            return False
        self._pipeline, self._node = after, node
        before.leave()
        return True

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._options.connect_timeout_s:g} s"
        if isinstance(error, ConnectionRefusedError):
            return "nothing listens there; is the broker running?"
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted ({error.verify_message}); name the authority that signed it with ?ca=FILE"
        if isinstance(error, socket.gaierror):
            return f"its name cannot be resolved ({error.strerror})"
        if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
            return "the server does not speak TLS"
        if isinstance(error, ConnectionResetError | ConnectionLost):
            return "connection closed during the handshake: wrong port, or TLS on one side only?"
        return str(error) or type(error).__name__
