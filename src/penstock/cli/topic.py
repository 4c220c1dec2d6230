"""`penstock topic`: create, list, describe, alter, add partitions, truncate, delete."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import terminal
from penstock.cli.broker import complete_schema, complete_topic, connected
from penstock.cli.configuration import written_text
from penstock.cli.options import YesOption, wants_json
from penstock.cli.program import Program

if TYPE_CHECKING:
    from penstock.clients.records import TopicDescription

app = Program(help="Create, list, describe, change and delete topics.")

TopicArgument = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="The name of the topic.", autocompletion=complete_topic, show_default=False),
]
NOT_SETTINGS = ("id", "created_ms", "partitions")
FLAGS = {
    "durability": "--durability",
    "retention_ms": "--retention",
    "retention_bytes": "--max-bytes",
    "cleanup": "--cleanup",
    "compression": "--compression",
    "segment_bytes": "--segment-size",
    "segment_ms": "--segment-age",
}
"""By setting, as the configuration and the broker call it."""
_SETTINGS = {flag.removeprefix("--").replace("-", "_"): setting for setting, flag in FLAGS.items()}


@app.command()
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The name of the topic.", show_default=False)],
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", metavar="N", min=1, help="The number of partitions.")
    ] = 1,
    durability: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="fsync, interval:<ms> or none.", show_default="the broker's"),
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option("--retention", metavar="TIME", help="Delete records older than this, as in 7d; or forever."),
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            "--max-bytes", metavar="SIZE", help="Delete the oldest records of a partition above this, as in '10 GiB'."
        ),
    ] = None,
    cleanup: Annotated[
        str | None, typer.Option(metavar="WAY", help="delete, or compact: keep the latest record of each key.")
    ] = None,
    compression: Annotated[str | None, typer.Option(metavar="NAME", help="none or zstd.")] = None,
    segment_size: Annotated[
        str | None, typer.Option("--segment-size", metavar="SIZE", help="Size at which a segment is sealed.")
    ] = None,
    segment_age: Annotated[
        str | None, typer.Option("--segment-age", metavar="TIME", help="Age at which a segment is sealed.")
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:VERSION]",
            help="The schema that its records must match.",
            autocompletion=complete_schema,
        ),
    ] = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Leave a topic that exists as it is.")] = False,
) -> None:
    """Create a topic.

    Examples:
    $ penstock topic create orders --partitions 3
    $ penstock topic create clicks --durability interval:100 --retention 7d
    $ penstock topic create prices --cleanup compact
    $ penstock topic create orders --schema order
    """
    from penstock.errors import TopicExists

    values = (durability, retention, max_bytes, cleanup, compression, segment_size, segment_age)
    settings = {setting: text for setting, text in zip(FLAGS, values, strict=True) if text is not None}
    for setting, text in settings.items():
        check_setting(setting, text, FLAGS[setting])
    with connected(context) as client:
        exists = name in client.topics()
        if exists and not exist_ok:
            raise TopicExists(f"topic {name} exists: choose another name, or add --exist-ok to leave it as it is")
        if not exists:
            client.create_topic(name, partitions, **settings, **({} if schema is None else {"schema": schema}))
        described = client.describe_topic(name)
    if wants_json(context):
        terminal.print_json({**_as_json(described), "created": not exists})
    elif exists:
        print(f"topic {terminal.visible(name)} exists, with {_count(len(described.partitions), 'partition')}")
    else:
        print(f"created topic {terminal.visible(name)} with {_count(len(described.partitions), 'partition')}")


@app.command("list")
def list_topics(context: typer.Context) -> None:
    """List the topics.

    Examples:
    $ penstock topic list
    $ penstock topic list --json | jq -r '.[].name'
    """
    with connected(context) as client:
        described = client.describe_topics()
    terminal.print_list(
        context,
        described,
        _as_json,
        ["topic", "partitions", "records", "durability"],
        lambda each: (
            terminal.name(each.name),
            len(each.partitions),
            _records(each),
            each.config.get("durability", "-"),
        ),
        empty="no topics yet; create one with: penstock topic create NAME",
        right=["partitions", "records"],
        drop=["durability"],
    )


@app.command()
def describe(context: typer.Context, name: TopicArgument) -> None:
    """Show a topic's settings and its partitions.

    Examples:
    $ penstock topic describe orders
    """
    with connected(context) as client:
        described = client.describe_topic(name)
    if wants_json(context):
        terminal.print_json(_as_json(described))
        return
    settings = {key: written_text(key, text) for key, text in described.config.items() if key not in NOT_SETTINGS}
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
def alter(
    context: typer.Context,
    name: TopicArgument,
    changes: Annotated[
        list[str],
        typer.Option("--set", metavar="SETTING=VALUE", help="A setting of the topic. Repeatable.", show_default=False),
    ],
) -> None:
    """Change settings of a topic.

    The settings are those of [bold]penstock topic create[/bold]: durability, retention,
    max-bytes, cleanup, compression, segment-size and segment-age. "forever"
    switches retention off. The names of the configuration are accepted too.

    A shorter retention deletes records soon after. Compression and segment sizes
    apply to new records.

    Examples:
    $ penstock topic alter orders --set retention=7d
    $ penstock topic alter logs --set durability=none --set compression=zstd
    """
    settings = dict(map(_setting, changes))
    if len(settings) < len(changes):
        raise typer.BadParameter("a setting is given twice: give it once")
    with connected(context) as client:
        before = client.describe_topic(name)
        client.alter_topic(name, **settings)
        after = client.describe_topic(name)
    if wants_json(context):
        terminal.print_json(_as_json(after))
        return
    changed = [key for key in after.config if before.config.get(key) != after.config[key]]
    for key in changed:
        print(f"{key}: {written_text(key, before.config.get(key, '-'))} -> {written_text(key, after.config[key])}")
    print(f"altered topic {terminal.visible(name)}" if changed else f"topic {terminal.visible(name)} is unchanged")


@app.command("add-partitions")
def add_partitions(
    context: typer.Context,
    name: TopicArgument,
    to: Annotated[
        int, typer.Option("--to", metavar="N", min=1, help="The new number of partitions.", show_default=False)
    ],
) -> None:
    """Add partitions to a topic.

    Records stay where they are. Records with a key may go to another partition
    from now on, so the order of a key holds before the change and after it, not
    across it. Partitions cannot be removed.

    Examples:
    $ penstock topic add-partitions orders --to 6
    """
    with connected(context) as client:
        before = len(client.describe_topic(name).partitions)
        client.add_partitions(name, to)
        described = client.describe_topic(name)
    if wants_json(context):
        terminal.print_json(_as_json(described))
    else:
        count = len(described.partitions)
        print(f"topic {terminal.visible(name)} has {_count(count, 'partition')}, {count - before} of them new")


@app.command()
def truncate(
    context: typer.Context,
    name: TopicArgument,
    before: Annotated[
        str,
        typer.Option(
            "--before",
            metavar="POSITION",
            help="Delete what is before this: an offset, a time, how long ago, or latest.",
            show_default=False,
        ),
    ],
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Only this one; all partitions unless given."),
    ] = None,
    yes: YesOption = False,
) -> None:
    """Delete the oldest records of a topic.

    A time is ISO 8601, or how long ago it was. An offset is a place in one
    partition: give [bold]--partition[/bold] too if the topic has several.
    [bold]latest[/bold] deletes all records. Asks for confirmation unless
    [bold]--yes[/bold] is given.

    Examples:
    $ penstock topic truncate orders --before -30d
    $ penstock topic truncate orders --before 1500 --partition 2
    $ penstock topic truncate orders --before latest --yes
    """
    from penstock.cli.positions import parse_position

    position = parse_position(before, time.time_ns() // 1_000_000, flag="--before")
    if position == "earliest":
        raise typer.BadParameter("nothing is before the earliest record: give an offset, a time, or latest")
    with connected(context) as client:
        described = client.describe_topic(name)
        where = f"topic {name}" if partition is None else f"partition {partition} of topic {name}"
        terminal.confirm(f"Delete the records of {where} before {before}? They cannot be brought back.", yes=yes)
        client.truncate_topic(name, position, partition)
        truncated = client.describe_topic(name)
    if wants_json(context):
        terminal.print_json(_as_json(truncated))
        return
    terminal.print_table(
        ["partition", "start offset", "next offset", "deleted"],
        [
            (now.partition, now.start_offset, now.next_offset, now.start_offset - was.start_offset)
            for was, now in zip(described.partitions, truncated.partitions, strict=False)
        ],
        right=["partition", "start offset", "next offset", "deleted"],
    )


@app.command()
def delete(
    context: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC", help="The names of the topics.", autocompletion=complete_topic, show_default=False
        ),
    ],
    yes: YesOption = False,
) -> None:
    """Delete topics and all their records.

    Asks for confirmation unless [bold]--yes[/bold] is given.

    Examples:
    $ penstock topic delete orders
    $ penstock topic delete orders clicks --yes
    """
    with connected(context) as client:
        described = [client.describe_topic(name) for name in dict.fromkeys(names)]
        total = sum(map(_records, described))
        what = f"topic {described[0].name}" if len(described) == 1 else f"{len(described)} topics"
        terminal.confirm(f"Delete {what} with {_count(total, 'record')}? They cannot be brought back.", yes=yes)
        for each in described:
            client.delete_topic(each.name)
            if not wants_json(context):
                print(f"deleted topic {terminal.visible(each.name)}")
    if wants_json(context):
        terminal.print_json({"deleted": [each.name for each in described], "records": total})


def _setting(change: str) -> tuple[str, str]:
    """Split SETTING=VALUE."""
    key, equals, value = change.partition("=")
    if not key or not equals:
        raise typer.BadParameter(f"--set {change} has no value: write SETTING=VALUE, as in retention=7d")
    name = key.strip().replace("-", "_")
    setting = _SETTINGS.get(name, name)
    if setting not in FLAGS:
        known = ", ".join(flag.removeprefix("--") for flag in FLAGS.values())
        raise typer.BadParameter(f"{key} is not a setting that can be altered: use {known}", param_hint="--set")
    check_setting(setting, value.strip(), "--set")
    return setting, value.strip()


def check_setting(setting: str, text: str, flag: str) -> None:
    """Refuse here what the broker would refuse: it is the command line that is wrong."""
    from penstock.broker.topics.settings import parse_topic_config
    from penstock.errors import InvalidRequest
    from penstock.log.api import TopicConfig

    try:
        parse_topic_config([(setting, text)], TopicConfig())
    except InvalidRequest as error:
        raise typer.BadParameter(str(error).removeprefix(f"topic setting {setting}: "), param_hint=flag) from None


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
