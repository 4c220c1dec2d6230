"""A TCP (or TLS) listener: accepts, bounds and stops connections.

Accepting is done here instead of by the event loop's own server, because that one answers a process without free descriptors by taking
connections and dropping them. Here the kernel's queue keeps them until a descriptor is free. The same loop refuses connections above
`connections_max` before anything is allocated for them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl

import structlog

from penstock.clock import Clock, SystemClock
from penstock.errors import ConfigError
from penstock.net.connection import TcpConnection
from penstock.net.deadlines import Sweep
from penstock.net.descriptors import descriptor_mark, next_descriptor
from penstock.net.flow import InFlightBudget
from penstock.net.limits import ListenerLimits
from penstock.net.session import SessionFactory
from penstock.net.stats import ListenerStats
from penstock.units import Address, parse_address

STOP_GRACE_S = 5.0
# A peer that vanished without a word is noticed after about two minutes, well before connections pile up.
KEEPALIVE_IDLE_S = 60
KEEPALIVE_INTERVAL_S = 15
KEEPALIVE_PROBES = 4
SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES),
)
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
BIND_ADVICE = {
    errno.EADDRINUSE: "another process listens there; stop it or choose another port",
    errno.EACCES: "ports below 1024 need a privilege; choose a higher port",
    errno.EADDRNOTAVAIL: "this machine has no such address; choose one it has, or 127.0.0.1",
}

log = structlog.get_logger("penstock.net")


class TcpListener:
    """One protocol on one address. Not reusable: once stopped, make another."""

    def __init__(
        self,
        name: str,
        bind: str,
        factory: SessionFactory,
        limits: ListenerLimits | None = None,
        tls: ssl.SSLContext | None = None,
        stats: ListenerStats | None = None,
        *,
        clock: Clock | None = None,
        budget: InFlightBudget | None = None,
        quickack: bool = False,
    ) -> None:
        """`budget` is what all listeners of a server share; `quickack` is for protocols whose clients split frames over writes."""
        self.name = name
        self.bind = bind
        self.factory = factory
        self.limits = limits or ListenerLimits()
        self.tls = tls
        self.stats = stats or ListenerStats()
        self.clock = clock or SystemClock()
        self._given_budget = budget
        self._quickack = quickack
        self._sweep = Sweep(self._swept, self.clock, self.limits.sweep_s)
        self._socket: socket.socket | None = None
        self._address: Address | None = None
        self._accepting = False
        self._full = False
        self._stopping = False
        self._descriptor_mark = 0
        # Keyed by themselves: ordered, unlike a set, so that what happens to all of them happens in the same order every time.
        self._connections: dict[TcpConnection, None] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._unanswered: set[TcpConnection] = set()
        self._all_answered = asyncio.Event()
        self._all_gone = asyncio.Event()

    @property
    def address(self) -> str:
        """Where it listens, with the port that was picked where `bind` says 0."""
        if self._address is None:
            raise RuntimeError(f"listener {self.name} is not started, so it has no address yet")
        return str(self._address)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.budget = self._given_budget or InFlightBudget(self.limits.in_flight_total_bytes_max, loop.call_soon)
        self._descriptor_mark = descriptor_mark(self.limits.descriptors_reserved)
        self._socket = await self._bind(parse_address(self.bind))
        host, port = self._socket.getsockname()[:2]
        self._address = Address(host, port)
        self._resume_accepting()
        self._sweep.start()

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Accept and read no more, answer what is in flight for at most `grace_s`, then close every connection."""
        if self._stopping:
            return
        self._stopping = True
        self._pause_accepting()
        if self._socket is not None:
            self._socket.close()
        if self.tls is not None:  # without TLS there is nothing to wait for
            for task in self._handshakes:
                task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)
        self._unanswered = set(self._connections)
        self._all_answered.clear()  # connections that ended before have set it
        for connection in self._unanswered.copy():
            connection.stop()
        if self._unanswered:
            await within(grace_s, self._all_answered)
        self.stats.closed_unanswered += len(self._unanswered)
        for connection in self._unanswered.copy():
            connection.abort()
        if self._connections:
            await within(self.limits.linger_s_max, self._all_gone)
        for connection in list(self._connections):
            connection.abort()
        if self._connections:
            await self._all_gone.wait()
        self._sweep.stop()

    def sweep(self) -> None:
        """Look at every deadline now."""
        self._sweep.run()

    # What connections call.

    def opened(self, connection: TcpConnection) -> None:
        self._connections[connection] = None
        self._all_gone.clear()
        if self._stopping:
            connection.abort()

    def answered(self, connection: TcpConnection) -> None:
        self._unanswered.discard(connection)
        if not self._unanswered:
            self._all_answered.set()

    def lost(self, connection: TcpConnection) -> None:
        self._connections.pop(connection, None)
        self.answered(connection)
        if not self._connections:
            self._all_gone.set()
        self._gone()

    # Accepting.

    async def _bind(self, address: Address) -> socket.socket:
        setting = f"listeners.{self.name}.bind"
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except OSError as error:
            raise ConfigError(
                f"{setting}: {address.host!r} cannot be resolved ({error.strerror}): use an IP address"
            ) from None
        # A name with addresses of both kinds (localhost) is taken as the IPv4 one, which every client tries.
        family, kind, protocol, _, where = min(found, key=lambda info: info[0] != socket.AF_INET)
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(where)
            listening.listen(self.limits.backlog)
        except OSError as error:
            listening.close()
            advice = BIND_ADVICE.get(error.errno or 0, "choose another address")
            raise ConfigError(f"{setting}: cannot listen on {address} ({error.strerror}): {advice}") from None
        return listening

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
            if self.stats.connections_open >= self.limits.connections_max:
                self._refuse(accepted)
                continue
            self.stats.connections_total += 1
            self.stats.connections_open += 1
            task = asyncio.get_running_loop().create_task(self._take(accepted, str(Address(*peer[:2]))))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)
            if accepted.fileno() >= self._descriptor_mark:
                self._accepting_exhausted("the rest is reserved for the log")
                return

    async def _take(self, accepted: socket.socket, peer: str) -> None:
        """Hand an accepted socket to the event loop, through its TLS handshake where there is one."""
        connection = TcpConnection(self, peer, accepted if self._quickack else None)
        try:
            accepted.setblocking(False)
            for level, option, value in SOCKET_OPTIONS:
                accepted.setsockopt(level, option, value)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self.tls,
                ssl_handshake_timeout=None if self.tls is None else self.limits.handshake_s_max,
                ssl_shutdown_timeout=None if self.tls is None else self.limits.linger_s_max,
            )
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
        self.stats.connections_refused += 1
        if not self._full:  # one line when the bound is reached, not one per refusal: a flood must not fill the log
            self._full = True
            log.warning("connections_refused", listener=self.name, connections_max=self.limits.connections_max)

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


async def within(seconds: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
