"""Broker addresses as URLs: `scheme://[user[:password]@]host[:port][?ca=FILE&cert=FILE&key=FILE]`.

A scheme that ends in `s` is the same protocol over TLS. `ca` names the certificates to trust, `cert` and `key` a client certificate.
"""

from __future__ import annotations

import ssl
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import InvalidRequest

_TLS_OPTIONS = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens and who asks."""

    scheme: str
    host: str
    port: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls_files: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    """Of the protocol."""

    @property
    def is_secure(self) -> bool:
        """Whether the scheme, without its dialect, ends in `s`."""
        return self.scheme.partition("+")[0].endswith("s")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_url(url: str, *, port: int, options: Sequence[str] = ()) -> Address:
    """Parse a broker URL; `port` is the default port, `options` are the known options. Raises InvalidRequest that says what to change."""
    try:
        parts = urlsplit(url)
        host, given_port = parts.hostname, parts.port
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)) if parts.query else {}
    except ValueError as error:
        raise InvalidRequest(f"{_without_password(url)!r} is not a broker address: {error}") from None
    if not parts.scheme or not host:
        raise InvalidRequest(
            f"{_without_password(url)!r} is not a broker address: write it as scheme://host:port, for example {parts.scheme or 'flymq'}://127.0.0.1:{port}"
        )
    if parts.path not in ("", "/") or parts.fragment:
        raise InvalidRequest(f"a broker address ends after the port; remove {parts.path or '#' + parts.fragment!r}")
    for name, value in given.items():
        if name not in (*_TLS_OPTIONS, *options) or not value:
            others = f", and {', '.join(options)}" if options else ""
            raise InvalidRequest(
                f"address option {name!r} is unknown or empty; known are {', '.join(_TLS_OPTIONS)}, each with a file{others}"
            )
    return Address(
        scheme=parts.scheme,
        host=host,
        port=port if given_port is None else given_port,
        user=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
        tls_files={name: value for name, value in given.items() if name in _TLS_OPTIONS},
        options={name: value for name, value in given.items() if name in options},
    )


def parse_tcp_url(
    url: str, schemes: Container[str], *, protocol: str, port: int, form: str, options: Sequence[str] = ()
) -> Address:
    """The same for a protocol over TCP; `form` says how its addresses are written."""
    address = parse_url(url, port=port, options=options)
    if address.scheme not in schemes:
        raise InvalidRequest(f"{address} is not a {protocol} address: write {form}")
    return address


def parse_quic_url(url: str, scheme: str, *, port: int, tls: ssl.SSLContext | bool | None) -> Address:
    """The same for a protocol over QUIC, which is never without TLS and takes its certificates from the URL only."""
    address = parse_url(url, port=port)
    if address.scheme != scheme:
        raise InvalidRequest(f"{address} is not a {scheme.capitalize()} address: write {scheme}://host:port")
    if tls is False or isinstance(tls, ssl.SSLContext):
        raise InvalidRequest("QUIC has TLS of its own: name the certificates to trust with ?ca=FILE instead of tls")
    return address


def client_tls(ca: str | None = None, cert: str | None = None, key: str | None = None) -> ssl.SSLContext:
    """A context that verifies the broker: against `ca`, else the machine's trust store; `cert` and `key` identify this client."""
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(file for file in (ca, cert, key) if file is not None)
        raise InvalidRequest(f"cannot load the TLS files {files}: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def tls_for(address: Address, given: ssl.SSLContext | bool | None) -> ssl.SSLContext | None:
    """Return what a client over TCP connects with: what it was given, else TLS if the scheme or files in the address ask for it."""
    if isinstance(given, ssl.SSLContext):
        return given
    wanted = address.is_secure or bool(address.tls_files) if given is None else given
    return client_tls(**address.tls_files) if wanted else None


def _without_password(url: str) -> str:
    """A URL fit for an error message."""
    scheme, separator, rest = url.rpartition("://")
    credentials, at, host = rest.rpartition("@")
    if not at:
        return url
    return f"{scheme}{separator}{credentials.partition(':')[0]}@{host}"
