"""Penstock: a durable log that several message protocols write to and read from.

    client = penstock.connect("flymq://127.0.0.1:9092")
    client.send("orders", b"one")

`connect` gives a sync client, `connect_async` its async twin; errors are in `penstock.errors`. Importing this package costs next to
nothing: clients are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    import ssl

    from penstock.clients.options import ClientOptions

__all__ = ["__version__", "connect", "connect_async"]

__version__ = "0.1.0"

DEFAULT_URL = "flymq://127.0.0.1:9092"


class _Protocol(NamedTuple):
    """Where its clients are: the sync one in `sync`, the async one in `client`."""

    package: str
    sync_class: str
    async_class: str


_FLYMQ = _Protocol("penstock.protocols.flymq", "FlyMQClient", "AsyncFlyMQClient")
_BLIPMQ = _Protocol("penstock.protocols.blipmq", "BlipMQClient", "AsyncBlipMQClient")
_RUSTLOG = _Protocol("penstock.protocols.rustlog", "RustLogClient", "AsyncRustLogClient")
_FUJIN = _Protocol("penstock.protocols.fujin", "FujinClient", "AsyncFujinClient")
_FELIX = _Protocol("penstock.protocols.felix", "FelixClient", "AsyncFelixClient")
_SCHEMES = {
    "flymq": _FLYMQ,
    "flymqs": _FLYMQ,
    "blipmq": _BLIPMQ,
    "blipmqs": _BLIPMQ,
    "rustlog": _RUSTLOG,
    "rustlogs": _RUSTLOG,
    "rustlog+json": _RUSTLOG,
    "rustlogs+json": _RUSTLOG,
    "fujin": _FUJIN,
    "felix": _FELIX,
}
"""A scheme that ends in `s` is the same protocol over TLS, which those over QUIC have anyway."""
_FOR_QUIC = {"cryptography", "qh3"}
"""Libraries that `penstock` always installs, and `penstock-client` as an extra."""


def connect(
    url: str = DEFAULT_URL,
    *,
    tls: ssl.SSLContext | bool | None = None,
    options: ClientOptions | None = None,
    **of_protocol: Any,
) -> Any:
    """Connect to a broker and return a sync client.

    `url` is `scheme://[user:password@]host[:port][,host[:port]...]`. Several hosts are nodes of one cluster, which are tried in order. The
    scheme selects the protocol, and so the class of the client:

    - `flymq://user:password@host:9092`: `penstock.protocols.flymq.sync.FlyMQClient`
    - `blipmq://key@host:5555`: `penstock.protocols.blipmq.sync.BlipMQClient`
    - `rustlog://host:9292`, or `rustlog+json://` for the JSON dialect: `penstock.protocols.rustlog.sync.RustLogClient`
    - `fujin://host:4848?ca=FILE`: `penstock.protocols.fujin.sync.FujinClient`
    - `felix://host:5000?ca=FILE`: `penstock.protocols.felix.sync.FelixClient`

    `flymqs://`, `blipmqs://` and `rustlogs://` use TLS; `?ca=FILE` names a CA of your own. Further arguments are those of the client, as in
    `connect("felix://...", tenant="t1", token="secret")`. Raises `penstock.errors.Unreachable` if the broker does not answer. Use the
    client in a `with` block, or close it.
    """
    protocol = _protocol_of(url)
    client_class = _imported(protocol.package, "sync", protocol.sync_class)
    return client_class(url, tls=tls, options=options, **of_protocol)


async def connect_async(
    url: str = DEFAULT_URL,
    *,
    tls: ssl.SSLContext | bool | None = None,
    options: ClientOptions | None = None,
    **of_protocol: Any,
) -> Any:
    """Connect to a broker and return an async client: `async with await penstock.connect_async(url) as client:`."""
    protocol = _protocol_of(url)
    client_class = _imported(protocol.package, "client", protocol.async_class)
    client = client_class(url, tls=tls, options=options, **of_protocol)
    await client.open()
    return client


def _protocol_of(url: str) -> _Protocol:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        _refuse(url if not separator else f"{scheme}://")
    return _SCHEMES[scheme]


def _imported(package: str, module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(f"{package}.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name not in _FOR_QUIC:
            raise
        from penstock.errors import ConfigError

        scheme = package.rpartition(".")[2]
        raise ConfigError(
            f'{scheme}:// runs over QUIC, which needs {error.name}: run pip install "penstock-client[quic]"'
        ) from None


def _refuse(what: str) -> NoReturn:
    from penstock.errors import InvalidRequest

    known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
    raise InvalidRequest(f"no client for {what!r}; supported are {known}, as in {DEFAULT_URL}")
