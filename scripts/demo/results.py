"""What the pipeline made: its tables, its dead letters, its lag, and whether they are what went in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable

from penstock.protocols.flymq.sync import FlyMQClient
from scripts.demo.intake import TOPIC
from scripts.demo.narration import DemoFailed, Narrator
from scripts.demo.orders import EVENING, Sent
from scripts.demo.pipeline import GOLD, GOLD_TOPIC, NAME

ROWS_SHOWN: Final = 4
VALUE_CHARACTERS: Final = 52
CENT: Final = 0.01

Turnover = dict[datetime, dict[str, float]]


def table(directory: Path, stage: str, name: str) -> pa.Table:
    """Read a Delta table without Spark."""
    return DeltaTable(directory / "tables" / stage / name).to_pyarrow_table()


def show_tables(narrator: Narrator, directory: Path, everything: Mapping[str, Sent]) -> Turnover:
    """Prints a few rows of each table and compares all of them with what was sent; returns the turnover of the windows that are done."""
    bronze = table(directory, "bronze", TOPIC)
    silver = table(directory, "silver", TOPIC)
    gold = table(directory, "gold", GOLD)
    records = sum(len(sent.records) for sent in everything.values())
    orders = sum(sent.orders for sent in everything.values())
    _expect("bronze", records, bronze.num_rows)
    _expect("silver", orders, silver.num_rows)
    turnover = _turnover(gold)
    _compare(turnover, everything)
    _show(
        narrator,
        f"bronze: every record as it came ({bronze.num_rows:,} rows)",
        bronze,
        ("partition", "offset", "value"),
    )
    columns = ("order_id", "placed_at", "channel", "item", "quantity", "amount")
    _show(narrator, f"silver: typed columns, what fits the schema ({silver.num_rows:,} rows)", silver, columns)
    _show(
        narrator,
        f"gold: windows that are done ({gold.num_rows:,} rows); that of the last orders, {EVENING:%H:%M}, waits for later ones",
        gold.sort_by("window_start"),
        gold.column_names,
    )
    narrator.say(
        f"[green]{records:,} records in bronze, {orders:,} orders in silver, and the turnover of every window is that of "
        "the orders that were sent: nothing lost, nothing twice[/green]"
    )
    return turnover


def show_dead_letters(narrator: Narrator, client: FlyMQClient, everything: Mapping[str, Sent]) -> None:
    malformed = sum(sent.malformed for sent in everything.values())
    letters = client.dead_letters.list(TOPIC, malformed + 1)
    _expect("the dead letters", malformed, len(letters))
    reasons = Counter(_kind(letter.reason) for letter in letters)
    narrator.table(
        f"dead letters of topic {TOPIC}: {len(letters)} records that do not fit, each with its reason",
        ("reason", "records"),
        reasons.most_common(),
    )


def show_lag(narrator: Narrator, client: FlyMQClient) -> None:
    rows = []
    for partition in client.describe_topic(TOPIC).partitions:
        lag = client.lag(TOPIC, NAME, partition.partition)
        rows.append((NAME, partition.partition, lag.committed, lag.lag))
        _expect(f"the lag of {NAME}", 0, lag.lag)
    narrator.table("how far the pipeline has read", ("group", "partition", "committed", "lag"), rows)


def show_rebuilt(narrator: Narrator, directory: Path, everything: Mapping[str, Sent]) -> None:
    """Silver has the refunds too, and what is rejected is the rest."""
    refunds = sum(sent.refunds for sent in everything.values())
    orders = sum(sent.orders for sent in everything.values()) + refunds
    silver, rejects = table(directory, "silver", TOPIC), table(directory, "rejects", TOPIC)
    _expect("silver after the rebuild", orders, silver.num_rows)
    _expect(
        "the rejects after the rebuild", sum(sent.malformed for sent in everything.values()) - refunds, rejects.num_rows
    )
    narrator.say(
        f"[green]{orders:,} rows in silver, {refunds} refunds among them, made from bronze; {rejects.num_rows} rejects are left[/green]"
    )


def show_topic(narrator: Narrator, client: FlyMQClient, turnover: Turnover) -> None:
    """Gold's windows are records of a topic too, for whoever reads topics."""
    values = [record.value or b"" for record in client.records(GOLD_TOPIC)]
    _expect(f"topic {GOLD_TOPIC}", sum(map(len, turnover.values())), len(values))
    narrator.say(f"the same windows are {len(values)} records of topic {GOLD_TOPIC}, the last: {values[-1].decode()}")


def _turnover(gold: pa.Table) -> Turnover:
    found: Turnover = {}
    for row in gold.to_pylist():
        found.setdefault(row["window_start"], {})[row["channel"]] = row["turnover"]
    return found


def _compare(turnover: Turnover, everything: Mapping[str, Sent]) -> None:
    """All windows but that of the evening are done: nothing so late can be among them any more."""
    for channel, sent in everything.items():
        for window, amount in sent.turnover_by_window.items():
            seen = turnover.get(window, {}).get(channel)
            if window >= EVENING:
                if seen is not None:
                    raise DemoFailed(f"the window of {window} is in gold and cannot be done")
            elif seen is None or abs(seen - amount) > CENT:
                raise DemoFailed(
                    f"turnover of {channel} from {window} on is {seen} in gold, and orders for {amount:.2f} were sent"
                )


def _expect(what: str, expected: int, found: int) -> None:
    if found != expected:
        raise DemoFailed(f"{what}: {expected} were due, {found} are there")


def _kind(reason: str) -> str:
    """A reason without what differs from record to record."""
    return reason.partition(" (")[0]


def _show(narrator: Narrator, title: str, rows: pa.Table, columns: Any) -> None:
    shown = rows.select(list(columns)).slice(0, ROWS_SHOWN).to_pylist()
    narrator.table(title, columns, ([_text(row[name]) for name in columns] for row in shown))


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        text = value.decode(errors="replace")
        return text if len(text) <= VALUE_CHARACTERS else text[: VALUE_CHARACTERS - 3] + "..."
    return f"{value:%Y-%m-%d %H:%M}" if isinstance(value, datetime) else value
