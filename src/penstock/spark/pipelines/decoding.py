"""Records to typed columns: on executors, a batch at a time, with the broker's own checkers.

A `Plan` is all that an executor needs to know, small and made of plain values, because it travels there with every batch. A `Decoder`
is made from it once for each process. Values are checked and decoded in bulk; only where that fails is each looked at by itself, to say
what is wrong with it. A record that does not fit gets a reason instead of columns, and never stops those beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from io import BytesIO
from typing import Any, Final, NamedTuple

import fastavro
import msgspec
import pyarrow as pa

from penstock.broker.schemas.definition import COST_UNBOUNDED, Checker
from penstock.broker.schemas.kinds import KINDS
from penstock.broker.schemas.protobuf import ProtobufDefinition
from penstock.errors import SchemaInvalid
from penstock.spark.pipelines.avro_shapes import avro_shape, parsed
from penstock.spark.pipelines.json_shapes import json_shape
from penstock.spark.pipelines.protobuf_shapes import protobuf_shape
from penstock.spark.pipelines.shapes import Shape, check_object, column_names

DECODERS_MAX: Final = 64
REASON_CHARS_MAX: Final = 400
WHOLE_VALUE: Final = "value"
"""The one column of records that are no records: a JSON Schema of a number, an Avro schema of a string."""
METADATA_COLUMNS: Final = ("key", "topic", "partition", "offset", "timestamp")
"""Beside the decoded columns; members of those names become `value_key` and so on."""
# What building a column raises where a value is not what the type says: out of range, mostly.
_UNFIT: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)


class Version(NamedTuple):
    """One version of a schema, ready to be loaded on an executor."""

    number: int
    text: str
    form: bytes


class Plan(NamedTuple):
    """How the records of one topic are decoded."""

    name: str
    kind: str
    message: str
    version: Version
    older: tuple[Version, ...] = ()
    """Avro only: versions that a record may have been written by, newest first. Its bytes do not say which."""


class Decoded(NamedTuple):
    columns: list[Any]
    """One pyarrow Array for each of `Decoder.schema`; null where a record does not fit."""
    reasons: list[str | None]
    """Why a record does not fit; None where it does."""


class _Reader(NamedTuple):
    checker: Checker
    decode: Callable[[bytes], Any]


class Decoder:
    def __init__(self, plan: Plan) -> None:
        self._label = f"{plan.name}-v{plan.version.number}"
        definition = KINDS[plan.kind].load(plan.version.text, plan.version.form, COST_UNBOUNDED)
        checker = definition.checker(plan.message)
        shape: Shape
        if plan.kind == "json":
            shape = json_shape(plan.version.text)
            self._readers = [_Reader(checker, msgspec.json.decode)]
        elif plan.kind == "avro":
            shape = avro_shape(plan.version.text)
            self._readers = [_Reader(checker, _avro_decode(plan.version, plan.version))]
            self._readers += [
                _Reader(
                    KINDS["avro"].load(each.text, each.form, COST_UNBOUNDED).checker(""),
                    _avro_decode(each, plan.version),
                )
                for each in plan.older
            ]
        else:
            assert isinstance(definition, ProtobufDefinition)
            message = definition.message_class(plan.message)
            shape = protobuf_shape(message.DESCRIPTOR)
            self._readers = [_Reader(checker, message.FromString)]
        self._convert = shape.convert
        self._is_struct = pa.types.is_struct(shape.type)
        fields = list(shape.type) if self._is_struct else [pa.field(WHOLE_VALUE, shape.type)]
        self._members = [field.name for field in fields]
        names = column_names(self._members, METADATA_COLUMNS)
        self.schema = pa.schema([pa.field(name, field.type) for name, field in zip(names, fields, strict=True)])

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Columns of the records; a record without a value has nulls in all of them."""
        present = [value for value in values if value is not None]
        try:
            rows = self._decoded_together(present)
            if rows is not None:
                everything = iter(rows)
                return Decoded(
                    self._columns([None if value is None else next(everything) for value in values]),
                    [None] * len(values),
                )
        except _UNFIT:
            pass
        return self._one_by_one(values)

    def _decoded_together(self, values: list[bytes]) -> list[Any] | None:
        if not values:
            return []
        reader = self._readers[0]
        if reader.checker.first_fault(values) is not None:
            return None
        return [self._converted(reader.decode(value)) for value in values]

    def _one_by_one(self, values: Sequence[bytes | None]) -> Decoded:
        rows: list[Any] = []
        reasons: list[str | None] = []
        for value in values:
            row, reason = (None, None) if value is None else self._one(value)
            rows.append(row)
            reasons.append(reason)
        try:
            return Decoded(self._columns(rows), reasons)
        except _UNFIT:
            pass
        # Something fits its schema and not its column; building columns of one row is slow, and this is rare.
        for place, row in enumerate(rows):
            try:
                self._columns([row])
            except _UNFIT as error:
                rows[place], reasons[place] = None, self._reason(str(error) or type(error).__name__)
        return Decoded(self._columns(rows), reasons)

    def _one(self, value: bytes) -> tuple[Any, str | None]:
        """The record as it goes into columns, or why it does not."""
        reader = self._readers[0]
        faults = reader.checker.faults(value)
        if faults:
            older = next((each for each in self._readers[1:] if not each.checker.faults(value)), None)
            if older is None:
                return None, self._reason("; ".join(faults))
            reader = older
        try:
            return self._converted(reader.decode(value)), None
        except (*_UNFIT, RecursionError, KeyError, EOFError, SchemaInvalid) as error:
            return None, self._reason(str(error) or type(error).__name__)

    def _converted(self, row: Any) -> Any:
        if self._convert is not None:
            return self._convert(row)
        if self._is_struct:
            check_object(row)
        return row

    def _columns(self, rows: list[Any]) -> list[Any]:
        if not self._is_struct:
            return [pa.array(rows, self.schema.field(0).type)]
        return [
            pa.array([None if row is None else row.get(member) for row in rows], field.type)
            for member, field in zip(self._members, self.schema, strict=True)
        ]

    def _reason(self, text: str) -> str:
        text = " ".join(text.split())
        return f"{text[:REASON_CHARS_MAX]} ({self._label})"


