"""Layouts of FlyMQ messages, compiled from the annotations of their fields.

A field is annotated with its type and its layout: `topic: Str`, `offset: U64`, `roles: Annotated[list[Str], AtMost(ROLES_MAX)]`. The
type is what type checkers see, the layout is how the value is written and read. A class with such fields (a dataclass, a named tuple)
is a record, and its fields follow one another on the wire. A list has no default maximum: one without `AtMost` does not compile.

`record_of` compiles a class once. Nothing here reflects while a message is encoded or decoded.
"""

from __future__ import annotations

import dataclasses
import struct
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from functools import cache, lru_cache
from itertools import groupby, starmap
from operator import attrgetter
from struct import Struct
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin, get_type_hints

from penstock.errors import InvalidRequest
from penstock.protocols.bytes import TEXT8_BYTES_MAX, TEXT16_BYTES_MAX, ByteReader, text8, text16
from penstock.protocols.flymq.wire import PAYLOAD_BYTES_MAX

_COUNT = Struct(">I")


class PayloadTooLarge(Exception):
    """A payload reached `size_bytes`, which is more than a frame holds. More may have followed."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"at least {size_bytes} bytes")
        self.size_bytes = size_bytes


class Pieces:
    """A payload under construction. What is too large for a frame is noticed at the first piece that does not fit."""

    __slots__ = ("_bytes_max", "_parts", "size_bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []
        self.size_bytes = 0

    def add(self, part: bytes) -> None:
        self.size_bytes += len(part)
        if self.size_bytes > self._bytes_max:
            raise PayloadTooLarge(self.size_bytes)
        self._parts.append(part)

    def reserve_count(self) -> int:
        """Make room for a count that is not known yet, and return its place."""
        self.add(bytes(_COUNT.size))
        return len(self._parts) - 1

    def set_count(self, place: int, count: int) -> None:
        self._parts[place] = _COUNT.pack(count)

    def join(self, head: bytes = b"") -> bytes:
        return b"".join((head, *self._parts))


class AtMost(NamedTuple):
    """The maximum number of items of a list. Every list has one."""

    items: int


class Label(NamedTuple):
    """The name of a field in error messages and in the reference, if it differs from the attribute's."""

    text: str


class Tail(NamedTuple):
    """Marks the fields at the end that a message may lack, all of them or none; they have defaults.

    The tail is not sent if all its fields have their defaults, so that deployed peers get what their own side sends.
    """

    always_sent: bool = False


TAIL: Final = Tail()


class NotSent:
    """Marks what the reader of a message found out besides its fields; these attributes come last and have defaults."""


NOT_SENT: Final = NotSent()


class Layout(ABC):
    """How a value is written and read."""

    notation: str
    """As the reference of the protocol shows it."""
    bytes_min: int
    """The size of the smallest value."""
    describes_itself: bool = False
    """The notation says what the values mean, so the reference adds no name of a field."""

    @abstractmethod
    def write(self, value: Any, pieces: Pieces) -> None: ...

    @abstractmethod
    def read(self, reader: ByteReader, name: str) -> Any:
        """Raises ProtocolViolation, which names the field."""


class Number(Layout):
    """An integer of fixed size."""

    def __init__(self, notation: str, code: str) -> None:
        self.notation = notation
        self.code = code
        self._struct = Struct(">" + code)
        self.bytes_min = self._struct.size

    def write(self, value: Any, pieces: Pieces) -> None:
        pieces.add(self._struct.pack(value))

    def read(self, reader: ByteReader, name: str) -> Any:
        return self._struct.unpack(reader.take(self.bytes_min, name))[0]


class Flag(Layout):
    notation = "bool"
    bytes_min = 1

    def write(self, value: Any, pieces: Pieces) -> None:
        pieces.add(b"\x01" if value else b"\x00")

    def read(self, reader: ByteReader, name: str) -> Any:
        return reader.boolean(name)


class Text(Layout):
    """UTF-8 after a u16 length."""

    notation = "str"
    bytes_min = 2
    bytes_max = TEXT16_BYTES_MAX

    def write(self, value: Any, pieces: Pieces) -> None:
        pieces.add(text16(value))

    def read(self, reader: ByteReader, name: str) -> Any:
        return reader.text16(name)


class ShortText(Layout):
    """UTF-8 after a u8 length."""

    notation = "s8"
    bytes_min = 1
    bytes_max = TEXT8_BYTES_MAX

    def write(self, value: Any, pieces: Pieces) -> None:
        pieces.add(text8(value))

    def read(self, reader: ByteReader, name: str) -> Any:
        return reader.text8(name)


