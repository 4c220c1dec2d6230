"""`penstock txn`: list, produce, commit, rollback."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from penstock.cli import terminal
from penstock.cli.broker import connected
from penstock.cli.options import wants_json
from penstock.cli.program import Program
from penstock.cli.subscription import behind

if TYPE_CHECKING:
    from penstock.cli.lines import KeyedValue

app = Program(help="Store records of several topics atomically; list open transactions.")

_Id = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="As penstock txn list shows it, and penstock txn produce prints it.", show_default=False
    ),
]


@app.command("list")
def list_transactions(context: typer.Context) -> None:
    """List the open transactions of all clients, oldest first.

    Without authentication, anybody may commit or roll back any of them;
    with it, only the user that began one.

    Examples:
    $ penstock txn list
    """
    import msgspec

    from penstock.units import round_size

    with connected(context) as client:
        found = client.monitoring.transactions()
    terminal.print_list(
        context,
        found,
        msgspec.to_builtins,
        ["id", "owner", "state", "age", "timeout", "records", "memory", "topics"],
        lambda each: (
            each.id,
            terminal.name(each.owner),
            each.state,
            behind(each.age_ms),
            behind(each.timeout_ms),
            each.records,
            round_size(each.memory_bytes),
            ", ".join(map(terminal.name, each.topics)) + (", ..." if each.topics_total > len(each.topics) else ""),
        ),
        empty="no transactions are open",
        right=["age", "timeout", "records", "memory"],
        fold=["topics"],
        drop=["memory", "topics", "state", "records", "timeout"],
    )


@app.command()
def produce(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Read lines from this file instead of standard input.", show_default=False),
    ] = None,
) -> None:
    """Store records of any topics in one transaction.

    Each line of the input is a record: topic, key and value, separated by
    tabs; the key may be empty. Either all records are stored or none.

    Examples:
    $ penstock txn produce records.tsv
    $ printf 'orders\\tk1\\tone\\npayments\\t\\t9.99\\n' | penstock txn produce
    """
    from penstock.cli.lines import open_input
    from penstock.errors import ConnectionLost, OutcomeUnknown, RequestTimeout

    topics: Counter[str] = Counter()
    all_sent = False
    with connected(context) as client, open_input(file) as stream:
        transaction = client.transaction()
        try:
            with transaction:
                for topic, records in _runs(stream):
                    transaction.send_many(topic, records)
                    topics[topic] += len(records)
                all_sent = True
        except (ConnectionLost, OutcomeUnknown, RequestTimeout):
            if all_sent:
                terminal.print_note(f"whether it was done, this will tell: penstock txn commit {transaction.id}")
            raise
    count = topics.total()
    if wants_json(context):
        terminal.print_json({"transaction": transaction.id, "records": count, "topics": topics})
    else:
        where = f"{len(topics)} topic{'' if len(topics) == 1 else 's'}"
        print(f"committed {count} record{'' if count == 1 else 's'} in {where}: transaction {transaction.id}")


@app.command()
def commit(context: typer.Context, transaction_id: _Id) -> None:
    """Commit an open transaction, or find out that it was committed.

    Use it if the outcome is unknown because the connection was lost or the
    broker crashed. Committing is idempotent.

    Examples:
    $ penstock txn commit txn-0123456789abcdef0123456789abcdef
    """
    with connected(context) as client:
        client.transaction(transaction_id).commit()
    terminal.print_outcome(
        context, f"transaction {transaction_id} is committed", {"transaction": transaction_id, "committed": True}
    )


@app.command()
def rollback(context: typer.Context, transaction_id: _Id) -> None:
    """Roll back an open transaction.

    Examples:
    $ penstock txn rollback txn-0123456789abcdef0123456789abcdef
    """
    with connected(context) as client:
        client.transaction(transaction_id).rollback()
    terminal.print_outcome(
        context,
        f"nothing of transaction {transaction_id} is stored",
        {"transaction": transaction_id, "rolled_back": True},
    )


def _runs(stream: BinaryIO) -> Iterator[tuple[str, list[KeyedValue]]]:
    """The lines that each read brought, by topic: between topics there is no order to keep."""
    from penstock.cli.lines import lines_of

    first_line = 1
    for lines in lines_of(stream):
        runs: dict[str, list[KeyedValue]] = {}
        for number, line in enumerate(lines, first_line):
            topic, key, value = _parsed(line, number)
            runs.setdefault(topic, []).append((key, value))
        first_line += len(lines)
        yield from runs.items()


def _parsed(line: bytes, number: int) -> tuple[str, bytes | None, bytes]:
    from penstock.errors import InvalidRequest

    fields = line.split(b"\t", 2)
    if len(fields) < 3:
        raise InvalidRequest(
            f"line {number} is not topic, key and value with a tab between them: correct it (the key may be empty)"
        )
    topic, key, value = fields
    try:
        return topic.decode(), key or None, value
    except UnicodeDecodeError:
        raise InvalidRequest(f"line {number} names a topic that is not UTF-8 text: correct it") from None
