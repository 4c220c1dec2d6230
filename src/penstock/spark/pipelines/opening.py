"""The table of a stage, in the format of its pipeline."""

from __future__ import annotations

import re
from typing import Protocol

from pyspark.sql import SparkSession

from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.tables.delta import DeltaLakeTable
from penstock.spark.pipelines.tables.iceberg import IcebergTable
from penstock.spark.pipelines.tables.parquet import ParquetTable
from penstock.spark.pipelines.tables.table import Table


class Place(Protocol):
    """What of a run is needed to open its tables."""

    @property
    def spark(self) -> SparkSession: ...
    @property
    def pipeline(self) -> Pipeline: ...
    @property
    def files(self) -> Files: ...


def open_table(place: Place, stage: str, name: str) -> Table:
    """Raises ConfigError where the format's library is missing."""
    pipeline = place.pipeline
    path = pipeline.table(stage, name)
    if pipeline.format == "parquet":
        return ParquetTable(place.spark, path, place.files)
    table: Table
    if pipeline.format == "delta":
        table = DeltaLakeTable(place.spark, path, place.files)
    else:
        identifier = (stage, re.sub(r"\W", "_", name))
        table = IcebergTable(place.spark, path, place.files, pipeline.directory, identifier)
    table.exists()  # says which library is missing before anything has started
    return table
