"""`penstock verify`: is everything in the log as it was written?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import terminal
from penstock.cli.broker import snapshot_of
from penstock.cli.options import wants_json
from penstock.cli.progress import ProgressBar

if TYPE_CHECKING:
    from penstock.log.embedded.findings import Report

EXIT_DAMAGE = 1
EXIT_CANNOT_RUN = 2


def verify(
    context: typer.Context,
    data_dir: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="A data directory whose broker is stopped, or a backup. Without one, the running broker is checked.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Check every block, index, journal and table of a log. Changes nothing.

    Checks the running broker that --server names, up to what is committed now,
    or a directory whose broker is stopped. Damage is reported with its file and
    position. Exits with 0 if there is none, 1 if there is, 2 if the check
    cannot run.

    Examples:
    $ penstock verify
    $ penstock verify /var/lib/penstock
    $ penstock verify /backups/20260131T120000.000Z --json
    """
    from penstock import logs
    from penstock.errors import InvalidRequest, PenstockError

    if data_dir is not None and context.params["server"] is not None:
        raise typer.BadParameter("give a directory or --server, not both")
    logs.configure("warning")
    try:
        if data_dir is None:
            report = _verify_running(context)
        elif data_dir.is_dir():
            report = check_directory(data_dir)
        else:
            raise InvalidRequest(f"{data_dir} is not a directory")
    except (PenstockError, OSError) as error:
        from penstock.cli.main import explain

        terminal.print_error(explain(error))
        raise typer.Exit(EXIT_CANNOT_RUN) from None
    if wants_json(context):
        terminal.print_json(report.to_json())
    else:
        print_report(report)
    if report.damage:
        raise typer.Exit(EXIT_DAMAGE)


def _verify_running(context: typer.Context) -> Report:
    from penstock.log.embedded.backup import SNAPSHOT_REMEDY, read_snapshot
    from penstock.log.embedded.manifest import holding

    with snapshot_of(context) as snapshot:
        directory = Path(snapshot.directory)
        with holding(directory, SNAPSHOT_REMEDY):
            read_snapshot(directory, snapshot.id)
            report = check_directory(directory)
    report.directory = str(directory.parents[1])
    return report


def check_directory(directory: Path) -> Report:
    """Check a directory, with a progress bar."""
    from penstock.broker.tables import TableRecords
    from penstock.log.embedded.verify import size_bytes, verify

    with ProgressBar("verify", size_bytes(directory)) as bar:
        return verify(directory, check_records=TableRecords().fault, on_progress=bar.advance)


def print_report(report: Report) -> None:
    """A table of topics, the findings, and one line that sums them up."""
    from penstock.units import round_size

    counts = ["partitions", "segments", "blocks", "records", "size", "damage"]
    terminal.print_table(
        ["topic", *counts],
        [
            (
                terminal.name(each.topic),
                each.partitions,
                each.segments,
                each.blocks,
                each.records,
                round_size(each.bytes),
                each.damage,
            )
            for each in report.topics
        ],
        right=counts,
        drop=["blocks", "segments", "partitions"],
    )
    colours = {"damage": "red", "note": "yellow"}
    for finding in report.findings:
        word = terminal.style(finding.severity.ljust(6), fg=colours[finding.severity], bold=True)
        place = finding.path if finding.position is None else f"{finding.path} at byte {finding.position}"
        print(f"{word}  {terminal.visible(place)}")
        print(terminal.wrapped(terminal.visible(finding.text), indent=8))
    hidden = report.damage + report.notes - len(report.findings)
    if hidden:
        print(f"and {hidden} more findings")
    places = "1 place" if report.damage == 1 else f"{report.damage} places"
    found = f"damage in {places}" if report.damage else "no damage found"
    print(f"{report.directory}: {found}")
