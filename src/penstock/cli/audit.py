"""`penstock audit`: who logged in, who was refused, who changed what."""

from __future__ import annotations

import json
import string
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import terminal
from penstock.cli.broker import connected
from penstock.cli.options import wants_json
from penstock.cli.program import Program

if TYPE_CHECKING:
    from penstock.protocols.flymq.operations.access import AuditQuery, AuditRecord

app = Program(help="Read the audit trail.")

TAIL_INTERVAL_S = 1.0
TAIL_EVENTS_MAX = 10_000
TAIL_OVERLAP_S = 5
"""Asked for again each time: the topics of the trail are written independently, so an event may appear after a later one."""

TypeOption = Annotated[
    list[str] | None,
    typer.Option("--type", "-t", metavar="TYPE", help="Only events of this type, as in auth.failure; repeatable."),
]
UserOption = Annotated[str, typer.Option("--user", "-u", metavar="USER", help="Only events of this user.")]
ResourceOption = Annotated[
    str, typer.Option("--resource", metavar="NAME", help="Only events about this topic, user or group.")
]
ResultOption = Annotated[
    str,
    typer.Option(
        "--result",
        metavar="RESULT",
        help="Only events with this result: success, failure, throttled, denied or disabled.",
    ),
]
SearchOption = Annotated[str, typer.Option("--search", metavar="TEXT", help="Only events that contain this text.")]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Only events since this time, or this long ago (-1h).")
]
LimitOption = Annotated[
    int, typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="The maximum number of events.")
]


@app.command("list")
def list_events(
    context: typer.Context,
    kind: TypeOption = None,
    user: UserOption = "",
    resource: ResourceOption = "",
    result: ResultOption = "",
    search: SearchOption = "",
    since: SinceOption = None,
    limit: LimitOption = 50,
) -> None:
    """List events, newest first.

    Examples:
    $ penstock audit list
    $ penstock audit list --type auth.failure --since -1h
    """
    query = _query(kind, user, resource, result, search, since, limit)
    with connected(context) as client:
        page = client.access.audit(query)
    terminal.print_list(
        context,
        page.events,
        _row,
        ["time", "type", "user", "from", "resource", "action", "result"],
        _columns,
        drop=["from", "action", "user"],
    )
    if page.more and not wants_json(context):
        terminal.hint(f"{page.total} events match; see more with --limit")


@app.command()
def tail(
    context: typer.Context,
    kind: TypeOption = None,
    user: UserOption = "",
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for more, until Ctrl-C.")] = True,
    limit: LimitOption = 10,
) -> None:
    """Print the last events and then new ones, oldest first.

    Examples:
    $ penstock audit tail
    $ penstock audit tail --type access.denied
    """
    as_json = wants_json(context)
    with connected(context) as client:
        page = client.access.audit(_query(kind, user, "", "", "", None, limit))
        seen: dict[str, int] = {}
        while True:
            for event in reversed(page.events):
                topic, number = _split_id(event.id)
                if number > seen.get(topic, -1):
                    seen[topic] = number
                    _print_line(event, as_json)
            terminal.flush()
            if not follow:
                return
            time.sleep(TAIL_INTERVAL_S)
            query = _query(kind, user, "", "", "", None, TAIL_EVENTS_MAX)
            if page.events:
                query.start_s = max(0, page.events[0].ts_ms // 1000 - TAIL_OVERLAP_S)
            newer = client.access.audit(query)
            page = newer if newer.events else page


@app.command()
def export(
    context: typer.Context,
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="json or csv.")] = "json",
    kind: TypeOption = None,
    user: UserOption = "",
    resource: ResourceOption = "",
    result: ResultOption = "",
    search: SearchOption = "",
    since: SinceOption = None,
    limit: LimitOption = 10_000,
) -> None:
    """Write events to standard output as one JSON list or as CSV, newest first.

    Examples:
    $ penstock audit export --format csv > audit.csv
    $ penstock audit export --since -7d > audit.json
    """
    if form not in ("json", "csv"):
        raise typer.BadParameter(f"{form} is not a format: use json or csv", param_hint="--format")
    if form == "csv" and wants_json(context):
        raise typer.BadParameter("--json and --format csv contradict each other: use one of them")
    query = _query(kind, user, resource, result, search, since, limit)
    with connected(context) as client:
        data = client.access.export_audit("csv" if form == "csv" else "json", query)
    sys.stdout.buffer.write(data)


def _query(
    kinds: list[str] | None, user: str, resource: str, result: str, search: str, since: str | None, limit: int
) -> AuditQuery:
    from penstock.protocols.flymq.operations.access import AuditQuery

    return AuditQuery(_since_s(since), 0, kinds or [], user, resource, result, search, limit, 0)


def _since_s(since: str | None) -> int:
    if since is None:
        return 0
    from penstock.cli.positions import parse_time

    return int(parse_time(since, time.time_ns() // 1_000_000, flag="--since").timestamp())


def _split_id(event_id: str) -> tuple[str, int]:
    """Return the prefix of an event's id, which stands for its topic, and the offset in it."""
    number = event_id.lstrip(string.ascii_letters)
    return event_id.removesuffix(number), int(number)


def _columns(event: AuditRecord) -> tuple[object, ...]:
    return (
        terminal.local_time(event.ts_ms),
        event.type,
        event.user or "-",
        event.client_ip or "-",
        event.resource or "-",
        event.action,
        event.result,
    )


def _row(event: AuditRecord) -> dict[str, object]:
    import msgspec

    row: dict[str, object] = msgspec.to_builtins(event)
    return row


def _print_line(event: AuditRecord, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_row(event), ensure_ascii=False))
        return
    details = " ".join(f"{name}={value}" for name, value in event.details.items())
    print(terminal.visible("  ".join([*map(str, _columns(event)), *([details] if details else [])])))
