"""`penstock consume`: the records of topics, to read or to hand to the next program.

At a terminal each record stands on one line with its place before it; in a pipe there is the value and a newline. `--raw` and
`--json` keep every byte.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import terminal
from penstock.cli.broker import complete_group, complete_topic, connected
from penstock.cli.options import wants_json

if TYPE_CHECKING:
    from penstock.clients.records import Record
    from penstock.protocols.flymq.sync import FlyMQClient

Render = Callable[["Record"], bytes]
_PATTERN_CHARACTERS = frozenset("*?[")


def consume(
    context: typer.Context,
    topics: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC",
            help="The topics to read, by name or by pattern, as in 'orders.*'.",
            autocompletion=complete_topic,
            show_default=False,
        ),
    ],
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Read this partition only, instead of all."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="Where to start: earliest, latest, an offset, a time, or how long ago.",
            show_default="earliest",
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option("--last", metavar="N", min=1, help="Start with the newest N records, over all partitions."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            autocompletion=complete_group,
            help="Continue where this group stopped, and commit what was read. --from applies if it has no offset yet.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more records at the end.")] = False,
    count: Annotated[int | None, typer.Option("--max", "-n", metavar="N", min=1, help="Stop after N records.")] = None,
    wanted: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="TEXT",
            help="Only records with this text or expression in key or value, or conditions such as '$.customer.id = 42'.",
        ),
    ] = None,
    headers: Annotated[
        bool, typer.Option("--headers", help="Print the headers before the value, as in name=value,name=value.")
    ] = False,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", metavar="TEXT", help="Print KEY, this text, VALUE.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print keys, values and headers as they are, without escapes.")
    ] = False,
    template: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Print each record in this form: %t topic, %p partition, %o offset, %T timestamp, %k key, %v value, %h headers, "
            "%K and %S lengths of key and value; \\n, \\t, \\xNN.",
        ),
    ] = None,
) -> None:
    """Print the records of topics, up to their current end.

    A time is ISO 8601 (local unless it says otherwise), or how long ago.

    With [bold]--json[/bold] each record is one JSON object on a line, with its
    timestamp, key and headers. Bytes that are not UTF-8 are base64, in
    key_base64 and value_base64. penstock produce --json reads such lines.

    Examples:
    $ penstock consume orders
    $ penstock consume orders --last 10 -f
    $ penstock consume orders --from -10m --follow
    $ penstock consume orders payments 'audit.*' --headers
    $ penstock consume orders --from 2025-01-31T08:00 --json | jq .value
    $ penstock consume orders --format '%T %k %h %v\\n'
    $ penstock consume orders --group billing --max 100
    """
    from penstock.cli.positions import parse_position

    in_json = wants_json(context)
    if template is not None and (in_json or headers or key_separator is not None):
        raise typer.BadParameter("--format says all there is to print: leave out --json, --headers and --key-separator")
    if in_json and (raw or headers or key_separator is not None):
        raise typer.BadParameter(
            "--json prints everything a record has: leave out --raw, --headers and --key-separator"
        )
    if last is not None and (start is not None or group is not None):
        raise typer.BadParameter("--last says where to start: leave out --from and --group")
    position = None if start is None else parse_position(start, time.time_ns() // 1_000_000, flag="--from")
    render = _renderer(
        in_json=in_json,
        template=template,
        raw=raw,
        headers=headers,
        key_separator=key_separator,
        several=len(topics) > 1 or _is_pattern(topics[0]),
    )
    if position == "latest" and group is None and not follow:
        terminal.hint("what comes from now on is read with --follow only")
    output = sys.stdout.buffer
    with connected(context) as client:
        batches = client.batches(
            _topic_names(client, topics),
            partition,
            start=position,
            group=group,
            follow=follow,
            filter=wanted,
            limit=count,
            last=last,
        )
        for batch in batches:
            output.write(b"".join(map(render, batch)))
            output.flush()


def _is_pattern(topic: str) -> bool:
    return not _PATTERN_CHARACTERS.isdisjoint(topic)


def _topic_names(client: FlyMQClient, topics: Sequence[str]) -> list[str]:
    """The topics that names and patterns stand for now, each once. Raises TopicNotFound for a pattern without any."""
    from fnmatch import fnmatchcase

    from penstock.errors import TopicNotFound

    existing = client.topics() if any(map(_is_pattern, topics)) else []
    names: list[str] = []
    for topic in topics:
        if topic in existing or not _is_pattern(topic):
            names.append(topic)
            continue
        matching = [name for name in existing if fnmatchcase(name, topic)]
        if not matching:
            raise TopicNotFound(f"topic not found: no topic matches {topic}")
        names += matching
    return list(dict.fromkeys(names))


def _renderer(
    *, in_json: bool, template: str | None, raw: bool, headers: bool, key_separator: str | None, several: bool
) -> Render:
    if in_json:
        from penstock.cli.record_json import json_line

        return json_line
    from penstock.cli.record_format import compile_format

    if template is None and not raw and terminal.on_terminal():
        return _for_people(key_separator, headers=headers, several=several)
    if template is None:
        key = "" if key_separator is None else "%k" + _literal(key_separator)
        template = ("%h\\t" if headers else "") + key + "%v\\n"
    return compile_format(template, raw=raw)


def _literal(separator: str) -> str:
    """A key separator, in which only \\t is an escape, as a part of a format."""
    return separator.replace("\\t", "\t").replace("\\", "\\\\").replace("%", "%%")


def _for_people(key_separator: str | None, *, headers: bool, several: bool) -> Render:
    separator = " " if key_separator is None else key_separator.replace("\\t", "\t")
    coloured = terminal.has_colours(sys.stdout)

    def styled(text: str, **styles: Any) -> str:
        return typer.style(text, **styles) if coloured else text

    def render(record: Record) -> bytes:
        topic = f"{terminal.visible(record.topic)} " if several else ""
        parts = [styled(f"{topic}{record.partition}:{record.offset}", dim=True), " "]
        if headers and record.headers:
            parts += [styled(_headers(record), fg="yellow"), " "]
        if record.key is not None:
            parts += [styled(terminal.visible_bytes(record.key), fg="cyan"), separator]
        parts.append(styled("null", dim=True) if record.value is None else terminal.visible_bytes(record.value))
        return ("".join(parts) + "\n").encode()

    return render


def _headers(record: Record) -> str:
    from penstock.cli.record_format import headers_text, visible_cell

    return headers_text(record, visible_cell).decode()