@lru_cache(DECODERS_MAX)
def decoder(plan: Plan) -> Decoder:
    """The decoder of a plan, made once in each process."""
    return Decoder(plan)


def version(kind: str, number: int, text: str) -> Version:
    """A version as it travels. Compiles Protobuf, so that executors need not."""
    return Version(number, text, KINDS[kind].parse(text).form if kind == ProtobufDefinition.kind else b"")


def _avro_decode(writer: Version, reader: Version) -> Callable[[bytes], Any]:
    written, _ = parsed(writer.text)
    wanted = None if writer == reader else parsed(reader.text)[0]

    def decode(value: bytes) -> Any:
        try:
            return fastavro.schemaless_reader(BytesIO(value), written, wanted)
        except fastavro.read.SchemaResolutionError as error:
            raise SchemaInvalid(f"version {writer.number} cannot be read as version {reader.number}: {error}") from None

    return decode


# --- in Spark ---

REASON: Final = "reason"
ROW: Final = "row"
RAW_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def decoding_function(plan: Plan, arrow_schema: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `mapInArrow`: the columns of the source, `row` with the decoded ones, and `reason`. The value stays where there is a reason."""

    def decode_batches(batches: Iterator[Any]) -> Iterator[Any]:
        decode = decoder(plan).decode
        row_type = arrow_schema.field(ROW).type
        for batch in batches:
            values = batch.column("value").to_pylist()
            columns, reasons = decode(values)
            row = pa.StructArray.from_arrays(
                [column.cast(field.type) for column, field in zip(columns, row_type, strict=True)],
                fields=list(row_type),
            )
            kept = [value if reason is not None else None for value, reason in zip(values, reasons, strict=True)]
            arrays = {name: batch.column(name) for name in RAW_COLUMNS if name != "value"}
            arrays |= {"value": pa.array(kept, pa.binary()), ROW: row, REASON: pa.array(reasons, pa.string())}
            yield pa.record_batch([arrays[field.name].cast(field.type) for field in arrow_schema], schema=arrow_schema)

    return decode_batches
