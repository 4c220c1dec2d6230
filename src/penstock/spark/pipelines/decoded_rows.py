"""Records of a topic as rows of silver and of the views of gold: what fits its schema as typed columns, what does not with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.pipelines.decoding import METADATA_COLUMNS, REASON, ROW, Plan, decoder, decoding_function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_decoded(rows: DataFrame, plan: Plan) -> DataFrame:
    """The columns of the source with `row` and `reason`."""
    from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
    from pyspark.sql.types import StringType, StructField, StructType

    decoded = StructType(
        [
            StructField(field.name, from_arrow_type(field.type, prefer_timestamp_ntz=False), True)
            for field in decoder(plan).schema
        ]
    )
    columns = StructType(
        [*rows.schema.fields, StructField(ROW, decoded, True), StructField(REASON, StringType(), True)]
    )
    return rows.mapInArrow(decoding_function(plan, to_arrow_schema(columns, timezone="UTC")), columns)


def fitting_rows(decoded: DataFrame) -> DataFrame:
    """Decoded columns, and where each record came from."""
    return decoded.where(f"{REASON} IS NULL").select(f"{ROW}.*", *METADATA_COLUMNS)


def undecoded(rows: DataFrame) -> DataFrame:
    return rows.select("value", *METADATA_COLUMNS)
