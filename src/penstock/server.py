"""Puts the rooms together: log, broker, one listener per protocol, admin address; and runs them as a process.

Parts start from the inside out and stop in reverse, also when one of them fails to start. Stopping first lets requests in flight
be answered, which needs the broker; the broker then finishes, which needs the log; the log commits what it was given and closes.

A new protocol is a folder under `protocols/` and a line in `PROTOCOLS` or `QUIC_PROTOCOLS`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shlex
import signal
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog
import uvloop

from penstock.admin.api.table import Setting
from penstock.admin.figures import SessionStats
from penstock.admin.http import AdminServer, AdminSettings
from penstock.background import Background
from penstock.broker.access.checks import ANONYMOUS, SYSTEM, UNAUTHENTICATED
from penstock.broker.access.policy import AccessSettings
from penstock.broker.broker import Broker
from penstock.broker.deliveries.subscription import DeliveryPolicy
from penstock.broker.topics.declared import Declared, plan
from penstock.clock import Clock, SystemClock
from penstock.config import Admin, BlipMQListener, Config, FelixListener, FlyMQListener, FujinListener, RustLogListener
from penstock.config import Listener as ListenerSettings
from penstock.config import QuicListener as QuicListenerSettings
from penstock.errors import ConfigError
from penstock.log.api import Engine
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.read_files import READ_FILES_MAX
from penstock.log.embedded.threads import Threads
from penstock.log.migration.state import check_served
from penstock.net.certificates import own_certificate
from penstock.net.descriptors import DESCRIPTORS_MIN, raise_descriptor_limit
from penstock.net.flow import InFlightBudget
from penstock.net.limits import ListenerLimits, QuicLimits
from penstock.net.listener import STOP_GRACE_S, cannot_listen, listen_once
from penstock.net.quic import QuicListener
from penstock.net.quic_session import QuicConnection, QuicSession
from penstock.net.quic_tls import quic_server_tls
from penstock.net.session import Connection, Session
from penstock.net.tcp import TcpListener
from penstock.net.tls import server_context
from penstock.protocols.blipmq.session import BlipMQ
from penstock.protocols.dissectors import DISSECTORS
from penstock.protocols.felix import wire as felix_wire
from penstock.protocols.felix.codec.scopes import Scopes
from penstock.protocols.felix.session import Felix
from penstock.protocols.flymq.server.dispatch import Dialect, Node
from penstock.protocols.flymq.session import FlyMQ
from penstock.protocols.fujin import wire as fujin_wire
from penstock.protocols.fujin.codec.commands import WriteForm
from penstock.protocols.fujin.server.settings import Alias, FujinSettings
from penstock.protocols.fujin.session import Fujin
from penstock.protocols.rustlog.session import RustLog
from penstock.quic.settings import DATAGRAM_BYTES, DATAGRAM_BYTES_LOOPBACK
from penstock.quic.tls import TlsSettings
from penstock.telemetry import telemetry_of
from penstock.units import format_setting, is_loopback, parse_address

NODE_ID = "penstock"
SETUP_FILE = "setup-token"
"""In the data directory, while there is no administrator: what `penstock user setup` logs in with."""
DEVELOPMENT_USERS = {"admin": "admin"}
DEVELOPMENT_API_KEY = "dev-key"

log = structlog.get_logger("penstock.server")


class SessionSource(Protocol):
    """What a protocol makes of a listener: a factory of sessions, and what they count."""

    @property
    def stats(self) -> SessionStats: ...

    def __call__(self, connection: Connection, /) -> Session: ...


class QuicSessionSource(Protocol):
    """The same for a protocol over QUIC."""

    @property
    def stats(self) -> SessionStats: ...

    def __call__(self, connection: QuicConnection, /) -> QuicSession: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a protocol is given to make its sessions from."""

    broker: Broker
    clock: Clock
    config: Config
    settings: ListenerSettings
    address: Callable[[], str]
    """Where the listener is; known once it has started."""


def _flymq(given: Surroundings) -> FlyMQ:
    assert isinstance(given.settings, FlyMQListener)
    return FlyMQ(
        given.broker,
        clock=given.clock,
        node=Node(NODE_ID, given.address),
        principal=ANONYMOUS if given.settings.auth == "none" else UNAUTHENTICATED,
        login_required=given.settings.auth == "required" and not given.config.access.allow_anonymous,
        dialect=Dialect(given.settings.dialect),
    )


