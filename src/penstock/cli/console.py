"""`penstock console`: where the console is."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from penstock.cli import terminal
from penstock.cli.options import ConfigOption, SetOption, config_from_flags


def console(
    context: typer.Context,
    config: ConfigOption = None,
    settings: SetOption = None,
    opens: Annotated[bool, typer.Option("--open", help="Open it in the browser, too.")] = False,
) -> None:
    """Print the address of the console, the broker's page in the browser.

    The address is that of [bold]admin.bind[/bold] in the configuration that the broker reads:
    give the same file, environment and flags. The broker must be running.

    Examples:
    $ penstock console
    $ penstock console --open
    """
    from penstock.errors import ConfigError

    effective = config_from_flags(config, settings=settings)
    admin = effective.admin
    if admin is None:
        raise ConfigError("the admin address is off, and the console with it: add a section [admin] to the file")
    address = f"{'http' if admin.tls is None else 'https'}://{_host(admin.bind)}/console"
    terminal.print_outcome(context, address, {"address": address})
    if opens and not webbrowser.open(address):
        raise ConfigError("no browser could be opened: copy the address into one")


def _host(bind: str) -> str:
    """The address that a browser on this machine reaches."""
    from penstock.units import Address, parse_address

    host, port = parse_address(bind)
    return str(Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port))  # noqa: S104  not bound here
