"""What makes the sessions of each protocol, from the settings of its listener.

A new protocol is a folder under `protocols/` and a line in `PROTOCOLS` or `QUIC_PROTOCOLS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from penstock.broker.access.checks import ANONYMOUS, UNAUTHENTICATED
from penstock.broker.broker import Broker
from penstock.clock import Clock
from penstock.config import BlipMQListener, Config, FelixListener, FlyMQListener, FujinListener, RustLogListener
from penstock.config import Listener as ListenerSettings
from penstock.net.peers import Dialer
from penstock.net.quic_session import QuicConnection, QuicSession
from penstock.net.session import Connection, Session
from penstock.protocols.blipmq.following import NodeBlipMQ
from penstock.protocols.blipmq.session import BlipMQ
from penstock.protocols.felix import wire as felix_wire
from penstock.protocols.felix.codec.scopes import Scopes
from penstock.protocols.felix.following import NodeFelix
from penstock.protocols.felix.session import Felix
from penstock.protocols.flymq.server.dispatch import Dialect, Node
from penstock.protocols.flymq.session import FlyMQ
from penstock.protocols.fujin import wire as fujin_wire
from penstock.protocols.fujin.following import NodeFujin
from penstock.protocols.fujin.session import Fujin
from penstock.protocols.rustlog.session import RustLog
from penstock.stats import SessionStats

DEVELOPMENT_API_KEY = "dev-key"

log = structlog.get_logger(__name__)


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
class ListenerContext:
    """What a protocol is given to make its sessions from."""

    broker: Broker
    clock: Clock
    config: Config
    settings: ListenerSettings
    address: Callable[[], str]
    """Where the listener is; known once it has started."""
    node: str
    """The name of this node."""
    dialer: Dialer | None
    """Connects to other nodes, where there are several."""


def _flymq(given: ListenerContext) -> FlyMQ:
    assert isinstance(given.settings, FlyMQListener)
    return FlyMQ(
        given.broker,
        clock=given.clock,
        node=Node(given.node, given.address),
        dial_node=given.dialer,
        principal=ANONYMOUS if given.settings.auth == "none" else UNAUTHENTICATED,
        login_required=given.settings.auth == "required" and not given.config.access.allow_anonymous,
        dialect=Dialect(given.settings.dialect),
    )


def _blipmq(given: ListenerContext) -> BlipMQ | NodeBlipMQ:
    settings = given.settings
    assert isinstance(settings, BlipMQListener)
    keys = [key.get_secret_value() for key in settings.api_keys]
    if given.config.dev:
        keys.append(DEVELOPMENT_API_KEY)
    if not keys and not len(given.broker.api_keys):
        log.info("no_api_key", listener="blipmq", consequence="nobody can log in", advice="penstock key create NAME")
    shared = BlipMQ(given.broker, clock=given.clock, api_keys=keys, message_ttl_ms=settings.message_ttl_ms)
    return shared if given.dialer is None else NodeBlipMQ(shared, given.dialer)


def _rustlog(given: ListenerContext) -> RustLog:
    settings = given.settings
    assert isinstance(settings, RustLogListener)
    required = _is_required(given, settings.auth)
    return RustLog(
        given.broker,
        clock=given.clock,
        principal=UNAUTHENTICATED if required else ANONYMOUS,
        login_required=required and not given.config.access.allow_anonymous,
    )


def _is_required(given: ListenerContext, auth: str) -> bool:
    """Whether anonymous clients are refused; `auto` follows FlyMQ."""
    flymq = given.config.listeners.flymq
    return auth == "required" or (auth == "auto" and flymq is not None and flymq.auth == "required")


PROTOCOLS: Mapping[str, Callable[[ListenerContext], SessionSource]] = {
    "flymq": _flymq,
    "blipmq": _blipmq,
    "rustlog": _rustlog,
}


def _fujin(given: ListenerContext) -> Fujin | NodeFujin:
    settings = given.settings
    assert isinstance(settings, FujinListener)
    required = _is_required(given, settings.auth)
    shared = Fujin(
        given.broker,
        settings=settings,
        principal=UNAUTHENTICATED if required else ANONYMOUS,
        login_required=required and not given.config.access.allow_anonymous,
    )
    return shared if given.dialer is None else NodeFujin(shared, given.dialer)


def _felix(given: ListenerContext) -> Felix | NodeFelix:
    settings = given.settings
    assert isinstance(settings, FelixListener)
    required = _is_required(given, settings.auth) or (settings.auth == "auto" and bool(settings.tokens))
    felix = Felix(
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
        subscriptions_max=settings.subscriptions_max,
    )
    return felix if given.dialer is None else NodeFelix(felix, given.dialer)


QUIC_PROTOCOLS: Mapping[str, Callable[[ListenerContext], QuicSessionSource]] = {
    "fujin": _fujin,
    "felix": _felix,
}
INTRODUCED = FlyMQ | NodeBlipMQ | NodeFujin | NodeFelix
"""What makes sessions for clients of other nodes, too: those pass on to the node that leads what they do not answer."""
# What a client offers in its handshake: Fujin's must, Felix's may.
ALPN = {"fujin": (fujin_wire.ALPN,), "felix": (felix_wire.ALPN,)}
ALPN_REQUIRED = frozenset({"fujin"})
# Their deployed clients send an answer and the next request as two small writes, and the second waits for our TCP acknowledgement.
QUICKACK = frozenset({"blipmq"})