def _blipmq(given: Surroundings) -> BlipMQ:
    settings = given.settings
    assert isinstance(settings, BlipMQListener)
    keys = [key.get_secret_value() for key in settings.api_keys]
    if given.config.dev:
        keys.append(DEVELOPMENT_API_KEY)
    if not keys and not len(given.broker.api_keys):
        log.info("no_api_key", listener="blipmq", consequence="nobody can log in", advice="penstock key create NAME")
    return BlipMQ(given.broker, clock=given.clock, api_keys=keys, message_ttl_ms=settings.message_ttl_ms)


def _rustlog(given: Surroundings) -> RustLog:
    settings = given.settings
    assert isinstance(settings, RustLogListener)
    required = _is_required(given, settings.auth)
    return RustLog(
        given.broker,
        clock=given.clock,
        principal=UNAUTHENTICATED if required else ANONYMOUS,
        login_required=required and not given.config.access.allow_anonymous,
    )


def _is_required(given: Surroundings, auth: str) -> bool:
    """Whether strangers are turned away; `auto` is as FlyMQ has it."""
    flymq = given.config.listeners.flymq
    return auth == "required" or (auth == "auto" and flymq is not None and flymq.auth == "required")


PROTOCOLS: Mapping[str, Callable[[Surroundings], SessionSource]] = {
    "flymq": _flymq,
    "blipmq": _blipmq,
    "rustlog": _rustlog,
}


def _fujin(given: Surroundings) -> Fujin:
    settings = given.settings
    assert isinstance(settings, FujinListener)
    required = _is_required(given, settings.auth)
    aliases = {
        name: Alias(alias.topic, alias.group or settings.group, alias.start or settings.start)
        for name, alias in settings.aliases.items()
    }
    return Fujin(
        given.broker,
        settings=FujinSettings(
            aliases=aliases,
            group=settings.group,
            start=settings.start,
            auto_create=settings.auto_create,
            write_form=None if settings.write_form == "auto" else WriteForm(settings.write_form),
            body_bytes_max=settings.body_bytes_max,
            ping_interval_s=settings.ping_interval_s,
            ping_timeout_s=settings.ping_timeout_s,
            fetch_wait_s=settings.fetch_wait_s,
            empty_fetch=settings.empty_fetch,
            dialect=settings.dialect,
            empty_values=settings.empty_values,
            unacknowledged_max=settings.unacknowledged_max,
            ack_ms_max=settings.ack_ms_max,
        ),
        principal=UNAUTHENTICATED if required else ANONYMOUS,
        login_required=required and not given.config.access.allow_anonymous,
    )


def _felix(given: Surroundings) -> Felix:
    settings = given.settings
    assert isinstance(settings, FelixListener)
    required = _is_required(given, settings.auth) or (settings.auth == "auto" and bool(settings.tokens))
    return Felix(
        given.broker,
        clock=given.clock,
        dialect=settings.dialect,
        required=required,
        login_required=required and not given.config.access.allow_anonymous,
        tokens={tenant: token.get_secret_value() for tenant, token in settings.tokens.items()},
        api_keys=[DEVELOPMENT_API_KEY] if given.config.dev else [],
        scopes=Scopes(settings.default_tenant, settings.default_namespace),
        auto_create=settings.auto_create,
        slow_subscriber=settings.slow_subscriber,
        subscriber_lag_records_max=settings.subscriber_lag_records_max,
    )


QUIC_PROTOCOLS: Mapping[str, Callable[[Surroundings], QuicSessionSource]] = {
    "fujin": _fujin,
    "felix": _felix,
}
# What a client offers in its handshake: Fujin's must, Felix's may.
ALPN = {"fujin": (fujin_wire.ALPN,), "felix": (felix_wire.ALPN,)}
ALPN_REQUIRED = frozenset({"fujin"})
# Their deployed clients send an answer and the next request as two small writes, and the second waits for our TCP acknowledgement.
QUICKACK = frozenset({"blipmq"})


