"""Records as JSON, for people: what a value says, read with the schema that its topic is bound to.

A value is checked first and read only if it is sound, so that bytes from before the binding, or from elsewhere, cannot make a reader run
for ever. This happens in a worker thread, record by record, up to a bound on the bytes of one call.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, Final

import fastavro
import msgspec
from google.protobuf import json_format

from penstock.broker.schemas.avro import AvroDefinition
from penstock.broker.schemas.decoded import NOT_DECODED, Decoded
from penstock.broker.schemas.kinds import KINDS
from penstock.broker.schemas.protobuf import ProtobufDefinition
from penstock.broker.schemas.registry import Version
from penstock.workers import Check

DECODED_BYTES_MAX: Final = 1 << 20
"""Of the values of one call; those beyond it are left as they are."""


def decode_values(
    version: Version, message: str, schema: str, values: Sequence[bytes | None], check: Check
) -> list[Decoded]:
    """Return each value as JSON, as far as it follows a version of a schema."""
    definition = KINDS[version.type_].load(version.text, version.form, version.cost)
    checker = definition.checker(message)
    read = _reader(definition, message)
    decoded: list[Decoded] = []
    size_bytes = 0
    for value in values:
        check()
        size_bytes += len(value or b"")
        if value is None or size_bytes > DECODED_BYTES_MAX:
            decoded.append(NOT_DECODED)
            continue
        fault = checker.first_fault([value])
        if fault is not None:
            decoded.append(Decoded(None, schema, fault.reason))
        else:
            decoded.append(Decoded(read(value), schema))
    return decoded


def _reader(definition: Any, message: str) -> Callable[[bytes], bytes]:
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
