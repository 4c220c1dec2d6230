"""`penstock restore`: a data directory from a backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import terminal
from penstock.cli.options import wants_json
from penstock.cli.progress import ProgressBar


def restore(
    context: typer.Context,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The directory of backups.")],
    data_dir: Annotated[Path, typer.Argument(metavar="DATA_DIR", help="The new data directory: missing or empty.")],
    at: Annotated[
        str | None, typer.Option("--at", metavar="BACKUP", help="The id of the backup. Default: the latest.")
    ] = None,
    accept_damage: Annotated[
        bool,
        typer.Option(
            "--accept-damage",
            help="Restore a damaged backup: everything but damaged blocks and topics without metadata.",
        ),
    ] = False,
) -> None:
    """Restore a backup to a new data directory, checking all of it.

    Every file is checked against its checksum and every block is read before
    DATA_DIR gets its log. Start a broker on it with: penstock serve --data-dir
    DATA_DIR. Exits with 1, and restores nothing, if the backup is damaged.

    Examples:
    $ penstock restore /backups/orders /var/lib/penstock
    $ penstock restore /backups/orders ./then --at 20260131T120000.000Z
    """
    from penstock import logs
    from penstock.broker.tables import TableRecords
    from penstock.cli.verify import print_report
    from penstock.log.embedded.backup import find_backup
    from penstock.log.embedded.restore import restore

    logs.configure("warning")
    backup = find_backup(target, at)
    with ProgressBar("restore", 2 * backup.manifest.size_bytes) as bar:
        report = restore(
            backup,
            data_dir,
            accept_damage=accept_damage,
            check_records=TableRecords().fault,
            on_copied=lambda size_bytes: bar.advance(size_bytes, 0),
            on_checked=bar.advance,
        )
    report.directory = str(data_dir)
    restored = accept_damage or not report.damage
    found = {topic.topic for topic in report.topics}
    left_out = [topic.name for topic in backup.manifest.topics if topic.name not in found]
    if wants_json(context):
        terminal.print_json({"backup": backup.id, "restored": restored, "left_out": left_out, **report.to_json()})
    else:
        print_report(report)
        if restored:
            without = f", without topic {', '.join(left_out)}" if left_out else ""
            print(terminal.visible(f"restored backup {backup.id} to {data_dir}{without}"))
    if not restored:
        terminal.print_error(
            f"backup {backup.id} is damaged and was not restored: choose another with --at, or restore what is there with --accept-damage"
        )
    if report.damage:
        raise typer.Exit(1)
