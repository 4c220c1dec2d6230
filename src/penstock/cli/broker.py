"""A connection to the broker that `--server` names, for the length of one command or of one press of the Tab key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from penstock.cli.options import flymq_url, parsed_server_url
from penstock.cli.passwords import PASSWORD_VARIABLE, with_password

if TYPE_CHECKING:
    from penstock.protocols.flymq.operations.topics import SnapshotDescription
    from penstock.protocols.flymq.sync import FlyMQClient

COMPLETION_S_MAX = 0.5


@contextmanager
def connected(context: typer.Context) -> Iterator[FlyMQClient]:
    """A client that has connected; if it cannot, the error says so at once."""
    import penstock
    from penstock.errors import AuthenticationFailed, Unreachable

    url = with_password(flymq_url(context))
    try:
        client = penstock.connect(url)
    except AuthenticationFailed as error:
        if parsed_server_url(url).password is None:
            raise AuthenticationFailed(f"{error}; no password was given: set {PASSWORD_VARIABLE}") from error
        raise
    except Unreachable as error:
        ending = "" if str(error).endswith("?") else "."
        raise Unreachable(f"{error}{ending} Start one with: penstock serve, or name another with --server") from error
    with client:
        yield client


@contextmanager
def snapshot_of(context: typer.Context) -> Iterator[SnapshotDescription]:
    """A snapshot of a running broker, released as soon as the block ends, however it ends."""
    from penstock.errors import PenstockError

    with connected(context) as client:
        snapshot = client.snapshots.create()
        try:
            yield snapshot
        finally:
            try:
                client.snapshots.release(snapshot.id)
            except PenstockError:
                pass  # the broker may be gone; it removes a snapshot that nobody holds by itself, only later


@contextmanager
def _connected_briefly(context: typer.Context) -> Iterator[FlyMQClient]:
    import penstock
    from penstock.clients.options import ClientOptions
    from penstock.clients.retry import NO_RETRY

    options = ClientOptions(connect_timeout_s=COMPLETION_S_MAX, request_timeout_s=COMPLETION_S_MAX, retry=NO_RETRY)
    with penstock.connect(flymq_url(context), options=options) as client:
        yield client


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topic names for the shell; none where the broker does not answer at once."""
    from penstock.errors import PenstockError

    try:
        with _connected_briefly(ctx) as client:
            return [name for name in client.topics() if name.startswith(incomplete)]
    except PenstockError:
        return []


def complete_schema(ctx: typer.Context, incomplete: str) -> list[str]:
    """Schema names for the shell; none where the broker does not answer at once."""
    from penstock.errors import PenstockError

    try:
        with _connected_briefly(ctx) as client:
            return sorted({each.name for each in client.schemas.list() if each.name.startswith(incomplete)})
    except PenstockError:
        return []


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Group names for the shell; none where the broker does not answer at once."""
    from penstock.errors import PenstockError

    try:
        with _connected_briefly(ctx) as client:
            return sorted({each.group for each in client.groups() if each.group.startswith(incomplete)})
    except PenstockError:
        return []
