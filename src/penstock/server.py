"""Assembles and runs one node: log, broker, one listener per protocol, admin address.

Of several nodes on one log, one leads, and each owns shards of the subscriptions. They pass on what another has to answer: requests of
FlyMQ and frames of BlipMQ one by one, streams of Fujin, and requests of Felix. A node whose place another has taken stops and starts again.

Parts start from the inside out and stop in reverse, also when one of them fails to start. Stopping first lets requests in flight
be answered, which needs the broker; the broker then finishes, which needs the log; the log commits what it was given and closes.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import ssl
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from penstock.admin.api.table import Setting
from penstock.admin.http import AdminServer, AdminSettings
from penstock.admin.launcher import Launcher
from penstock.background import Background
from penstock.broker.access.checks import SYSTEM
from penstock.broker.access.policy import AccessSettings
from penstock.broker.broker import Broker
from penstock.broker.topics.declared import Declared, plan
from penstock.clock import Clock, SystemClock
from penstock.config import Admin, Config, FlyMQListener
from penstock.config import Listener as ListenerSettings
from penstock.config import QuicListener as QuicListenerSettings
from penstock.config.model import Cluster
from penstock.errors import ConfigError
from penstock.log.api import Engine
from penstock.log.embedded import EmbeddedEngine
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.threads import Threads
from penstock.log.migration.state import check_served
from penstock.net.certificates import own_certificate
from penstock.net.flow import InFlightBudget
from penstock.net.limits import QuicLimits, TcpLimits
from penstock.net.peers import Dialer, PeerSession
from penstock.net.quic import QuicListener
from penstock.net.quic_tls import quic_server_tls
from penstock.net.tcp import TcpListener
from penstock.net.tls import client_context, server_context
from penstock.protocols.dissectors import DISSECTORS
from penstock.protocols.felix.following import NodeFelix
from penstock.protocols.flymq.server.forwarding import NodeOperations
from penstock.protocols.fujin.following import NodeFujin
from penstock.quic.settings import DATAGRAM_BYTES, DATAGRAM_BYTES_LOOPBACK
from penstock.quic.tls import TlsSettings
from penstock.session_sources import (
    ALPN,
    ALPN_REQUIRED,
    DEVELOPMENT_API_KEY,
    INTRODUCED,
    PROTOCOLS,
    QUIC_PROTOCOLS,
    QUICKACK,
    ListenerContext,
    QuicSessionSource,
    SessionSource,
)
from penstock.settings import Section
from penstock.stats import SessionStats
from penstock.telemetry import telemetry_of
from penstock.units import Address, format_setting, is_loopback, parse_address

NODE_ID = "penstock"
SETUP_FILE = "setup-token"
"""In the data directory, while there is no administrator: what `penstock user setup` logs in with."""
DEVELOPMENT_USERS = {"admin": "admin"}
PIPELINES_DIRECTORY = "pipelines"
"""In the data directory, for the logs of pipelines that were started here."""

log = structlog.get_logger(__name__)

PEER_IDLE_S_MAX = 24 * 3600.0
PEER_CONNECTIONS_MAX = 1_000_000
"""Other nodes take no more clients and streams than their listeners allow, of which this one cannot know how many they are."""


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
        self.node = NODE_ID if config.cluster is None else _node_name(config.cluster)
        self.engine: Engine
        if config.engine == "kafka":
            self.engine = _kafka_engine(config, self._clock, background, self.node)
        else:
            self.engine = EmbeddedEngine(
                config.data_dir,
                clock=self._clock,
                disk=disk,
                options=config.log,
                background=background,
                threads=threads,
            )
        self.broker = Broker(
            self.engine,
            clock=self._clock,
            limits=config.limits,
            access_settings=_access_settings(config, self.node),
            topic_defaults=config.topic_defaults,
            deliveries=config.subscriptions,
            background=background,
            tracing=None if self._telemetry is None else self._telemetry.tracing,
        )
        self.launcher = Launcher(
            config.pipelines,
            config.data_dir / PIPELINES_DIRECTORY,
            processes_max=config.limits.pipeline_processes_max,
            pipelines=self.broker.pipelines,
            background=background,
            clock=self._clock,
        )
        self.listeners: dict[str, TcpListener | QuicListener] = {}
        self.sessions: dict[str, SessionStats] = {}
        self.admin: AdminServer | None = None
        self.needs_setup = False
        """Whether a login is required and nobody could log in when it started."""
        self.deposed = asyncio.Event()
        """Set when another node has taken the place of this one, as the one that leads or as an owner: what is left is to stop it."""
        self._dialer: Dialer | None = None
        self._sources: dict[str, SessionSource | QuicSessionSource] = {}
        self._peers: TcpListener | None = None

    @property
    def addresses(self) -> dict[str, str]:
        """Where each listener and the admin address are, by name, with the port that was picked where the setting says 0."""
        addresses = {name: listener.address for name, listener in self.listeners.items()}
        if self._peers is not None:
            addresses["cluster"] = self._peers.address
        if self.admin is not None:
            addresses["admin"] = self.admin.address
        return addresses

    async def start(self) -> None:
        """Start every part. Where one cannot start, those before it are stopped again and its error is raised."""
        async with AsyncExitStack() as parts:
            # Before the log is opened: a wrong path should cost no recovery.
            contexts, quic_contexts = _tls_contexts(self.config), _quic_contexts(self.config)
            peer_contexts = _peer_contexts(self.config.cluster)
            admin = None if self.config.admin is None else _admin_settings(self.config, self.config.admin)
            check_served(self.config.data_dir, self.config.engine)
            if self._telemetry is not None:
                parts.push_async_callback(self._telemetry.close)
            await self.engine.start()
            parts.push_async_callback(self.engine.close)
            await self.broker.start()
            parts.push_async_callback(self.broker.close)
            if self.config.cluster is not None:
                self._meet_nodes(parts, self.config.cluster, peer_contexts.connecting)
            if self.broker.leading.leads:
                await self._apply_declared_topics()
            parts.callback(self._offer_setup())
            await self._start_admin(parts, admin)
            if self._telemetry is not None:
                self._telemetry.start(self.engine, self.broker, self.listeners, self.sessions)
                parts.push_async_callback(self._telemetry.stop)
            quic_contexts |= self._own_certificates()
            await self._start_listeners(parts, contexts, quic_contexts, peer_contexts.accepting)
            if self.config.cluster is not None:
                self.engine.announce(_advertised(self.config.cluster, self.addresses))
            # Pipelines are clients, so they begin last and end first.
            parts.push_async_callback(self.launcher.close)
            if self.broker.leading.leads:
                await self.launcher.open()
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

    # -- other nodes ------------------------------------------------------------------------------------------------------

    def _meet_nodes(self, parts: AsyncExitStack, cluster: Cluster, tls: ssl.SSLContext | None) -> None:
        """Have others answer what this node does not: the one that leads, and the owners of shards."""
        secret = cluster.secret.get_secret_value().encode()
        reserved = self.config.limits.descriptors_reserved
        self._dialer = Dialer(secret, self._owner_address, tls, descriptors_reserved=reserved)
        operations = NodeOperations(self._dialer)
        self.broker.topics.leader = self.broker.subscriptions.owners = operations

        def changed() -> None:
            if self.engine.deposed is not None:
                self.deposed.set()

        parts.callback(self.engine.watch_nodes(changed))
        changed()

    def _leader_address(self, listener: str) -> str | None:
        return next((node.addresses.get(listener) for node in self.engine.nodes() if node.leads), None)

    def _owner_address(self, shard: int | None) -> str | None:
        """Where the node that owns a shard is for other nodes, or for None the one that leads."""
        if shard is None:
            return self._leader_address("cluster")
        return next((node.addresses.get("cluster") for node in self.engine.nodes() if shard in node.shards), None)

    def _serves(self, shard: int | None) -> bool:
        return self.broker.leading.leads if shard is None else self.broker.subscriptions.owns(shard)

    def _other_leader_address(self, listener: str) -> str | None:
        """The same; None while it is this node that was chosen and does not lead yet, which must not pass on to itself."""
        leads_next = any(node.leads and node.id == self.node for node in self.engine.nodes())
        return None if leads_next else self._leader_address(listener)

    def _leader_url(self) -> str | None:
        address = self._other_leader_address("admin")
        scheme = "http" if self.config.admin is None or self.config.admin.tls is None else "https"
        return None if address is None else f"{scheme}://{address}"

    async def _start_peers(self, cluster: Cluster, tls: ssl.SSLContext | None, budget: InFlightBudget) -> None:
        secret = cluster.secret.get_secret_value().encode()
        sources = dict(self._sources)
        if "flymq" not in sources:  # nodes speak it among themselves, whether or not clients do
            sources["flymq"] = PROTOCOLS["flymq"](self._surroundings("flymq", FlyMQListener()))
        factories = {name: source.introduced for name, source in sources.items() if isinstance(source, INTRODUCED)}
        self._peers = TcpListener(
            "cluster",
            cluster.bind,
            lambda connection: PeerSession(connection, secret, factories, self._serves),
            _peer_limits(self.config),
            tls,
            clock=self._clock,
            budget=budget,
            half_closes=False,  # also a node that was killed says so, and what it had goes back at once
        )
        await self._peers.start()

    async def _begin_to_lead(self) -> None:
        if self.broker.leading.leads:
            await self._apply_declared_topics()
            await self.launcher.open()

    async def _apply_declared_topics(self) -> None:
        await self.broker.audit.apply_retention()
        existing = {name: info.config for name, info in self.engine.topics().items()}
        for change in plan(existing, declared_topics(self.config)):
            if change.before is None:
                await self.broker.topics.create(SYSTEM, change.name, change.after)
            else:
                await self.broker.topics.configure(SYSTEM, change.name, change.after)
                changed = {name: f"{before} -> {after}" for name, (before, after) in change.settings.items()}
                log.info("topic_altered", topic=change.name, reason="the configuration file declares it", **changed)

    def _offer_setup(self) -> Callable[[], None]:
        """Where nobody could log in, leave the secret that makes the first administrator next to the log; returns what takes it away.

        A user who can read the data directory can read every record, so may as well decide who is an administrator.
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
                launcher=self.launcher,
                listeners=self.listeners,
                sessions=self.sessions,
                dissectors=DISSECTORS,
                around=None if self._telemetry is None else self._telemetry.requests.around,
                leader_url=None if self.config.cluster is None else self._leader_url,
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
        peer_context: ssl.SSLContext | None,
    ) -> None:
        budget = InFlightBudget(self.config.limits.in_flight_total_bytes_max, asyncio.get_running_loop().call_soon)
        parts.push_async_callback(self._stop_listeners)
        for name, settings in self.config.listeners.enabled():
            given = self._surroundings(name, settings)
            if name in PROTOCOLS:
                await self._start_tcp(name, given, contexts.get(name), budget)
            else:
                await self._start_quic(name, given, quic_contexts[name], budget)
        if self.config.cluster is not None:
            await self._start_peers(self.config.cluster, peer_context, budget)
            beginning = self.broker.background.loop("serve as leader", self._begin_to_lead, first_s=0)
            parts.push_async_callback(beginning.cancel)
            parts.callback(self.broker.leading.watch(beginning.wake))

    def _surroundings(self, name: str, settings: ListenerSettings) -> ListenerContext:
        address = partial(self._address, name)
        return ListenerContext(self.broker, self._clock, self.config, settings, address, self.node, self._dialer)

    async def _start_tcp(
        self, name: str, given: ListenerContext, tls: ssl.SSLContext | None, budget: InFlightBudget
    ) -> None:
        source = PROTOCOLS[name](given)
        self._sources[name] = source
        listener = TcpListener(
            name,
            given.settings.bind,
            source,
            _tcp_limits(self.config, given.settings),
            tls,
            clock=self._clock,
            budget=budget,
            quickack=name in QUICKACK,
        )
        self.listeners[name] = listener
        self.sessions[name] = source.stats
        await listener.start()

    async def _start_quic(self, name: str, given: ListenerContext, tls: TlsSettings, budget: InFlightBudget) -> None:
        assert isinstance(given.settings, QuicListenerSettings)
        source = QUIC_PROTOCOLS[name](given)
        self._sources[name] = source
        limits = _quic_limits(self.config, given.settings)
        listener = QuicListener(name, given.settings.bind, source, tls, limits, clock=self._clock, budget=budget)
        self.listeners[name] = listener
        self.sessions[name] = source.stats
        await listener.start()

    async def _stop_listeners(self) -> None:
        for source in self._sources.values():
            if isinstance(source, NodeFelix | NodeFujin):
                source.linked.stop()
        listeners: list[TcpListener | QuicListener] = list(self.listeners.values())
        if self._peers is not None:
            listeners.append(self._peers)
        await asyncio.gather(*(listener.stop() for listener in listeners))

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
        limits=settings,
    )


