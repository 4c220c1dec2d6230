"""Whether a Protobuf definition can read what another version of it wrote.

On the wire a field is a number and a value, so names do not matter. A reader must get from each message the values that were written:

- every message of the writer's definition is one of the reader's, by full name (a record may be any of them);
- a field that both have keeps its encoding, and the reader's type holds every value of the writer's (int32 may become int64, not the
  other way round); a field of one value may become repeated, a repeated one not single;
- the reader requires no field that the writer may leave out;
- fields of which the writer may set several are not in one oneof of the reader;
- a closed enum of the reader knows every number of the writer's;
- a newer version does not use the numbers and names that the older one reserves.

A field that only the writer has is ignored by the reader; one that only the reader has is absent. Both are as Protobuf intends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

from penstock.broker.schemas.definition import REASONS_MAX, shortened

STEPS_MAX: Final = 20_000

# What a reader's type gets unchanged, besides itself. A negative int32 takes 64 bits on the wire, so no unsigned type holds it.
_READS: Final[dict[int, frozenset[int]]] = {
    FieldDescriptor.TYPE_INT64: frozenset(
        {FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_ENUM}
    ),
    FieldDescriptor.TYPE_INT32: frozenset({FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_ENUM}),
    FieldDescriptor.TYPE_UINT64: frozenset({FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_BOOL}),
    FieldDescriptor.TYPE_UINT32: frozenset({FieldDescriptor.TYPE_BOOL}),
    FieldDescriptor.TYPE_SINT64: frozenset({FieldDescriptor.TYPE_SINT32}),
    FieldDescriptor.TYPE_BYTES: frozenset({FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE}),
}
_TYPE_NAMES: Final = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in FieldDescriptor.__dict__.items()
    if name.startswith("TYPE_")
}


def problems_reading(reader: FileDescriptor, writer: FileDescriptor) -> list[str]:
    """Why the reader cannot read everything of the writer; empty if it can."""
    problems = _Comparison(reader, writer).problems()
    return list(dict.fromkeys(map(shortened, problems)))[:REASONS_MAX]


def problems_reading_message(reader: Descriptor, writer: Descriptor) -> list[str]:
    """Why one message cannot be read as the other; empty if it can."""
    problems = _Comparison(reader.file, writer.file).problems_of(reader, writer)
    return list(dict.fromkeys(map(shortened, problems)))[:REASONS_MAX]


class _Comparison:
    def __init__(self, reader: FileDescriptor, writer: FileDescriptor) -> None:
        self._reader = reader
        self._writer = writer
        self._compared: set[tuple[str, str]] = set()
        self._steps_left = STEPS_MAX

    def problems(self) -> Iterator[str]:
        if self._reader.package != self._writer.package:
            yield f"the package is {_named(self._reader.package)}, in the other version {_named(self._writer.package)}"
            return
        for name, message in self._writer.message_types_by_name.items():
            own = self._reader.message_types_by_name.get(name)
            if own is None:
                yield f"message {message.full_name} is missing"
            else:
                yield from self.problems_of(own, message)

    def problems_of(self, reader: Descriptor, writer: Descriptor) -> Iterator[str]:
        pair = (reader.full_name, writer.full_name)
        if pair in self._compared:
            return
        self._compared.add(pair)
        self._steps_left -= 1
        if self._steps_left < 0:
            yield "the two versions are too complex to compare"
            return
        written = {field.number: field for field in _fields(writer)}
        for field in _fields(reader):
            source = written.get(field.number)
            if source is not None:
                yield from self._field_problems(field, source)
            if field.is_required and not (source is not None and source.is_required):
                yield f"{field.full_name} is required, and the other version may leave it out"
        for oneof in reader.oneofs:
            sources = [written[field.number] for field in oneof.fields if field.number in written]
            groups = {source.containing_oneof.name if source.containing_oneof else source.name for source in sources}
            if len(groups) > 1:
                names = ", ".join(source.name for source in sources)
                yield f"oneof {oneof.full_name} keeps one of {names}, of which the other version may set several"

    def _field_problems(self, reader: FieldDescriptor, writer: FieldDescriptor) -> Iterator[str]:
        if writer.is_repeated and not reader.is_repeated:
            yield f"{reader.full_name} is repeated in the other version"
        if reader.type == writer.type:
            if reader.message_type is not None and writer.message_type is not None:
                yield from self.problems_of(reader.message_type, writer.message_type)
            if reader.enum_type is not None and writer.enum_type is not None:
                yield from _enum_problems(reader, reader.enum_type, writer.enum_type)
        elif writer.type not in _READS.get(reader.type, frozenset()):
            yield (
                f"{reader.full_name} is {_TYPE_NAMES[reader.type]}, which does not hold every "
                f"{_TYPE_NAMES[writer.type]} of the other version"
            )


def _fields(message: Descriptor) -> list[FieldDescriptor]:
    """Its own, and the extensions that its file gives it."""
    extensions = list(message.file.extensions_by_name.values())
    waiting = list(message.file.message_types_by_name.values())
    while waiting:
        each = waiting.pop()
        extensions += each.extensions
        waiting += each.nested_types
    return [*message.fields, *(each for each in extensions if each.containing_type == message)]


def _enum_problems(field: FieldDescriptor, reader: EnumDescriptor, writer: EnumDescriptor) -> Iterator[str]:
    if reader.is_closed:
        missing = [value.name for value in writer.values if value.number not in reader.values_by_number]
        if missing:
            yield f"{field.full_name}: enum {reader.full_name} lacks {', '.join(missing)}"


def problems_following(newer: FileDescriptor, older: FileDescriptor) -> list[str]:
    """What the older version reserves is for records older still: the newer one must not use it."""
    problems = []
    for name, message in newer.message_types_by_name.items():
        reserving = descriptor_pb2.DescriptorProto()
        if name in older.message_types_by_name:
            older.message_types_by_name[name].CopyToProto(reserving)
        problems += [
            shortened(f"{field.full_name} uses number {field.number} or a name that the older version reserves")
            for field in message.fields
            if field.name in reserving.reserved_name
            or any(each.start <= field.number < each.end for each in reserving.reserved_range)
        ]
    return problems[:REASONS_MAX]


def _named(package: str) -> str:
    return package or "none"
