"""Options that several commands share, with one spelling and one meaning.

`--server` and `--json` may stand before the command or after it; the one after it wins. `--context` names a saved address. The order
is: flags, variables, the context in use, the default address.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import DEFAULT_URL

if TYPE_CHECKING:
    from penstock.cli.profiles import Profile, Profiles
    from penstock.config import Config

FLYMQ_SCHEMES = ("flymq", "flymqs")
ADMIN_PORT = 9600
_SERVER_HELP = "The address of the broker; also PENSTOCK_SERVER."
ServerOption = Annotated[
    str | None, typer.Option("--server", "-s", metavar="URL", help=_SERVER_HELP, show_default=DEFAULT_URL)
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="The saved address to use; also PENSTOCK_CONTEXT. See: penstock context --help",
        show_default="the one in use",
    ),
]
AdminOption = Annotated[
    str | None,
    typer.Option(
        "--admin",
        metavar="URL",
        help="The admin address of the broker; also PENSTOCK_ADMIN_URL.",
        show_default="port 9600 of the broker's host",
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


def context_name(context: typer.Context, saved: Profiles) -> str | None:
    """The context that the command line, the environment or `penstock context use` names."""
    return context.find_root().params.get("context") or os.environ.get("PENSTOCK_CONTEXT") or saved.current


def named_server(context: typer.Context, given: str | None, *, in_use: bool = True) -> str | None:
    """The address that somebody has named: a flag, then the variable, then a context, which brings its password along.

    Without `in_use` the context must be named too: that of `penstock context use` does not count.
    """
    flag: str | None = given_or_global(context, "server", given)
    chosen = context.find_root().params.get("context")
    if flag or (not chosen and (flag := os.environ.get("PENSTOCK_SERVER"))):
        return flag
    profile = _profile(context, in_use=in_use)
    if profile is None:
        return None
    from penstock.cli.passwords import PASSWORD_VARIABLE, url_with_password

    if profile.password is None or PASSWORD_VARIABLE in os.environ:
        return profile.server
    return url_with_password(profile.server, profile.password)


def _profile(context: typer.Context, *, in_use: bool = True) -> Profile | None:
    from penstock.cli import profiles

    saved = profiles.load()
    name = context_name(context, saved if in_use else profiles.Profiles({}, None))
    return None if name is None else saved.find(name)


def server_url(context: typer.Context, given: str | None) -> str:
    """The broker to talk to. A bare host:port is FlyMQ's."""
    url = named_server(context, given) or DEFAULT_URL
    return url if "://" in url else f"flymq://{url}"


def admin_url(context: typer.Context, given: str | None, server: str | None = None) -> str:
    """The admin address of the broker to talk to: as it is given, as its context says, or the usual port of its host."""
    from penstock.clients.url import parse_url

    url = given or os.environ.get("PENSTOCK_ADMIN_URL")
    if url is None and not given_or_global(context, "server", server) and (profile := _profile(context)) is not None:
        url = profile.admin
    if url is None:
        host = parse_url(server_url(context, server), port=0).host
        return f"http://{f'[{host}]' if ':' in host else host}:{ADMIN_PORT}"
    return checked_admin_url(url)


def checked_admin_url(url: str) -> str:
    """An admin address; a bare host:port means HTTP. Raises BadParameter."""
    from urllib.parse import urlsplit

    url = url if "://" in url else f"http://{url}"
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise typer.BadParameter(f"{url} is not an admin address: write http://host:port", param_hint="--admin")
    return url.rstrip("/")


def flymq_url(context: typer.Context, given: str | None) -> str:
    """The same for commands that only FlyMQ has room for. Raises BadParameter where the address is another protocol's."""
    url = server_url(context, given)
    scheme = url.partition("://")[0]
    if scheme not in FLYMQ_SCHEMES:
        raise typer.BadParameter(
            f"this command speaks FlyMQ, not {scheme}: write flymq://host:port, or flymqs:// for TLS",
            param_hint="--server",
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
            raise typer.BadParameter(
                f"{setting} has no value: write it as KEY=VALUE, as in --set log.retention_ms=7d", param_hint="--set"
            )
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
    try:
        return load_config(file, overrides=overrides, flags=flags)
    except ConfigError as error:
        problems = str(error).splitlines()
        if all(problem.startswith("flag ") for problem in problems):
            raise typer.BadParameter("\n".join(problem.removeprefix("flag ") for problem in problems)) from None
        raise
