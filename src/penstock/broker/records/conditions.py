"""Conditions of a filter: fields of a record compared with values, as in `$.customer.id = 42 and $header.source contains web`.

    filter     = condition { "and" condition }
    condition  = field operator value | field ( "exists" | "missing" )
    field      = "$" path | "$key" | "$value" | "$header." name
    path       = ( "." name | "[" index "]" ) ...          of a value that is JSON, or was decoded to it
    operator   = "=" "!=" "<" "<=" ">" ">=" "contains" "matches"
    value      = a JSON string, number, true, false or null, or a word, which is text

A field that a record does not have satisfies `missing` and nothing else. A number is compared with a number, true and false with a truth
value, also with those that a key, value or header has as text, and text with text: nothing else is converted. `contains` looks for text,
whatever its case, and `matches` for a regular expression; of JSON that is not a string they see the JSON. If several headers have the
name, one of them suffices.

Everything begins with a dollar sign and a field, so that filters which are plain text stay what they are.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from penstock.broker.records.searching import Check, TextSearch, expression_search, path_search
from penstock.errors import CorruptBlock, InvalidRequest
from penstock.record_headers import decode_headers

CONDITIONS_MAX: Final = 8

_STRING = r'"(?:[^"\\]|\\.)*"'
_NAME = rf'(?:{_STRING}|[^\s."\\\[\]=<>!~&|\x00-\x1f]+)'
_PATH = rf"(?:\.{_NAME}|\[\d{{1,9}}\])+"
_FIELD = re.compile(rf'\$(?:(?P<path>{_PATH})|(?P<part>key|value)|header\.(?P<header>{_STRING}|[^\s"=<>!~&|]+))')
_STEP = re.compile(rf"\.(?P<name>{_NAME})|\[(?P<index>\d+)\]")
_OPERATOR = re.compile(r"\s*(?P<sign>[=<>!~&|]+)|\s+(?P<word>contains|matches|exists|missing)(?!\S)")
_VALUE = re.compile(rf"\s*(?P<value>{_STRING}|[^\s\"']\S*)(?!\S)")
_AND = re.compile(r"\s+and(?:\s+|\Z)")
_BEGINS = re.compile(rf"{_OPERATOR.pattern}|\s+and\s+\$|\[")
"""What follows the first field if a filter has conditions. Other words may be part of a name, as deployed clients write paths."""
_END = re.compile(r"\s*\Z")

_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {"=": operator.eq, "!=": operator.ne, **_ORDERS}
_TRUTHS: Final = {b"true": True, b"false": False}
_OPERATORS: Final = "=, !=, <, <=, >, >=, contains, matches, exists or missing"


class Cells(NamedTuple):
    """A record as it is stored."""

    key: bytes | None
    value: bytes | None
    headers: bytes | None
    decoded: bytes | None = None
    """The value as JSON, if a schema says how to read it; paths are looked for in it."""


class _Found(NamedTuple):
    """A field that a record has: JSON at a path, or the bytes of a key, value or header; None is null."""

    data: bytes | None
    is_json: bool


Field = Callable[[Cells], Iterator[_Found]]
"""Yields what a record has of a field: nothing, one, or several headers of one name."""
Test = Callable[[_Found, Check], bool]


class Condition(NamedTuple):
    field: Field
    test: Test | None
    """None: the field is missing."""
    has_path: bool

    def holds(self, cells: Cells, check: Check) -> bool:
        found = self.field(cells)
        if self.test is None:
            return next(found, None) is None
        return any(self.test(each, check) for each in found)


def parse_field(text: str) -> Field | None:
    """A text that is a field and nothing else."""
    found = _FIELD.fullmatch(text)
    return None if found is None else _field(found)


def parse_conditions(text: str) -> list[Condition] | None:
    """The conditions that all have to hold; None if the text does not begin as a condition does. Raises InvalidRequest."""
    field = _FIELD.match(text)
    if field is None or not _BEGINS.match(text, field.end()):
        return None
    conditions: list[Condition] = []
    at = 0
    while True:
        if len(conditions) == CONDITIONS_MAX:
            raise InvalidRequest(f"filter has too many conditions: at most {CONDITIONS_MAX} are allowed")
        condition, at = _condition(text, at)
        conditions.append(condition)
        if _END.match(text, at):
            return conditions
        joint = _AND.match(text, at)
        if joint is None:
            raise InvalidRequest(
                f"filter has {_excerpt(text, at)} after a condition: join conditions with and, and put text with spaces "
                "in double quotes"
            )
        at = joint.end()


def _condition(text: str, at: int) -> tuple[Condition, int]:
    found = _FIELD.match(text, at)
    if found is None:
        raise InvalidRequest(
            f"filter has {_excerpt(text, at)} where a field is expected: use $.path, $key, $value or $header.NAME"
        )
    field, name, has_path, at = _field(found), found[0][:100], found["path"] is not None, found.end()
    sign = _OPERATOR.match(text, at)
    if sign is None and text.startswith("[", at):
        raise InvalidRequest(f"filter has {_excerpt(text, at)} after {name}, where an index is expected: use a number")
    if sign is None:
        raise InvalidRequest(f"filter has no operator after {name}: use {_OPERATORS}")
    which = sign["sign"] or sign["word"]
    at = sign.end()
    if which == "missing":
        return Condition(field, None, has_path), at
    if which == "exists":
        return Condition(field, lambda found, check: True, has_path), at
    if which not in _COMPARISONS and sign["word"] is None:
        raise InvalidRequest(f"filter has no operator {which[:20]} (after {name}): use {_OPERATORS}")
    value = _VALUE.match(text, at)
    if value is None:
        raise InvalidRequest(
            f"filter has {_excerpt(text, at)} after {name} {which}, where a value is expected: use a number, true, false, "
            "null, a word, or text in double quotes"
        )
    return Condition(field, _test(which, value["value"]), has_path), value.end()


def _excerpt(text: str, at: int) -> str:
    rest = text[at:].strip()
    return f"{rest[:40]!r}" if rest else "nothing"


# --- fields ---


def _field(found: re.Match[str]) -> Field:
    if found["part"] is not None:
        return _key if found["part"] == "key" else _value
    if found["header"] is not None:
        return _header(_unquoted(found["header"]))
    steps = [
        int(step["index"]) if step["name"] is None else _unquoted(step["name"])
        for step in _STEP.finditer(found["path"])
    ]
    return at_path(steps)


def _unquoted(name: str) -> str:
    return _string(name) if name.startswith('"') else name


def _string(text: str) -> str:
    try:
        return msgspec.json.decode(text, type=str)
    except msgspec.DecodeError:
        raise InvalidRequest(
            f"filter has the text {text[:100]}, which is no JSON string: write a backslash twice"
        ) from None


def _key(cells: Cells) -> Iterator[_Found]:
    if cells.key is not None:
        yield _Found(cells.key, is_json=False)


def _value(cells: Cells) -> Iterator[_Found]:
    if cells.value is not None:
        yield _Found(cells.value, is_json=False)


def _header(name: str) -> Field:
    def field(cells: Cells) -> Iterator[_Found]:
        if not cells.headers:
            return
        try:
            headers = decode_headers(cells.headers)
        except CorruptBlock:
            return  # a client wrote bytes that are no headers
        for each, data in headers:
            if each == name:
                yield _Found(data, is_json=False)

    return field


def at_path(steps: list[str | int]) -> Field:
    """The field at a path of a value that is JSON. Raises InvalidRequest."""
    search = path_search(steps)

    def field(cells: Cells) -> Iterator[_Found]:
        value = cells.value if cells.decoded is None else cells.decoded
        data = None if value is None else search(value)
        if data is not None:
            yield _Found(data, is_json=True)

    return field


# --- tests ---


def _test(which: str, text: str) -> Test:
    if which == "contains":
        search = TextSearch(_text(text))
        return lambda found, check: found.data is not None and search.found(_shown(found), check)
    if which == "matches":
        matches = expression_search(_text(text))
        if matches is None:
            raise InvalidRequest(f"filter has the regular expression {_text(text)[:100]!r}, which is not valid (RE2)")
        return lambda found, check: found.data is not None and matches(_shown(found))
    wanted = _literal(text)
    if which in _ORDERS and (wanted is None or isinstance(wanted, bool)):
        raise InvalidRequest(f"filter compares with {which} {text}: only numbers and text have an order")
    return _comparison(_COMPARISONS[which], wanted, differs=which == "!=")


def _text(text: str) -> str:
    return _string(text) if text.startswith('"') else text


def _literal(text: str) -> str | float | bool | None:
    """A value as JSON has it, or a word as text."""
    if text.startswith('"'):
        return _string(text)
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return value if value is None or isinstance(value, bool | int | float) else text


def _comparison(compare: Callable[[Any, Any], bool], wanted: str | float | bool | None, *, differs: bool) -> Test:
    kind = _kind(wanted)

    def test(found: _Found, check: Check) -> bool:
        value = _scalar(found) if found.is_json else _plain(found, kind)
        return bool(compare(value, wanted)) if _kind(value) is kind else differs

    return test


def _kind(value: object) -> type:
    """What a value can be compared with: integers with other numbers, but not with true and false."""
    return float if type(value) is int else type(value)


def _scalar(found: _Found) -> object:
    """What is at a path. Objects and arrays are skipped over: nothing is equal to them."""
    data = found.data or b""
    if data[:1] in b"{[":
        return data
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError):
        return data  # a number of thousands of digits, or a string that is no text


def _plain(found: _Found, kind: type) -> object:
    """A key, value or header: as text, or as a number, true or false if it is compared with one of these."""
    if found.data is None:
        return None
    if kind is bool and found.data in _TRUTHS:
        return _TRUTHS[found.data]
    if kind is not float:
        return found.data.decode(errors="replace")
    try:
        return msgspec.json.decode(found.data, type=int | float)
    except (msgspec.DecodeError, UnicodeError):
        return found.data


def _shown(found: _Found) -> bytes:
    """What `contains` and `matches` look at."""
    data = found.data or b""
    if not found.is_json or not data.startswith(b'"'):
        return data
    try:
        return msgspec.json.decode(data, type=str).encode()
    except (msgspec.DecodeError, UnicodeError):
        return data  # what is skipped over is not checked, and may be no text
