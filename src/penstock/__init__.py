"""Penstock: a durable log that several message protocols write to and read from.

    client = penstock.connect("flymq://127.0.0.1:9092")
    client.send("orders", b"one")

`connect` gives a sync client, `connect_async` its async twin; errors are in `penstock.errors`. Importing this package costs next to
nothing: clients are imported when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import ssl

    from penstock.clients.options import ClientOptions
    from penstock.protocols.flymq.client import AsyncFlyMQClient
    from penstock.protocols.flymq.sync import FlyMQClient

__all__ = ["__version__", "connect", "connect_async"]

__version__ = "0.1.0"

DEFAULT_URL = "flymq://127.0.0.1:9092"
_SCHEMES = {"flymq": "FlyMQ", "flymqs": "FlyMQ over TLS"}


def connect(
    url: str = DEFAULT_URL, *, tls: ssl.SSLContext | bool | None = None, options: ClientOptions | None = None
) -> FlyMQClient:
    """Connect to a broker, for programs without an event loop.

    `url` is `scheme://[user:password@]host[:port]`; `flymqs://` means TLS, with `?ca=FILE` for an authority of your own. Raises
    `penstock.errors.Unreachable` where nothing answers. Use the client in a `with` block, or close it.
    """
    _check_scheme(url)
    from penstock.protocols.flymq.sync import FlyMQClient

    return FlyMQClient(url, tls=tls, options=options)


async def connect_async(
    url: str = DEFAULT_URL, *, tls: ssl.SSLContext | bool | None = None, options: ClientOptions | None = None
) -> AsyncFlyMQClient:
    """Connect to a broker from an asyncio program: `async with await penstock.connect_async(url) as client:`."""
    _check_scheme(url)
    from penstock.protocols.flymq.client import AsyncFlyMQClient

    client = AsyncFlyMQClient(url, tls=tls, options=options)
    await client.open()
    return client


def _check_scheme(url: str) -> None:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        _refuse(url if not separator else f"{scheme}://")


def _refuse(what: str) -> NoReturn:
    from penstock.errors import InvalidRequest

    known = ", ".join(f"{scheme}:// ({name})" for scheme, name in _SCHEMES.items())
    raise InvalidRequest(f"no client for {what!r}; supported are {known}, as in {DEFAULT_URL}")
