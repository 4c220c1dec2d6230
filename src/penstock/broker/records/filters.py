"""Filters of records: which ones a reader wants to see. FlyMQ's FETCH, dead letters and the admin API evaluate them on the server.

A filter is one string. If it has conditions (`$.customer.id = 42`, see `conditions`), all of them must hold. Anything else is tried in
three ways, as deployed brokers do: a field such as `$.a.b` alone must exist; else it is text that the value or the key contains,
whatever its case; else a regular expression for either. One that is no valid expression matches nothing in the third way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.broker.records.conditions import Cells, Field, at_path, parse_conditions, parse_field
from penstock.broker.records.searching import FILTER_BYTES_MAX, Check, TextSearch, can_be_found, expression_search
from penstock.errors import InvalidRequest

ROWS_PER_CHECK = 64
_EXPRESSION_CHARACTERS = frozenset("\\.+*?()|[]{}^$")
_PATH_PREFIX = "$."
_PATH_PREFIXES = (_PATH_PREFIX, "$[")


class RecordFilter:
    """Raises InvalidRequest if the filter is too long or too complex to be evaluated on the server, or a condition is not valid."""

    def __init__(self, text: str) -> None:
        if len(text.encode()) > FILTER_BYTES_MAX:
            raise InvalidRequest(f"filter is too long: use at most {FILTER_BYTES_MAX} bytes")
        self._conditions = parse_conditions(text)
        self.has_paths = text.startswith(_PATH_PREFIXES)
        """Whether it looks into values that are JSON."""
        if self._conditions is not None:
            self.has_paths = any(condition.has_path for condition in self._conditions)
            return
        self._field = _field_alone(text)
        self._text = TextSearch(text)
        # Without such characters an expression finds nothing that it does not find as text.
        self._expression = None if _EXPRESSION_CHARACTERS.isdisjoint(text) else expression_search(text)

    def matches(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: bytes | None = None,
        check: Check = lambda: None,
        decoded: bytes | None = None,
    ) -> bool:
        """Whether a record matches. `check` is called between the windows of a large value, and between conditions.

        `decoded` is the value as JSON, where a schema says how to read it: paths are looked for in it.
        """
        cells = Cells(key, value, headers, decoded)
        if self._conditions is None:
            has_field = self._field is not None and next(self._field(cells), None) is not None
            return has_field or self.matches_text(value or b"", check) or self.matches_text(key or b"", check)
        for number, condition in enumerate(self._conditions):
            if number:
                check()
            if not condition.holds(cells, check):
                return False
        return True

    def matches_text(self, data: bytes, check: Check = lambda: None) -> bool:
        """Whether a text that belongs to the record matches, such as the reason of a dead letter. Conditions are about records alone."""
        if self._conditions is not None:
            return False
        return self._text.found(data, check) or (self._expression is not None and self._expression(data))


def _field_alone(text: str) -> Field | None:
    """The field that a filter without an operator names. As deployed clients write it, a path has names with any characters."""
    field = parse_field(text)
    if field is None and text.startswith(_PATH_PREFIX):
        names = text.removeprefix(_PATH_PREFIX).split(".")
        return at_path(list(names)) if all(map(can_be_found, names)) else None
    return field


def select(
    wanted: RecordFilter,
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    headers: Sequence[bytes | None] | None,
    matches_max: int,
    out_of_time: Callable[[], bool],
    check: Check,
) -> tuple[list[int], int]:
    """The rows that match, and how many rows were examined: fewer than there are once matches or time are used up."""
    rows: list[int] = []
    for row, value in enumerate(values):
        if row % ROWS_PER_CHECK == 0:
            check()
        if len(rows) == matches_max or (row and out_of_time()):
            return rows, row
        key, cell = None if keys is None else keys[row], None if headers is None else headers[row]
        if wanted.matches(key, value, cell, check):
            rows.append(row)
    return rows, len(values)