class Server:
    """One broker as its configuration describes it. Not reusable: once stopped, make another."""

    def __init__(
        self, config: Config, *, clock: Clock | None = None, disk: Disk | None = None, threads: Threads | None = None
    ) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self._parts = AsyncExitStack()
        self._telemetry = telemetry_of(config)
        background = Background()
        self.engine: Engine
        if config.engine == "kafka":
            self.engine = _kafka_engine(config, self._clock, background)
        else:
            self.engine = EmbeddedEngine(
                config.data_dir,
                clock=self._clock,
                disk=disk,
                options=_engine_options(config),
                background=background,
                threads=threads,
            )
        self.broker = Broker(
            self.engine,
            clock=self._clock,
            limits=config.limits,
            access_settings=_access_settings(config),
            topic_defaults=config.topic_defaults,
            deliveries=DeliveryPolicy(**dict(config.subscriptions)),
            background=background,
            tracing=None if self._telemetry is None else self._telemetry.tracing,
        )
        self.listeners: dict[str, TcpListener | QuicListener] = {}
        self.sessions: dict[str, SessionStats] = {}
        self.admin: AdminServer | None = None
        self.needs_setup = False
        """Whether a login is required and nobody could log in when it started."""

    @property
    def addresses(self) -> dict[str, str]:
        """Where each listener and the admin address are, by name, with the port that was picked where the setting says 0."""
        addresses = {name: listener.address for name, listener in self.listeners.items()}
        if self.admin is not None:
            addresses["admin"] = self.admin.address
        return addresses

    async def start(self) -> None:
        """Start every part. Where one cannot start, those before it are stopped again and its error is raised."""
        async with AsyncExitStack() as parts:
            # Before the log is opened: a wrong path should cost no recovery.
            contexts, quic_contexts = _tls_contexts(self.config), _quic_contexts(self.config)
            admin = None if self.config.admin is None else _admin_settings(self.config, self.config.admin)
            check_served(self.config.data_dir, self.config.engine)
            if self._telemetry is not None:
                parts.push_async_callback(self._telemetry.close)
            await self.engine.start()
            parts.push_async_callback(self.engine.close)
            await self.broker.start()
            parts.push_async_callback(self.broker.close)
            await self._apply_declared_topics()
            parts.callback(self._offer_setup())
            await self._start_admin(parts, admin)
            if self._telemetry is not None:
                self._telemetry.start(self.engine, self.broker, self.listeners, self.sessions)
                parts.push_async_callback(self._telemetry.stop)
            quic_contexts |= self._own_certificates()
            await self._start_listeners(parts, contexts, quic_contexts)
            self._parts = parts.pop_all()
        if self.config.dev:
            log.warning(
                "development_credentials",
                users=list(DEVELOPMENT_USERS),
                api_key=DEVELOPMENT_API_KEY,
                advice="everybody knows them: leave --dev out where others use this machine",
            )
        if self.admin is not None:
            self.admin.state = "ready"

    async def stop(self) -> None:
        """Take no more requests, answer those in flight, commit and close. A server that is not running is left as it is."""
        if self.admin is not None:
            self.admin.state = "stopping"
        parts, self._parts = self._parts, AsyncExitStack()
        await parts.aclose()

    async def _apply_declared_topics(self) -> None:
        existing = {name: info.config for name, info in self.engine.topics().items()}
        for change in plan(existing, declared_topics(self.config)):
            if change.before is None:
                await self.broker.create_topic(SYSTEM, change.name, change.after)
            else:
                await self.broker.topics.configure(SYSTEM, change.name, change.after)
                changed = {name: f"{before} -> {after}" for name, (before, after) in change.settings.items()}
                log.info("topic_altered", topic=change.name, reason="the configuration file declares it", **changed)

    def _offer_setup(self) -> Callable[[], None]:
        """Where nobody could log in, leave the secret that makes the first administrator beside the log; returns what takes it away.

        Whoever can read the data directory could read every record, so may as well decide who is an administrator.
        """
        file = self.config.data_dir / SETUP_FILE
        file.unlink(missing_ok=True)
        flymq = self.config.listeners.flymq
        required = flymq is not None and flymq.auth == "required"
        token = self.broker.users.open_setup() if required else None
        self.needs_setup = token is not None
        if token is not None:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as stream:
                stream.write(token)
        return lambda: file.unlink(missing_ok=True)

    async def _start_admin(self, parts: AsyncExitStack, settings: AdminSettings | None) -> None:
        if settings is not None:
            admin = AdminServer(
                settings,
                engine=self.engine,
                broker=self.broker,
                listeners=self.listeners,
                sessions=self.sessions,
                dissectors=DISSECTORS,
                around=None if self._telemetry is None else self._telemetry.requests.around,
            )
            await admin.start()
            parts.push_async_callback(admin.stop)
            self.admin = admin

    def _own_certificates(self) -> dict[str, TlsSettings]:
        """For QUIC listeners on loopback that were given no certificate."""
        config = self.config
        without = [
            name for name, settings in config.listeners.enabled() if name in QUIC_PROTOCOLS and settings.tls is None
        ]
        if not without:
            return {}
        files = own_certificate(config.data_dir, self._clock)
        log.info(
            "self_signed_certificate", listeners=without, certificate=str(files.cert), advice="clients must trust it"
        )
        return {name: _quic_tls(name, files.cert, files.key, None) for name in without}

    async def _start_listeners(
        self,
        parts: AsyncExitStack,
        contexts: Mapping[str, ssl.SSLContext],
        quic_contexts: Mapping[str, TlsSettings],
    ) -> None:
        budget = InFlightBudget(self.config.limits.in_flight_total_bytes_max, asyncio.get_running_loop().call_soon)
        parts.push_async_callback(self._stop_listeners)
        for name, settings in self.config.listeners.enabled():
            given = Surroundings(self.broker, self._clock, self.config, settings, partial(self._address, name))
            if name in PROTOCOLS:
                await self._start_tcp(name, given, contexts.get(name), budget)
            elif name in QUIC_PROTOCOLS:
                await self._start_quic(name, given, quic_contexts[name], budget)

    async def _start_tcp(
        self, name: str, given: Surroundings, tls: ssl.SSLContext | None, budget: InFlightBudget
    ) -> None:
        source = PROTOCOLS[name](given)
        listener = TcpListener(
            name,
            given.settings.bind,
            source,
            _listener_limits(self.config, given.settings),
            tls,
            clock=self._clock,
            budget=budget,
            quickack=name in QUICKACK,
        )
        self.listeners[name] = listener
        self.sessions[name] = source.stats
        await listener.start()

    async def _start_quic(self, name: str, given: Surroundings, tls: TlsSettings, budget: InFlightBudget) -> None:
        assert isinstance(given.settings, QuicListenerSettings)
        source = QUIC_PROTOCOLS[name](given)
        limits = _quic_limits(self.config, given.settings)
        listener = QuicListener(name, given.settings.bind, source, tls, limits, clock=self._clock, budget=budget)
        self.listeners[name] = listener
        self.sessions[name] = source.stats
        await listener.start()

    async def _stop_listeners(self) -> None:
        await asyncio.gather(*(listener.stop(STOP_GRACE_S) for listener in self.listeners.values()))

    def _address(self, listener: str) -> str:
        return self.listeners[listener].address


