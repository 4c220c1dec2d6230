"""The tables of a pipeline, in its format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, InvalidRequest
from penstock.spark.pipelines.files import is_url
from penstock.spark.pipelines.model import TABLE_KINDS, Pipeline, name_of_path
from penstock.spark.pipelines.tables import delta, iceberg
from penstock.spark.pipelines.tables.delta import DeltaLakeTable
from penstock.spark.pipelines.tables.iceberg import IcebergTable
from penstock.spark.pipelines.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_table(pipeline: Pipeline, stage: str, name: str, spark: SparkSession | None = None) -> Table:
    """Return the table of a stage. Appending and `read` need Spark. Raises ConfigError if the format's library is missing."""
    path = pipeline.table(stage, name)
    table: Table
    partition_by = pipeline.partition_by(stage, name)
    if pipeline.format == "delta":
        table = DeltaLakeTable(spark, path, pipeline.storage, partition_by, pipeline.keep_ms / 1000)
    else:
        identifier = (stage, re.sub(r"\W", "_", name))
        table = IcebergTable(spark, path, pipeline.directory, identifier, pipeline.catalog, partition_by)
    table.exists()  # says which library is missing before anything has started
    return table


def named_table(pipeline: Pipeline, table: str, spark: SparkSession | None = None) -> Table:
    """Return a table that is named as in "silver/orders". Raises InvalidRequest for anything else, ConfigError if it is not there."""
    stage, _, name = table.partition("/")
    if stage not in TABLE_KINDS or not name:
        raise InvalidRequest(f"{table} is not a table: name one as in bronze/orders or gold/revenue")
    found = open_table(pipeline, stage, name, spark)
    if not found.exists():
        raise ConfigError(f"there is no table {found.path}: run the pipeline first")
    return found


def existing_tables(pipeline: Pipeline, kinds: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return the stage and name of each table that the pipeline has written."""
    found: list[tuple[str, str]] = []
    for kind in TABLE_KINDS:
        if not kinds or kind in kinds:
            found += [(kind, name_of_path(name)) for name in sorted(_directories(pipeline, kind))]
    return [each for each in found if open_table(pipeline, *each).exists()]


def _directories(pipeline: Pipeline, kind: str) -> list[str]:
    if not is_url(pipeline.directory):
        directory = Path(pipeline.directory, kind)
        return [each.name for each in directory.iterdir()] if directory.is_dir() else []
    if pipeline.format == "delta":
        return delta.stage_directories(pipeline.directory, kind, pipeline.storage)
    return iceberg.stage_directories(pipeline.directory, kind, pipeline.catalog)
