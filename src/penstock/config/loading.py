"""Putting a configuration together from its layers, remembering where each value came from.

Three layers in rising precedence: the file, the environment, the flags. Each becomes a nested dict; a later one wins key by key, and
a list (the topics) is replaced whole. Every problem of every layer is reported at once, in one ConfigError.

With no file every listener and the admin address are on; with a file only what it (or a later layer) names is. Relative paths in
a file are taken from the file's own directory, so that a broker does not depend on where it is started; elsewhere they are taken
from the working directory.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_settings import EnvSettingsSource, SettingsError

from penstock.config import messages, toml_file
from penstock.config.messages import dotted, section_of
from penstock.config.model import Config, Listeners
from penstock.errors import ConfigError

PREFIX = "PENSTOCK_"
# Variables of ours that are not settings: what the command line reads.
OTHER_VARIABLES = frozenset(
    {
        "PENSTOCK_ADMIN_URL",
        "PENSTOCK_CONFIG",
        "PENSTOCK_CONTEXT",
        "PENSTOCK_NEW_PASSWORD",
        "PENSTOCK_PASSWORD",
        "PENSTOCK_RUN",
        "PENSTOCK_SERVER",
    }
)
# Kubernetes sets these in every pod next to a service called "penstock".
SERVICE_VARIABLES = re.compile(r"PENSTOCK_(SERVICE_(HOST|PORT)|PORT)(_\w+)?")

SettingPath = tuple[str | int, ...]


class Layer(NamedTuple):
    """The values one source gives, and how to call the origin of those below a path."""

    values: dict[str, Any]
    labels: Mapping[SettingPath, str]

    def label(self, path: SettingPath) -> str:
        """The origin of a value: the label of the longest path that leads to it."""
        return next((self.labels[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self.labels), "")


def load_config(
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    flags: Mapping[str, str] | None = None,
) -> Config:
    """The configuration out of a file, an environment (that of the process unless given) and overrides by dotted key.

    `flags` names the flag that an override came from, for its origin; without it the origin is the key spelt as a flag.
    """
    problems: list[str] = []
    layers = []
    if file is not None:
        layers.append(_file_layer(file))
    layers.append(_environment_layer(os.environ if env is None else env, problems))
    layers.append(_override_layer(overrides or {}, flags or {}))

    merged: dict[str, Any] = (
        {"listeners": {name: {} for name in Listeners.model_fields}, "admin": {}}
        if file is None
        else {"listeners": {}, "admin": None}
    )
    origins: dict[SettingPath, str] = {}
    for layer in filter(lambda layer: layer.values, layers):
        merged = _merge(merged, layer.values)
        paths = list(_leaf_paths(layer.values))
        replaced = [_without_index(path) for path in paths]
        origins = {
            known: origin for known, origin in origins.items() if not any(_touch(known, path) for path in replaced)
        }
        origins |= {path: layer.label(path) for path in paths}
    config: Config | None = None
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        problems += messages.describe(error, Config, lambda path: _origin_of(path, origins))
    if config is None or problems:
        raise ConfigError("\n".join(problems))
    if file is not None and not any(config.listeners.enabled()):
        raise ConfigError(f"{file}: no listener is on, so no client could connect: add a [listeners.flymq] section")
    config.remember_origins({dotted(path): origin for path, origin in origins.items()})
    beyond = [f"{_led_by(config.origins[key])}: {key}: {why}" for key, why in config.topics_beyond_limits()]
    if beyond:
        raise ConfigError("\n".join(beyond))
    return config


def _origin_of(path: SettingPath, origins: Mapping[SettingPath, str]) -> str:
    """Return the source to name in an error: what set this path, else what set one above, below or next to it."""
    for length in range(len(path), 0, -1):
        for known, origin in origins.items():
            if known[:length] == path[:length]:
                return _led_by(origin)
    return ""


def _led_by(origin: str) -> str:
    return origin.removeprefix("file ")


def _file_layer(file: Path) -> Layer:
    data = toml_file.read_bytes(file, if_absent=f"check the path, or create it with: penstock config init {file}")
    values = toml_file.parse(data, file)
    _resolve_paths(Config, values, file.resolve().parent)
    return Layer(values, {(): f"file {file}"})


def _resolve_paths(model: type[BaseModel], values: dict[str, Any], base: Path) -> None:
    for name, field in model.model_fields.items():
        value, section = values.get(name), section_of(field.annotation)
        if section is not None:
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, dict):
                    _resolve_paths(section, part, base)
        elif isinstance(value, str) and Path in _types_in(field.annotation):
            values[name] = str(base / Path(value).expanduser())


def _types_in(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _types_in(inner)


class _Environment(EnvSettingsSource):
    """The settings source of pydantic-settings, reading a mapping it is given instead of the environment of the process."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        super().__init__(Config)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): text for name, text in self._env.items() if text}


def _environment_layer(env: Mapping[str, str], problems: list[str]) -> Layer:
    labels: dict[SettingPath, str] = {}
    for name in env:
        if (
            not name.upper().startswith(PREFIX)
            or not env[name]
            or name in OTHER_VARIABLES
            or SERVICE_VARIABLES.fullmatch(name)
        ):
            continue
        path = tuple(name[len(PREFIX) :].lower().split("__"))
        if path[0] in Config.model_fields:
            labels[path] = f"environment {name}"
            continue
        known = [*Config.model_fields, *(other.removeprefix(PREFIX).lower() for other in sorted(OTHER_VARIABLES))]
        close = difflib.get_close_matches(path[0], known, n=1)
        hint = (
            f"did you mean {PREFIX}{close[0].upper()}?"
            if close
            else "unset it, or see the settings with: penstock config check"
        )
        problems.append(f"environment {name} is not a setting; {hint}")
    try:
        values = _Environment({name: text for name, text in env.items() if name.upper().startswith(PREFIX)})()
    except SettingsError as error:
        field = str(error).split('"')[1]
        names = " or ".join(label for path, label in labels.items() if path[0] == field)
        raise ConfigError(
            f'{names} is not valid JSON, which a list or a whole section needs there, as in [{{"name": "orders"}}]'
        ) from None
    return Layer(values, labels)


def _override_layer(overrides: Mapping[str, object], flags: Mapping[str, str]) -> Layer:
    values: dict[str, Any] = {}
    labels: dict[SettingPath, str] = {}
    for key, value in overrides.items():
        path = tuple(key.split("."))
        nested: Any = value
        for part in reversed(path):
            nested = {part: nested}
        values = _merge(values, nested)
        labels[path] = "flag " + flags.get(key, "--" + key.replace("_", "-").replace(".", "-"))
    return Layer(values, labels)


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _leaf_paths(value: Any, path: SettingPath = ()) -> Iterator[SettingPath]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaf_paths(inner, (*path, key))
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaf_paths(inner, (*path, index))
    else:
        yield path


def _without_index(path: SettingPath) -> SettingPath:
    """The path of the list that a path leads into, as lists are replaced whole; else the path itself."""
    return next((path[:n] for n, part in enumerate(path) if isinstance(part, int)), path)


def _touch(one: SettingPath, other: SettingPath) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
