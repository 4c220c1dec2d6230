"""What listeners of every transport have in common: an address, bounds, deadlines that are swept, and a stop that lets answers finish."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar, cast

import structlog

from penstock.clock import Clock, SystemClock
from penstock.errors import ConfigError
from penstock.net.deadlines import Sweep, Swept
from penstock.net.flow import InFlightBudget
from penstock.net.limits import ListenerLimits
from penstock.net.stats import ListenerStats
from penstock.net.tap import Tappable
from penstock.units import Address, parse_address

BIND_ADVICE = {
    errno.EADDRINUSE: "another process listens there; stop it or choose another port",
    errno.EACCES: "ports below 1024 need a privilege; choose a higher port",
    errno.EADDRNOTAVAIL: "this machine has no such address; choose one it has, or 127.0.0.1",
}

log = structlog.get_logger(__name__)


class Stoppable(Swept, Protocol):
    """A connection, as its listener sees it."""

    def stop(self) -> None:
        """Take no more requests, and call `answered` once none waits for its answer."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=Stoppable)


class Listener(ABC, Generic[ConnectionT]):
    """One protocol on one address. Not reusable: once stopped, make another."""

    def __init__(
        self,
        name: str,
        bind: str,
        limits: ListenerLimits,
        stats: ListenerStats,
        clock: Clock | None,
        budget: InFlightBudget | None,
    ) -> None:
        self.name = name
        self.bind = bind
        self.limits = limits
        self.stats = stats
        self.clock = clock or SystemClock()
        self._given_budget = budget
        self._sweep = Sweep(self._swept, self.clock, limits.sweep_s)
        self._address: Address | None = None
        self._stopping = False
        self._full = False
        # Keyed by themselves: ordered, unlike a set, so that what happens to all of them happens in the same order every time.
        self._connections: dict[ConnectionT, None] = {}
        self._unanswered: set[ConnectionT] = set()
        self.on_opened: Callable[[Tappable], None] | None = None
        """Told of each connection before its first byte."""
        self._all_answered = asyncio.Event()

    @property
    def address(self) -> str:
        """Where it listens, with the port that was picked where `bind` says 0."""
        if self._address is None:
            raise RuntimeError(f"listener {self.name} is not started, so it has no address yet")
        return str(self._address)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.budget = self._given_budget or InFlightBudget(self.limits.in_flight_total_bytes_max, loop.call_soon)
        host, port = (await self._listen(parse_address(self.bind)))[:2]
        self._address = Address(host, port)
        self._sweep.start()

    @property
    def connections(self) -> Iterable[Tappable]:
        """Those that are open, the oldest first."""
        return cast(Iterable[Tappable], self._connections)

    def sweep(self) -> None:
        """Look at every deadline now."""
        self._sweep.run()

    def answered(self, connection: ConnectionT) -> None:
        """A connection that was told to stop owes its peer no more answers."""
        self._unanswered.discard(connection)
        if not self._unanswered:
            self._all_answered.set()

    @abstractmethod
    async def _listen(self, address: Address) -> tuple[Any, ...]:
        """Open the socket; returns the address it has. Raises ConfigError."""

    @abstractmethod
    def _swept(self) -> list[ConnectionT]:
        """The connections whose deadlines are checked."""

    async def _let_finish(self, grace_s: float) -> None:
        """Stop every connection, and wait for what they owe; `_unanswered` are those that did not manage."""
        self._unanswered = set(self._connections)
        self._all_answered.clear()  # connections that ended before have set it
        for connection in list(self._connections):
            connection.stop()
        if self._unanswered:
            await within(grace_s, self._all_answered)

    def _refused(self) -> None:
        self.stats.connections_refused += 1
        if not self._full:  # one line when the bound is reached, not one per refusal: a flood must not fill the log
            self._full = True
            log.warning("connections_refused", listener=self.name, max_connections=self.limits.max_connections)

    async def _resolve(self, address: Address, kind: socket.SocketKind) -> tuple[int, tuple[Any, ...]]:
        """The family and the address to bind to."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                address.host, address.port, type=kind, flags=socket.AI_PASSIVE
            )
        except OSError as error:
            raise ConfigError(
                f"listeners.{self.name}.bind: {address.host!r} cannot be resolved ({error.strerror}): use an IP address"
            ) from None
        # A name with addresses of both kinds (localhost) is taken as the IPv4 one, which every client tries.
        family, _, _, _, where = min(found, key=lambda info: info[0] != socket.AF_INET)
        return family, where

    def _cannot_listen(self, where: str, error: OSError) -> ConfigError:
        return cannot_listen(f"listeners.{self.name}.bind", where, error)


def cannot_listen(setting: str, where: str, error: OSError) -> ConfigError:
    """Say why an address cannot be listened on, and what to do."""
    advice = BIND_ADVICE.get(error.errno or 0, "choose another address")
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
    return ConfigError(f"{setting}: cannot listen on {where} ({reason}): {advice}")


def listen_once(bind: str, kind: socket.SocketKind) -> None:
    """Listen on an address for a moment. Raises OSError if that is not possible now."""
    address = parse_address(bind)
    found = socket.getaddrinfo(address.host, address.port, type=kind, flags=socket.AI_PASSIVE)
    family, _, _, _, where = min(found, key=lambda info: info[0] != socket.AF_INET)
    with socket.socket(family, kind) as probe:
        if kind is socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)
        if kind is socket.SOCK_STREAM:
            probe.listen(1)


async def within(seconds: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
