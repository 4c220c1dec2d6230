"""Rows that a table takes for a small batch of Spark, made without Spark."""

from __future__ import annotations

import pyarrow as pa


class Rows:
    """As much of a DataFrame as a table needs of a batch that the driver writes."""

    def __init__(self, columns: pa.Table) -> None:
        from pyspark.sql.pandas.types import from_arrow_schema

        self._columns = columns
        self.columns = columns.schema.names
        self.schema = from_arrow_schema(columns.schema, prefer_timestamp_ntz=False)

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return self._columns