class EitherText(ShortText):
    """A word after a u8 length, as deployed clients send it, or after a u16 length. Written in the short form.

    The word is never empty nor 256 bytes long, so a first byte of zero is the high half of a u16 length.
    """

    notation = "s8 or str"

    def read(self, reader: ByteReader, name: str) -> Any:
        return reader.text16(name) if reader.peek(1) == b"\0" else reader.text8(name)


class Blob(Layout):
    """Raw bytes after a u32 length; the frame bounds them."""

    notation = "blob"
    bytes_min = 4

    def write(self, value: Any, pieces: Pieces) -> None:
        pieces.add(_COUNT.pack(len(value)))
        pieces.add(value)

    def read(self, reader: ByteReader, name: str) -> Any:
        return reader.blob32(name)


class Nullable(Layout):
    """A value of another layout, of which one stands for None."""

    def __init__(self, layout: Layout, null: Any) -> None:
        self.layout = layout
        self.null = null
        self.notation = layout.notation
        self.bytes_min = layout.bytes_min

    def write(self, value: Any, pieces: Pieces) -> None:
        self.layout.write(self.null if value is None else value, pieces)

    def read(self, reader: ByteReader, name: str) -> Any:
        value = self.layout.read(reader, name)
        return None if value == self.null else value


class Opaque(Layout):
    """The rest of a payload, whose layout is coded by hand; `notation` describes it."""

    bytes_min = 0
    describes_itself = True

    def __init__(self, notation: str) -> None:
        self.notation = notation

    def write(self, value: Any, pieces: Pieces) -> None:
        pieces.add(value)

    def read(self, reader: ByteReader, name: str) -> Any:
        return reader.take(reader.remaining, name)


class Items(Layout):
    """A u32 count and that many items, read as a list or a tuple. Any iterable is written, and no further than a frame holds."""

    def __init__(self, item: Layout, items_max: int, collect: type[list[Any] | tuple[Any, ...]] = list) -> None:
        self.item = item
        self.items_max = items_max
        self.collect = collect
        self.notation = f"{item.notation}*"
        self.bytes_min = 4

    def write(self, value: Any, pieces: Pieces) -> None:
        if isinstance(value, Collection) and isinstance(self.item, Number | Numbers):
            pieces.add(_COUNT.pack(len(value)))
            if isinstance(self.item, Number):
                pieces.add(struct.pack(f">{len(value)}{self.item.code}", *value))
            else:
                pieces.add(b"".join(starmap(self.item.struct.pack, value)))
            return
        place, count = pieces.reserve_count(), 0
        for count, item in enumerate(value, 1):  # noqa: B007 - the last one counts
            self.item.write(item, pieces)
        pieces.set_count(place, count)

    def read(self, reader: ByteReader, name: str) -> Any:
        count = reader.count32(name, self.item.bytes_min, self.items_max)
        if isinstance(self.item, Number):
            return self.collect(
                struct.unpack(f">{count}{self.item.code}", reader.take(count * self.item.bytes_min, name))
            )
        if isinstance(self.item, Numbers):
            return self.collect(self.item.struct.iter_unpack(reader.take(count * self.item.bytes_min, name)))
        return self.collect(self.item.read(reader, name) for _ in range(count))


class Pairs(Items):
    """A u32 count and that many pairs of key and value, as a dictionary."""

    def write(self, value: Any, pieces: Pieces) -> None:
        super().write(value.items(), pieces)

    def read(self, reader: ByteReader, name: str) -> Any:
        return dict(super().read(reader, name))


class Columns(Layout):
    """A u32 count, that many heads, then that many details, which deployed brokers do not send and deployed clients do not read.

    The value is a list of pairs of head and details; details that were not sent are None.
    """

    def __init__(self, head: type, details: type, items_max: int) -> None:
        self.head = record_of(head)
        self.details = record_of(details)
        self.items_max = items_max
        self.notation = f"u32 count, {self.head.notation} count times [, {self.details.notation} count times]"
        self.bytes_min = 4

    def write(self, value: Any, pieces: Pieces) -> None:
        place, rows = pieces.reserve_count(), []
        for head, details in value:
            self.head.write(head, pieces)
            rows.append(details)
        for details in rows:
            self.details.write(details, pieces)
        pieces.set_count(place, len(rows))

    def read(self, reader: ByteReader, name: str) -> Any:
        heads = [self.head.read(reader) for _ in range(reader.count32(name, self.head.bytes_min, self.items_max))]
        if not reader.remaining:
            return [(head, None) for head in heads]
        return [(head, self.details.read(reader)) for head in heads]


