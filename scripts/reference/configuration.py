"""docs/reference/configuration.md: every setting, from the models in `penstock.config` and the strings below their fields."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from penstock.cli.config_template import OPTIONAL, REPEATED, leaves, section_of, sections, toml, value_words
from penstock.config import Config
from penstock.docstrings import field_docs
from penstock.protocols.fujin.server.settings import FujinAlias
from scripts.reference.markdown import DOCS, GENERATED, code, document, prose, table, wrapped

PAGE = DOCS / "reference" / "configuration.md"
INTRODUCTION = f"""\
# Configuration reference

{GENERATED}

[Configuration](../configuration.md) explains where values come from and how they are written: sizes and
durations are numbers in the unit that the name ends with, or text with a unit (`"128 MiB"`, `"7d"`).
`penstock config check` prints the effective value of every setting and its origin.
"""
SEE = {
    "listeners.flymq": "See [Python client](../python.md), [access control](../access.md).",
    "listeners.blipmq": "See [BlipMQ](../blipmq.md).",
    "listeners.rustlog": "See [RustLog](../rustlog.md).",
    "listeners.fujin": "See [Fujin](../fujin.md), [QUIC](../quic.md).",
    "listeners.felix": "See [Felix](../felix.md), [QUIC](../quic.md).",
    "admin": "See [monitoring](../monitoring.md).",
    "access": "See [access control](../access.md).",
    "kafka": "See [Apache Kafka](../kafka.md).",
    "log": "See [log format](../format.md), [`accept_gaps`](../backup.md#verify).",
    "subscriptions": "See [dead letters](../dead-letters.md).",
    "pipelines": "See [start pipelines from the console](../console.md#start-pipelines).",
}
"""Pages that explain what a section is about, by section."""
RELATIONS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def page() -> str:
    return document(INTRODUCTION, *(_section(path, kind) for path, kind in sections(Config)), _example())


def _section(path: str, kind: type[BaseModel]) -> str:
    heading, text = _heading(path, kind)
    return document(f"## {heading}", wrapped(f"{text} {SEE.get(path, '')}"), _table(path, kind))


def _heading(path: str, kind: type[BaseModel]) -> tuple[str, str]:
    if not path:
        return "Top level", "Settings outside of any section."
    section, _, text = " ".join((kind.__doc__ or "").split()).partition(": ")
    text = text[:1].upper() + text[1:]
    return section, text if text.endswith(".") else f"{text}."


def _table(path: str, kind: type[BaseModel]) -> str:
    return table(["setting", "type", "default", "meaning and environment variable"], _rows(path, kind))


def _rows(path: str, kind: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, ...]]:
    docs = field_docs(kind)
    for name, field in kind.model_fields.items():
        below = section_of(field)
        if below in OPTIONAL:
            yield from _rows(path, below, f"{prefix}{name}.")
        elif below is None or below is FujinAlias:
            yield (
                code(prefix + name),
                type_words(name, field),
                default_words(kind, name, field),
                prose(docs[name])
                + ("" if kind in REPEATED else f"<br>{code(variable(f'{path}.{prefix}{name}'.strip('.')))}"),
            )


def variable(key: str) -> str:
    """Return the environment variable of a setting."""
    return "PENSTOCK_" + key.upper().replace(".", "__")


def type_words(name: str, field: FieldInfo) -> str:
    """Return the type and the bounds of a setting, as in `duration, at least 1s`."""
    if get_origin(field.annotation) in (list, dict):
        return "list of strings" if get_origin(field.annotation) is list else "table"
    words = [word for leaf in leaves(field.annotation) for word in _leaf_words(name, leaf)]
    bounds = ", ".join(_bounds(name, field))
    *most, last = words
    return (f"{', '.join(most)} or {last}" if most else last) + (f", {bounds}" if bounds else "")


def _leaf_words(name: str, leaf: Any) -> list[str]:
    if get_origin(leaf) is Literal:
        return list(map(code, get_args(leaf)))
    if leaf is type(None):
        return [code("forever")] if _may_be_forever(name) else []
    if leaf in (int, float):
        is_duration = name.removesuffix("_max").removesuffix("_min").endswith(("_ms", "_s"))
        return ["size" if _is_size(name) else "duration" if is_duration else "integer" if leaf is int else "number"]
    if leaf in (str, SecretStr):
        return ["address" if name == "bind" else "string"]
    return [{bool: "boolean", Path: "path"}[leaf]]


def _is_size(name: str) -> bool:
    return "_bytes" in name


def _may_be_forever(name: str) -> bool:
    return name.startswith("retention") or "ttl" in name


def _bounds(name: str, field: FieldInfo) -> Iterator[str]:
    """Yield what a number must be, as in `at least 1s`."""

    def words(number: Any) -> str:
        text = value_words(name, number)
        return f"{number:,}" if text == str(number) else text

    limits: dict[str, Any] = {}
    for each in _metadata(field):
        for relation in ("ge", "gt", "le", "lt"):
            if hasattr(each, relation):
                limits[relation] = getattr(each, relation)
    if "ge" in limits and "le" in limits:
        yield f"{words(limits['ge'])} to {words(limits['le'])}"
        return
    for relation, opening in RELATIONS.items():
        if relation in limits:
            yield f"{opening} {words(limits[relation])}"


def _metadata(field: FieldInfo) -> Iterator[Any]:
    yield from _flat(field.metadata)
    yield from _nested(field.annotation)


def _nested(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Annotated:
        yield from _flat(get_args(annotation)[1:])
        yield from _nested(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from _nested(each)


def _flat(metadata: Any) -> Iterator[Any]:
    for each in metadata:
        if isinstance(each, FieldInfo):
            yield from each.metadata
        else:
            yield each


def default_words(kind: type[BaseModel], name: str, field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "" if kind in OPTIONAL else "required"
    if field.default is None:
        return code("forever") if _may_be_forever(name) and kind not in REPEATED else ""
    return "" if field.default in ([], {}, "") else code(value_words(name, field.default))


def _example() -> str:
    lines = []
    for path, kind in sections(Config):
        if kind in REPEATED:
            continue
        if path:
            lines += ["", f"[{path}]"]
        for name, field in kind.model_fields.items():
            below = section_of(field)
            if below is None or below is FujinAlias:
                lines.append(f"{name} = {toml(name, field.default)}")
    return document(
        "## A file with every setting",
        "Every setting with its default, except TLS files, topics, pipelines and `[cluster]`; leave out what you do not change.",
        "```toml\n" + "\n".join(lines) + "\n```",
    )
