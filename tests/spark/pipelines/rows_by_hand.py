"""Rows that a table takes for a small batch of Spark, made without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from bench.driver_rows import Rows


def rows_of(**columns: Any) -> Any:
    return Rows(pa.table(columns))


def ids_from(start: int, count: int = 10) -> Any:
    return rows_of(id=pa.array(range(start, start + count), pa.int64()))


def accounts(*rows: tuple[int, str]) -> Any:
    numbers = [number for number, _ in rows]
    return rows_of(
        **{
            "Account No": pa.array(numbers, pa.int64()),
            "owner": pa.array([owner for _, owner in rows], pa.string()),
            "key": keys(*numbers),
        }
    )


def keys(*numbers: int) -> pa.Array:
    """Keys of records of these accounts."""
    return pa.array([b"%d" % number for number in numbers], pa.binary())
