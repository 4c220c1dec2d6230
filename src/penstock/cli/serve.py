"""`penstock serve`: the broker, in the foreground."""

from __future__ import annotations

import functools
import json
from typing import Annotated

import typer

from penstock.cli.options import ConfigOption, DataDirOption, SetOption, config_from_flags, wants_json


def serve(
    context: typer.Context,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    bind: Annotated[
        str | None,
        typer.Option(
            "--bind",
            "-b",
            metavar="HOST:PORT",
            help="The FlyMQ address; port 0 picks a free one.",
            show_default="127.0.0.1:9092",
        ),
    ] = None,
    admin_bind: Annotated[
        str | None,
        typer.Option(
            "--admin-bind",
            metavar="HOST:PORT",
            help="The address of health checks and metrics.",
            show_default="127.0.0.1:9600",
        ),
    ] = None,
    durability: Annotated[
        str | None,
        typer.Option(
            "--durability",
            metavar="MODE",
            help="When an append is acknowledged: fsync, interval:<ms> or none.",
            show_default="fsync",
        ),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.", show_default="info"),
    ] = None,
    dev: Annotated[
        bool,
        typer.Option(
            "--dev",
            help="Accept the user admin with the password admin, and the API key dev-key; only on loopback addresses.",
        ),
    ] = False,
    settings: SetOption = None,
) -> None:
    """Run a broker in the foreground.

    Prints one line for each listener and then [bold]ready[/bold]; with [bold]--json[/bold] an
    object for each. Ctrl-C or SIGTERM stops it, with everything committed.

    Examples:
    $ penstock serve
    $ penstock serve --config penstock.toml
    $ penstock serve --dev --set listeners.flymq.auth=required
    $ penstock serve --data-dir /var/lib/penstock --bind 127.0.0.1:0
    """
    effective = config_from_flags(
        config,
        data_dir=data_dir,
        bind=bind,
        admin_bind=admin_bind,
        durability=durability,
        log_level=log_level,
        dev=dev,
        settings=settings,
    )
    from penstock import logs
    from penstock.serving import run

    logs.configure(effective.logging.level, form=effective.logging.format)
    # The parent process may read the lines through a pipe: the port that was picked, and when it is ready.
    run(effective, announce=_announce_json if wants_json(context) else functools.partial(print, flush=True))


def _announce_json(line: str) -> None:
    """A line that `run` announces as an object: a listener with its address, a remark, or that all is ready."""
    name, on, address = line.partition(" on ")
    if line == "ready":
        document: dict[str, object] = {"ready": True}
    elif on and " " not in address:
        document = {"listener": name, "address": address}
    else:
        document = {"note": line}
    print(json.dumps(document, ensure_ascii=False), flush=True)
