"""`penstock bench`: a quick look at how fast a running broker is from here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import terminal
from penstock.cli.options import flymq_url, wants_json
from penstock.cli.passwords import with_password

if TYPE_CHECKING:
    from penstock.cli.load import Load, Measured

RECORDS_MAX = 100_000_000


def bench(
    context: typer.Context,
    records: Annotated[
        int, typer.Option("--records", "-n", metavar="N", min=1, max=RECORDS_MAX, help="Records to write and read.")
    ] = 100_000,
    size: Annotated[str, typer.Option(metavar="SIZE", help="The size of each value, as in 100 or '1 KiB'.")] = "100",
    connections: Annotated[
        int, typer.Option("--connections", "-c", metavar="N", min=1, max=1_000, help="The number of connections.")
    ] = 1,
    in_flight: Annotated[
        int,
        typer.Option("--in-flight", metavar="N", min=1, max=16_384, help="Records in flight per connection."),
    ] = 4_096,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", metavar="N", min=1, help="Partitions of the topic.")
    ] = 1,
    durability: Annotated[
        str | None,
        typer.Option(
            "--durability",
            metavar="MODE",
            help="fsync, interval:<ms> or none.",
            show_default="the broker's",
        ),
    ] = None,
) -> None:
    """Measure a running broker.

    Writes records into a topic of its own, reads them back, and deletes it.
    Rates count records acknowledged as the topic's durability promises. A
    latency is that of one batch; [bold]--in-flight 1[/bold] shows single records.

    Examples:
    $ penstock bench
    $ penstock bench --size '1 KiB' --connections 4 --partitions 4
    $ penstock bench --in-flight 1 --records 2000
    """
    import uvloop

    from penstock.cli.load import Load
    from penstock.cli.topic import check_setting
    from penstock.units import format_size, parse_size

    try:
        size_bytes = parse_size(size)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--size") from None
    if durability is not None:
        check_setting("durability", durability, "--durability")
    load = Load(records, size_bytes, connections, in_flight)
    measured = uvloop.run(_bench(with_password(flymq_url(context)), load, partitions, durability))
    if wants_json(context):
        terminal.print_json([_as_json(each) for each in measured])
        return
    terminal.print_fields(
        {
            "records": f"{records:,}",
            "payload": format_size(size_bytes),
            "partitions": partitions,
            "durability": measured[0].durability,
        }
    )
    print()
    columns = ["", "connections", "in flight", "records/s", "MB/s", "p50 ms", "p99 ms", "max ms"]
    terminal.print_table(columns, [_row(each) for each in measured], right=columns[1:])


async def _bench(url: str, load: Load, partitions: int, durability: str | None) -> list[Measured]:
    from penstock.cli.load import run_load
    from penstock.cli.progress import ProgressBar
    from penstock.protocols.flymq.client import AsyncFlyMQClient

    topic = f"penstock-bench-{os.urandom(4).hex()}"
    async with AsyncFlyMQClient(url) as client:
        await client.create_topic(topic, partitions, **({} if durability is None else {"durability": durability}))
        try:
            promised = (await client.describe_topic(topic)).config.get("durability", "-")
            with ProgressBar("bench", 2 * load.records * load.size_bytes) as progress:
                return await run_load(url, topic, load, promised, progress.advance)
        finally:
            await client.delete_topic(topic)


def _row(measured: Measured) -> list[object]:
    return [
        measured.phase,
        measured.connections,
        measured.in_flight,
        f"{measured.records_per_s:,.0f}",
        f"{measured.megabytes_per_s:,.1f}",
        *(f"{measured.latency_ms(percent):.2f}" for percent in (50, 99, 100)),
    ]


def _as_json(measured: Measured) -> dict[str, Any]:
    return {
        "phase": measured.phase,
        "connections": measured.connections,
        "in_flight": measured.in_flight,
        "payload_bytes": measured.size_bytes,
        "durability": measured.durability,
        "records": measured.records,
        "seconds": measured.seconds,
        "records_per_s": measured.records_per_s,
        "megabytes_per_s": measured.megabytes_per_s,
        "latency_ms": {"p50": measured.latency_ms(50), "p99": measured.latency_ms(99), "max": measured.latency_ms(100)},
    }
