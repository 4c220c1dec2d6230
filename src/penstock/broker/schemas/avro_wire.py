"""Avro's binary encoding, read strictly.

A checker walks over the bytes of a record as its definition says and makes nothing of them, so it needs no memory, whatever lengths
and counts the bytes announce. It accepts only what the encoding allows: numbers in range, indexes that exist, booleans of 0 and 1,
text in UTF-8, and no byte behind the end. (fastavro decodes: it takes -1 for the last symbol of an enum, and a deep enough record of
a recursive type ends the process.)

A definition becomes one function `walk(data, position, depth) -> position` for each of its types, made once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.broker.schemas.definition import DOCUMENT_DEPTH_MAX, Fault, shortened

Walk = Callable[[bytes, int, int], int]

INT_MAX: Final = (1 << 31) - 1
VARINT_BYTES_MAX: Final = 10
NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_FIXED_BYTES: Final = {"float": 4, "double": 8}


class AvroFault(Exception):
    """What is wrong with a record."""


_BROKEN: Final = (AvroFault, IndexError, RecursionError, UnicodeDecodeError)


class AvroChecker:
    message_path: tuple[int, ...] = ()

    def __init__(self, walk: Walk) -> None:
        self._walk = walk

    def first_fault(self, values: Sequence[bytes]) -> Fault | None:
        walk, row = self._walk, 0
        try:
            for row, value in enumerate(values):  # noqa: B007  which one it was is asked when one fails
                if walk(value, 0, 0) != len(value):
                    break
            else:
                return None
        except _BROKEN:
            pass
        return Fault(row, self._reason(values[row]) or "")

    def faults(self, value: bytes) -> list[str]:
        reason = self._reason(value)
        return [] if reason is None else [reason]

    def _reason(self, value: bytes) -> str | None:
        try:
            end = self._walk(value, 0, 0)
        except AvroFault as fault:
            return shortened(str(fault))
        except IndexError:
            return "the record ends in the middle of a value"
        except RecursionError:
            return "the record is nested too deep"
        except UnicodeDecodeError as error:
            return shortened(f"a string is not valid UTF-8: {error.reason}")
        return None if end == len(value) else f"{len(value) - end} bytes follow the end of the record"


class Walks:
    """The walks over the types of one definition. `named` holds its named types, by full name."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._walks: dict[str, Walk] = {}
        self._empty: dict[str, bool] = {}

    def walk(self, schema: Any) -> Walk:
        if isinstance(schema, list):
            return _union([self.walk(branch) for branch in schema])
        if isinstance(schema, str):
            return _PRIMITIVES[schema] if schema in _PRIMITIVES else self._reference(schema)
        kind = schema["type"]
        if kind == "array":
            return _blocks(self.walk(schema["items"]), takes_no_bytes=self.takes_no_bytes(schema["items"]))
        if kind == "map":
            return _blocks(_entry(self.walk(schema["values"])), takes_no_bytes=False)
        if kind not in NAMED:
            return self.walk(kind)
        name = schema["name"]
        if kind == "enum":
            walk = _enum(name, len(schema["symbols"]))
        elif kind == "fixed":
            walk = _fixed(schema["size"])
        else:
            # Fields that take no bytes take no steps either: doubled from record to record, they would be without end.
            fields = [field["type"] for field in schema["fields"]]
            walk = _record([self.walk(field) for field in fields if not self.takes_no_bytes(field)])
        self._walks[name] = walk
        return walk

    def _reference(self, name: str) -> Walk:
        if name not in self._walks and self.takes_no_bytes(name):
            return _null

        def walk(data: bytes, position: int, depth: int) -> int:
            # A recursive type refers to itself before its walk is made; when this is called, it is there.
            return self._walks[name](data, position, depth)

        return walk

    def takes_no_bytes(self, schema: Any) -> bool:
        """Whether every value of a type is written as nothing. (All other types take at least one byte.)"""
        if isinstance(schema, list):
            return False
        if isinstance(schema, str):
            if schema in self._named and schema not in self._empty:
                self._empty[schema] = (
                    False  # what a recursive type refers to on the way: it takes at least a byte to end
                )
                self._empty[schema] = self.takes_no_bytes(self._named[schema])
            return schema == "null" or self._empty.get(schema, False)
        kind = schema["type"]
        if kind in ("record", "error"):
            return all(self.takes_no_bytes(field["type"]) for field in schema["fields"])
        if kind == "fixed":
            return bool(schema["size"] == 0)
        return kind not in ("enum", "array", "map") and self.takes_no_bytes(kind)


