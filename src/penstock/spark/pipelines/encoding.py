"""Typed columns to records: on executors, with what a plan says, checked as the broker would check them.

The columns are those that decoding gives, so that what was decoded can be encoded again. A row becomes a plain value (`Shape.revert`), that
is encoded, and the bytes are checked against the schema. A row that does not fit fails the task, so that the writer notices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from typing import Any, Final, NamedTuple

import fastavro
import msgspec
import pyarrow as pa
from google.protobuf import json_format

from penstock.broker.schemas.definition import COST_UNBOUNDED
from penstock.broker.schemas.kinds import KINDS
from penstock.broker.schemas.marks import Framing, confluent_frame, mark_of, single_object_frame
from penstock.broker.schemas.reference import Reference, SchemaType
from penstock.errors import InvalidRequest, ValidationFailed
from penstock.spark.pipelines.avro_reading import parsed
from penstock.spark.pipelines.decoding import (
    DECODERS_MAX,
    METADATA_COLUMNS,
    WHOLE_VALUE,
    Version,
    crc64_of,
    loaded_protobuf,
    shape_of,
)
from penstock.spark.pipelines.shapes import column_names

_UNFIT: Final = (AttributeError, KeyError, OverflowError, TypeError, ValueError, json_format.Error)
_JSON: Final = msgspec.json.Encoder(decimal_format="number")


class EncodingPlan(NamedTuple):
    """How rows are encoded. Plain values, because it travels to executors."""

    name: str
    kind: SchemaType
    message: str
    version: Version
    framing: Framing

    @property
    def mark(self) -> bytes:
        """The header of records whose framing is one."""
        return mark_of(Reference(self.name, self.version.number, self.message))


class Encoder:
    def __init__(self, plan: EncodingPlan) -> None:
        """Raises InvalidRequest if records of the schema cannot be framed so."""
        self._label = f"{plan.name}-v{plan.version.number}"
        shape = shape_of(plan.kind, plan.version, plan.message)
        self._revert = shape.revert
        is_struct = pa.types.is_struct(shape.type)
        fields = list(shape.type) if is_struct else [pa.field(WHOLE_VALUE, shape.type)]
        names = column_names([field.name for field in fields], METADATA_COLUMNS)
        self._members = None if not is_struct else {name: each.name for name, each in zip(names, fields, strict=True)}
        self.schema = pa.schema([pa.field(name, field.type) for name, field in zip(names, fields, strict=True)])
        definition = KINDS[plan.kind].load(plan.version.text, plan.version.form, COST_UNBOUNDED)
        self._checker = definition.checker(plan.message)
        self._frame = _frame(plan, self._checker.message_path)
        self._encoded = _encoder(plan)

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> list[bytes]:
        """Rows with the columns of `schema`, or some of them, as values. Raises ValidationFailed."""
        values = [self._value(place, row) for place, row in enumerate(rows)]
        fault = self._checker.first_fault(values)
        if fault is not None:
            raise self._failed(fault.row, fault.reason, rows[fault.row])
        return [self._frame + value for value in values] if self._frame else values

    def _value(self, place: int, row: Mapping[str, Any]) -> bytes:
        try:
            record: Any
            if self._members is None:
                record = row.get(self.schema.field(0).name)
            else:
                record = {member: row.get(name) for name, member in self._members.items()}
            return self._encoded(record if self._revert is None else self._revert(record))
        except _UNFIT as error:
            raise self._failed(place, str(error) or type(error).__name__, row) from None

    def _failed(self, place: int, reason: str, row: Mapping[str, Any]) -> ValidationFailed:
        shown = str({name: row.get(name) for name in self.schema.names})
        return ValidationFailed(
            f"row {place} of a batch does not fit: {' '.join(reason.split())} ({self._label}); it is "
            f"{shown if len(shown) <= _SHOWN_CHARS_MAX else shown[:_SHOWN_CHARS_MAX] + '...'}"
        )


_SHOWN_CHARS_MAX: Final = 300


@lru_cache(DECODERS_MAX)
def encoder(plan: EncodingPlan) -> Encoder:
    """The encoder of a plan, made once in each process."""
    return Encoder(plan)


def _encoder(plan: EncodingPlan) -> Callable[[Any], bytes]:
    if plan.kind == "json":
        return _JSON.encode
    if plan.kind == "avro":
        schema, _ = parsed(plan.version.text)

        def avro_bytes(record: Any) -> bytes:
            buffer = BytesIO()
            fastavro.schemaless_writer(buffer, schema, record)
            return buffer.getvalue()

        return avro_bytes
    message: Any = loaded_protobuf(plan.version).message_class(plan.message)

    def protobuf_bytes(record: Any) -> bytes:
        encoded: bytes = json_format.ParseDict(record, message()).SerializeToString(deterministic=True)
        return encoded

    return protobuf_bytes


def _frame(plan: EncodingPlan, message_path: tuple[int, ...]) -> bytes:
    match plan.framing:
        case "confluent":
            if not plan.version.registry_id:
                raise InvalidRequest(
                    f"the broker has no registry id for {plan.name}:{plan.version.number}: use a newer one"
                )
            return confluent_frame(plan.version.registry_id, message_path if plan.kind == "protobuf" else None)
        case "single-object":
            if plan.kind != "avro":
                raise InvalidRequest(
                    f"schema {plan.name} is {plan.kind}, and only Avro has single-object encoding: use header or confluent"
                )
            return single_object_frame(crc64_of(plan.kind, plan.version))
        case _:
            return b""
