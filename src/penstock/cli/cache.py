"""`penstock cache`: values in the broker's memory, over Felix."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from penstock.cli import terminal
from penstock.cli.options import duration_ms, server_url, wants_json
from penstock.cli.passwords import with_password
from penstock.cli.program import Program
from penstock.errors import EntryNotFound, Unreachable

if TYPE_CHECKING:
    from penstock.protocols.felix.sync import FelixClient


DATA_DIR = Path("penstock-data")
FelixOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        "-s",
        metavar="URL",
        help="The Felix address of the broker; ?ca=FILE names the CA to trust. Of an address of another protocol only the host is used.",
        show_default="felix://127.0.0.1:5000",
    ),
]
app = Program(help="Get, put and delete values in the broker's cache (Felix).", server=FelixOption)

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The key of the value.", show_default=False)]
CacheOption = Annotated[str, typer.Option("--cache", metavar="NAME", help="The cache.")]
NamespaceOption = Annotated[str, typer.Option("--namespace", metavar="NAME", help="The namespace of the cache.")]


@app.command()
def get(
    context: typer.Context, key: KeyArgument, cache: CacheOption = "default", namespace: NamespaceOption = "default"
) -> None:
    """Print a value; unescaped if standard output is not a terminal.

    Fails if there is no such value, or if it has expired.

    Examples:
    $ penstock cache get greeting
    $ penstock -s felix://t1@127.0.0.1:5000 cache get price:42 --cache prices
    """
    with _connected(context) as client:
        value = client.cache_get(key, cache=cache, namespace=namespace)
    if wants_json(context):
        terminal.print_json({"key": key, **terminal.json_bytes("value", value)})
    elif value is None:
        raise _no_value(key)
    elif terminal.on_terminal():
        print(terminal.visible_bytes(value))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(value)


def _no_value(key: str) -> EntryNotFound:
    return EntryNotFound(f"there is no value for key {terminal.visible(key)}, or it has expired")


@app.command()
def put(
    context: typer.Context,
    key: KeyArgument,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="The value; - reads it from standard input.", show_default=False)
    ],
    ttl: Annotated[str | None, typer.Option("--ttl", metavar="TIME", help="Time to live, as in 500ms or 7d.")] = None,
    cache: CacheOption = "default",
    namespace: NamespaceOption = "default",
) -> None:
    """Store a value in memory until it expires, is evicted, or the broker stops.

    Examples:
    $ penstock cache put greeting hello
    $ penstock cache put session:7 - --ttl 30m < session.json
    """
    data = sys.stdin.buffer.read() if value == "-" else value.encode(errors="surrogateescape")
    ttl_ms = None if ttl is None else duration_ms(ttl, "--ttl")
    with _connected(context) as client:
        client.cache_put(key, data, ttl_s=None if ttl_ms is None else ttl_ms / 1000, cache=cache, namespace=namespace)
    terminal.print_outcome(
        context, f"stored {len(data)} bytes as {key}", {"key": key, "bytes": len(data), "ttl_ms": ttl_ms}
    )


@app.command()
def delete(
    context: typer.Context, key: KeyArgument, cache: CacheOption = "default", namespace: NamespaceOption = "default"
) -> None:
    """Remove a value.

    Fails if there is no such value, or if it has expired.

    Examples:
    $ penstock cache delete greeting
    """
    with _connected(context) as client:
        value = client.cache_delete(key, cache=cache, namespace=namespace)
    if wants_json(context):
        terminal.print_json({"key": key, "deleted": value is not None})
    elif value is None:
        raise _no_value(key)
    else:
        print(f"deleted {len(value)} bytes of {terminal.visible(key)}")


@contextmanager
def _connected(context: typer.Context) -> Iterator[FelixClient]:
    import penstock

    url = felix_url(server_url(context))
    try:
        client = penstock.connect(with_password(url))
    except Unreachable as error:
        ending = "" if str(error).endswith("?") else "."
        raise Unreachable(
            f"{error}{ending} The cache is on the Felix listener: name it with --server felix://host:port?ca=FILE"
        ) from error
    with client:
        yield client


def felix_url(url: str) -> str:
    """Return the Felix address of the broker. Of an address of another protocol only the hosts are used.

    If it names no CA, the certificate that a broker on this machine has created in this directory is trusted.
    """
    from penstock.clients.url import parse_url
    from penstock.net.certificates import CERTIFICATE_FILE
    from penstock.protocols.felix.client.client import PORT, SCHEME
    from penstock.units import is_loopback

    address = parse_url(url, port=PORT)
    names_files = bool(address.tls_files)
    if address.scheme != SCHEME:
        url = f"{SCHEME}://{','.join(dict.fromkeys(str(each._replace(port=PORT)) for each in address.hosts))}"
        url += "?hosts=in-order" if address.in_order else ""
        names_files = False
    own = DATA_DIR / CERTIFICATE_FILE
    if not names_files and all(is_loopback(each.host) for each in address.hosts) and own.is_file():
        url += f"{'&' if '?' in url else '?'}ca={quote(str(own))}"
    return url
