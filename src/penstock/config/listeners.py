"""The settings of listeners: what all have in common, what TCP and QUIC add, and what each protocol adds.

A listener that other machines can reach must be secure, or say `insecure = true`; each class checks that for its protocol.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from penstock.config.values import (
    ApiKey,
    Bind,
    DatagramBytes,
    FelixName,
    OptionalDurationMs,
)
from penstock.net.limits import ConnectionLimits, QuicConnectionLimits, TcpConnectionLimits
from penstock.protocols.fujin.server.settings import FujinSettings
from penstock.settings import ExpandedPath, Seconds, Section
from penstock.units import is_loopback, parse_address


class Tls(Section):
    """`[listeners.<name>.tls]`: certificates and keys, as PEM files. TCP listeners then accept TLS 1.2 or later only."""

    cert: ExpandedPath
    """The certificate chain of the listener."""
    key: ExpandedPath
    """The private key of the certificate."""
    client_ca: ExpandedPath | None = None
    """CA certificates for client authentication (mutual TLS). Clients without a certificate are refused."""

    @model_validator(mode="after")
    def _files_exist(self) -> Tls:
        for name, path in (("cert", self.cert), ("key", self.key), ("client_ca", self.client_ca)):
            if path is not None and not path.is_file():
                raise ValueError(f"{name} names {path}, which is not a file: create it or correct the path")
        return self


class _Endpoint(Section):
    """Where to listen, and how that is secured."""

    bind: Bind
    """The address to listen on. Port 0 picks a free port, which the line printed at start names."""
    tls: Tls | None = None
    insecure: bool = False
    """Allow an address that other machines can reach without TLS and authentication."""

    def check_safe(self, *, authenticated: bool, settings: str) -> None:
        """Raise ValueError if anonymous clients of other machines could connect; `settings` names what prevents that."""
        secured = self.tls is not None and authenticated
        if not secured and not self.insecure and not is_loopback(parse_address(self.bind).host):
            raise ValueError(
                f'bind = "{self.bind}" can be reached from other machines without TLS and authentication: bind to 127.0.0.1, '
                f"or set {settings}, or accept the risk with insecure = true"
            )


class Listener(ConnectionLimits, _Endpoint):
    """Settings of every listener."""


class TcpListener(TcpConnectionLimits, Listener):
    """Settings of TCP listeners."""


class QuicListener(QuicConnectionLimits, Listener):
    """Settings of QUIC listeners. QUIC always uses TLS; on loopback the broker creates a certificate if none is configured."""

    datagram_bytes: DatagramBytes = "auto"
    """The largest datagram to send. `auto`: 1452, and 8900 on loopback."""

    def check_certificate(self) -> None:
        """Raise ValueError if there is no certificate and other machines would have to trust a self-signed one."""
        if self.tls is None and not is_loopback(parse_address(self.bind).host):
            raise ValueError(
                f'bind = "{self.bind}" can be reached from other machines, and QUIC needs a certificate that they trust: '
                "set tls.cert and tls.key, or bind to 127.0.0.1"
            )


class FlyMQListener(TcpListener):
    """`[listeners.flymq]`: FlyMQ over TCP or TLS."""

    bind: Bind = "127.0.0.1:9092"
    dialect: Literal["auto", "spec", "native"] = "auto"
    """Which form replies have where the FlyMQ contract and deployed clients disagree: `spec` follows the contract, `native` the deployed
    clients. `auto` decides for each connection from what the client sends."""
    auth: Literal["none", "required"] = "none"
    """`required`: clients must authenticate with a user name and password, or with a client certificate that `tls.client_ca` accepts."""

    @model_validator(mode="after")
    def _is_safe(self) -> FlyMQListener:
        self.check_safe(authenticated=self.auth == "required", settings='tls.cert, tls.key and auth = "required"')
        return self


class BlipMQListener(TcpListener):
    """`[listeners.blipmq]`: BlipMQ over TCP or TLS. Every client presents an API key."""

    bind: Bind = "127.0.0.1:5555"
    max_connections: int = Field(4_000, ge=1, le=1_000_000)
    """Open connections. Further ones are refused."""
    idle_s_max: Seconds = Field(24 * 3600.0, ge=1)
    """Idle timeout. It is long because deployed publishers keep silent connections open."""
    api_keys: list[ApiKey] = []
    """API keys that are accepted in addition to those created with `penstock key create`. Each may publish, subscribe and read. Without
    any key nobody can log in."""
    message_ttl_ms: OptionalDurationMs = Field(None, ge=1)
    """Time to live of messages published on this listener, for readers of every protocol."""

    @model_validator(mode="after")
    def _is_safe(self) -> BlipMQListener:
        self.check_safe(authenticated=True, settings="tls.cert and tls.key, so that keys do not travel in the clear")
        return self


class RustLogListener(TcpListener):
    """`[listeners.rustlog]`: RustLog over TCP or TLS. The protocol has no login: a client certificate is the only identity."""

    bind: Bind = "127.0.0.1:9292"
    max_connections: int = Field(4_000, ge=1, le=1_000_000)
    """Open connections. Further ones are refused."""
    auth: Literal["auto", "none", "required"] = "auto"
    """`required`: clients without a certificate that `tls.client_ca` accepts are anonymous and may use public topics at most. `none`:
    every client may do everything. `auto`: `required` if `listeners.flymq.auth` is."""

    @model_validator(mode="after")
    def _is_safe(self) -> RustLogListener:
        authenticated = self.auth == "required" and self.tls is not None and self.tls.client_ca is not None
        self.check_safe(authenticated=authenticated, settings='tls.cert, tls.key, tls.client_ca and auth = "required"')
        return self


class FujinListener(FujinSettings, QuicListener):
    """`[listeners.fujin]`: Fujin over QUIC. The protocol has no login: a client certificate is the only identity."""

    bind: Bind = "127.0.0.1:4848"
    auth: Literal["auto", "none", "required"] = "auto"
    """`required`: clients without a certificate that `tls.client_ca` accepts are anonymous and may use public topics at most. `none`:
    every client may do everything. `auto`: `required` if `listeners.flymq.auth` is."""

    @model_validator(mode="after")
    def _is_safe(self) -> FujinListener:
        self.check_certificate()
        certified = self.tls is not None and self.tls.client_ca is not None
        self.check_safe(authenticated=certified, settings="tls.client_ca")
        return self


class FelixListener(QuicListener):
    """`[listeners.felix]`: Felix over QUIC."""

    bind: Bind = "127.0.0.1:5000"
    dialect: Literal["auto", "spec", "native"] = "auto"
    """Which form replies have where the contract and deployed clients disagree: `spec` or `native`. `auto` decides for each request."""
    auth: Literal["auto", "none", "required"] = "auto"
    """`required`: clients must present a token. `none`: any token, or none, is accepted. `auto`: `required` if there are `tokens` or if
    `listeners.flymq.auth` is `required`."""
    tokens: dict[str, ApiKey] = {}
    """The token of each tenant, as in `tokens = { t1 = "secret" }`. It opens the streams and caches of that tenant. API keys
    (`penstock key create`) are accepted too, for every tenant."""
    default_tenant: FelixName = "default"
    """The tenant that is left out of topic names: its streams are the broker's topics."""
    default_namespace: FelixName = "default"
    """The namespace that is left out of topic names."""
    auto_create: bool = False
    """Create a stream that does not exist when it is published or subscribed to, instead of refusing the request."""
    slow_subscriber: Literal["drop", "pause", "close"] = "drop"
    """What happens to a subscriber whose lag exceeds `subscriber_lag_records_max`: `drop` skips to the newest records, `pause` continues
    where it is once it reads again, `close` ends the subscription."""
    subscriber_lag_records_max: int = Field(100_000, ge=1)
    """The lag, in records, from which a subscriber counts as slow."""
    # What deployed brokers allow. A client's limit on streams is commonly lower.
    subscriptions_max: int = Field(4_096, ge=1, le=65_536)
    """Subscriptions of one connection."""

    @model_validator(mode="after")
    def _is_safe(self) -> FelixListener:
        self.check_certificate()
        if self.tokens and self.auth == "none":
            raise ValueError('tokens are of no use with auth = "none": remove them, or set auth = "required"')
        for tenant in self.tokens:
            if not tenant or "/" in tenant:
                raise ValueError(f'tokens names a tenant {tenant!r}: a name is not empty and has no "/"')
        certified = self.tls is not None and self.tls.client_ca is not None
        authenticated = certified or self.auth == "required" or bool(self.tokens)
        self.check_safe(authenticated=authenticated, settings='auth = "required" or tls.client_ca')
        return self
