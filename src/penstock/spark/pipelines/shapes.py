"""Types that schemas of every kind become: an Arrow type that Spark knows, and how to bring a decoded value into it.

Most values are taken as they come, and then whole columns are built without looking at any of them. What has no type of its own in a table
(choices between types, types that hold themselves, objects whose members nobody named) is kept whole, as JSON text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", "UTC")
COLUMNS_MAX: Final = 1_000
"""Per record or struct. Wider tables than that are beyond what any reader of them does well."""
DEPTH_MAX: Final = 16
"""Structs inside structs; below it values are kept as JSON text."""

Convert = Callable[[Any], Any]


class Unfit(ValueError):
    """A value that its column cannot hold; the message says why."""


class Shape(NamedTuple):
    type: Any
    """A pyarrow DataType."""
    convert: Convert | None = None
    """From a decoded value to that of its column. None: values are taken as they come. Never called with None."""
    revert: Convert | None = None
    """From the value of a column to one that can be encoded. None and never, as above."""


DECIMAL_DIGITS_MAX: Final = 38
_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")


def json_text(value: Any) -> str:
    """Any decoded value as JSON; bytes in base64, times in ISO form."""
    return _ENCODER.encode(value).decode()


def from_json_text(text: Any) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, TypeError):
        raise Unfit(f"{_shown(text)} is not a JSON document, which stands in this column") from None


ANYTHING: Final = Shape(pa.string(), json_text, from_json_text)


def list_of(item: Shape) -> Shape:
    return Shape(pa.list_(item.type), _each(item.convert), _each(item.revert))


def _each(inner: Convert | None) -> Convert | None:
    if inner is None:
        return None
    return lambda values: [None if value is None else inner(value) for value in values]


def map_of(key: Any, value: Shape, key_convert: Convert = lambda key: key) -> Shape:
    inner = value.convert or (lambda each: each)
    outer = value.revert or (lambda each: each)

    def convert(entries: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
        return [(key_convert(name), None if each is None else inner(each)) for name, each in entries.items()]

    def revert(entries: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        return {name: None if each is None else outer(each) for name, each in entries}

    return Shape(pa.map_(key, value.type), convert, revert)


def struct_of(members: Mapping[str, Shape]) -> Shape:
    """A struct; without members, and with more than tables can take, JSON text."""
    if not 0 < len(members) <= COLUMNS_MAX:
        return ANYTHING
    columns = dict(zip(column_names(members), members.items(), strict=True))
    arrow = pa.struct([pa.field(column, shape.type) for column, (_, shape) in columns.items()])
    setters = [(column, name, shape.revert) for column, (name, shape) in columns.items()]

    def revert(value: Mapping[str, Any]) -> dict[str, Any]:
        """A member without a value is left out: its schema says what that means."""
        return {
            name: member if each is None else each(member)
            for column, name, each in setters
            if (member := value.get(column)) is not None
        }

    if all(shape.convert is None and column == name for column, (name, shape) in columns.items()):
        return Shape(arrow, None, revert)
    getters = [(column, name, shape.convert) for column, (name, shape) in columns.items()]

    def convert(value: Mapping[str, Any]) -> dict[str, Any]:
        check_object(value)
        converted = {}
        for column, name, each in getters:
            member = value.get(name)
            converted[column] = each(member) if each is not None and member is not None else member
        return converted

    return Shape(arrow, convert, revert)


_ODD_CHARACTERS: Final = re.compile(r"[ ,;{}()\n\t=.`]+")
"""What table formats refuse in the name of a column, and the dot and backtick, which would have to be quoted in every query."""


def column_names(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Names of columns for names of members: without what tables refuse, and different also for those who do not look at case."""
    used = {name.lower() for name in taken}
    columns = []
    for name in names:
        column = base = _ODD_CHARACTERS.sub("_", name) or "_"
        if column.lower() in used:
            column = base = f"value_{base}"
        number = 2
        while column.lower() in used:
            column, number = f"{base}_{number}", number + 1
        used.add(column.lower())
        columns.append(column)
    return columns


# --- values ---


def to_timestamp(text: Any) -> datetime:
    """A date and time as in RFC 3339; without an offset it is taken to be UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise Unfit(f"{_shown(text)} is not a date and time as in 2026-01-31T12:00:00Z") from None
    return aware(moment)


def aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def to_date(text: Any) -> date:
    try:
        return date.fromisoformat(text)
    except (TypeError, ValueError):
        raise Unfit(f"{_shown(text)} is not a date as in 2026-01-31") from None


def iso_form(moment: Any) -> str:
    """A date, a time, or both in UTC, as in RFC 3339."""
    return str(moment.isoformat()).replace("+00:00", "Z")


def to_float(number: Any) -> float:
    try:
        return float(number)
    except (OverflowError, TypeError, ValueError):
        raise Unfit(f"{_shown(number)} is beyond what a double holds") from None


def to_decimal(number: Any) -> Decimal:
    try:
        made = Decimal(number)
    except (InvalidOperation, TypeError, ValueError):
        raise Unfit(f"{_shown(number)} is not a decimal number") from None
    if not made.is_finite():
        raise Unfit(f"{_shown(number)} is not a decimal number")
    return made


def check_object(value: Any) -> None:
    """A JSON Schema that names properties and no type allows everything that has none."""
    if not isinstance(value, Mapping):
        raise Unfit(f"{_shown(value)} is not an object")


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
