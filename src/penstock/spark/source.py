"""`spark.read.format("penstock")`: the data source, and its batch reader.

Spark makes these objects in several Python processes: one plans, others read, and whatever goes from one to another is pickled. So
readers hold options and plain data only, and connections are found by them where they are needed (`connection`).

There is no `pushFilters`: Spark 4.1 to 4.3 keeps what was pushed down for one query and uses it for the next query over the same DataFrame,
which then misses rows. Options prune instead (`assign`, offsets, times), and a schema with some of the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from penstock.errors import InvalidRequest
from penstock.protocols.flymq.operations.blocks import NO_EPOCH
from penstock.spark.connection import connection_settings, pooled_client
from penstock.spark.holdings import check_all_exist, ending_positions, epochs_of, look, starting_positions
from penstock.spark.offsets import Epochs, Positions
from penstock.spark.option_values import flag
from penstock.spark.options import SourceOptions, parse_source_options
from penstock.spark.planner import Bounds, Files, Range, Slice, plan_tasks
from penstock.spark.reading import read_slices
from penstock.spark.schema import arrow_schema, source_schema
from penstock.spark.session_options import merged
from penstock.spark.workers import freeze_loaded_modules

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass
class SliceTask(InputPartition):
    """What one Spark task reads."""

    files: Files
    slices: tuple[Slice, ...]


class PenstockDataSource(DataSource):
    """Topics as tables: read and written, in batches and as streams."""

    defaults: ClassVar[Mapping[str, str]] = {}
    """Options that a query does not have to set; see `session_options`."""

    def __init__(self, options: dict[str, str]) -> None:
        """Refuse a password in the address before Spark writes it anywhere: a catalog, a plan, an event log. Raises InvalidRequest."""
        super().__init__(dict(merged(self.defaults, options)))
        connection_settings(self.options)

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        given = {name.lower(): value for name, value in self.options.items()}
        return source_schema(headers=flag(given, "includeHeaders", default=False))

    def reader(self, schema: StructType) -> DataSourceReader:
        freeze_loaded_modules()
        return PenstockReader(parse_source_options(self.options, streaming=False), arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from penstock.spark.stream import PenstockStreamReader

        return PenstockStreamReader(parse_source_options(self.options, streaming=True), arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink import batch_writer

        freeze_loaded_modules()
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from penstock.spark.sink import stream_writer

        freeze_loaded_modules()
        return stream_writer(self.options, schema, overwrite)


class PenstockReader(DataSourceReader):
    """A batch: what is in the topics when it is planned. Spark plans a DataFrame once, so it stays what it was; load again for more."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        options = self._options
        client = pooled_client(options.connection)
        holdings = look(client, options.subscription, reached=options.starting.reached)
        check_all_exist(holdings, options.subscription)
        begin = starting_positions(client, holdings, options)
        end = ending_positions(client, holdings, options)
        if options.starting.offsets is not None and options.ending.offsets is not None:
            _check_order(begin, end)
        ids = {topic: held.id for topic, held in holdings.items()}
        return planned(options, ids, epochs_of(holdings), begin, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options, partition, self._schema)


def planned(
    options: SourceOptions, ids: Mapping[str, str], epochs: Epochs, begin: Positions, end: Positions
) -> list[InputPartition]:
    """The tasks that read from one place to another in topics with these ids, in partitions of these log epochs. Raises DataLoss."""
    ranges = [
        Range(
            topic,
            ids.get(topic, ""),
            index,
            begin[topic][index],
            offset,
            epochs.get(topic, {}).get(index, NO_EPOCH),
        )
        for topic, numbers in sorted(end.items())
        for index, offset in sorted(numbers.items())
    ]
    bounds = Bounds(options.tasks_min, options.task_records_max, options.task_bytes_max, options.parallelism)
    client = pooled_client(options.connection)
    files, tasks = plan_tasks(client, ranges, bounds, fail=options.fail_on_data_loss)
    return [SliceTask(files, slices) for slices in tasks]


def read_task(options: SourceOptions, partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, SliceTask):
        return iter(())  # what Spark makes of a plan without tasks
    freeze_loaded_modules()
    return read_slices(
        options.connection, partition.files, partition.slices, schema, fail_on_data_loss=options.fail_on_data_loss
    )


def _check_order(begin: Positions, end: Mapping[str, Mapping[int, int]]) -> None:
    for topic, numbers in begin.items():
        for index, offset in numbers.items():
            if offset > end[topic][index]:
                raise InvalidRequest(
                    f"startingOffsets is {offset} for {topic}-{index} and endingOffsets {end[topic][index]}: begin before the end"
                )
