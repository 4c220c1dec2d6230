"""`penstock topic`: create, list, describe, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import terminal
from penstock.cli.broker import complete_schema, complete_topic, connected
from penstock.cli.options import JsonOption, ServerOption, YesOption, wants_json

if TYPE_CHECKING:
    from penstock.clients.records import TopicDescription

app = typer.Typer(no_args_is_help=True, help="Create, list, describe and delete topics.")

TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Its name.", autocompletion=complete_topic, show_default=False)
]
NOT_SETTINGS = ("id", "created_ms", "partitions")


@app.command()
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="Its name.", show_default=False)],
    partitions: Annotated[int, typer.Option("--partitions", "-p", metavar="N", min=1, help="How many partitions.")] = 1,
    durability: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="fsync, interval:<ms> or none; the broker's default unless given."),
    ] = None,
    retention_ms: Annotated[
        str | None, typer.Option("--retention-ms", metavar="TIME", help="Delete records older than this, as in 7d.")
    ] = None,
    retention_bytes: Annotated[
        str | None,
        typer.Option("--retention-bytes", metavar="SIZE", help="Keep each partition below this, as in '10 GiB'."),
    ] = None,
    cleanup: Annotated[
        str | None, typer.Option(metavar="WAY", help="delete, or compact: keep the latest record of each key.")
    ] = None,
    compression: Annotated[str | None, typer.Option(metavar="NAME", help="none or zstd.")] = None,
    segment_bytes: Annotated[
        str | None, typer.Option("--segment-bytes", metavar="SIZE", help="Size at which a segment is sealed.")
    ] = None,
    segment_ms: Annotated[
        str | None, typer.Option("--segment-ms", metavar="TIME", help="Age at which a segment is sealed.")
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:VERSION]",
            help="The schema that its records must follow.",
            autocompletion=complete_schema,
        ),
    ] = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Leave a topic that exists as it is.")] = False,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a topic.

    Examples:
    $ penstock topic create orders --partitions 3
    $ penstock topic create clicks --durability interval:100 --retention-ms 7d
    $ penstock topic create prices --cleanup compact
    $ penstock topic create orders --schema order
    """
    from penstock.errors import TopicExists

    settings = {
        "durability": durability,
        "retention_ms": retention_ms,
        "retention_bytes": retention_bytes,
        "cleanup": cleanup,
        "compression": compression,
        "segment_bytes": segment_bytes,
        "segment_ms": segment_ms,
        "schema": schema,
    }
    with connected(context, server) as client:
        exists = name in client.topics()
        if exists and not exist_ok:
            raise TopicExists(f"topic {name} exists: choose another name, or add --exist-ok to leave it as it is")
        if not exists:
            client.create_topic(
                name, partitions, **{key: value for key, value in settings.items() if value is not None}
            )
        described = client.describe_topic(name)
    if wants_json(context, as_json):
        terminal.print_json({**_as_json(described), "created": not exists})
    elif exists:
        print(f"topic {terminal.visible(name)} exists, with {_count(len(described.partitions), 'partition')}")
    else:
        print(f"created topic {terminal.visible(name)} with {_count(len(described.partitions), 'partition')}")


@app.command("list")
def list_topics(context: typer.Context, server: ServerOption = None, as_json: JsonOption = False) -> None:
    """List the topics.

    Examples:
    $ penstock topic list
    $ penstock topic list --json | jq -r '.[].name'
    """
    with connected(context, server) as client:
        described = [client.describe_topic(name) for name in client.topics()]
    if wants_json(context, as_json):
        terminal.print_json([_as_json(each) for each in described])
        return
    if not described and terminal.on_terminal():
        terminal.hint("no topics yet; make one with: penstock topic create NAME")
        return
    rows = [(each.name, len(each.partitions), _records(each), each.config.get("durability", "-")) for each in described]
    terminal.print_table(["topic", "partitions", "records", "durability"], rows, right=["partitions", "records"])


@app.command()
def describe(
    context: typer.Context, name: TopicArgument, server: ServerOption = None, as_json: JsonOption = False
) -> None:
    """Show a topic's settings and its partitions.

    Examples:
    $ penstock topic describe orders
    """
    from penstock.cli.configuration import written

    with connected(context, server) as client:
        described = client.describe_topic(name)
    if wants_json(context, as_json):
        terminal.print_json(_as_json(described))
        return
    settings = {
        key: written(key, int(text)) if text.isdigit() else text
        for key, text in described.config.items()
        if key not in NOT_SETTINGS
    }
    created_ms = described.config.get("created_ms", "")
    fields: dict[str, object] = {"topic": described.name, "partitions": len(described.partitions)}
    if created_ms.isdigit():
        fields["created"] = terminal.local_time(int(created_ms))
    terminal.print_fields(fields | settings)
    print()
    terminal.print_table(
        ["partition", "start offset", "next offset", "records"],
        [(p.partition, p.start_offset, p.next_offset, p.next_offset - p.start_offset) for p in described.partitions],
        right=["partition", "start offset", "next offset", "records"],
    )


@app.command()
def delete(
    context: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC", help="Their names.", autocompletion=complete_topic, show_default=False),
    ],
    yes: YesOption = False,
    server: ServerOption = None,
) -> None:
    """Delete topics and all their records.

    Asks first; [bold]--yes[/bold] does not.

    Examples:
    $ penstock topic delete orders
    $ penstock topic delete orders clicks --yes
    """
    with connected(context, server) as client:
        described = [client.describe_topic(name) for name in dict.fromkeys(names)]
        total = sum(map(_records, described))
        what = f"topic {described[0].name}" if len(described) == 1 else f"{len(described)} topics"
        terminal.confirm(f"Delete {what} with {_count(total, 'record')}? They cannot be brought back.", yes=yes)
        for each in described:
            client.delete_topic(each.name)
            print(f"deleted topic {terminal.visible(each.name)}")


def _records(described: TopicDescription) -> int:
    return sum(each.next_offset - each.start_offset for each in described.partitions)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _as_json(described: TopicDescription) -> dict[str, Any]:
    return {
        "name": described.name,
        "partitions": [
            {"partition": each.partition, "start_offset": each.start_offset, "next_offset": each.next_offset}
            for each in described.partitions
        ],
        "config": {
            key: int(text) if text.isdigit() and key != "id" else None if text == "forever" else text
            for key, text in described.config.items()
        },
    }
