"""Options that several commands share, with one spelling and one meaning.

`--server` and `--json`, which `Program` adds, may be given before the command or after it; the one after it wins. `--context` names a
saved address. The order is: flags, variables, the context in use, the default address.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import DEFAULT_URL

if TYPE_CHECKING:
    from penstock.cli.admin_access import AdminAccess
    from penstock.cli.profiles import Profile, Profiles
    from penstock.clients.url import Address
    from penstock.config import Config
    from penstock.units import Address as HostPort

FLYMQ_SCHEMES = ("flymq", "flymqs")
FLYMQ_OPTIONS = ("idempotent",)
"""What a FlyMQ address may have behind its question mark, besides files."""
ADMIN_PORT = 9600
ADMIN_CONNECT_S_MAX = 1.0
"""How long to wait for the admin port of one host of several."""
_SERVER_HELP = "The address of the broker, or of its nodes, separated by commas; also PENSTOCK_SERVER."
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


def _given(context: typer.Context, name: str) -> Any:
    """An option's value after the command, else its value before it."""
    return context.params.get(name) or context.find_root().params.get(name)


def context_name(context: typer.Context, saved: Profiles) -> str | None:
    """The context that the command line, the environment or `penstock context use` names."""
    return context.find_root().params.get("context") or os.environ.get("PENSTOCK_CONTEXT") or saved.current


def named_server(context: typer.Context, *, in_use: bool = True) -> str | None:
    """The address that somebody has named: a flag, then the variable, then a context, which brings its password along.

    Without `in_use` the context must be named too: that of `penstock context use` does not count.
    """
    if (named := _given(context, "server") or _variable(context, "PENSTOCK_SERVER")) is not None:
        return str(named)
    profile = _profile(context, in_use=in_use)
    if profile is None:
        return None
    from penstock.cli.passwords import PASSWORD_VARIABLE, url_with_password

    if profile.password is None or PASSWORD_VARIABLE in os.environ:
        return profile.server
    return url_with_password(profile.server, profile.password)


def _variable(context: typer.Context, name: str) -> str | None:
    """A variable that names an address. It does not count where the command line names a context."""
    return None if context.find_root().params.get("context") else os.environ.get(name) or None


def _profile(context: typer.Context, *, in_use: bool = True) -> Profile | None:
    from penstock.cli import profiles

    saved = profiles.load()
    name = context_name(context, saved if in_use else profiles.Profiles({}, None))
    return None if name is None else saved.find(name)


def server_url(context: typer.Context) -> str:
    """The broker to talk to. A bare host:port is FlyMQ's."""
    url = named_server(context) or DEFAULT_URL
    return url if "://" in url else f"flymq://{url}"


def parsed_server_url(url: str) -> Address:
    """The parts of a broker's address, with port 0 if it names none. Raises InvalidRequest."""
    from penstock.clients.url import parse_url

    return parse_url(url, port=0, options=FLYMQ_OPTIONS if url.partition("://")[0] in FLYMQ_SCHEMES else ())


def admin_url(context: typer.Context, given: str | None) -> str:
    """The admin address of the broker to talk to: as it is given, as its context says, or the usual port of its host; of the first host
    that answers, if there are several."""
    url = given or _variable(context, "PENSTOCK_ADMIN_URL") or _admin_of_profile(context)
    if url is None:
        return f"http://{_admin_listener(parsed_server_url(server_url(context)))}"
    return checked_admin_url(url)


def _admin_listener(address: Address) -> HostPort:
    import socket
    from contextlib import suppress

    usual = [each._replace(port=ADMIN_PORT) for each in address.hosts]
    for each in usual if address.others else ():
        with suppress(OSError), socket.create_connection(each, timeout=ADMIN_CONNECT_S_MAX):
            return each
    return usual[0]


def _admin_of_profile(context: typer.Context) -> str | None:
    """The admin address of the context, where that names the broker, too."""
    if _given(context, "server") or _variable(context, "PENSTOCK_SERVER"):
        return None
    profile = _profile(context)
    return None if profile is None else profile.admin


def admin_access(context: typer.Context, url: str) -> AdminAccess:
    """How to reach the admin address that `admin_url` returned.

    A password is sent to a host of the broker it is for, or to the admin address that its context names, and to no other.
    """
    from urllib.parse import urlsplit

    from penstock.cli.admin_access import AdminAccess

    broker = server_url(context)
    hosts = [each.host for each in parsed_server_url(broker).hosts]
    is_ours = urlsplit(url).hostname in hosts or url == _admin_of_profile(context)
    return AdminAccess(broker if is_ours else None)


def checked_admin_url(url: str) -> str:
    """An admin address; a bare host:port means HTTP. Raises BadParameter."""
    from urllib.parse import urlsplit

    url = url if "://" in url else f"http://{url}"
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise typer.BadParameter(f"{url} is not an admin address: write http://host:port", param_hint="--admin")
    return url.rstrip("/")


def flymq_url(context: typer.Context) -> str:
    """The same for commands that only FlyMQ has room for. Raises BadParameter if the address is another protocol's."""
    url = server_url(context)
    scheme = url.partition("://")[0]
    if scheme not in FLYMQ_SCHEMES:
        raise typer.BadParameter(
            f"this command requires FlyMQ, not {scheme}: write flymq://host:port, or flymqs:// for TLS",
            param_hint="--server",
        )
    return url


def wants_json(context: typer.Context) -> bool:
    return bool(_given(context, "as_json"))


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


def duration_ms(text: str, flag: str) -> int:
    """Parse a duration with its unit. Raises BadParameter that names the flag."""
    from penstock.units import parse_duration_ms

    try:
        if text[-1:].isdecimal() and text.strip("0."):
            raise ValueError(f"{text} has no unit: write {text}s or {text}ms")
        return parse_duration_ms(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None
