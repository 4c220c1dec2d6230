"""Options that several commands share, with one spelling and one meaning.

`--server` and `--json` may stand before the command or after it; the one after it wins.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import DEFAULT_URL

if TYPE_CHECKING:
    from penstock.config import Config

FLYMQ_SCHEMES = ("flymq", "flymqs")
_SERVER_HELP = "The address of the broker; also PENSTOCK_SERVER."
ServerOption = Annotated[
    str | None, typer.Option("--server", "-s", metavar="URL", help=_SERVER_HELP, show_default=DEFAULT_URL)
]
# Only here does the variable count, or it would win over the flag before the command.
RootServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        "-s",
        metavar="URL",
        envvar="PENSTOCK_SERVER",
        show_envvar=False,
        help=_SERVER_HELP,
        show_default=DEFAULT_URL,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        envvar="PENSTOCK_CONFIG",
        show_envvar=False,
        help="The TOML file to read; also PENSTOCK_CONFIG. Without one, defaults apply.",
        show_default=False,
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", "-d", metavar="DIR", help="The data directory.", show_default="penstock-data"),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set any setting by its dotted key, as in log.retention_ms=7d. Repeatable."
    ),
]


def given_or_global(context: typer.Context, name: str, given: Any) -> Any:
    """An option's value after the command, else its value before it."""
    return given if given not in (None, False) else context.find_root().params.get(name)


def server_url(context: typer.Context, given: str | None) -> str:
    """The broker to talk to. A bare host:port is FlyMQ's."""
    url: str = given_or_global(context, "server", given) or DEFAULT_URL
    return url if "://" in url else f"flymq://{url}"


def flymq_url(context: typer.Context, given: str | None) -> str:
    """The same for commands that only FlyMQ has room for. Raises InvalidRequest where the address is another protocol's."""
    from penstock.errors import InvalidRequest

    url = server_url(context, given)
    scheme = url.partition("://")[0]
    if scheme not in FLYMQ_SCHEMES:
        raise InvalidRequest(
            f"--server {scheme}://...: this command speaks FlyMQ: write flymq://host:port, or flymqs:// for TLS"
        )
    return url


def wants_json(context: typer.Context, given: bool) -> bool:
    return bool(given_or_global(context, "as_json", given))


def config_from_flags(
    file: Path | None,
    *,
    data_dir: Path | None = None,
    bind: str | None = None,
    admin_bind: str | None = None,
    durability: str | None = None,
    log_level: str | None = None,
    dev: bool = False,
    settings: list[str] | None = None,
) -> Config:
    """The effective configuration, with the origin of what flags gave."""
    from penstock.config import load_config
    from penstock.errors import ConfigError

    overrides: dict[str, object] = {}
    flags: dict[str, str] = {}
    for setting in settings or ():
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise ConfigError(f"flag --set {setting}: write it as KEY=VALUE, as in --set log.retention_ms=7d")
        overrides[key], flags[key] = text, "--set"
    named = {
        "data_dir": (data_dir, "--data-dir"),
        "listeners.flymq.bind": (bind, "--bind"),
        "admin.bind": (admin_bind, "--admin-bind"),
        "durability": (durability, "--durability"),
        "logging.level": (log_level, "--log-level"),
        "dev": (dev or None, "--dev"),
    }
    for key, (value, flag) in named.items():
        if value is not None:
            overrides[key], flags[key] = value, flag
    return load_config(file, overrides=overrides, flags=flags)
