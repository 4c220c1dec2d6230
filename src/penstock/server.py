"""Puts the rooms together: engine, broker, listeners and admin, started in that order and stopped in the other.

A protocol joins by one line in `PROTOCOLS`: a function that makes the session factory of a listener.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import signal
import ssl
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Final, Protocol

import structlog
import uvloop

from penstock.admin.figures import SessionStats
from penstock.admin.http import AdminServer
from penstock.broker.access import SYSTEM, OpenAccess
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.clock import Clock, SystemClock
from penstock.config import Config
from penstock.config.model import FlyMQListener
from penstock.errors import ConfigError
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.embedded.disk import Disk
from penstock.net.descriptors import DESCRIPTORS_MIN, raise_descriptor_limit
from penstock.net.flow import InFlightBudget
from penstock.net.limits import ListenerLimits
from penstock.net.session import Connection, Session
from penstock.net.tcp import TcpListener
from penstock.net.tls import server_context
from penstock.protocols.flymq.operations import Dialect, Node
from penstock.protocols.flymq.session import FlyMQ

NODE_ID: Final = "penstock-0"
# The commit thread needs the interpreter for microseconds at a time, three times a commit; with the default of 5 ms it would wait
# longer for that than for the disk.
SWITCH_INTERVAL_S: Final = 0.0005

log = structlog.get_logger("penstock.server")


class SessionFactory(Protocol):
    """Opens the sessions of one listener, and counts for all of them."""

    @property
    def stats(self) -> SessionStats: ...

    def __call__(self, connection: Connection) -> Session: ...


MakeFactory = Callable[[Broker, FlyMQListener, Clock, Callable[[], str]], SessionFactory]
"""Given the broker, the listener's settings, a clock, and what tells the listener's address once it has one."""


def _flymq(broker: Broker, settings: FlyMQListener, clock: Clock, address: Callable[[], str]) -> SessionFactory:
    return FlyMQ(broker, clock=clock, node=Node(NODE_ID, address), dialect=Dialect(settings.dialect))


PROTOCOLS: Final[Mapping[str, MakeFactory]] = {
    "flymq": _flymq,
}


class Server:
    """One broker process' worth of parts. Not reusable: once stopped, make another."""

    def __init__(self, config: Config, *, clock: Clock | None = None, disk: Disk | None = None) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self.engine = EmbeddedEngine(config.data_dir, clock=self._clock, disk=disk, options=_engine_options(config))
        self.broker = Broker(
            self.engine,
            clock=self._clock,
            limits=_pick(BrokerLimits, config.limits),
            access=OpenAccess(),
            topic_defaults=config.topic_defaults,
        )
        self.listeners: dict[str, TcpListener] = {}
        self.admin: AdminServer | None = None
        self._parts = AsyncExitStack()

    @property
    def addresses(self) -> dict[str, str]:
        """Where each listener, and `admin`, can be reached."""
        addresses = {name: listener.address for name, listener in self.listeners.items()}
        if self.admin is not None:
            addresses["admin"] = self.admin.address
        return addresses

    async def start(self) -> None:
        """Start everything, or nothing: what was started is stopped again where a later part fails."""
        descriptors = raise_descriptor_limit()
        if descriptors < DESCRIPTORS_MIN:
            raise ConfigError(
                f"this process may open only {descriptors} files, at least {DESCRIPTORS_MIN} are needed: raise the limit (ulimit -n)"
            )
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        async with AsyncExitStack() as parts:
            await self.engine.start()
            parts.push_async_callback(self.engine.close)
            await self.broker.start()
            parts.push_async_callback(self.broker.close)
            await self._create_topics()
            factories = await self._start_listeners(parts)
            await self._start_admin(parts, factories)
            self._parts = parts.pop_all()
        # What is alive now lives as long as the process; without it in its lists, the collector's passes stay short.
        gc.collect()
        gc.freeze()

    async def stop(self) -> None:
        """Answer what is in flight, commit everything, release everything."""
        if self.admin is not None:
            self.admin.state = "stopping"
        await self._parts.aclose()

    async def _create_topics(self) -> None:
        for topic in self.config.topics:
            if not self.broker.has_topic(topic.name):
                await self.broker.create_topic(SYSTEM, topic.name, topic.config(self.config.topic_defaults))

    async def _start_listeners(self, parts: AsyncExitStack) -> dict[str, SessionFactory]:
        limits = self.config.limits
        budget = InFlightBudget(limits.in_flight_total_bytes_max, asyncio.get_running_loop().call_soon)
        factories: dict[str, SessionFactory] = {}
        for name, settings in self.config.listeners.enabled():
            factory = PROTOCOLS[name](self.broker, settings, self._clock, self._address_of(name))
            listener = TcpListener(
                name,
                settings.bind,
                factory,
                _listener_limits(self.config, settings),
                _tls_context(settings),
                clock=self._clock,
                budget=budget,
            )
            await listener.start()
            parts.push_async_callback(listener.stop)
            self.listeners[name] = listener
            factories[name] = factory
        return factories

    async def _start_admin(self, parts: AsyncExitStack, factories: Mapping[str, SessionFactory]) -> None:
        if self.config.admin is None:
            return
        admin = AdminServer(
            self.config.admin.bind,
            engine=self.engine,
            broker=self.broker,
            listeners=self.listeners,
            sessions={name: factory.stats for name, factory in factories.items()},
        )
        await admin.start()
        parts.push_async_callback(admin.stop)
        admin.state = "ready"
        self.admin = admin

    def _address_of(self, name: str) -> Callable[[], str]:
        return lambda: self.listeners[name].address


def _pick(target: type[BrokerLimits], section: object) -> BrokerLimits:
    """The fields of a limits dataclass that the configuration has a setting of the same name for."""
    names = {field.name for field in dataclasses.fields(target)}
    return target(**{name: getattr(section, name) for name in names if hasattr(section, name)})


def _engine_options(config: Config) -> EngineOptions:
    names = {field.name for field in dataclasses.fields(EngineOptions)}
    return EngineOptions(**{name: getattr(config.log, name) for name in names if hasattr(config.log, name)})


def _listener_limits(config: Config, settings: FlyMQListener) -> ListenerLimits:
    limits = config.limits
    return ListenerLimits(
        connections_max=settings.max_connections,
        in_flight_bytes_max=limits.in_flight_bytes_max,
        in_flight_total_bytes_max=limits.in_flight_total_bytes_max,
        idle_s_max=settings.idle_s_max,
        header_s_max=settings.header_s_max,
        handshake_s_max=settings.handshake_s_max,
        send_buffer_high_bytes=limits.send_buffer_bytes_max,
        send_buffer_low_bytes=limits.send_buffer_bytes_max // 4,
    )


def _tls_context(settings: FlyMQListener) -> ssl.SSLContext | None:
    tls = settings.tls
    return None if tls is None else server_context(tls.cert, tls.key, tls.client_ca)


async def serve(server: Server, announce: Callable[[str], None]) -> None:
    """Run a server until SIGTERM or SIGINT. A second signal ends the process without waiting for a clean stop."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            os._exit(1)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    await server.start()
    try:
        for name, address in server.addresses.items():
            announce(f"{name} {address}")
        announce("ready")
        await stopping.wait()
    finally:
        await server.stop()


def run(config: Config, announce: Callable[[str], None]) -> None:
    """`penstock serve`: start, announce each address and then `ready`, serve until told to stop."""
    uvloop.run(serve(Server(config), announce))
