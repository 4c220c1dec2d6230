"""Protobuf as columns: from the message's descriptor, and from messages to plain values.

A field without presence (proto3 without `optional`) has its default where the record does not have it, as everywhere in Protobuf; one with
presence is null there. Enums become the names of their values. Well-known types become what they stand for.
Reverted values are those of Protobuf's JSON form.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from penstock.spark.pipelines.shapes import (
    DEPTH_MAX,
    TIMESTAMP,
    Shape,
    Unfit,
    from_json_text,
    iso_form,
    list_of,
    map_of,
    struct_of,
)

Read = Callable[[Any], Any]

_UNSIGNED: Final = pa.decimal128(20, 0)
_SCALARS: Final = {
    FieldDescriptor.TYPE_BOOL: Shape(pa.bool_()),
    FieldDescriptor.TYPE_INT32: Shape(pa.int32()),
    FieldDescriptor.TYPE_SINT32: Shape(pa.int32()),
    FieldDescriptor.TYPE_SFIXED32: Shape(pa.int32()),
    FieldDescriptor.TYPE_UINT32: Shape(pa.int64()),
    FieldDescriptor.TYPE_FIXED32: Shape(pa.int64()),
    FieldDescriptor.TYPE_INT64: Shape(pa.int64()),
    FieldDescriptor.TYPE_SINT64: Shape(pa.int64()),
    FieldDescriptor.TYPE_SFIXED64: Shape(pa.int64()),
    # Larger than any integer a table has.
    FieldDescriptor.TYPE_UINT64: Shape(_UNSIGNED, Decimal, int),
    FieldDescriptor.TYPE_FIXED64: Shape(_UNSIGNED, Decimal, int),
    FieldDescriptor.TYPE_FLOAT: Shape(pa.float32()),
    FieldDescriptor.TYPE_DOUBLE: Shape(pa.float64()),
    FieldDescriptor.TYPE_STRING: Shape(pa.string()),
    FieldDescriptor.TYPE_BYTES: Shape(pa.binary(), None, lambda value: b64encode(value).decode()),
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(message: Any) -> datetime:
    try:
        return _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    except OverflowError:
        raise Unfit(f"{message.seconds} seconds since 1970 are beyond what a timestamp holds") from None


def _as_json(message: Message) -> str:
    try:
        return json_format.MessageToJson(message, indent=None, ensure_ascii=False)
    except (json_format.Error, TypeError, ValueError) as error:
        raise Unfit(f"{message.DESCRIPTOR.full_name} has no JSON form: {error}") from None


_JSON_TEXT: Final = Shape(pa.string(), _as_json, from_json_text)
_WRAPPED: Final = {
    "google.protobuf.BoolValue": FieldDescriptor.TYPE_BOOL,
    "google.protobuf.Int32Value": FieldDescriptor.TYPE_INT32,
    "google.protobuf.UInt32Value": FieldDescriptor.TYPE_UINT32,
    "google.protobuf.Int64Value": FieldDescriptor.TYPE_INT64,
    "google.protobuf.UInt64Value": FieldDescriptor.TYPE_UINT64,
    "google.protobuf.FloatValue": FieldDescriptor.TYPE_FLOAT,
    "google.protobuf.DoubleValue": FieldDescriptor.TYPE_DOUBLE,
    "google.protobuf.StringValue": FieldDescriptor.TYPE_STRING,
    "google.protobuf.BytesValue": FieldDescriptor.TYPE_BYTES,
}


def protobuf_shape(message: Any) -> Shape:
    """What messages of a descriptor become: `convert` takes a message."""
    return _message(message, ())


def _message(message: Descriptor, inside: tuple[str, ...]) -> Shape:
    name = message.full_name
    if name == "google.protobuf.Timestamp":
        return Shape(TIMESTAMP, _moment, iso_form)
    if name in _WRAPPED:
        scalar = _SCALARS[_WRAPPED[name]]
        inner = scalar.convert or (lambda value: value)
        return Shape(scalar.type, lambda wrapped: inner(wrapped.value), scalar.revert)
    if name.startswith("google.protobuf.") or name in inside or len(inside) >= DEPTH_MAX:
        return _JSON_TEXT
    inside = (*inside, name)
    fields = [(field, _field(field, inside)) for field in message.fields]
    struct = struct_of({field.name: shape for field, shape in fields})
    if pa.types.is_string(struct.type):
        return _JSON_TEXT
    readers = [(field.name, _reader(field)) for field, _ in fields]
    convert = struct.convert or (lambda value: value)
    return Shape(struct.type, lambda value: convert({name: read(value) for name, read in readers}), struct.revert)


def _field(field: FieldDescriptor, inside: tuple[str, ...]) -> Shape:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key, value = inner.fields_by_name["key"], inner.fields_by_name["value"]
        key_shape = _single(key, inside)
        return map_of(key_shape.type, _single(value, inside), key_shape.convert or (lambda each: each))
    shape = _single(field, inside)
    return list_of(shape) if field.is_repeated else shape


def _single(field: FieldDescriptor, inside: tuple[str, ...]) -> Shape:
    if field.message_type is not None:
        return _message(field.message_type, inside)
    if field.enum_type is not None:
        names = {each.number: each.name for each in field.enum_type.values}
        return Shape(pa.string(), lambda number: names.get(number, str(number)))
    return _SCALARS[field.type]


def _reader(field: FieldDescriptor) -> Read:
    name = field.name
    if field.is_repeated or not field.has_presence:
        return lambda message: getattr(message, name)
    return lambda message: getattr(message, name) if message.HasField(name) else None
