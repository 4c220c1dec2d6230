"""Rows that a table takes for a small batch of Spark, made without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


class Rows:
    """As much of a DataFrame as writing a small batch needs."""

    def __init__(self, columns: pa.Table) -> None:
        from pyspark.sql.pandas.types import from_arrow_schema

        self._columns = columns
        self.columns = columns.schema.names
        self.schema = from_arrow_schema(columns.schema, prefer_timestamp_ntz=False)

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return self._columns


def rows_of(**columns: Any) -> Any:
    return Rows(pa.table(columns))


def ids_from(start: int, count: int = 10) -> Any:
    return rows_of(id=pa.array(range(start, start + count), pa.int64()))
