"""`penstock config`: init, check. What the broker would run with, and why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import terminal
from penstock.cli.options import ConfigOption, DataDirOption, SetOption, config_from_flags, wants_json
from penstock.cli.program import Program
from penstock.units import format_setting

if TYPE_CHECKING:
    from penstock.broker.topics.declared import Change
    from penstock.config import Config

app = Program(help="Write and check configuration files.", server=None)


@app.command()
def init(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; - for standard output.")] = Path(
        "penstock.toml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a configuration file with every setting, commented out.

    Each has its meaning and its default, so the file changes nothing until
    you edit it.

    Examples:
    $ penstock config init
    $ penstock config init /etc/penstock/penstock.toml
    $ penstock config init - | less
    """
    from penstock.cli.config_template import render
    from penstock.errors import InvalidRequest

    to_output = str(file) == "-"
    if to_output and wants_json(context):
        raise typer.BadParameter("a file on standard output is not JSON: name a file, or leave out --json")
    if to_output:
        print(render(), end="")
        return
    try:
        with file.open("w" if force else "x") as stream:
            stream.write(render())
    except FileExistsError:
        raise InvalidRequest(f"{file} exists: name another file, or add --force to overwrite it") from None
    terminal.print_outcome(
        context, f"wrote {file}; start a broker with: penstock serve --config {file}", {"file": str(file)}
    )


@app.command()
def check(
    context: typer.Context,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    settings: SetOption = None,
    changed: Annotated[bool, typer.Option("--changed", help="Omit settings that have their default.")] = False,
) -> None:
    """Check the configuration and print every value with its origin.

    Reads the same file, environment and flags as [bold]penstock serve[/bold], and starts
    nothing. Exits with 1 and one line for each problem if it is invalid. What is
    valid and may surprise is a note on stderr. Topics
    that the next start would create or alter are listed last, and are
    topic_changes in JSON.

    Examples:
    $ penstock config check --config penstock.toml
    $ penstock config check --changed
    """
    effective = config_from_flags(config, data_dir=data_dir, settings=settings)
    _check_as_the_server_does(effective)
    for note in _notes(effective):
        terminal.print_note(note)
    changes = _topic_changes(effective)
    origins = effective.origins
    shown = {key: value for key, value in effective.values.items() if not changed or origins[key] != "default"}
    if wants_json(context):
        document: dict[str, Any] = {
            key: {"value": _plain(value), "origin": origins[key]} for key, value in shown.items()
        }
        if changes:
            document["topic_changes"] = [_change_json(change) for change in changes]
        terminal.print_json(document)
    else:
        terminal.print_table(
            ["setting", "value", "origin"],
            [(key, format_setting(key, value), origins[key]) for key, value in shown.items()],
            fold=["origin", "value"],
        )
        for change in changes:
            for line in _change_lines(change):
                print(line)


def _check_as_the_server_does(config: Config) -> None:
    """What only starting would find out otherwise: what the TLS files hold."""
    from penstock.config import QuicListener
    from penstock.errors import ConfigError, PenstockError
    from penstock.net.quic_tls import quic_server_tls
    from penstock.net.tls import server_context

    problems = []
    sections = {f"listeners.{name}": listener.tls for name, listener in config.listeners.enabled()}
    quic = {f"listeners.{name}" for name, each in config.listeners.enabled() if isinstance(each, QuicListener)}
    sections |= {} if config.admin is None else {"admin": config.admin.tls}
    for name, tls in sections.items():
        if tls is not None:
            try:
                check = quic_server_tls if name in quic else server_context
                check(tls.cert, tls.key, tls.client_ca)
            except PenstockError as error:
                problems.append(f"{name}: {error}")
    if problems:
        raise ConfigError("\n".join(problems))


def _notes(config: Config) -> Iterator[str]:
    from penstock.admin.launcher import END_S_MAX, KILLED_S_MAX
    from penstock.net.limits import DEPLOYED_STOP_S

    stop_grace_s, pipelines_s = config.limits.stop_grace_s, END_S_MAX + KILLED_S_MAX
    if stop_grace_s + pipelines_s > DEPLOYED_STOP_S:
        yield (
            f"limits.stop_grace_s is {stop_grace_s:g} s, and pipelines may take {pipelines_s:g} s more; the files in deploy/ have a broker "
            f"killed {DEPLOYED_STOP_S:g} s after it is told to stop: lower limits.stop_grace_s, or raise TimeoutStopSec= (systemd), "
            "stop_grace_period (Compose) or terminationGracePeriodSeconds (Kubernetes)"
        )


def _topic_changes(config: Config) -> list[Change]:
    """What the next start would change in the data directory. Raises ConfigError if it would refuse."""
    from penstock.broker.topics.declared import plan
    from penstock.log.embedded.disk import Disk
    from penstock.log.embedded.topicfiles import TopicFiles
    from penstock.server import declared_topics

    root = config.data_dir / "topics"
    stored = TopicFiles(Disk(), root).read_all() if root.is_dir() else []
    return plan({topic.info.name: topic.info.config for topic in stored}, declared_topics(config))


def _change_lines(change: Change) -> Iterator[str]:
    name = terminal.visible(change.name)
    if change.before is None:
        yield f"topic {name} would be created"
    for setting, (before, after) in change.settings.items():
        yield f"topic {name} would be altered: {setting} {written_text(setting, before)} -> {written_text(setting, after)}"


def _change_json(change: Change) -> dict[str, Any]:
    settings = {setting: {"before": before, "after": after} for setting, (before, after) in change.settings.items()}
    return {"topic": change.name, "action": "create" if change.before is None else "alter", "settings": settings}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def written_text(key: str, text: str) -> str:
    """A setting of a topic, which the broker tells as text, with its unit."""
    return format_setting(key, int(text)) if text.isdigit() else text
