"""`penstock dlq`: list, replay, purge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import terminal
from penstock.cli.broker import complete_topic, connected
from penstock.cli.options import YesOption
from penstock.cli.program import Program

if TYPE_CHECKING:
    from penstock.protocols.flymq.client.records import DeadLetterInfo

app = Program(help="List, replay and purge dead letters.")

# What fits on a line besides the other columns.
VALUE_SHOWN_BYTES = 60

TopicArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="The topic of the original records, not its dead-letter topic.",
        autocompletion=complete_topic,
        show_default=False,
    ),
]


@app.command("list")
def list_letters(
    context: typer.Context,
    topic: TopicArgument,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="The maximum number to list.")] = 100,
) -> None:
    """List the dead letters of a topic, oldest first.

    Replayed dead letters are not listed.

    Examples:
    $ penstock dlq list orders
    $ penstock dlq list orders --limit 1000 --json
    """
    with connected(context) as client:
        letters = client.dead_letters.list(topic, limit)
        if not letters:
            client.describe_topic(topic)  # a name that is mistyped has no dead letters either: this refuses it
    terminal.print_list(
        context,
        letters,
        _as_json,
        ["id", "failed", "attempts", "reason", "partition", "offset", "key", "value"],
        _row,
        empty=f"topic {topic} has no dead letters",
        right=["attempts", "partition", "offset"],
        fold=["reason", "value"],
        drop=["offset", "partition", "attempts", "value", "key"],
    )


@app.command()
def replay(
    context: typer.Context,
    topic: TopicArgument,
    letter_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="The id of one dead letter, as listed.", show_default=False)
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option("--offset", metavar="N", min=0, help="Replay the one at this offset of the dead-letter topic."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Replay all.")] = False,
    wanted: Annotated[
        str | None,
        typer.Option(
            "--filter",
            "-F",
            metavar="TEXT",
            help="Replay those with this text or expression in value, key or reason, or conditions such as '$.id = 42'.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
) -> None:
    """Write dead letters to their topic again, each once.

    They keep their keys and headers. Replaying is idempotent: a record that
    was replayed is not written again.

    Examples:
    $ penstock dlq replay orders 0-17
    $ penstock dlq replay orders --offset 17
    $ penstock dlq replay orders --filter timeout --dry-run
    $ penstock dlq replay orders --all
    """
    many = everything or wanted is not None
    if (letter_id is not None) + (offset is not None) + many != 1:
        raise typer.BadParameter("say which ones: an ID, --offset, --filter, or --all")
    if everything and wanted:
        raise typer.BadParameter("--all and --filter contradict each other: use one of them")
    if dry_run and not many:
        raise typer.BadParameter("--dry-run counts what --all or --filter would replay: add one of them")
    count = 1
    with connected(context) as client:
        if letter_id is not None:
            client.dead_letters.replay(topic, letter_id)
        elif offset is not None:
            client.dead_letters.replay_at(topic, offset)
        else:
            count = client.dead_letters.replay_all(topic, wanted or "", dry_run=dry_run)
    terminal.print_outcome(
        context,
        f"{'would replay' if dry_run else 'replayed'} {count} record{'' if count == 1 else 's'} of {topic}",
        {"topic": topic, "replayed": 0 if dry_run else count, "matched": count},
    )


@app.command()
def purge(context: typer.Context, topic: TopicArgument, yes: YesOption = False) -> None:
    """Delete all dead letters of a topic, replayed or not.

    Asks for confirmation unless [bold]--yes[/bold] is given.

    Examples:
    $ penstock dlq purge orders
    $ penstock dlq purge orders --yes
    """
    with connected(context) as client:
        terminal.confirm(f"Delete all dead letters of topic {topic}?", yes=yes)
        client.dead_letters.purge(topic)
    terminal.print_outcome(context, f"purged the dead letters of {topic}", {"topic": topic, "purged": True})


def _row(letter: DeadLetterInfo) -> tuple[object, ...]:
    value = terminal.visible_bytes(letter.value[:VALUE_SHOWN_BYTES])
    return (
        letter.id,
        "" if letter.failed_ms is None else terminal.local_time(letter.failed_ms),
        letter.attempts,
        letter.reason,
        "" if letter.partition is None else letter.partition,
        "" if letter.offset is None else letter.offset,
        "" if letter.key is None else terminal.visible_bytes(letter.key),
        value + "..." if len(letter.value) > VALUE_SHOWN_BYTES else value,
    )


def _as_json(letter: DeadLetterInfo) -> dict[str, Any]:
    return {
        "id": letter.id,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "partition": letter.partition,
        "offset": letter.offset,
        "first_failed_ms": letter.first_failed_ms,
        "failed_ms": letter.failed_ms,
        **terminal.json_bytes("key", letter.key),
        **terminal.json_bytes("value", letter.value),
    }