def _kafka_engine(config: Config, clock: Clock, background: Background, node: str) -> Engine:
    """Raises ConfigError if the extra is not installed."""
    from penstock.log.kafka.engine import KafkaEngine

    config.data_dir.mkdir(parents=True, exist_ok=True)  # for certificates and the secret of the first administrator
    return KafkaEngine(
        config.kafka,
        clock=clock,
        background=background,
        node=None if config.cluster is None else node,
        shards=1 if config.cluster is None else config.cluster.shards,
        tail_bytes_per_partition=config.log.tail_bytes_per_partition,
        tail_bytes_max=config.log.tail_bytes_max,
    )


def _node_name(cluster: Cluster) -> str:
    address = parse_address(cluster.bind)
    name = str(Address(cluster.advertise or address.host, address.port)) if address.port else secrets.token_hex(8)
    return cluster.node or name


def _advertised(cluster: Cluster, addresses: Mapping[str, str]) -> dict[str, str]:
    """Where other nodes reach the listeners of this one, as far as they do."""
    advertised = {}
    for name, address in addresses.items():
        host, port = parse_address(address)
        if cluster.advertise is not None and (name == "cluster" or ip_address(host).is_unspecified):
            host = cluster.advertise
        elif ip_address(host).is_unspecified:
            host = parse_address(cluster.bind).host
        if cluster.reaches(address):
            advertised[name] = str(Address(host, port))
    return advertised


