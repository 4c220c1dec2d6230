"""`python -m bench [CASE...]`: runs the measurements and prints the report."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from bench import machine, report, revisions
from bench.cases import CASES
from bench.rounds import Plan

# Unlike /tmp, which may be in memory, this is on a disk wherever the usual conventions hold.
DIRECTORY = Path("/var/tmp")  # noqa: S108 - a directory of our own is made inside


def main() -> None:
    console = Console(width=None if sys.stdout.isatty() else 200)
    arguments = _arguments()
    names = arguments.cases or list(CASES)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=arguments.directory) as name:
        directory = Path(name)
        facts = machine.describe(directory)
        if machine.file_system(directory) in {"tmpfs", "ramfs"}:
            console.print(
                f"[yellow]{directory} is in memory: durable figures mean nothing here; use --directory[/yellow]"
            )
        plan = Plan(
            directory=directory,
            rounds=arguments.rounds or (3 if arguments.quick else 5),
            seconds=arguments.seconds or (0.5 if arguments.quick else 2.0),
            quick=arguments.quick,
            large=arguments.large,
            say=lambda text: console.print(f"[dim]{text}[/dim]", highlight=False),
        )
        if arguments.against:
            rows = revisions.compare(plan, arguments.against, names)
        else:
            rows = [row for case in names for row in CASES[case](plan)]
    report.show(console, facts, rows)
    if arguments.json:
        report.write_json(arguments.json, facts, rows)
    if arguments.markdown:
        arguments.markdown.write_text(report.markdown(facts, rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure Penstock side by side with Redis Streams, NATS and Apache Kafka on this machine.",
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"what to measure: {', '.join(CASES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="less of everything: to see that it works, not how fast")
    parser.add_argument("--large", action="store_true", help="extend the case growth to a log of 50 GB")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of each side (default 5)")
    parser.add_argument("--seconds", type=float, metavar="S", help="length of a round (default 2)")
    parser.add_argument(
        "--against", metavar="REVISION", help="compare with another revision of this repository instead"
    )
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="where to write; its disk is measured too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, every round, to a file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table as Markdown to a file")
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    return arguments


if __name__ == "__main__":
    main()
