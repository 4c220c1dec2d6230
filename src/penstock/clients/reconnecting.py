"""A conversation over QUIC that is begun when it is needed and begun again when it was lost, with bounds on what is in flight and on time.

However many callers need it, it is begun once; a failure is tried again with growing, jittered delays, bounded in number and in time. Of
several nodes, one that cannot be reached, or a conversation with which was lost, is left for the next. What the conversation is, and how it
begins, is the protocol's business. Who needs a connection for itself gets one in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from penstock.clients.nodes import Nodes, unreachable
from penstock.clients.options import ClientOptions
from penstock.clients.quic import QuicConnection, connect_quic
from penstock.clients.retry import NewAttempts
from penstock.clients.returning import NewReturn
from penstock.clients.url import Address
from penstock.clients.window import Window
from penstock.errors import ConnectionLost, InvalidRequest, PenstockError, RequestTimeout, Unreachable

T = TypeVar("T")
Conversation = TypeVar("Conversation")


class Reconnecting(Generic[Conversation]):
    """`begin` makes the conversation of a new connection; `is_usable` tells whether it still is, `is_idle` whether it can be given up for
    another without harm, and `replaced` that it was."""

    def __init__(
        self,
        nodes: Nodes,
        options: ClientOptions,
        attempts: NewAttempts,
        new_return: NewReturn,
        *,
        alpn: str | None,
        begin: Callable[[QuicConnection], Awaitable[Conversation]],
        is_usable: Callable[[Conversation], bool],
        is_idle: Callable[[Conversation], bool],
        replaced: Callable[[Conversation], None],
    ) -> None:
        self._address = nodes.address
        self._nodes = nodes
        self._node = nodes.address
        """The one of the last conversation."""
        self._options = options
        self._alpn = alpn
        self._begin = begin
        self._is_usable = is_usable
        self._is_idle = is_idle
        self._replaced = replaced
        self._attempts = attempts
        self._window = Window(options.in_flight_requests_max, options.in_flight_bytes_max)
        self._current: Conversation | None = None
        self._connection: QuicConnection | None = None
        """What the conversation goes over."""
        self._connecting = asyncio.Lock()
        self._uses_so_far = 0
        self._return = new_return(uses=self._uses, move=self._move)
        self._closed = False

    async def open(self) -> None:
        """Begin now, with one attempt at each node, so that a wrong address is heard of at once."""
        await self.get(attempts_max=1)

    async def get(self, attempts_max: int | None = None) -> Conversation:
        """Return the session. Raises Unreachable if there is none, and what `begin` raises."""
        self.used()
        current = self._usable()
        if current is not None:
            return current
        async with self._connecting:
            current = self._usable()
            if current is not None:
                return current
            if self._connection is not None:
                self._connection.close()  # it may be the conversation alone that broke
                self._connection = None
                self._nodes.leave(self._node)
            try:
                self._node, begun = await self._connect(self._begin_on, attempts_max)
            except (ConnectionLost, RequestTimeout) as error:  # nothing but the beginning was sent
                raise Unreachable(f"cannot connect to {self._address}: {error}") from error
            self._current = begun
            self._return.connected(self._node)
            return begun

    async def _begin_on(self, connection: QuicConnection) -> Conversation:
        conversation = await self._begin(connection)
        self._connection = connection
        return conversation

    def used(self) -> None:
        """Somebody is about to send something."""
        self._uses_so_far += 1

    def _uses(self) -> int | None:
        current = self._usable()
        quiet = current is not None and self._window.is_empty and self._is_idle(current)
        return self._uses_so_far if quiet else None

    async def _move(self, node: Address) -> bool:
        """Begin the conversation with this node beside the one there is, and give that up for it unless it is needed again."""
        before, uses = self._current, self._uses_so_far
        made: list[QuicConnection] = []

        async def begin(connection: QuicConnection) -> Conversation:
            made.append(connection)
            return await self._begin(connection)

        after = await self._connect_once(node, begin)
        if before is None or self._current is not before or self._uses() != uses:
            made[0].close()
            return False
        self._current, self._connection, self._node = after, made[0], node
        self._replaced(before)
        return True

    def leave(self) -> Conversation | None:
        """Give up the session, so that the next caller gets another; return it, for what is left to send."""
        current, self._current = self._current, None
        self._connection = None
        self._nodes.leave(self._node)
        return current

    def close(self) -> Conversation | None:
        """Nobody gets one any more; returns the last."""
        self._closed = True
        self._return.stop()
        return self.leave()

    async def in_time(self, work: Callable[[], Awaitable[T]], requests: int = 1, size_bytes: int = 0) -> T:
        """Run an action within the bounds on requests in flight and on time. Raises RequestTimeout."""
        self.used()
        await self._window.enter(requests, size_bytes)
        try:
            return await self._within(self._node, self._options.request_timeout_s, work)
        finally:
            self._window.leave(requests, size_bytes)

    async def connect(self, begin: Callable[[QuicConnection], Awaitable[T]], attempts_max: int | None = None) -> T:
        """Begin something on a connection of its own, which is closed if that fails.

        Raises Unreachable if `begin` had no connection to send anything on, otherwise ConnectionLost or RequestTimeout: what it sent may
        have been carried out.
        """
        _, begun = await self._connect(begin, attempts_max)
        return begun

    async def _connect(
        self, begin: Callable[[QuicConnection], Awaitable[T]], attempts_max: int | None
    ) -> tuple[Address, T]:
        if self._closed:
            raise InvalidRequest("this client is closed; connect again")
        attempts = self._attempts(attempts_max)
        after_sending: PenstockError | None = None
        while True:
            reasons: dict[str, str] = {}
            for node in self._nodes.in_turn():
                if reasons and not attempts.in_time:
                    break
                try:
                    return node, await self._connect_once(node, begin)
                except (Unreachable, RequestTimeout, ConnectionLost) as error:
                    if not isinstance(error, Unreachable):
                        after_sending = error
                    reasons[node.netloc] = str(error).removeprefix(f"cannot connect to {node.netloc}: ")
                except BaseException as error:
                    if not self._nodes.passes_over(node, error):
                        raise
                    reasons[node.netloc] = str(error)
                self._check_open()
            if not await attempts.another():
                raise after_sending or unreachable(self._address, reasons)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest("this client was closed while it was connecting")

    def _usable(self) -> Conversation | None:
        current = self._current
        return current if current is not None and self._is_usable(current) else None

    async def _connect_once(self, node: Address, begin: Callable[[QuicConnection], Awaitable[T]]) -> T:
        files = node.tls_files
        connection = await connect_quic(
            node.host,
            node.port,
            alpn=self._alpn,
            ca_file=files.get("ca"),
            cert=files.get("cert"),
            key=files.get("key"),
            timeout_s=self._options.connect_timeout_s,
        )
        try:
            begun = await self._within(node, self._options.connect_timeout_s, lambda: begin(connection))
            self._check_open()
        except BaseException:
            connection.close()
            raise
        return begun

    @staticmethod
    async def _within(node: Address, timeout_s: float, work: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                return await work()
        except TimeoutError:
            raise RequestTimeout(f"{node} did not answer within {timeout_s:g} s") from None
