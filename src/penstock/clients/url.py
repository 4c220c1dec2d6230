"""Broker addresses as URLs: `scheme://[user[:password]@]host[:port][,host[:port]...][?ca=FILE&cert=FILE&key=FILE&hosts=in-order]`.

A scheme that ends in `s` is the same protocol over TLS. Several hosts are nodes that serve the same log; credentials and options are those
of all. `ca` names the certificates to trust, `cert` and `key` a client certificate. Each client draws an order of the hosts, unless
`hosts=in-order` keeps that of the address.
"""

from __future__ import annotations

import ssl
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import InvalidRequest
from penstock.units import Address as HostPort

HOSTS_MAX: Final = 16
_TLS_OPTIONS = ("ca", "cert", "key")
_HOSTS_OPTION = "hosts"
_IN_ORDER = {"random": False, "in-order": True}
_NOT_ESCAPED: Final = (
    "a broker address has an @ after a slash, a question mark or a hash: write those in a password as %2F, %3F and %23"
)


class UrlParts(NamedTuple):
    """A URL cut into parts, each as it is written. `urllib` has no place for several hosts, and refuses some."""

    scheme: str
    credentials: str | None
    hosts: str
    rest: str
    """From the first slash, question mark or hash on."""

    def __str__(self) -> str:
        at = "" if self.credentials is None else f"{self.credentials}@"
        return f"{self.scheme}://{at}{self.hosts}{self.rest}"


def split_url(url: str) -> UrlParts:
    """Cut a URL that has a scheme; nothing is checked."""
    scheme, _, after = url.partition("://")
    end = min((found for found in map(after.find, "/?#") if found >= 0), default=len(after))
    credentials, at, hosts = after[:end].rpartition("@")
    return UrlParts(scheme, credentials if at else None, hosts, after[end:])


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens, at one host or at several, and who asks."""

    scheme: str
    host: str
    port: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls_files: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    """Of the protocol."""
    others: tuple[HostPort, ...] = ()
    """The hosts after the first one."""
    in_order: bool = False
    """Whether a client takes the hosts as they are listed, and not in an order that it draws."""

    @property
    def hosts(self) -> tuple[HostPort, ...]:
        return (HostPort(self.host, self.port), *self.others)

    @property
    def nodes(self) -> tuple[Address, ...]:
        """One address for each host."""
        return tuple(replace(self, host=each.host, port=each.port, others=()) for each in self.hosts)

    @property
    def netloc(self) -> str:
        """The hosts with their ports, separated by commas."""
        return ",".join(map(str, self.hosts))

    @property
    def is_secure(self) -> bool:
        """Whether the scheme, without its dialect, ends in `s`."""
        return self.scheme.partition("+")[0].endswith("s")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}"


def parse_url(url: str, *, port: int, options: Sequence[str] = ()) -> Address:
    """Parse a broker URL; `port` is the default port, `options` are the known options. Raises InvalidRequest that says what to change."""
    written = split_url(url)
    names = [name.strip() for name in written.hosts.split(",")]
    user, has_password, password = (written.credentials or "").partition(":")
    if "@" in written.rest.partition("?")[0]:
        raise InvalidRequest(_NOT_ESCAPED)
    try:
        parts = urlsplit(str(written._replace(hosts=names[0], credentials=None)) if "://" in url else url)
        hosts = [_host(name, port) for name in names]
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)) if parts.query else {}
    except ValueError as error:
        if "@" in written.rest:
            raise InvalidRequest(_NOT_ESCAPED) from None
        raise InvalidRequest(f"{_without_password(url)!r} is not a broker address: {error}") from None
    if not parts.scheme or not parts.hostname:
        raise InvalidRequest(
            f"{_without_password(url)!r} is not a broker address: write it as scheme://host:port, for example {parts.scheme or 'flymq'}://127.0.0.1:{port}"
        )
    _check_list(hosts, written)
    if parts.path not in ("", "/") or parts.fragment:
        raise InvalidRequest(f"a broker address ends after the port; remove {parts.path or '#' + parts.fragment!r}")
    for name, value in given.items():
        if name not in (*_TLS_OPTIONS, _HOSTS_OPTION, *options) or not value:
            others = ", ".join((_HOSTS_OPTION, *options))
            raise InvalidRequest(
                f"address option {name!r} is unknown or empty; known are {', '.join(_TLS_OPTIONS)}, each with a file, and {others}"
            )
    order = given.get(_HOSTS_OPTION, "random")
    if order not in _IN_ORDER:
        raise InvalidRequest(f"address option hosts is {order!r}: write hosts=random or hosts=in-order")
    return Address(
        scheme=parts.scheme,
        host=hosts[0].host,
        port=hosts[0].port,
        user=None if written.credentials is None else unquote(user),
        password=unquote(password) if has_password else None,
        tls_files={name: value for name, value in given.items() if name in _TLS_OPTIONS},
        options={name: value for name, value in given.items() if name in options},
        others=tuple(hosts[1:]),
        in_order=_IN_ORDER[order],
    )


def _host(text: str, port: int) -> HostPort:
    parts = urlsplit(f"//{text}")
    host = parts.hostname or ""
    host.encode("idna")  # as it will be to resolve it; UnicodeError is a ValueError
    return HostPort(host, port if parts.port is None else parts.port)


def _check_list(hosts: Sequence[HostPort], written: UrlParts) -> None:
    """Raise InvalidRequest for a list of hosts that cannot be meant."""
    if written.credentials is not None and "," in written.credentials:
        raise InvalidRequest(
            "a broker address has a comma before its @: name user and password once, before the first host, "
            "and write a comma in a password as %2C"
        )
    if len(hosts) > 1 and written.rest.startswith("//"):
        raise InvalidRequest(
            f"a broker address has one scheme: write {written.scheme}://host1:port,host2:port, "
            "with the hosts separated by commas"
        )
    if not all(each.host for each in hosts):
        raise InvalidRequest(f"{written.hosts!r} has a comma without a host next to it: write host1:port,host2:port")
    if len(hosts) > HOSTS_MAX:
        raise InvalidRequest(f"a broker address has up to {HOSTS_MAX} hosts, got {len(hosts)}: name some of the nodes")
    if len(set(hosts)) < len(hosts):
        raise InvalidRequest(f"{written.hosts!r} names a host twice: name each once")


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
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    credentials, at, host = rest.rpartition("@")
    if not at:
        return url
    return f"{scheme}{separator}{credentials.partition(':')[0]}@{host}"