class Group(Layout):
    """A tuple: values that follow one another."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self.layouts = layouts
        self.notation = "{" + ", ".join(each.notation for each in layouts) + "}"
        self.bytes_min = sum(each.bytes_min for each in layouts)

    def write(self, value: Any, pieces: Pieces) -> None:
        for layout, part in zip(self.layouts, value, strict=True):
            layout.write(part, pieces)

    def read(self, reader: ByteReader, name: str) -> Any:
        return tuple(layout.read(reader, name) for layout in self.layouts)


class Numbers(Group):
    """A tuple of integers, packed and unpacked at once."""

    def __init__(self, layouts: Sequence[Number]) -> None:
        super().__init__(layouts)
        self.struct = Struct(">" + "".join(each.code for each in layouts))

    def write(self, value: Any, pieces: Pieces) -> None:
        pieces.add(self.struct.pack(*value))

    def read(self, reader: ByteReader, name: str) -> Any:
        return self.struct.unpack(reader.take(self.bytes_min, name))


class Field(NamedTuple):
    name: str
    label: str
    layout: Layout
    tail: Tail | None

    @property
    def notation(self) -> str:
        if self.layout.describes_itself:
            return self.layout.notation
        return f"{self.layout.notation} {self.label.replace(' ', '_')}"


class _Step(NamedTuple):
    """One field, or neighbours that are numbers."""

    fields: Sequence[Field]
    layout: Layout
    get: attrgetter[Any]
    """Takes the value of the field, or a tuple of values, from a message."""


class Record(Layout):
    """The fields of a class, one after another."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.fields = _fields_of(kind)
        head = [each for each in self.fields if each.tail is None]
        self._tail = self.fields[len(head) :]
        if any(each.tail is None for each in self._tail):
            raise TypeError(f"{kind.__name__}: a field after the tail is not marked as one of it")
        self._steps = _steps(head)
        self._tail_steps = _steps(self._tail)
        self._defaults = [_default(kind, each.name) for each in self._tail]
        self.always_sent = any(each.tail and each.tail.always_sent for each in self._tail)
        self.notation = "{" + self.fields_notation + "}"
        self.bytes_min = sum(each.layout.bytes_min for each in head)

    @property
    def fields_notation(self) -> str:
        head = ", ".join(each.notation for each in self.fields if each.tail is None)
        tail = ", ".join(each.notation for each in self._tail)
        if not tail:
            return head
        return f"{head} [, {tail}]" if head else f"[{tail}]"

    @property
    def has_tail(self) -> bool:
        return bool(self._tail)

    def write(self, value: Any, pieces: Pieces) -> None:
        try:
            for step in self._steps:
                step.layout.write(step.get(value), pieces)
            if self._tail and (
                self.always_sent or self._defaults != [getattr(value, each.name) for each in self._tail]
            ):
                for step in self._tail_steps:
                    step.layout.write(step.get(value), pieces)
        except struct.error:
            raise self._out_of_range(value) from None

    def _out_of_range(self, value: Any) -> InvalidRequest:
        """Write again, field by field, to name the one at fault."""
        for each in self.fields:
            number = getattr(value, each.name)
            try:
                each.layout.write(number, Pieces(PAYLOAD_BYTES_MAX))
            except struct.error:
                return InvalidRequest(f"{each.label} {number} is out of range: it is sent as {each.layout.notation}")
        raise AssertionError("a message with nothing wrong with it was refused")

    def read(self, reader: ByteReader, name: str = "") -> Any:
        values = _read(self._steps, reader)
        if self._tail and reader.remaining:
            values += _read(self._tail_steps, reader)
        return self.kind(*values)


class Shared(Layout):
    """A record, frozen and hashable, that is the same in many items of a list: it is encoded once."""

    def __init__(self, kind: type) -> None:
        self.record = record_of(kind)
        self.notation = self.record.notation
        self.bytes_min = self.record.bytes_min
        self._encode = lru_cache(maxsize=16)(self._encoded)

    def write(self, value: Any, pieces: Pieces) -> None:
        pieces.add(self._encode(value))

    def read(self, reader: ByteReader, name: str) -> Any:
        return self.record.read(reader)

    def _encoded(self, value: Any) -> bytes:
        pieces = Pieces(PAYLOAD_BYTES_MAX)
        self.record.write(value, pieces)
        return pieces.join()


class OneOf(Layout):
    """One of several records, chosen by the form of the request; a client of ours reads the first."""

    def __init__(self, *kinds: type) -> None:
        self.records = [record_of(kind) for kind in kinds]
        self.notation = "; or ".join(record.fields_notation for record in self.records)
        self.bytes_min = min(record.bytes_min for record in self.records)

    def write(self, value: Any, pieces: Pieces) -> None:
        kind: type = type(value)
        record_of(kind).write(value, pieces)

    def read(self, reader: ByteReader, name: str) -> Any:
        return self.records[0].read(reader)


