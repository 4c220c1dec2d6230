"""See it work: `make demo`. A broker of its own, orders over every protocol, a crash, and three tables made of them by Spark.

Everything happens in a temporary directory and on free ports, and is checked on the way: what comes out is compared with what went in,
and the demo ends with an error where they differ. `make demo CONSOLE=1` leaves the console open on what it made.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from penstock.errors import JavaMissing
from penstock.session_sources import QUIC_PROTOCOLS
from penstock.spark.java import find_java
from penstock.testing.process import BrokerProcess
from scripts.demo import intake, pipeline, plot, results, travel
from scripts.demo.narration import Narrator
from scripts.demo.orders import WINDOW_MINUTES, Sent
from scripts.demo.speakers import SPEAKERS, configuration

PNG = Path("build/demo/turnover.png")
"""Stays, to be examined, until `make clean`."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="make demo", description="See Penstock work.")
    parser.add_argument("--console", action="store_true", help="leave the console open at the end: make demo CONSOLE=1")
    console = parser.parse_args().console
    try:
        find_java(os.environ)
    except JavaMissing as missing:
        raise SystemExit(f"the demo runs Spark: {missing}") from None
    narrator = Narrator(Console())
    narrator.step(
        "One broker", f"It speaks {len(SPEAKERS)} protocols and keeps one log, in one directory on this disk."
    )
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as name:
        directory = Path(name)
        with BrokerProcess(directory / "data", config=configuration()) as broker:
            for protocol, address in broker.addresses.items():
                narrator.say(f"{protocol} on {address}{'/udp' if protocol in QUIC_PROTOCOLS else ''}")
            sent = write(narrator, broker)
            narrator.step("A crash", "An acknowledged record survives kill -9 (and a power cut).")
            intake.crash(narrator, broker, sent)
            draw(narrator, run_pipeline(narrator, broker, directory, sent), list(sent))
            if console:
                leave_open(narrator, broker.addresses["admin"], sys.stdin.readline)
    say_goodbye(narrator, console=console)


def write(narrator: Narrator, broker: BrokerProcess) -> dict[str, Sent]:
    """Over every protocol; by channel, what was sent."""
    with broker.connect() as client:
        client.create_topic(intake.TOPIC, intake.PARTITIONS)
        for topic in travel.TOPICS:
            client.create_topic(topic)
    with ExitStack() as open_clients:
        speakers = [open_clients.enter_context(speaker(broker)) for speaker in SPEAKERS]
        narrator.step("Every protocol reads what every other wrote", "The same record, the same order, whoever asks.")
        travel.show_matrix(narrator, speakers)
        travel.show_relay(narrator, speakers)
        narrator.step(
            "A day of orders", "Each part of a shop has its own protocol; a few of its records are no orders."
        )
        return intake.send_orders(narrator, speakers)


def run_pipeline(narrator: Narrator, broker: BrokerProcess, directory: Path, sent: dict[str, Sent]) -> results.Turnover:
    """Topics to tables; returns what the windows say."""
    narrator.step(
        "Bronze, silver, gold",
        "One file describes the pipeline: every record as it came; orders with typed columns; turnover by half hour.",
    )
    file = pipeline.describe(broker, directory)
    pipeline.run(narrator, file)
    turnover = results.show_tables(narrator, directory, sent)
    with broker.connect() as client:
        results.show_topic(narrator, client, turnover)
        narrator.step("What did not fit, and how far all are", "No record is dropped in silence, and lag is no secret.")
        results.show_dead_letters(narrator, client, sent)
        results.show_lag(narrator, client)
    narrator.step(
        "Silver, rebuilt",
        "A refund was no order by the schema; by its next version it is. Bronze has every record, for good.",
    )
    pipeline.rebuild(narrator, broker, file)
    results.show_rebuilt(narrator, directory, sent)
    return turnover


def draw(narrator: Narrator, turnover: results.Turnover, channels: list[str]) -> None:
    title = f"Turnover in windows of {WINDOW_MINUTES} minutes, by the time an order was placed"
    narrator.step("The result", f"{title}.")
    plot.in_terminal(narrator.console, turnover, channels)
    PNG.parent.mkdir(parents=True, exist_ok=True)
    plot.as_png(PNG, turnover, channels, title)
    narrator.say(f"the same as a picture: {PNG}")


def leave_open(narrator: Narrator, address: str, wait_for_enter: Callable[[], object]) -> None:
    """Show where the console is, and wait until somebody presses Enter or Ctrl-C, or nobody can."""
    narrator.step(
        "The console", "Topics, records, groups, dead letters, schemas and the pipeline of this demo, in your browser."
    )
    narrator.say(f"http://{address}/console")
    narrator.say("press Enter to end")
    try:
        wait_for_enter()
    except KeyboardInterrupt:
        narrator.console.print()


def say_goodbye(narrator: Narrator, *, console: bool) -> None:
    narrator.step("Your turn", f"All of this took {narrator.seconds:.0f} s, and left nothing behind but the picture.")
    narrator.console.print(
        "  make run                                   a broker with the defaults, data in ./penstock-data\n"
        "  .venv/bin/penstock produce orders hello    write a record\n"
        "  .venv/bin/penstock consume orders          read it back\n"
        "  .venv/bin/penstock pipeline init           describe a pipeline of your own\n"
        "  .venv/bin/penstock console                 see it in the browser"
        f"{'' if console else '; make demo CONSOLE=1 leaves it open on the data of this demo'}\n"
        "  .venv/bin/penstock --help                  everything else; and docs/tutorial.md, step by step",
        soft_wrap=True,
        highlight=False,
    )


if __name__ == "__main__":
    main()
