"""What filters look for in bytes: text, a regular expression, and the place of a path in JSON. Each costs bounded time and memory.

The expressions are RE2's, which deployed brokers use too. It never backtracks, so the time is bounded by the size of expression and
text; both are bounded here. Compiling still takes up to 20 milliseconds and evaluating microseconds a record, so callers do both in a
thread. Large values are searched in windows, so that no step keeps the interpreter's lock for long.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

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
PATH_STEPS_MAX = 64
PATH_INDEX_MAX = 99
"""The highest index of an array element: those before it are skipped one by one."""
WINDOW_BYTES = 256 << 10
"""How much of a value is searched for text at a time; a window of non-ASCII text takes about 2 ms."""
_TOO_COMPLEX = "filter is too complex: use a simpler expression, with smaller repetition counts"
_NOT_IN_NAMES = frozenset('"\\')

Check = Callable[[], None]


class TextSearch:
    """Finds text in bytes, whatever its case."""

    def __init__(self, text: str) -> None:
        self._lowered = text.lower()
        self._lowered_bytes = self._lowered.encode() if text.isascii() else None

    def found(self, data: bytes, check: Check) -> bool:
        """Whether the text is in the data. `check` is called between the windows of large data."""
        for start in range(0, len(data) or 1, WINDOW_BYTES):
            if start:
                check()
            # What begins in one window may end in the next; a lower-case character is at most four times as long in bytes.
            if self._contains(data[start : start + WINDOW_BYTES + 4 * FILTER_BYTES_MAX]):
                return True
        return False

    def _contains(self, data: bytes) -> bool:
        if self._lowered_bytes is not None:
            return self._lowered_bytes in data.lower()
        return self._lowered in data.decode(errors="replace").lower()


def expression_search(text: str) -> Callable[[bytes], bool] | None:
    """A function that tells whether an expression matches somewhere in the data; None if the text is no valid expression."""
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


def path_search(steps: Sequence[str | int]) -> Callable[[bytes], bytes | None]:
    """A function that returns the JSON at a path of names and indexes, None if there is none.

    It decodes nothing besides the path: the rest is skipped over. Raises InvalidRequest if the path is too deep, an index too large, or
    a name has characters that no path can have.
    """
    if len(steps) > PATH_STEPS_MAX:
        raise InvalidRequest(f"filter path is too deep: {len(steps)} names, at most {PATH_STEPS_MAX}")
    kind: Any = msgspec.Raw
    for step in reversed(steps):
        kind = _element(step, kind) if isinstance(step, int) else _member(step, kind)
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode
    inner = operator.attrgetter(".".join(["found"] * len(steps)))

    def found(value: bytes) -> bytes | None:
        if len(value) > PATH_TEXT_BYTES_MAX:
            return None
        try:
            return bytes(inner(decode(value)))
        except (msgspec.DecodeError, RecursionError):
            return None

    return found


def can_be_found(name: str) -> bool:
    """Whether a path can have the name: msgspec takes none that JSON writes with a backslash."""
    return _NOT_IN_NAMES.isdisjoint(name) and min(name, default=" ") >= " "


def _member(name: str, kind: Any) -> type:
    if not can_be_found(name):
        raise InvalidRequest(
            f"filter path has the name {name[:100]!r}: quotes, backslashes and control characters cannot be looked for"
        )
    return msgspec.defstruct("Member", [("found", kind)], rename={"found": name})


def _element(index: int, kind: Any) -> type:
    if index > PATH_INDEX_MAX:
        raise InvalidRequest(f"filter path has the index {index}, at most {PATH_INDEX_MAX} is allowed")
    before = [(f"at_{at}", msgspec.Raw) for at in range(index)]
    return msgspec.defstruct("Element", [*before, ("found", kind)], array_like=True)
