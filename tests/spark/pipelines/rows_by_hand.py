"""Rows that a table takes for a small batch of Spark, made without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from bench.driver_rows import Rows


def rows_of(**columns: Any) -> Any:
    return Rows(pa.table(columns))


def ids_from(start: int, count: int = 10) -> Any:
    return rows_of(id=pa.array(range(start, start + count), pa.int64()))
