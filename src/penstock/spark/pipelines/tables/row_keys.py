"""Rows by the values of some columns, on the driver. pyarrow groups and joins by plain values alone: nested ones are compared as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

_ROW: Final = "__penstock_row"


def distinct(rows: pa.Table) -> pa.Table:
    """Return the rows, each once."""
    found = _comparable(rows, rows.schema.names).group_by(rows.schema.names).aggregate([(_ROW, "min")])
    return rows.take(found[f"{_ROW}_min"])


def rows_with(rows: pa.Table, others: pa.Table, key: Sequence[str]) -> pa.Array:
    """Return the numbers of the rows that have the key of one of the others. Null is equal to nothing."""
    names = list(key)
    found = _comparable(rows, names).join(_comparable(others, names).select(names), names, join_type="left semi")
    return found[_ROW].combine_chunks()


def without(rows: pa.Table, numbers: pa.Array) -> pa.Table:
    """Return the rows except those of these numbers, in their order."""
    import pyarrow.compute as pc

    return rows.filter(pc.invert(pc.is_in(_numbers(rows), numbers)))


def _comparable(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return columns of values that are equal where those of the rows are, and the number of each row."""
    import pyarrow as pa

    columns = {name: _plain(rows[name]) for name in names}
    return pa.table({**columns, _ROW: _numbers(rows)})


def _numbers(rows: pa.Table) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    return pa.array(np.arange(rows.num_rows, dtype=np.int64))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    import pyarrow as pa

    if not pa.types.is_nested(column.type):
        return column
    return pa.array([None if value is None else repr(value) for value in column.to_pylist()], pa.string())
