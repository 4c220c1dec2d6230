"""`penstock delayed`: list, cancel."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import terminal
from penstock.cli.broker import complete_topic, connected
from penstock.cli.options import wants_json
from penstock.cli.program import Program
from penstock.cli.subscription import behind

if TYPE_CHECKING:
    from penstock.protocols.flymq.operations.monitoring import PendingRecord

app = Program(help="List and cancel delayed records.")


@app.command("list")
def list_delayed(
    context: typer.Context,
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC",
            help="Only records for this topic.",
            autocompletion=complete_topic,
            show_default="all topics",
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="The maximum number to list.")] = 100,
) -> None:
    """List pending delayed records, the next one first.

    Examples:
    $ penstock delayed list
    $ penstock delayed list reminders --limit 1000 --json
    """
    with connected(context) as client:
        found = client.monitoring.delayed(topic or "", limit + 1)
    records, more = found[:limit], len(found) > limit
    now_ms = time.time_ns() // 1_000_000
    terminal.print_list(
        context,
        records,
        _as_json,
        ["id", "topic", "due", "in", "partition", "key", "size"],
        lambda record: (
            record.id,
            terminal.name(record.topic),
            terminal.local_time(record.due_ms),
            behind(max(0, record.due_ms - now_ms)),
            record.partition,
            "-" if record.key is None else terminal.visible_bytes(record.key),
            "null" if record.value_bytes < 0 else record.value_bytes,
        ),
        empty="no delayed records are pending",
        right=["in", "partition", "size"],
        fold=["key"],
        drop=["partition", "size", "key", "in"],
    )
    if more and not wants_json(context):
        terminal.hint("there are more; see them with --limit")


@app.command()
def cancel(
    context: typer.Context,
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", help="The topic of the record.", autocompletion=complete_topic, show_default=False
        ),
    ],
    delayed_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="As penstock delayed list shows it, and penstock produce --delay prints it.",
            show_default=False,
        ),
    ],
) -> None:
    """Cancel a pending delayed record.

    Examples:
    $ penstock delayed cancel orders 1700000005000-17
    """
    with connected(context) as client:
        client.cancel(topic, delayed_id)
    terminal.print_outcome(
        context, f"cancelled {delayed_id} of {topic}", {"topic": topic, "id": delayed_id, "cancelled": True}
    )


def _as_json(record: PendingRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "topic": record.topic,
        "partition": record.partition,
        "due_ms": record.due_ms,
        **terminal.json_bytes("key", record.key),
        "value_bytes": None if record.value_bytes < 0 else record.value_bytes,
        "ttl_ms": record.ttl_ms or None,
    }
