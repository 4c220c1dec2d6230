"""A TCP (or TLS) listener: accepts, bounds and stops connections.

Accepting is done here instead of by the event loop's own server, because that one answers a process without free descriptors by taking
connections and dropping them. Here the kernel's queue keeps them until a descriptor is free. The same loop refuses connections above
`max_connections` before anything is allocated for them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from typing import Any

import structlog

from penstock.background import Tasks
from penstock.clock import Clock
from penstock.net.connection import READ_BYTES_MAX, TcpConnection
from penstock.net.descriptors import descriptor_mark, next_descriptor
from penstock.net.flow import InFlightBudget
from penstock.net.limits import TcpConnectionLimits, TcpLimits
from penstock.net.listener import Listener, within
from penstock.net.session import SessionFactory
from penstock.net.stats import ListenerStats
from penstock.net.tls_transport import TlsBuffers, TlsTransport
from penstock.units import Address

KEEPALIVE_PROBES = 4
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = structlog.get_logger(__name__)


def socket_options(limits: TcpConnectionLimits) -> tuple[tuple[int, int, int], ...]:
    """Return the options of every socket that is accepted or connected to another node."""
    return (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, round(limits.keepalive_idle_s)),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, round(limits.keepalive_interval_s)),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES),
    )


class TcpListener(Listener[TcpConnection]):
    """See the module."""

    limits: TcpLimits

    def __init__(
        self,
        name: str,
        bind: str,
        factory: SessionFactory,
        limits: TcpLimits | None = None,
        tls: ssl.SSLContext | None = None,
        stats: ListenerStats | None = None,
        *,
        clock: Clock | None = None,
        budget: InFlightBudget | None = None,
        quickack: bool = False,
        half_closes: bool = True,
    ) -> None:
        """`budget` is what all listeners of a server share; `quickack` is for protocols whose clients split frames over writes.

        Without `half_closes` a peer that sends no more is gone, and is owed no answers.
        """
        super().__init__(name, bind, limits or TcpLimits(), stats or ListenerStats(), clock, budget)
        self.factory = factory
        self.tls = tls
        self.half_closes = half_closes
        self.read_buffer = memoryview(bytearray(READ_BYTES_MAX))
        self._tls_buffers = TlsBuffers(self.read_buffer)
        self._quickack = quickack
        self._socket_options = socket_options(self.limits)
        self._socket: socket.socket | None = None
        self._accepting = False
        self._descriptor_mark = 0
        self._handshakes = Tasks()
        self._all_gone = asyncio.Event()

    async def start(self) -> None:
        await super().start()
        self._resume_accepting()

    async def stop(self, grace_s: float | None = None) -> None:
        """Accept and read no more, answer what is in flight for at most `grace_s`, then close every connection."""
        if self._stopping:
            return
        grace_s = self.limits.stop_grace_s if grace_s is None else grace_s
        self._stopping = True
        self._pause_accepting()
        if self._socket is not None:
            self._socket.close()
        if self.tls is not None:  # without TLS there is nothing to wait for
            for task in self._handshakes:
                task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)
        await self._let_finish(grace_s)
        self.stats.closed_unanswered += len(self._unanswered)
        for connection in self._unanswered.copy():
            connection.abort()
        if self._connections:
            await within(min(self.limits.linger_s_max, grace_s), self._all_gone)
        for connection in list(self._connections):
            connection.abort()
        if self._connections:
            await self._all_gone.wait()
        self._sweep.stop()

    # What connections call.

    def opened(self, connection: TcpConnection) -> None:
        self._connections[connection] = None
        self._all_gone.clear()
        if self._stopping:
            connection.abort()
        elif self.on_opened is not None:
            self.on_opened(connection)

    def lost(self, connection: TcpConnection) -> None:
        self._connections.pop(connection, None)
        self.answered(connection)
        if not self._connections:
            self._all_gone.set()
        self._gone()

    # Accepting.

    async def _listen(self, address: Address) -> tuple[Any, ...]:
        self._descriptor_mark = descriptor_mark(self.limits.descriptors_reserved)
        family, where = await self._resolve(address, socket.SOCK_STREAM)
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(where)
            listening.listen(self.limits.backlog)
        except OSError as error:
            listening.close()
            raise self._cannot_listen(str(address), error) from None
        self._socket = listening
        bound: tuple[Any, ...] = listening.getsockname()
        return bound

    def _accept_some(self) -> None:
        listening = self._socket
        assert listening is not None
        for _ in range(self.limits.accepts_per_turn_max):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._accepting_exhausted(os.strerror(error.errno))
                    return
                continue  # this one connection failed before it was ours
            if self.stats.connections_open >= self.limits.max_connections:
                self._refuse(accepted)
                continue
            self.stats.connections_total += 1
            self.stats.connections_open += 1
            _ = self._handshakes.run(self._take(accepted, str(Address(*peer[:2]))))
            if accepted.fileno() >= self._descriptor_mark:
                self._accepting_exhausted("the rest is reserved for the log")
                return

    async def _take(self, accepted: socket.socket, peer: str) -> None:
        """Hand an accepted socket to the event loop, through its TLS handshake if there is one."""
        connection = TcpConnection(self, peer, accepted if self._quickack else None)
        tls = None
        try:
            if self.tls is not None:
                tls = TlsTransport(connection, self.tls, self._tls_buffers, self.limits)
            accepted.setblocking(False)
            for level, option, value in self._socket_options:
                accepted.setsockopt(level, option, value)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection if tls is None else tls, accepted
            )
            if tls is not None:
                await tls.established()
        except OSError as error:
            if self.tls is not None:
                self.stats.handshake_failures += 1
                reason = getattr(error, "reason", None) or error.strerror or str(error)
                log.warning("tls_handshake_failed", listener=self.name, peer=peer, reason=reason)
        finally:
            if not connection.made:
                accepted.close()
                self._gone()

    def _gone(self) -> None:
        self.stats.connections_open -= 1
        self._full = False
        self._resume_accepting()

    def _refuse(self, accepted: socket.socket) -> None:
        accepted.close()
        self._refused()

    def _accepting_exhausted(self, reason: str) -> None:
        """Leave new connections in the kernel's queue until one of ours ends or a sweep finds a free descriptor."""
        self._pause_accepting()
        self.stats.accept_pauses += 1
        log.warning("accepting_paused", listener=self.name, reason=reason, connections_open=self.stats.connections_open)

    def _pause_accepting(self) -> None:
        if self._accepting and self._socket is not None:
            self._accepting = False
            asyncio.get_running_loop().remove_reader(self._socket)

    def _resume_accepting(self) -> None:
        """Accept, unless descriptors are short; asked again when a connection ends and at each sweep."""
        if self._accepting or self._stopping or self._socket is None:
            return
        free = next_descriptor(self._socket.fileno())
        if free is not None and free < self._descriptor_mark:
            self._accepting = True
            asyncio.get_running_loop().add_reader(self._socket, self._accept_some)

    def _swept(self) -> list[TcpConnection]:
        self._resume_accepting()
        return list(self._connections)
