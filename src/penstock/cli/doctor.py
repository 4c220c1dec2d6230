"""`penstock doctor`: is this machine fit to run a broker?"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Annotated

import typer

from penstock.cli import terminal
from penstock.cli.options import ConfigOption, DataDirOption, config_from_flags, wants_json

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    context: typer.Context,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on a warning too.")] = False,
) -> None:
    """Check this machine: Python, limits, ports, disk, Spark and its Java.

    If the log is in Apache Kafka, the cluster is checked instead of the disk:
    replication, in-sync bounds, leader election and message sizes. Each line
    says ok, warn or fail, and what to do. Exits with 1 if a check fails. If the
    broker of this configuration is running, its ports are recognized, and
    whether it is ready is one of the checks. Pipelines that the configuration
    declares are checked as far as that is possible without Spark.

    Examples:
    $ penstock doctor
    $ penstock doctor --config penstock.toml --data-dir /var/lib/penstock
    """
    from penstock.cli.checks import ADMIN, UDP, all_checks, kafka, pipeline
    from penstock.config import QuicListener

    effective = config_from_flags(config, data_dir=data_dir)
    binds = [
        (name, f"{listener.bind}{UDP}" if isinstance(listener, QuicListener) else listener.bind)
        for name, listener in effective.listeners.enabled()
    ]
    if effective.admin is not None:
        binds.append((ADMIN, effective.admin.bind))
    findings = []
    machine_readable = wants_json(context)
    admin_tls = effective.admin is not None and effective.admin.tls is not None
    checks = all_checks(effective.data_dir, binds, admin_tls=admin_tls)
    if effective.engine == "kafka":
        record_bytes_max = effective.limits.record_bytes_max
        cluster = partial(kafka, effective.kafka, record_bytes_max)
        checks = all_checks(effective.data_dir, binds, admin_tls=admin_tls, cluster=cluster)
    declared = (pipeline(each.name, each.file, each.password_file) for each in effective.pipelines)
    for finding in chain(checks, declared):
        findings.append(finding)
        if not machine_readable:
            status = terminal.style(finding.status.ljust(4), fg=COLOURS[finding.status], bold=True)
            print(f"{status}  {finding.check.ljust(14)}  {terminal.visible(finding.found)}")
            if finding.advice:
                print(terminal.wrapped(f"-> {terminal.visible(finding.advice)}", indent=22))
            terminal.flush()
    if machine_readable:
        terminal.print_json([asdict(finding) for finding in findings])
    bad = {"fail", "warn"} if strict else {"fail"}
    if any(finding.status in bad for finding in findings):
        raise typer.Exit(1)
