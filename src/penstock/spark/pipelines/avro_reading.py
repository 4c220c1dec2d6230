"""Avro records of one version read as another: by Avro's resolution rules, with logical types where both versions agree on them.

Logical types do not change how a value is written, and fastavro goes by the writer's. So a `long` that a later version calls a
`timestamp-millis` would be read as a number and taken for microseconds by its column, and one that no longer is a time as a time. The
writer's definition is therefore given the reader's logical types where it has none, and loses those that the reader has not. Where both
have one, the writer's counts: it knows the scale that its decimals were written with.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

import fastavro

from penstock.broker.schemas.avro import PRIMITIVES
from penstock.broker.schemas.avro_wire import NAMED
from penstock.broker.schemas.json_schema import decode_definition
from penstock.errors import SchemaInvalid

_LOGICAL: Final = ("logicalType", "precision", "scale")


def parsed(text: str) -> tuple[Any, dict[str, Any]]:
    """A definition as fastavro reads by it, and its named types."""
    named: dict[str, Any] = {}
    return fastavro.parse_schema(decode_definition(text), named, _write_hint=False), named


def avro_reader(writer: int, written: str, reader: int, wanted: str) -> Callable[[bytes], Any]:
    """Return what reads values of version `writer` as version `reader`; both with their definitions."""
    reader_schema, reader_named = parsed(wanted)
    if writer == reader:
        return lambda value: fastavro.schemaless_reader(BytesIO(value), reader_schema, None)
    writer_schema, _ = parsed(written)
    writer_schema = fastavro.parse_schema(
        _Alignment(reader_named).aligned(writer_schema, reader_schema), _write_hint=False
    )

    def read(value: bytes) -> Any:
        try:
            return fastavro.schemaless_reader(BytesIO(value), writer_schema, reader_schema)
        except fastavro.read.SchemaResolutionError as error:
            raise SchemaInvalid(f"version {writer} cannot be read as version {reader}: {error}") from None

    return read


class _Alignment:
    """The writer's definition with logical types as the reader has them."""

    def __init__(self, reader_named: dict[str, Any]) -> None:
        self._reader_named = reader_named
        self._done: set[str] = set()

    def aligned(self, writer: Any, reader: Any) -> Any:
        if isinstance(writer, list):
            return [self.aligned(branch, self._branch(reader, branch)) for branch in writer]
        reader = self._branch(reader, writer)
        if isinstance(writer, str):
            return self._primitive({"type": writer}, reader) if writer in PRIMITIVES else writer
        kind = writer["type"]
        if isinstance(kind, dict | list):
            return self.aligned(kind, reader)
        if kind in ("record", "error"):
            return self._record(writer, reader)
        inner = {"array": "items", "map": "values"}.get(kind)
        if inner is not None:
            other = reader.get(inner) if isinstance(reader, dict) else None
            return {**writer, inner: self.aligned(writer[inner], other)}
        return self._primitive(writer, reader)

    def _record(self, writer: dict[str, Any], reader: Any) -> Any:
        # A named type is aligned where it is defined. Where it is used again it is the same.
        if writer["name"] in self._done:
            return writer["name"]
        self._done.add(writer["name"])
        fields = reader.get("fields", ()) if isinstance(reader, dict) else ()
        by_name = {name: field["type"] for field in fields for name in (field["name"], *field.get("aliases", ()))}
        return {
            **writer,
            "fields": [
                {**field, "type": self.aligned(field["type"], by_name.get(field["name"]))} for field in writer["fields"]
            ],
        }

    def _primitive(self, writer: dict[str, Any], reader: Any) -> Any:
        if reader is None or isinstance(reader, list):
            return writer
        wanted = reader if isinstance(reader, dict) else {}
        if "logicalType" in writer:
            return writer if "logicalType" in wanted else {k: v for k, v in writer.items() if k not in _LOGICAL}
        return {**writer, **{name: wanted[name] for name in _LOGICAL if name in wanted}}

    def _branch(self, reader: Any, writer: Any) -> Any:
        """What of a reader's union a writer's type becomes; anything but a union as it is, references followed."""
        if isinstance(reader, list):
            kind = _kind(writer)
            return next(
                (found for each in reader if _kind(found := self._branch(each, writer)) == kind),
                reader,
            )
        if isinstance(reader, str):
            return self._reader_named.get(reader, reader)
        return reader


def _kind(schema: Any) -> str:
    if isinstance(schema, dict):
        kind = schema["type"]
        return str(schema["name"]) if kind in NAMED else str(kind)
    return str(schema)
