"""`penstock consume`: the records of a topic, to read or to hand to the next program.

At a terminal each record stands on one line with its place before it; in a pipe there is the value and a newline. `--raw` and
`--json` keep every byte.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import terminal
from penstock.cli.broker import complete_group, complete_topic, connected
from penstock.cli.options import JsonOption, ServerOption, wants_json

if TYPE_CHECKING:
    from penstock.clients.records import Record

Render = Callable[["Record"], bytes]


def consume(
    context: typer.Context,
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC", help="The topic to read.", autocompletion=complete_topic, show_default=False),
    ],
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Only this one; all partitions unless given."),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="POSITION", help="Where to start: earliest, latest, an offset, a time, or how long ago."
        ),
    ] = "earliest",
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            autocompletion=complete_group,
            help="Go on where this group stopped, and commit what was read. --from counts where it has no offset yet.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more records at the end.")] = False,
    count: Annotated[
        int | None, typer.Option("--max", "-n", metavar="N", min=1, help="End after so many records.")
    ] = None,
    wanted: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="TEXT",
            help="Only records whose key or value has this text or matches this expression; $.path: JSON that has it.",
        ),
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", metavar="TEXT", help="Print KEY, this text, VALUE.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the bytes of each value as they are, then a newline.")
    ] = False,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the records of a topic, up to its present end.

    A time is ISO 8601 (local unless it says otherwise), or how long ago.

    With [bold]--json[/bold] each record is one JSON object on a line. What is not
    UTF-8 text is base64 then, in key_base64 and value_base64.

    Examples:
    $ penstock consume orders
    $ penstock consume orders --from -10m --follow
    $ penstock consume orders --from 2025-01-31T08:00 --json | jq .value
    $ penstock consume orders --group billing --max 100
    """
    from penstock.cli.positions import parse_position

    if raw and wants_json(context, as_json):
        raise typer.BadParameter("--raw and --json are two forms of output: use one of them")
    position = parse_position(start, time.time_ns() // 1_000_000, flag="--from")
    render = _renderer(as_json=wants_json(context, as_json), raw=raw, key_separator=key_separator)
    if position == "latest" and group is None and not follow:
        terminal.hint("what comes from now on is read with --follow only")
    output = sys.stdout.buffer
    with connected(context, server) as client:
        batches = client.batches(
            topic, partition, start=position, group=group, follow=follow, filter=wanted, limit=count
        )
        for batch in batches:
            output.write(b"".join(map(render, batch)))
            output.flush()


def _renderer(*, as_json: bool, raw: bool, key_separator: str | None) -> Render:
    if as_json:
        return _json_line
    separator = None if key_separator is None else key_separator.replace("\\t", "\t")
    if raw:
        return _raw(separator)
    if terminal.on_terminal():
        return _for_people(separator)
    return _plain(separator)


def _json_line(record: Record) -> bytes:
    members: dict[str, Any] = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    members |= terminal.json_bytes("key", record.key) | terminal.json_bytes("value", record.value)
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _raw(separator: str | None) -> Render:
    if separator is None:
        return lambda record: record.value + b"\n"
    between = separator.encode()
    return lambda record: (record.key or b"") + between + record.value + b"\n"


def _plain(separator: str | None) -> Render:
    if separator is None:
        return lambda record: terminal.visible_bytes(record.value).encode() + b"\n"
    return lambda record: (
        f"{terminal.visible_bytes(record.key or b'')}{separator}{terminal.visible_bytes(record.value)}\n".encode()
    )


def _for_people(separator: str | None) -> Render:
    def render(record: Record) -> bytes:
        place = typer.style(f"{record.partition}:{record.offset}", dim=True)
        key = (
            ""
            if record.key is None
            else typer.style(terminal.visible_bytes(record.key), fg="cyan") + (separator or " ")
        )
        return f"{place} {key}{terminal.visible_bytes(record.value)}\n".encode()

    return render
