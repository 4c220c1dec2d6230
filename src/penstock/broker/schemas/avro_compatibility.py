"""Avro's resolution rules: whether a reader's schema can read whatever a writer's schema wrote.

The specification's "Schema Resolution", type by type: numbers widen, `string` and `bytes` stand for each other, records match by field
name or the reader's aliases and need a default for what the writer does not write, enums need every symbol or a default, a union of
the writer must be readable branch by branch, a union of the reader needs one branch that fits.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.broker.schemas.definition import REASONS_MAX, shortened

STEPS_MAX: Final = 20_000

_READS: Final[dict[str, frozenset[str]]] = {
    "null": frozenset({"null"}),
    "boolean": frozenset({"boolean"}),
    "int": frozenset({"int"}),
    "long": frozenset({"long", "int"}),
    "float": frozenset({"float", "long", "int"}),
    "double": frozenset({"double", "float", "long", "int"}),
    "bytes": frozenset({"bytes", "string"}),
    "string": frozenset({"string", "bytes"}),
}


def problems_reading(reader: Any, reader_named: dict[str, Any], writer: Any, writer_named: dict[str, Any]) -> list[str]:
    """Why the reader cannot read everything of the writer; empty if it can."""
    problems = _Resolution(reader_named, writer_named).problems(reader, writer, "")
    return list(dict.fromkeys(map(shortened, problems)))[:REASONS_MAX]


class _Resolution:
    def __init__(self, reader_named: dict[str, Any], writer_named: dict[str, Any]) -> None:
        self._reader_named = reader_named
        self._writer_named = writer_named
        self._under_way: set[tuple[str, str]] = set()
        self._steps_left = STEPS_MAX

    def problems(self, reader: Any, writer: Any, path: str) -> list[str]:
        self._steps_left -= 1
        if self._steps_left < 0:
            return ["the two versions are too complex to compare"]
        reader, writer = _definition(reader, self._reader_named), _definition(writer, self._writer_named)
        if isinstance(writer, list):
            return [problem for branch in writer for problem in self.problems(reader, branch, path)]
        if isinstance(reader, list):
            if any(not self.problems(branch, writer, path) for branch in reader):
                return []
            return [f"{_at(path)}no branch of the union reads {_shown(writer)}"]
        reader_kind, writer_kind = reader["type"], writer["type"]
        if reader_kind in _READS:
            return [] if writer_kind in _READS[reader_kind] else [_mismatch(reader, writer, path)]
        if reader_kind != writer_kind:
            return [_mismatch(reader, writer, path)]
        if reader_kind == "array":
            return self.problems(reader["items"], writer["items"], f"{path}/*")
        if reader_kind == "map":
            return self.problems(reader["values"], writer["values"], f"{path}/*")
        if not _same_name(reader, writer):
            return [_mismatch(reader, writer, path)]
        if reader_kind == "enum":
            return _enum_problems(reader, writer, path)
        if reader_kind == "fixed":
            return [] if reader["size"] == writer["size"] else [f"{_at(path)}the size of {reader['name']} has changed"]
        return self._record_problems(reader, writer, path)

    def _record_problems(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        pair = (reader["name"], writer["name"])
        if pair in self._under_way:
            return []  # the types are recursive, and this pair is being compared already
        self._under_way.add(pair)
        written = {field["name"]: field for field in writer["fields"]}
        problems = []
        for field in reader["fields"]:
            names = [field["name"], *field.get("aliases", ())]
            source = next((written[name] for name in names if name in written), None)
            place = f"{path}/{field['name']}"
            if source is not None:
                problems += self.problems(field["type"], source["type"], place)
            elif "default" not in field:
                problems.append(
                    f"{_at(place)}field {field['name']} has no default, and the other version does not write it"
                )
        self._under_way.remove(pair)
        return problems


def _definition(schema: Any, named: dict[str, Any]) -> Any:
    """A union as a list, anything else as an object with a `type`."""
    if isinstance(schema, list):
        return schema
    if isinstance(schema, str):
        return named.get(schema, {"type": schema})
    return schema if isinstance(schema["type"], str) and schema["type"] not in named else named[schema["type"]]


def _same_name(reader: dict[str, Any], writer: dict[str, Any]) -> bool:
    # The specification compares names without their namespaces; aliases are the reader's.
    names = {_last_part(name) for name in (reader["name"], *reader.get("aliases", ()))}
    return _last_part(writer["name"]) in names


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def _enum_problems(reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
    missing = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
    if not missing or reader.get("default") in reader["symbols"]:
        return []
    return [f"{_at(path)}enum {reader['name']} lacks {', '.join(missing)} and has no default"]


def _mismatch(reader: dict[str, Any], writer: dict[str, Any], path: str) -> str:
    return f"{_at(path)}{_shown(reader)} cannot read {_shown(writer)}"


def _shown(schema: dict[str, Any]) -> str:
    return f"{schema['type']} {schema['name']}" if "name" in schema else str(schema["type"])


def _at(path: str) -> str:
    return f"at {path}: " if path else ""