def declared_topics(config: Config) -> list[Declared]:
    """Return the topics that a configuration declares."""
    return [Declared(topic.name, topic.config(config.topic_defaults), topic.given) for topic in config.topics]


def _admin_settings(config: Config, settings: Admin) -> AdminSettings:
    tls, origins = settings.tls, config.origins
    return AdminSettings(
        settings.bind,
        None if tls is None else server_context(tls.cert, tls.key, tls.client_ca),
        login_required=config.admin_login_required,
        probes_open=settings.probes_open,
        configuration={key: Setting(format_setting(key, value), origins[key]) for key, value in config.values.items()},
    )


def _engine_options(config: Config) -> EngineOptions:
    """Every option that is a setting has the setting's name."""
    settings = dict(config.log)
    return EngineOptions(**{each.name: settings[each.name] for each in fields(EngineOptions) if each.name in settings})


def _kafka_engine(config: Config, clock: Clock, background: Background) -> Engine:
    """Raises ConfigError if the extra is not installed."""
    from penstock.log.kafka.engine import KafkaEngine

    config.data_dir.mkdir(parents=True, exist_ok=True)  # for certificates and the secret of the first administrator
    return KafkaEngine(
        config.kafka,
        clock=clock,
        background=background,
        tail_bytes_per_partition=config.log.tail_bytes_per_partition,
        tail_bytes_max=config.log.tail_bytes_max,
    )


def _access_settings(config: Config) -> AccessSettings:
    return AccessSettings(
        default_public=config.access.default_public,
        allow_anonymous=config.access.allow_anonymous,
        development=DEVELOPMENT_USERS if config.dev else {},
        node=NODE_ID,
    )


def _listener_limits(config: Config, settings: ListenerSettings) -> ListenerLimits:
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


def _quic_limits(config: Config, settings: QuicListenerSettings) -> QuicLimits:
    datagram_bytes = settings.datagram_bytes
    if datagram_bytes == "auto":
        host = parse_address(settings.bind).host
        datagram_bytes = DATAGRAM_BYTES_LOOPBACK if is_loopback(host) else DATAGRAM_BYTES
    return QuicLimits(
        **asdict(_listener_limits(config, settings)),
        streams_max=settings.streams_max,
        handshakes_max=settings.handshakes_max,
        retry_above=settings.retry_above,
        datagram_bytes=datagram_bytes,
    )


