"""The columns of the source as Spark types, and the choice of some of them.

A schema that the user gives prunes: only its columns are decoded and sent. They must have the names and types that the source gives them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import InvalidRequest

HEADERS_TYPE: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
SPARK_TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS_TYPE,
}


def source_schema(*, headers: bool) -> StructType:
    return StructType([StructField(name, kind) for name, kind in SPARK_TYPES.items() if headers or name != "headers"])


def chosen_schema(columns: Iterable[str]) -> StructType:
    return StructType([StructField(name, SPARK_TYPES[name]) for name in columns])


def arrow_schema(schema: StructType) -> pa.Schema:
    """What batches must look like. Raises InvalidRequest if the schema asks for what the source does not have."""
    by_lower = {name.lower(): name for name in SPARK_TYPES}
    fields: list[StructField] = []
    for field in schema.fields:
        name = by_lower.get(field.name.lower())
        if name is None:
            raise InvalidRequest(f"the schema has a column {field.name!r}: there are {', '.join(SPARK_TYPES)}")
        wanted = SPARK_TYPES[name]
        if field.dataType.simpleString() != wanted.simpleString():
            hint = (
                f"; read it so, and write CAST({name} AS STRING) in the query" if isinstance(wanted, BinaryType) else ""
            )
            raise InvalidRequest(
                f"the schema has column {field.name} as {field.dataType.simpleString()}: it is {wanted.simpleString()}{hint}"
            )
        if not field.nullable:
            raise InvalidRequest(
                f"the schema has column {field.name} as NOT NULL: the source gives all columns as nullable"
            )
        fields.append(StructField(field.name, wanted))
    return to_arrow_schema(StructType(fields), timezone="UTC")
