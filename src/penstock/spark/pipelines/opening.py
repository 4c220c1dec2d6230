"""The table of a stage, in the format of its pipeline."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.tables.delta import DeltaLakeTable
from penstock.spark.pipelines.tables.iceberg import IcebergTable
from penstock.spark.pipelines.tables.parquet import ParquetTable
from penstock.spark.pipelines.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_table(pipeline: Pipeline, stage: str, name: str, files: Files, spark: SparkSession | None) -> Table:
    """Without Spark it can be compacted, and nothing else. Raises ConfigError where the format's library is missing."""
    path = pipeline.table(stage, name)
    if pipeline.format == "parquet":
        return ParquetTable(spark, path, files)
    table: Table
    if pipeline.format == "delta":
        table = DeltaLakeTable(spark, path, files)
    else:
        identifier = (stage, re.sub(r"\W", "_", name))
        table = IcebergTable(spark, path, files, pipeline.directory, identifier)
    table.exists()  # says which library is missing before anything has started
    return table
