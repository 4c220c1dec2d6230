"""Records as JSON, for people: what a value says, read with the schema that its topic is bound to.

A value is checked first and read only if it is sound, so that bytes from before the binding, or from elsewhere, cannot make a reader run
forever. This happens in a worker thread, record by record, up to a bound on the bytes of one call.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import fastavro
import msgspec
from google.protobuf import json_format

from penstock.broker.schemas.avro import AvroDefinition
from penstock.broker.schemas.decoded import NOT_DECODED, Decoded
from penstock.broker.schemas.entries import Version
from penstock.broker.schemas.kinds import KINDS
from penstock.broker.schemas.protobuf import ProtobufDefinition
from penstock.errors import InvalidRequest
from penstock.workers import Check

DECODED_BYTES_MAX: Final = 1 << 20
"""Of the values of one call; those beyond it are left as they are."""


class Writing(NamedTuple):
    """A value, and what wrote it."""

    value: bytes
    """Without its frame."""
    version: Version
    message: str
    """For a Protobuf schema; empty for its first, unless `path` says which."""
    path: tuple[int, ...] | None
    schema: str
    """The version in words."""


def decode_values(writings: Sequence[Writing | Decoded], check: Check) -> list[Decoded]:
    """Return each value as JSON, as far as it follows the version that wrote it; what is decided already stays."""
    readers: dict[tuple[str, tuple[int, ...] | None], _Reader] = {}
    decoded: list[Decoded] = []
    size_bytes = 0
    for writing in writings:
        if isinstance(writing, Decoded):
            decoded.append(writing)
            continue
        check()
        size_bytes += len(writing.value)
        if size_bytes > DECODED_BYTES_MAX:
            decoded.append(NOT_DECODED)
            continue
        key = writing.schema, writing.path
        reader = readers.get(key)
        if reader is None:
            reader = readers[key] = _reader(writing)
        decoded.append(reader(writing.value))
    return decoded


_Reader = Callable[[bytes], Decoded]


def _reader(writing: Writing) -> _Reader:
    version, schema = writing.version, writing.schema
    definition = KINDS[version.type_].load(version.text, version.form, version.cost)
    try:
        path = writing.path
        message = (
            writing.message
            if path is None or not isinstance(definition, ProtobufDefinition)
            else definition.message_at(path)
        )
        checker = definition.checker(message)
    except InvalidRequest as error:
        reason = error.message
        return lambda value: Decoded(None, schema, reason)
    as_json = _as_json(definition, message)

    def read(value: bytes) -> Decoded:
        fault = checker.first_fault([value])
        return Decoded(as_json(value), schema) if fault is None else Decoded(None, schema, fault.reason)

    return read


def _as_json(definition: Any, message: str) -> Callable[[bytes], bytes]:
    if isinstance(definition, AvroDefinition):
        schema = definition.schema
        return lambda value: msgspec.json.encode(
            fastavro.schemaless_reader(io.BytesIO(value), schema, None), enc_hook=str
        )
    if isinstance(definition, ProtobufDefinition):
        message_class = definition.message_class(message)
        return lambda value: json_format.MessageToJson(
            message_class.FromString(value), preserving_proto_field_name=True, indent=None
        ).encode()
    return bytes
