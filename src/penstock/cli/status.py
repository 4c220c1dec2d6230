"""`penstock status`: a running broker on one screen."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from penstock.cli import terminal
from penstock.cli.options import AdminOption, admin_access, admin_url, wants_json

if TYPE_CHECKING:
    from penstock.cli.sample import Sample

EXIT_NOT_READY = 1
GROUPS_SHOWN_MAX = 10


def status(context: typer.Context, admin: AdminOption = None) -> None:
    """Show a broker at a glance: listeners, topics, lag, disk, problems.

    Reads the admin address of the broker. If that requires a login, the user
    of the broker's address logs in. Exits with 1 if the broker is not ready or
    cannot be reached.

    Examples:
    $ penstock status
    $ penstock status --admin http://10.0.0.7:9600
    """
    from penstock.cli.rates import sample_json
    from penstock.cli.sample import fetch

    url = admin_url(context, admin)
    sample = fetch(url, admin_access(context, url))
    if wants_json(context):
        terminal.print_json({"admin": url, **sample_json(sample)})
    else:
        _print(url, sample)
    if not sample.ready:
        raise typer.Exit(EXIT_NOT_READY)


def _print(url: str, sample: Sample) -> None:
    from penstock.cli.subscription import behind
    from penstock.units import round_size

    state = terminal.style("ready", fg="green") if sample.ready else terminal.style("not ready", fg="red", bold=True)
    uptime = behind(int(1000 * max(0.0, time.time() - sample.started_s)))
    print(f"penstock {terminal.visible(sample.version)} at {terminal.visible(url)}: {state}, up {uptime}")
    for problem in sample.problems:
        print(f"{terminal.style('problem:', fg='red', bold=True)} {terminal.visible(problem)}")
    print()
    partitions = sum(topic.partitions for topic in sample.topics.values()) + sample.topics_left_out
    disk = f"{round_size(sample.stored_bytes)} stored"
    if sample.disk_size_bytes is not None and sample.disk_free_bytes is not None:
        disk += f", {round_size(sample.disk_free_bytes)} free of {round_size(sample.disk_size_bytes)}"
    terminal.print_fields(
        {
            "topics": f"{len(sample.topics)} ({partitions} partitions, {sample.records} records)",
            "disk": disk,
            "memory": round_size(sample.memory_bytes),
            "delayed": sample.delayed_pending,
            "transactions": f"{sample.transactions_open} open",
            "dead letters": f"{sample.dead_letters_waiting} to be written",
        }
    )
    print()
    terminal.print_table(
        ["listener", "address", "connections", "records in", "records out"],
        [
            (
                name,
                each.address or "-",
                each.connections,
                int(each.received_records),
                int(each.sent_records),
            )
            for name, each in sample.listeners.items()
        ],
        right=["connections", "records in", "records out"],
    )
    if not sample.groups:
        return
    print()
    groups = sorted(sample.groups, key=lambda each: (-each.lag, each.group, each.topic))
    terminal.print_table(
        ["group", "topic", "lag", "behind"],
        [
            (
                terminal.name(each.group),
                terminal.name(each.topic),
                each.lag,
                behind(None if each.seconds is None else int(1000 * each.seconds)),
            )
            for each in groups[:GROUPS_SHOWN_MAX]
        ],
        right=["lag", "behind"],
    )
    hidden = len(groups) - GROUPS_SHOWN_MAX + sample.groups_left_out
    if hidden > 0:
        terminal.hint(f"{hidden} more groups; see all with: penstock group list")