def _number(data: bytes, position: int) -> tuple[int, int]:
    """A zig-zag number and the position after it."""
    byte = data[position]
    position += 1
    number, shift = byte & 0x7F, 7
    while byte & 0x80:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > 7 * VARINT_BYTES_MAX or (shift == 7 * VARINT_BYTES_MAX and byte > 1):
            raise AvroFault("a number takes more than 64 bits")
    return (number >> 1) ^ -(number & 1), position


def _null(data: bytes, position: int, depth: int) -> int:
    return position


def _boolean(data: bytes, position: int, depth: int) -> int:
    if data[position] > 1:
        raise AvroFault(f"a boolean is {data[position]}, not 0 or 1")
    return position + 1


def _int(data: bytes, position: int, depth: int) -> int:
    number, position = _number(data, position)
    if not -INT_MAX - 1 <= number <= INT_MAX:
        raise AvroFault(f"int {number} takes more than 32 bits")
    return position


def _long(data: bytes, position: int, depth: int) -> int:
    return position + 1 if data[position] < 0x80 else _number(data, position)[1]


def _bytes(data: bytes, position: int, depth: int) -> int:
    length, position = _number(data, position)
    if not 0 <= length <= len(data) - position:
        raise AvroFault(f"a length of {length} bytes does not fit the {len(data) - position} that are left")
    return position + length


def _string(data: bytes, position: int, depth: int) -> int:
    # Here and below, numbers of one byte are read in place: most are, and a call costs as much as the rest.
    length = data[position]
    if length & 0x81:
        length, position = _number(data, position)
    else:
        length >>= 1
        position += 1
    end = position + length
    if not position <= end <= len(data):
        raise AvroFault(f"a length of {length} bytes does not fit the {len(data) - position} that are left")
    data[position:end].decode()
    return end


def _fixed(size: int) -> Walk:
    def walk(data: bytes, position: int, depth: int) -> int:
        end = position + size
        if end > len(data):
            raise IndexError
        return end

    return walk


_PRIMITIVES: Final[dict[str, Walk]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "bytes": _bytes,
    "string": _string,
    **{name: _fixed(size) for name, size in _FIXED_BYTES.items()},
}


def _enum(name: str, symbols: int) -> Walk:
    def walk(data: bytes, position: int, depth: int) -> int:
        index, position = _number(data, position)
        if not 0 <= index < symbols:
            raise AvroFault(f"enum {name} has no symbol {index}")
        return position

    return walk


def _union(branches: list[Walk]) -> Walk:
    def walk(data: bytes, position: int, depth: int) -> int:
        index = data[position]
        if index & 0x81:
            index, position = _number(data, position)
        else:
            index >>= 1
            position += 1
        if not 0 <= index < len(branches):
            raise AvroFault(f"a union of {len(branches)} has no branch {index}")
        return branches[index](data, position, depth)

    return walk


def _record(fields: list[Walk]) -> Walk:
    def walk(data: bytes, position: int, depth: int) -> int:
        if depth == DOCUMENT_DEPTH_MAX:
            raise AvroFault(f"records are nested deeper than {DOCUMENT_DEPTH_MAX} levels")
        depth += 1
        for field in fields:
            position = field(data, position, depth)
        return position

    return walk


def _entry(value: Walk) -> Walk:
    def walk(data: bytes, position: int, depth: int) -> int:
        return value(data, _string(data, position, depth), depth)

    return walk


def _blocks(item: Walk, *, takes_no_bytes: bool) -> Walk:
    """Arrays and maps: blocks of items, each behind its count, the last one empty."""

    def walk(data: bytes, position: int, depth: int) -> int:
        while True:
            count = data[position]
            if count & 0x81:
                count, position = _number(data, position)
            else:
                count >>= 1
                position += 1
            if count == 0:
                return position
            end = None
            if count < 0:
                count = -count
                size, position = _number(data, position)
                end = position + size
            if not takes_no_bytes:
                if count > len(data) - position:
                    raise AvroFault(f"{count} items do not fit the {len(data) - position} bytes that are left")
                for _ in range(count):
                    position = item(data, position, depth)
            if end is not None and position != end:
                raise AvroFault(f"a block of {count} items is not as long as it says")

    return walk