class _PeerContexts(NamedTuple):
    """TLS between nodes, of both ends of which each proves who it is."""

    accepting: ssl.SSLContext | None
    connecting: ssl.SSLContext | None


def _peer_contexts(cluster: Cluster | None) -> _PeerContexts:
    if cluster is None or cluster.tls is None:
        return _PeerContexts(None, None)
    tls = cluster.tls
    try:
        connecting = client_context(tls.cert, tls.key, tls.ca)
        return _PeerContexts(server_context(tls.cert, tls.key, tls.ca), connecting)
    except ConfigError as error:
        raise ConfigError(f"cluster.{error}") from None


def _access_settings(config: Config, node: str) -> AccessSettings:
    return AccessSettings(
        **dict(config.access),
        development=DEVELOPMENT_USERS if config.dev else {},
        node=node,
    )


def _tcp_limits(config: Config, settings: ListenerSettings) -> TcpLimits:
    return TcpLimits(**_shared_fields(TcpLimits, config.limits), **_shared_fields(TcpLimits, settings))


def _peer_limits(config: Config) -> TcpLimits:
    """Each connection of another node is one of a client of it, with the same bounds."""
    return TcpLimits(
        **_shared_fields(TcpLimits, config.limits), idle_s_max=PEER_IDLE_S_MAX, max_connections=PEER_CONNECTIONS_MAX
    )


def _shared_fields(kind: type[Section], section: Section) -> dict[str, Any]:
    """What a section has of the fields of another kind of section."""
    return {name: getattr(section, name) for name in kind.model_fields if name in type(section).model_fields}


def _quic_limits(config: Config, settings: QuicListenerSettings) -> QuicLimits:
    datagram_bytes = settings.datagram_bytes
    if datagram_bytes == "auto":
        host = parse_address(settings.bind).host
        datagram_bytes = DATAGRAM_BYTES_LOOPBACK if is_loopback(host) else DATAGRAM_BYTES
    shared = _shared_fields(QuicLimits, config.limits) | _shared_fields(QuicLimits, settings)
    return QuicLimits(**shared | {"datagram_bytes": datagram_bytes})


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
