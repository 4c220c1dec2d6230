"""Server-side filters of FETCH: which records a client wants to see.

A filter is one string that is tried in three ways, as deployed brokers do: `$.a.b` is a path that must exist in a JSON object; else
it is text that the value or the key contains, whatever its case; else a regular expression for either. One that is no valid
expression matches nothing in the third way.

The expressions are RE2's, which deployed brokers use too. It never backtracks, so the time is bounded by the size of expression and
text; both are bounded here. Evaluating still takes microseconds a record, so callers do it in a thread and within a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import re2

from penstock.errors import InvalidRequest

FILTER_BYTES_MAX = 1024
EXPRESSION_INSTRUCTIONS_MAX = 1000
"""Of the compiled expression. The slowest of this size take about a quarter of a microsecond a byte."""
EXPRESSION_TEXT_BYTES_MAX = 1 << 20
"""How far into a value an expression looks."""
_EXPRESSION_CHARACTERS = frozenset("\\.+*?()|[]{}^$")
_PATH_PREFIX = "$."


class RecordFilter:
    """Raises InvalidRequest where the filter is too long or too complex to be evaluated on the server."""

    def __init__(self, text: str) -> None:
        if len(text.encode()) > FILTER_BYTES_MAX:
            raise InvalidRequest(f"filter is too long: use at most {FILTER_BYTES_MAX} bytes")
        self._path = text.removeprefix(_PATH_PREFIX).split(".") if text.startswith(_PATH_PREFIX) else None
        self._lowered = text.lower()
        self._lowered_bytes = self._lowered.encode() if text.isascii() else None
        self._expression = _compile(text)

    def matches(self, key: bytes | None, value: bytes | None) -> bool:
        key, value = key or b"", value or b""
        if self._path is not None and _has_path(value, self._path):
            return True
        if self._contains(value) or self._contains(key):
            return True
        search = self._expression
        return search is not None and (search(value) or search(key))

    def _contains(self, text: bytes) -> bool:
        if self._lowered_bytes is not None:
            return self._lowered_bytes in text.lower()
        return self._lowered in text.decode(errors="replace").lower()


def select(
    wanted: RecordFilter,
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    matches_max: int,
    out_of_time: Callable[[], bool],
) -> tuple[list[int], int]:
    """The rows that match, and how many rows were looked at: fewer than there are once matches or time are used up."""
    rows: list[int] = []
    for row, value in enumerate(values):
        if len(rows) == matches_max or (row and out_of_time()):
            return rows, row
        if wanted.matches(keys[row] if keys is not None else None, value):
            rows.append(row)
    return rows, len(values)


def _has_path(value: bytes, path: list[str]) -> bool:
    try:
        node = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return False
    for name in path:
        if not isinstance(node, dict) or name not in node:
            return False
        node = node[name]
    return True


def _compile(text: str) -> Callable[[bytes], bool] | None:
    if _EXPRESSION_CHARACTERS.isdisjoint(text):
        return None  # as an expression it could find nothing that it does not find as text
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        expression = re2.compile(text, options)
    except re2.error:
        return None
    finally:
        re2.purge()  # its cache would keep the memory of 128 strangers' expressions
    if expression.programsize > EXPRESSION_INSTRUCTIONS_MAX:
        raise InvalidRequest("filter is too complex: use a simpler expression, with smaller repetition counts")

    def found(data: bytes) -> bool:
        return expression.search(data, 0, EXPRESSION_TEXT_BYTES_MAX) is not None

    return found