class Sized(Layout):
    """A record after its size, a u32."""

    def __init__(self, kind: type) -> None:
        self.record = record_of(kind)
        self.notation = f"{{u32 size, {self.record.notation}}}"
        self.bytes_min = 4 + self.record.bytes_min

    def write(self, value: Any, pieces: Pieces) -> None:
        place, start = pieces.reserve_count(), pieces.size_bytes
        self.record.write(value, pieces)
        pieces.set_count(place, pieces.size_bytes - start)

    def read(self, reader: ByteReader, name: str) -> Any:
        inner = ByteReader(reader.blob32(name))
        value = self.record.read(inner)
        inner.finish(self.record.fields[-1].label)
        return value


# --- types of fields ---

Str = Annotated[str, Text()]
Str8 = Annotated[str, ShortText()]
Word = Annotated[str, EitherText()]
Bytes = Annotated[bytes, Blob()]
Key = Annotated[bytes | None, Nullable(Blob(), b"")]
"""A record's key; an empty one is none."""
Bool = Annotated[bool, Flag()]
U8 = Annotated[int, Number("u8", "B")]
U16 = Annotated[int, Number("u16", "H")]
U32 = Annotated[int, Number("u32", "I")]
I32 = Annotated[int, Number("i32", "i")]
U64 = Annotated[int, Number("u64", "Q")]
I64 = Annotated[int, Number("i64", "q")]

# --- from annotations to layouts ---


@cache
def record_of(kind: type) -> Record:
    return Record(kind)


def layout_of(hint: Any, *, whole: bool = False) -> Layout:
    """The layout that a type with its annotations stands for. Raises TypeError if there is none.

    `whole`: the value is all of a message, so it may have a tail.
    """
    marks = _marks(hint)
    kind = hint.__origin__ if marks else hint
    for mark in marks:
        if isinstance(mark, Layout):
            return mark
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _group([layout_of(each) for each in arguments])
    if origin in (list, dict, tuple, Iterable, Sequence):
        items_max = next((mark.items for mark in marks if isinstance(mark, AtMost)), None)
        if items_max is None:
            raise TypeError(f"{kind} has no maximum: annotate it with AtMost(...)")
        if origin is dict:
            return Pairs(_group([layout_of(each) for each in arguments]), items_max)
        return Items(layout_of(arguments[0]), items_max, tuple if origin is tuple else list)
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")):
        record = record_of(kind)
        if record.has_tail and not whole:
            raise TypeError(f"{kind.__name__} has a tail, so it cannot be a part of another record")
        return record
    raise TypeError(f"{hint} has no layout: annotate it with one")


def _group(layouts: Sequence[Layout]) -> Group:
    numbers = [each for each in layouts if isinstance(each, Number)]
    return Numbers(numbers) if len(numbers) == len(layouts) else Group(layouts)


def _fields_of(kind: type) -> list[Field]:
    hints = get_type_hints(kind, include_extras=True)
    names = [each.name for each in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else kind._fields  # type: ignore[attr-defined]
    return [_field(name, hints[name]) for name in names if NOT_SENT not in _marks(hints[name])]


def _marks(hint: Any) -> tuple[Any, ...]:
    marks: tuple[Any, ...] = hint.__metadata__ if get_origin(hint) is Annotated else ()
    return marks


def _field(name: str, hint: Any) -> Field:
    marks = _marks(hint)
    label = next((mark.text for mark in marks if isinstance(mark, Label)), name.replace("_", " "))
    return Field(name, label, layout_of(hint), next((mark for mark in marks if isinstance(mark, Tail)), None))


def _steps(fields: Sequence[Field]) -> list[_Step]:
    steps = []
    for numbers, run in groupby(fields, lambda each: isinstance(each.layout, Number)):
        neighbours = list(run)
        for group in [neighbours] if numbers else [[each] for each in neighbours]:
            layouts: list[Any] = [each.layout for each in group]
            layout = layouts[0] if len(group) == 1 else Numbers(layouts)
            steps.append(_Step(group, layout, attrgetter(*(each.name for each in group))))
    return steps


def _read(steps: Sequence[_Step], reader: ByteReader) -> list[Any]:
    values: list[Any] = []
    for fields, layout, _ in steps:
        if len(fields) == 1:
            values.append(layout.read(reader, fields[0].label))
        elif reader.remaining < layout.bytes_min:
            # One of them does not fit: read them one by one to name it.
            values += [each.layout.read(reader, each.label) for each in fields]
        else:
            values += layout.read(reader, fields[0].label)
    return values


def _default(kind: type, name: str) -> Any:
    field = next(each for each in dataclasses.fields(kind) if each.name == name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if field.default is dataclasses.MISSING:
        raise TypeError(f"{kind.__name__}.{name} may be absent, and has no default")
    return field.default
