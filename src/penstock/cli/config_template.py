"""The file that `penstock config init` writes: every setting with its meaning and its default, commented out.

It is made from the models in `penstock.config` and the strings below their fields, as the reference of settings is, so it cannot
name a setting that does not exist. Sections of listeners and `[admin]` are not commented out: a listener that a file does not name is
off, and the file is to change nothing until somebody edits it.
"""

from __future__ import annotations

import textwrap
import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from penstock.config import Config, Pipeline, Tls, Topic
from penstock.config.model import Cluster, ClusterTls
from penstock.docstrings import field_docs
from penstock.log.kafka.settings import KafkaSasl, KafkaTls
from penstock.protocols.fujin.server.settings import FujinAlias
from penstock.units import format_setting

COLUMNS = 98
REPEATED = (Topic, Pipeline, FujinAlias)
"""Sections of which a file may have several; environment variables do not reach into them."""
HEAD = """\
# Configuration of a Penstock broker. Start it with: penstock serve --config FILE
# Check it with: penstock config check --config FILE
#
# Every setting is here with its default, commented out: uncomment what you change.
# Sizes and durations are numbers in the unit that the name ends with, or text with a unit: "128 MiB", "7d".
# A listener whose section you remove is off.
"""
OPTIONAL: dict[type[BaseModel], dict[str, str]] = {
    Tls: {"cert": "server.pem", "key": "server.key", "client_ca": "clients.pem"},
    KafkaTls: {"ca": "kafka-ca.pem", "cert": "penstock.pem", "key": "penstock.key"},
    KafkaSasl: {"mechanism": "SCRAM-SHA-512", "username": "penstock", "password": "...", "token_file": "token.jwt"},
    Cluster: {"bind": "127.0.0.1:9700", "advertise": "node1.example", "node": "node1", "secret": "..."},
    ClusterTls: {"cert": "node1.pem", "key": "node1.key", "ca": "nodes-ca.pem"},
}
"""Sections that change something by being there, and what those of their settings look like that need a value."""
EXAMPLES: dict[type[BaseModel], dict[str, str]] = {
    Topic: {"name": '"orders"', "partitions": "3", "durability": '"fsync"', "retention_ms": '"7d"'},
    Pipeline: {"name": '"sales"', "file": '"sales.toml"', "password_file": '"sales.password"'},
}
"""Sections that stand for one of several things each, and what one of them looks like."""


def render() -> str:
    """Return the whole file."""
    blocks = [HEAD]
    for path, kind in sections(Config):
        if kind in EXAMPLES:
            blocks.append(_example(path, kind))
        elif kind not in REPEATED:
            blocks.append(_section(path, kind))
    return "\n".join(blocks)


def _section(path: str, kind: type[BaseModel]) -> str:
    lines = [] if not path else [*_comment(_about(kind)), f"[{path}]"]
    docs = field_docs(kind)
    for name, field in kind.model_fields.items():
        below = section_of(field)
        if below is None or below is FujinAlias:
            lines += [*_comment(docs[name]), f"# {name} = {toml(name, field.default)}", ""]
    for name, field in kind.model_fields.items():
        below = section_of(field)
        if below in OPTIONAL:
            lines += [*_comment(_about(below)), f"# [{f'{path}.{name}'.strip('.')}]"]
            for key, text in field_docs(below).items():
                example = OPTIONAL[below].get(key, below.model_fields[key].default)
                lines += [*_comment(text), f"# {key} = {toml(key, example)}"]
            lines.append("")
    return "\n".join(lines)


def _example(path: str, kind: type[BaseModel]) -> str:
    lines = [*_comment(_about(kind)), f"# [[{path}]]"]
    for name, text in field_docs(kind).items():
        example = EXAMPLES[kind].get(name)
        lines += [*_comment(text), f"# {name} = {example or toml(name, _default(kind, name))}"]
    return "\n".join([*lines, ""])


def _default(kind: type[BaseModel], name: str) -> Any:
    """What it is if it is left out. Of a topic, that is what `[log]` says."""
    default = kind.model_fields[name].default
    return getattr(Config().log, name, default) if default is None and kind is Topic else default


def _about(kind: type[BaseModel]) -> str:
    text = " ".join((kind.__doc__ or "").split()).partition(": ")[2]
    return text[:1].upper() + text[1:]


def _comment(text: str) -> list[str]:
    return [f"## {line}" for line in textwrap.wrap(text, COLUMNS, break_long_words=False, break_on_hyphens=False)]


# --- the models ---


def sections(kind: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield each section by its dotted path, the top level first."""
    if "bind" in kind.model_fields or any(not section_of(field) for field in kind.model_fields.values()):
        yield path, kind
    for name, field in kind.model_fields.items():
        below = section_of(field)
        if below is not None and below not in OPTIONAL:
            yield from sections(below, f"{path}.{name}" if path else name)


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the section that a field holds, if it is one or a list or table of them."""
    return next(
        (leaf for leaf in leaves(field.annotation) if isinstance(leaf, type) and issubclass(leaf, BaseModel)), None
    )


def leaves(annotation: Any) -> Iterator[Any]:
    """Yield the plain types in an annotation."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from leaves(get_args(annotation)[0])
    elif origin in (Union, types.UnionType, list, dict):
        for each in get_args(annotation):
            yield from leaves(each)
    else:
        yield annotation


def value_words(name: str, value: Any) -> str:
    """Return a value as one writes it into the file."""
    return format_setting(
        name, float(value) if name.removesuffix("_max").removesuffix("_min").endswith("_s") else value
    )


def toml(name: str, value: Any) -> str:
    """Return a value in TOML."""
    if value is None:
        return '"forever"'
    if value in ([], {}):
        return str(value)
    text = value_words(name, value)
    if isinstance(value, bool | int | float) and text == str(value).lower():
        return f"{value:_}" if type(value) is int else text
    return f'"{text}"'
