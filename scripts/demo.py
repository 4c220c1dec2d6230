"""See it work: a broker of its own, a stream of orders in, a group reading them, a crash, and nothing lost.

Everything happens in a temporary directory and on free ports; run it with `make demo`.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing.process import BrokerProcess

ORDERS: Final = 50_000
READ_BEFORE_CRASH: Final = 20_000
BATCH: Final = 5_000
PARTITIONS: Final = 3
TOPIC: Final = "orders"
GROUP: Final = "billing"
ITEMS: Final = ("anvil", "bellows", "crucible", "hammer", "tongs")

console = Console()


def main() -> None:
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory,
        BrokerProcess(Path(directory) / "data") as broker,
    ):
        say(f"a broker is up on {broker.url}, its log in one directory on this disk")
        with broker.connect() as client:
            produce(client)
            first = consume(client, READ_BEFORE_CRASH)
            show_topic(client)
        say("now the crash: the broker is killed with kill -9 and started again on the same directory")
        broker.kill9()
        at = time.monotonic()
        broker.start()
        say(f"it was back after {time.monotonic() - at:.2f} s")
        with broker.connect() as client:
            second = consume(client, None)
            check(first, second)
            show_topic(client)
    say(
        f"[green]all {ORDERS:,} acknowledged orders were read, each once, in two runs with a crash between them[/green] "
        f"({time.monotonic() - started:.1f} s in all)"
    )
    console.print(
        "\nYour turn:\n"
        "  make run                                   a broker on 127.0.0.1:9092, data in ./penstock-data\n"
        "  .venv/bin/penstock produce orders hello    write a record\n"
        "  .venv/bin/penstock consume orders          read it back\n"
        "  .venv/bin/penstock --help                  everything else",
        soft_wrap=True,
    )


def say(text: str) -> None:
    console.print(f"[bold]>[/bold] {text}", highlight=False, soft_wrap=True)


def orders() -> Iterator[tuple[bytes, bytes]]:
    """Orders of a few hundred customers, the same in every run."""
    chance = random.Random(7)  # noqa: S311 - sample data
    for number in range(ORDERS):
        customer = f"customer-{chance.randrange(300)}"
        order = {
            "order": number,
            "customer": customer,
            "item": chance.choice(ITEMS),
            "amount": chance.randrange(1, 500),
        }
        yield customer.encode(), json.dumps(order).encode()


def produce(client: FlyMQClient) -> None:
    client.create_topic(TOPIC, PARTITIONS)
    records = list(orders())
    at = time.monotonic()
    for start in range(0, len(records), BATCH):
        client.send_many(TOPIC, records[start : start + BATCH])
    seconds = time.monotonic() - at
    say(
        f"{len(records):,} orders written over FlyMQ, keyed by customer, each acknowledged after fdatasync: "
        f"{len(records) / seconds:,.0f} per second"
    )


def consume(client: FlyMQClient, limit: int | None) -> list[int]:
    """Read as the group, which goes on where it committed last; returns the order numbers."""
    numbers: list[int] = []
    items: Counter[str] = Counter()
    at = time.monotonic()
    for record in client.records(TOPIC, group=GROUP, limit=limit):
        order = json.loads(record.value)
        numbers.append(order["order"])
        items[order["item"]] += order["amount"]
    seconds = time.monotonic() - at
    say(
        f"group {GROUP} read {len(numbers):,} orders ({len(numbers) / seconds:,.0f} per second) and committed its offsets"
    )
    table = Table("item", "turnover", title="what it saw")
    table.columns[1].justify = "right"
    for item, amount in items.most_common():
        table.add_row(item, f"{amount:,}")
    console.print(table)
    return numbers


def show_topic(client: FlyMQClient) -> None:
    description = client.describe_topic(TOPIC)
    table = Table("partition", "records", "committed", "lag", title=f"topic {TOPIC}, group {GROUP}")
    for column in table.columns[1:]:
        column.justify = "right"
    for partition in description.partitions:
        lag = client.lag(TOPIC, GROUP, partition.partition)
        records = partition.next_offset - partition.start_offset
        table.add_row(str(partition.partition), f"{records:,}", f"{lag.committed:,}", f"{lag.lag:,}")
    console.print(table)


def check(first: list[int], second: list[int]) -> None:
    seen = Counter(first + second)
    missing = [number for number in range(ORDERS) if number not in seen]
    twice = [number for number, count in seen.items() if count > 1]
    if missing or twice:
        raise SystemExit(f"the demo failed: {len(missing)} orders are missing, {len(twice)} were read twice")


if __name__ == "__main__":
    main()
