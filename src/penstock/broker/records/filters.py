"""Filters of records: which ones a reader wants to see. FlyMQ's FETCH and the admin API evaluate them on the server.

A filter is one string that is tried in three ways, as deployed brokers do: `$.a.b` is a path that must exist in a JSON object; else
it is text that the value or the key contains, whatever its case; else a regular expression for either. One that is no valid
expression matches nothing in the third way.

The expressions are RE2's, which deployed brokers use too. It never backtracks, so the time is bounded by the size of expression and
text; both are bounded here. Compiling still takes up to 20 milliseconds and evaluating microseconds a record, so callers do both in a
thread. Large values are searched in windows, so that no step keeps the interpreter's lock for long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import re2

from penstock.errors import InvalidRequest

FILTER_BYTES_MAX = 1024
EXPRESSION_MEMORY_BYTES_MAX = 256 << 10
"""For the compiled expression and the states it is searched with. Less makes searches slow that are allowed; with RE2's own 8 MiB, eleven
characters take 90 ms to compile."""
EXPRESSION_INSTRUCTIONS_MAX = 1000
"""Of the compiled expression. The slowest of this size take about a quarter of a microsecond a byte."""
EXPRESSION_TEXT_BYTES_MAX = 1 << 20
"""How far into a value an expression looks."""
PATH_TEXT_BYTES_MAX = 4 << 20
"""Larger values have no paths: skipping over JSON takes about 3 ns a byte."""
PATH_NAMES_MAX = 64
WINDOW_BYTES = 256 << 10
"""Of a value that are searched for text at a time; a window of non-ASCII text takes about 2 ms."""
ROWS_PER_CHECK = 64
_EXPRESSION_CHARACTERS = frozenset("\\.+*?()|[]{}^$")
_PATH_PREFIX = "$."
_TOO_COMPLEX = "filter is too complex: use a simpler expression, with smaller repetition counts"


class RecordFilter:
    """Raises InvalidRequest where the filter is too long or too complex to be evaluated on the server."""

    def __init__(self, text: str) -> None:
        if len(text.encode()) > FILTER_BYTES_MAX:
            raise InvalidRequest(f"filter is too long: use at most {FILTER_BYTES_MAX} bytes")
        self._has_path = _path_search(text.removeprefix(_PATH_PREFIX)) if text.startswith(_PATH_PREFIX) else None
        self._lowered = text.lower()
        self._lowered_bytes = self._lowered.encode() if text.isascii() else None
        self._expression = _compile(text)

    def matches(self, key: bytes | None, value: bytes | None, check: Callable[[], None] = lambda: None) -> bool:
        """Whether a record matches. `check` is called between the windows of a large value."""
        key, value = key or b"", value or b""
        if self._has_path is not None and self._has_path(value):
            return True
        for start in range(0, len(value) or 1, WINDOW_BYTES):
            if start:
                check()
            # What begins in one window may end in the next; a lower-case character is at most four times as long in bytes.
            if self._contains(value[start : start + WINDOW_BYTES + 4 * FILTER_BYTES_MAX]):
                return True
        if self._contains(key):
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
    check: Callable[[], None],
) -> tuple[list[int], int]:
    """The rows that match, and how many rows were looked at: fewer than there are once matches or time are used up."""
    rows: list[int] = []
    for row, value in enumerate(values):
        if row % ROWS_PER_CHECK == 0:
            check()
        if len(rows) == matches_max or (row and out_of_time()):
            return rows, row
        if wanted.matches(keys[row] if keys is not None else None, value, check):
            rows.append(row)
    return rows, len(values)


def _path_search(path: str) -> Callable[[bytes], bool]:
    """A function that tells whether a JSON value has a path. It decodes nothing beside the path: the rest is skipped over."""
    names = path.split(".")
    if len(names) > PATH_NAMES_MAX:
        raise InvalidRequest(f"filter path is too deep: {len(names)} names, at most {PATH_NAMES_MAX}")
    kind: type = msgspec.Raw
    for name in reversed(names):
        kind = msgspec.defstruct("Node", [("field", kind)], rename={"field": name})
    decode: Callable[[bytes], object] = msgspec.json.Decoder(kind).decode

    def found(value: bytes) -> bool:
        if len(value) > PATH_TEXT_BYTES_MAX:
            return False
        try:
            decode(value)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    return found


def _compile(text: str) -> Callable[[bytes], bool] | None:
    if _EXPRESSION_CHARACTERS.isdisjoint(text):
        return None  # as an expression it could find nothing that it does not find as text
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = EXPRESSION_MEMORY_BYTES_MAX
    try:
        expression = re2.compile(text, options)
    except re2.error as error:
        if b"too large" in error.args[0]:
            raise InvalidRequest(_TOO_COMPLEX) from None
        return None
    finally:
        re2.purge()  # its cache would keep the memory of 128 strangers' expressions
    if expression.programsize > EXPRESSION_INSTRUCTIONS_MAX:
        raise InvalidRequest(_TOO_COMPLEX)

    def found(data: bytes) -> bool:
        return expression.search(data, 0, EXPRESSION_TEXT_BYTES_MAX) is not None

    return found