def _tls_contexts(config: Config) -> dict[str, ssl.SSLContext]:
    return {
        name: server_context(settings.tls.cert, settings.tls.key, settings.tls.client_ca)
        for name, settings in config.listeners.enabled()
        if settings.tls is not None and name in PROTOCOLS
    }


def _quic_contexts(config: Config) -> dict[str, TlsSettings]:
    return {
        name: _quic_tls(name, settings.tls.cert, settings.tls.key, settings.tls.client_ca)
        for name, settings in config.listeners.enabled()
        if settings.tls is not None and name in QUIC_PROTOCOLS
    }


def _quic_tls(name: str, cert: Path, key: Path, client_ca: Path | None) -> TlsSettings:
    return quic_server_tls(cert, key, client_ca, alpn=ALPN.get(name, ()), alpn_required=name in ALPN_REQUIRED)


def run(config: Config, announce: Callable[[str], None], *, disk: Disk | None = None) -> None:
    """Be a broker until SIGTERM or SIGINT, then stop with everything committed; a second signal ends the process at once.

    `announce` is given one line per address, then `ready`. `disk` stands in for the real one in tests.
    """
    _prepare_process(config)
    _check_addresses(config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, announce, disk))


def _prepare_process(config: Config) -> None:
    """What belongs to a process of our own and would be rude in somebody else's.

    Python's switch interval stays as it is: a shorter one, meant to give the committing thread the interpreter sooner, made pipelined
    writes slower when both were measured in turns.
    """
    limit = raise_descriptor_limit()
    if limit < DESCRIPTORS_MIN:
        raise ConfigError(
            f"this process may open only {limit} files, and a broker needs at least {DESCRIPTORS_MIN}: raise the limit,"
            " with `ulimit -n` in the shell or LimitNOFILE= in a systemd unit"
        )
    connections_max = sum(
        settings.max_connections for name, settings in config.listeners.enabled() if name in PROTOCOLS
    )
    # A checkpoint opens segments once more that are open for writing.
    wanted = connections_max + 2 * config.log.write_files_max + READ_FILES_MAX
    if limit < wanted:
        log.warning(
            "descriptors_short",
            limit=limit,
            wanted=wanted,
            consequence="accepting pauses when they are used up",
            advice="raise the limit (ulimit -n, LimitNOFILE=) or lower max_connections or log.write_files_max",
        )


def _check_addresses(config: Config) -> None:
    """Raises ConfigError where an address is taken: before there is a data directory, and before a log is recovered for nothing."""
    binds = [
        (f"listeners.{name}.bind", settings.bind, name in QUIC_PROTOCOLS)
        for name, settings in config.listeners.enabled()
    ]
    if config.admin is not None:
        binds.append(("admin.bind", config.admin.bind, False))
    for setting, bind, over_udp in binds:
        try:
            listen_once(bind, socket.SOCK_DGRAM if over_udp else socket.SOCK_STREAM)
        except OSError as error:
            raise cannot_listen(setting, f"{bind}/udp" if over_udp else bind, error) from None


def _setup_advice(server: Server) -> str:
    settings = server.config.listeners.flymq
    assert settings is not None
    address = f"flymq{'' if settings.tls is None else 's'}://{server.addresses['flymq']}"
    command = ["penstock", "user", "setup", "--data-dir", str(server.config.data_dir), "--server", address]
    return f"there is no administrator yet; make yourself one with: {shlex.join(command)}"


async def _serve(config: Config, announce: Callable[[str], None], disk: Disk | None) -> None:
    loop = asyncio.get_running_loop()
    asked_to_stop = asyncio.Event()

    def stop_on(received: signal.Signals) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)  # the next one ends the process, as if it had crashed
        log.info("stopping", signal=received.name)
        asked_to_stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_on, number)
    server = Server(config, disk=disk)
    try:
        await server.start()
    except BaseException:
        # A closed loop would keep the signals, and swallow every one to come.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        raise
    try:
        # What lives now lives until the end; the collector need not look at it again.
        gc.collect()
        gc.freeze()
        for name, address in server.addresses.items():
            announce(f"{name} on {address}{'/udp' if name in QUIC_PROTOCOLS else ''}")
        if server.needs_setup:
            announce(_setup_advice(server))
        announce("ready")
        await asked_to_stop.wait()
    finally:
        await server.stop()
    log.info("stopped")
