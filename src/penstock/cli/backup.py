"""`penstock backup`: copies of a running broker's log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import terminal
from penstock.cli.broker import snapshot_of
from penstock.cli.options import wants_json
from penstock.cli.program import Program
from penstock.cli.progress import ProgressBar

if TYPE_CHECKING:
    from penstock.log.embedded.backup import Backup, UnreadableBackup

EXIT_DAMAGE = 1

app = Program(help="Back up a running broker: all topics at one moment.")

TargetArgument = Annotated[Path, typer.Argument(metavar="TARGET", help="The directory of backups.")]


@app.command()
def create(
    context: typer.Context,
    target: TargetArgument,
    full: Annotated[
        bool,
        typer.Option("--full", help="Copy everything again instead of linking unchanged files of the last backup."),
    ] = False,
) -> None:
    """Back up all topics and the broker's own state, as of one moment.

    Run it on the broker's machine, as a user that may read its data directory.
    With authentication it needs the permission admin. Clients keep writing.
    Files that the last backup in TARGET has unchanged are linked, not copied.

    Examples:
    $ penstock backup create /backups/orders
    $ penstock backup create /backups --server flymq://admin@127.0.0.1
    """
    from penstock.log.embedded.backup import back_up, check_target, read_snapshot
    from penstock.units import round_size

    check_target(target)
    with snapshot_of(context) as snapshot:
        directory = Path(snapshot.directory)
        began = time.monotonic()
        total_bytes = read_snapshot(directory, snapshot.id).size_bytes
        with ProgressBar("backup", total_bytes) as bar:
            done = back_up(directory, snapshot.id, target, lambda size_bytes: bar.advance(size_bytes, 0), full=full)
    seconds = time.monotonic() - began
    if wants_json(context):
        terminal.print_json({**_row(done), "copied_bytes": done.copied_bytes, "seconds": round(seconds, 3)})
        return
    copied = f"copied {round_size(done.copied_bytes)} of {round_size(done.manifest.size_bytes)} in {seconds:.1f} s"
    print(f"backup {done.id} of {len(done.manifest.topics)} topics: {copied}")
    terminal.hint(f"check it with: penstock verify {done.path}")


@app.command("list", needs_broker=False)
def list_backups(context: typer.Context, target: TargetArgument) -> None:
    """List the backups in a directory, oldest first.

    A backup is a directory of that name in TARGET. To remove one, remove the
    directory: the others stay complete. One whose manifest cannot be read is
    listed as damaged, and the command exits with 1.

    Examples:
    $ penstock backup list /backups/orders
    """
    from penstock.log.embedded.backup import Backup, UnreadableBackup, list_backups
    from penstock.units import round_size

    found = list_backups(target)
    damaged = [each for each in found if isinstance(each, UnreadableBackup)]
    terminal.print_list(
        context,
        found,
        _listed,
        ["backup", "time", "topics", "records", "size"],
        lambda each: (
            (
                each.id,
                terminal.local_time(each.manifest.moment_ms),
                len(each.manifest.topics),
                each.records,
                round_size(each.manifest.size_bytes),
            )
            if isinstance(each, Backup)
            else (each.id, "damaged", "-", "-", "-")
        ),
        right=["topics", "records", "size"],
    )
    for each in damaged:
        terminal.print_error(each.reason)
    if damaged:
        raise typer.Exit(EXIT_DAMAGE)


def _listed(backup: Backup | UnreadableBackup) -> dict[str, object]:
    from penstock.log.embedded.backup import Backup

    if isinstance(backup, Backup):
        return {**_row(backup), "damage": None}
    unknown = dict.fromkeys(("moment_ms", "topics", "records", "bytes"))
    return {"id": backup.id, "path": str(backup.path), **unknown, "damage": backup.reason}


def _row(backup: Backup) -> dict[str, object]:
    return {
        "id": backup.id,
        "path": str(backup.path),
        "moment_ms": backup.manifest.moment_ms,
        "topics": len(backup.manifest.topics),
        "records": backup.records,
        "bytes": backup.manifest.size_bytes,
    }
