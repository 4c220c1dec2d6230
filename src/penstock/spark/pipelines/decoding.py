"""Records to typed columns: on executors, a batch at a time, with the broker's own checkers.

A `Plan` is all that an executor needs to know, small and made of plain values, because it travels there with every batch. A `Decoder`
is made from it once for each process. Values are checked and decoded in bulk; only if that fails is each examined by itself, to say
what is wrong with it. A record that does not fit gets a reason instead of columns, and never stops the others.

A record is checked against the version that wrote it and read as the version of the plan. Which version wrote it is what the record says
(`broker/schemas/marks.py`), never what its bytes happen to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import Message

from penstock.broker.schemas.avro import AvroDefinition
from penstock.broker.schemas.definition import COST_UNBOUNDED, Checker
from penstock.broker.schemas.kinds import KINDS
from penstock.broker.schemas.marks import SCHEMA_HEADER, Frames, Framing, Known, MarkInvalid, read_mark, unmarked
from penstock.broker.schemas.protobuf import ProtobufDefinition
from penstock.broker.schemas.protobuf_compatibility import problems_reading_message
from penstock.broker.schemas.reference import SchemaType
from penstock.errors import InvalidRequest, SchemaInvalid
from penstock.spark.pipelines.avro_reading import avro_reader
from penstock.spark.pipelines.avro_shapes import avro_shape
from penstock.spark.pipelines.json_shapes import json_reader, json_shape
from penstock.spark.pipelines.protobuf_shapes import protobuf_shape
from penstock.spark.pipelines.shapes import Shape, check_object, column_names

DECODERS_MAX: Final = 64
MARKS_MAX: Final = 1_000
"""Different headers that a decoder remembers."""
REASON_CHARS_MAX: Final = 400
WHOLE_VALUE: Final = "value"
"""The one column of records that are no records: a JSON Schema of a number, an Avro schema of a string."""
METADATA_COLUMNS: Final = ("key", "topic", "partition", "offset", "timestamp")
"""Beside the decoded columns; members of those names become `value_key` and so on."""
# What building a column raises where a value is not what the type says: out of range, mostly.
_UNFIT: Final = (pa.ArrowException, AttributeError, OverflowError, TypeError, ValueError)
_UNREADABLE: Final = (*_UNFIT, RecursionError, KeyError, IndexError, EOFError, SchemaInvalid)

Unmarked = Literal["auto", "read", "reject"]


class Version(NamedTuple):
    """One version of a schema, ready to be loaded on an executor."""

    number: int
    text: str
    form: bytes
    registry_id: int = 0
    """0 if the broker gives none: then no record can name it."""


class Plan(NamedTuple):
    """How the records of one topic are decoded."""

    name: str
    kind: SchemaType
    message: str
    version: Version
    """Whose columns the records get."""
    others: tuple[Version, ...] = ()
    """Versions that may have written a record too."""
    unmarked: Unmarked | int = "auto"
    """A number is the version that wrote the records that do not say it."""
    framing: Framing | Literal["auto"] = "auto"

    @property
    def unmarked_version(self) -> int | None:
        """The version that wrote a record that does not say it, None if such a record is rejected.

        JSON and Protobuf name their fields, by name or number. Avro bytes are read by the schema that wrote them or wrongly: without a mark
        they are read only where there never was another version.
        """
        if isinstance(self.unmarked, int):
            return self.unmarked
        is_clear = self.kind != "avro" or (self.version.number == 1 and not self.others)
        return self.version.number if self.unmarked == "read" or (self.unmarked == "auto" and is_clear) else None


class Decoded(NamedTuple):
    columns: list[Any]
    """One pyarrow Array for each of `Decoder.schema`; null where a record does not fit."""
    reasons: list[str | None]
    """Why a record does not fit; None if it does."""


class Source(NamedTuple):
    """Which version wrote a value, and the value without what stands before it."""

    version: int
    payload: bytes


class _Writer(NamedTuple):
    """Reads what one version wrote as the version of the plan."""

    checker: Checker
    read: Callable[[bytes], Any]
    problem: str | None = None
    """Why none of its records can be read."""


class Decoder:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._label = f"{plan.name}-v{plan.version.number}"
        self._unmarked_version = plan.unmarked_version
        self._versions = {each.number: each for each in (*plan.others, plan.version)}
        self._writers: dict[int, _Writer] = {}
        self._marks: dict[bytes, int | MarkInvalid] = {}
        known = [
            Known(each.number, each.registry_id, crc64_of(plan.kind, each))
            for _, each in sorted(self._versions.items())
        ]
        self._frames = Frames(plan.name, plan.kind, known, plan.version.number)
        self._message: type[Message] | None = None
        if plan.kind == "protobuf":
            self._message = loaded_protobuf(plan.version).message_class(plan.message)
        shape = shape_of(plan.kind, plan.version, plan.message)
        self._writer(plan.version.number)
        self._convert = shape.convert
        self._is_struct = pa.types.is_struct(shape.type)
        self._fields = list(shape.type) if self._is_struct else [pa.field(WHOLE_VALUE, shape.type)]
        self.schema = self.schema_beside(METADATA_COLUMNS)

    def schema_beside(self, taken: Iterable[str]) -> Any:
        """Fields for the columns besides others of these names."""
        names = column_names([field.name for field in self._fields], taken)
        return pa.schema([pa.field(name, field.type) for name, field in zip(names, self._fields, strict=True)])

    def decode(self, values: Sequence[bytes | None], marks: Sequence[bytes | None] | None = None) -> Decoded:
        """Columns of the records; a record without a value has nulls in all of them. `marks` are the headers that name versions."""
        rows: list[Any] = [None] * len(values)
        reasons: list[str | None] = [None] * len(values)
        for number, places, payloads in self._by_version(values, marks, reasons):
            for place, row, reason in zip(places, *self._rows(number, payloads), strict=True):
                rows[place], reasons[place] = row, reason
        try:
            return Decoded(self._columns(rows), reasons)
        except _UNFIT:
            pass
        # Something fits its schema and not its column; building columns of one row is slow, and this is rare.
        for place, row in enumerate(rows):
            try:
                self._columns([row])
            except _UNFIT as error:
                rows[place], reasons[place] = None, self._reason(_said(error))
        return Decoded(self._columns(rows), reasons)

    # -- which version ----------------------------------------------------------------------------------------------------

    def _by_version(
        self, values: Sequence[bytes | None], marks: Sequence[bytes | None] | None, reasons: list[str | None]
    ) -> Iterator[tuple[int, Sequence[int], list[bytes]]]:
        """Yield each version with the places and payloads of its records. Sets the reasons of those that have none."""
        if (
            (marks is None or all(mark is None for mark in marks))
            and self._unmarked_version is not None
            and not self._has_frames(values)
        ):
            places = [place for place, value in enumerate(values) if value is not None]
            if places:
                yield self._unmarked_version, places, [value for value in values if value is not None]
            return
        found: dict[int, tuple[list[int], list[bytes]]] = {}
        for place, value in enumerate(values):
            if value is None:
                continue
            try:
                number, payload = self._source(value, marks, place)
            except MarkInvalid as error:
                reasons[place] = self._reason(str(error))
                continue
            places, payloads = found.setdefault(number, ([], []))
            places.append(place)
            payloads.append(payload)
        for number, (places, payloads) in found.items():
            yield number, places, payloads

    def _has_frames(self, values: Sequence[bytes | None]) -> bool:
        return self._plan.framing not in ("header", "none") and self._frames.any(values)

    def _source(self, value: bytes, marks: Sequence[bytes | None] | None, place: int) -> Source:
        """Raises MarkInvalid."""
        framing, mark = self._plan.framing, None if marks is None else marks[place]
        if mark is not None and framing in ("auto", "header"):
            number = self._marks.get(mark)
            if number is None:
                if len(self._marks) >= MARKS_MAX:
                    self._marks.clear()
                number = self._marks[mark] = self._marked(mark)
            if isinstance(number, MarkInvalid):
                raise number
            return Source(number, value)
        frame = None if framing in ("header", "none") else self._frames.find(value)
        if frame is not None and framing in ("auto", "single-object" if frame.is_single_object else "confluent"):
            if frame.message is not None:
                self._check_message(frame.version, frame.message)
            return Source(frame.version, value[frame.size_bytes :])
        if self._unmarked_version is None:
            look = "load records with includeHeaders, or " if marks is None else ""
            remedy = f'; to read this one, {look}name the version that wrote it, as in unmarked = "{self._plan.name}:1"'
            raise unmarked(self._plan.name, self._plan.version.number, remedy)
        return Source(self._unmarked_version, value)

    def _marked(self, mark: bytes) -> int | MarkInvalid:
        """The version that a header names, or why it names none."""
        try:
            reference = read_mark(mark)
            if reference.name != self._plan.name:
                raise MarkInvalid(f"it was written by {reference}, and not by a version of schema {self._plan.name}")
            if reference.version not in self._versions:
                raise MarkInvalid(f"it was written by {reference}, which is not known here")
            if self._message is not None:
                written = loaded_protobuf(self._versions[reference.version])
                try:
                    path = written.message_path(reference.message)
                except InvalidRequest as error:
                    raise MarkInvalid(str(error)) from None
                self._check_message(reference.version, path)
        except MarkInvalid as error:
            return error
        return reference.version

    def _check_message(self, number: int, path: tuple[int, ...]) -> None:
        assert self._message is not None
        name = self._message.DESCRIPTOR.full_name
        try:
            matches = loaded_protobuf(self._versions[number]).message_path(name) == path
        except InvalidRequest:
            matches = False
        if not matches:
            raise MarkInvalid(f"it is another message of version {number}, and not {name}")

    # -- rows -------------------------------------------------------------------------------------------------------------

    def _writer(self, number: int) -> _Writer:
        writer = self._writers.get(number)
        if writer is None:
            writer = self._writers[number] = self._made_writer(self._versions[number])
        return writer

    def _made_writer(self, version: Version) -> _Writer:
        plan = self._plan
        if plan.kind == "protobuf":
            assert self._message is not None
            descriptor: Any = self._message.DESCRIPTOR
            written = loaded_protobuf(version)
            message: Any = written.message_class(descriptor.full_name)
            problems = problems_reading_message(descriptor, message.DESCRIPTOR) if version != plan.version else []
            problem = f"version {version.number} cannot be read as version {plan.version.number}: {'; '.join(problems)}"
            return _Writer(
                written.checker(descriptor.full_name), self._message.FromString, problem if problems else None
            )
        checker = KINDS[plan.kind].load(version.text, version.form, COST_UNBOUNDED).checker("")
        if plan.kind == "json":
            return _Writer(checker, json_reader(plan.version.text))
        read = avro_reader(version.number, version.text, plan.version.number, plan.version.text)
        return _Writer(checker, read)

    def _rows(self, number: int, payloads: list[bytes]) -> tuple[Sequence[Any], Sequence[str | None]]:
        """The records of one version as they go into columns, and why some do not."""
        writer = self._writer(number)
        if writer.problem is not None:
            return [None] * len(payloads), [self._reason(writer.problem)] * len(payloads)
        try:
            if writer.checker.first_fault(payloads) is None:
                return [self._converted(writer.read(each)) for each in payloads], [None] * len(payloads)
        except _UNREADABLE:
            pass
        rows, reasons = zip(*[self._one(writer, each) for each in payloads], strict=True)
        return rows, reasons

    def _one(self, writer: _Writer, payload: bytes) -> tuple[Any, str | None]:
        """The record as it goes into columns, or why it does not."""
        faults = writer.checker.faults(payload)
        if faults:
            return None, self._reason("; ".join(faults))
        try:
            return self._converted(writer.read(payload)), None
        except _UNREADABLE as error:
            return None, self._reason(_said(error))

    def _converted(self, row: Any) -> Any:
        if self._convert is not None:
            return self._convert(row)
        if self._is_struct:
            check_object(row)
        return row

    def _columns(self, rows: list[Any]) -> list[Any]:
        if not self._is_struct:
            return [pa.array(rows, self._fields[0].type)]
        return [
            pa.array([None if row is None else row.get(field.name) for row in rows], field.type)
            for field in self._fields
        ]

    def _reason(self, text: str) -> str:
        text = " ".join(text.split())
        return f"{text[:REASON_CHARS_MAX]} ({self._label})"


@lru_cache(DECODERS_MAX)
def decoder(plan: Plan) -> Decoder:
    """The decoder of a plan, made once in each process."""
    return Decoder(plan)


def version(kind: str, number: int, text: str, registry_id: int = 0) -> Version:
    """A version as it travels. Compiles Protobuf, so that executors need not."""
    form = KINDS[kind].parse(text).form if kind == ProtobufDefinition.kind else b""
    return Version(number, text, form, registry_id)


def shape_of(kind: SchemaType, version: Version, message: str) -> Shape:
    """What the records of a version become."""
    if kind == "json":
        return json_shape(version.text)
    if kind == "avro":
        return avro_shape(version.text)
    return protobuf_shape(loaded_protobuf(version).message_class(message).DESCRIPTOR)


@lru_cache(DECODERS_MAX)
def loaded_protobuf(version: Version) -> ProtobufDefinition:
    """The definition of a version, made once in each process."""
    return ProtobufDefinition.load(version.text, version.form, COST_UNBOUNDED)


def crc64_of(kind: SchemaType, version: Version) -> bytes:
    """What marks a version of Avro in single-object encoding; empty for other kinds."""
    return AvroDefinition.load(version.text, b"", COST_UNBOUNDED).crc64 if kind == "avro" else b""


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


# --- in Spark ---

REASON: Final = "reason"
ROW: Final = "row"
RAW_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def header_marks(headers: Any) -> list[bytes | None] | None:
    """The headers of each record that name versions, from a column of headers; None if there are none."""
    parents = pc.list_parent_indices(headers)
    pairs = pc.list_flatten(headers)
    chosen = pc.equal(pairs.field("key"), SCHEMA_HEADER)
    found = pc.filter(parents, chosen).to_pylist()
    if not found:
        return None
    marks: list[bytes | None] = [None] * len(headers)
    for place, mark in zip(found, pc.filter(pairs.field("value"), chosen).to_pylist(), strict=True):
        # Two that differ name no version, which is said when the mark is read.
        before = marks[place]
        marks[place] = mark or b"" if before is None or before == mark else before + b", " + (mark or b"")
    return marks


def decoding_function(plan: Plan, arrow_schema: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `mapInArrow`: the columns of the source, `row` with the decoded ones, and `reason`. The value stays where there is a reason."""

    def decode_batches(batches: Iterator[Any]) -> Iterator[Any]:
        decode = decoder(plan).decode
        row_type = arrow_schema.field(ROW).type
        for batch in batches:
            values = batch.column("value").to_pylist()
            columns, reasons = decode(values, header_marks(batch.column("headers")))
            row = pa.StructArray.from_arrays(
                [column.cast(field.type) for column, field in zip(columns, row_type, strict=True)],
                fields=list(row_type),
            )
            kept = [value if reason is not None else None for value, reason in zip(values, reasons, strict=True)]
            arrays = {name: batch.column(name) for name in RAW_COLUMNS if name != "value"}
            arrays |= {"value": pa.array(kept, pa.binary()), ROW: row, REASON: pa.array(reasons, pa.string())}
            yield pa.record_batch([arrays[field.name].cast(field.type) for field in arrow_schema], schema=arrow_schema)

    return decode_batches
