"""The source without Spark: readers made and asked as Spark does it, pickled on the way."""

from __future__ import annotations

import json
import pickle
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from penstock.log.embedded import EmbeddedEngine
from penstock.spark.planner import Files
from penstock.spark.source import PenstockDataSource, PenstockReader, SliceTask
from penstock.spark.stream import PenstockStreamReader
from penstock.testing import RunningBroker

T = TypeVar("T")
Row = dict[str, Any]


class Source:
    """`format("penstock")` for one broker."""

    def __init__(self, address: str, **options: str) -> None:
        self._options = {"penstock.bootstrap": address, **options}

    def reader(self, schema: StructType | None = None, **options: str) -> PenstockReader:
        source = PenstockDataSource({**self._options, **options})
        reader = source.reader(schema or source.schema())
        assert isinstance(reader, PenstockReader)
        return reader

    def read(self, schema: StructType | None = None, *, wire: bool = False, **options: str) -> list[Row]:
        """Every row of a batch; over the wire, or from the files."""
        reader = self.reader(schema, **options)
        return rows(reader, reader.partitions(), wire=wire)

    def values(self, *, wire: bool = False, **options: str) -> list[bytes | None]:
        return [row["value"] for row in self.read(None, wire=wire, **options)]

    def stream(self, **options: str) -> Stream:
        source = PenstockDataSource({"pollWaitMs": "0", **self._options, **options})
        reader = source.streamReader(source.schema())
        assert isinstance(reader, PenstockStreamReader)
        return Stream(reader)


class Stream:
    """A query: remembers, as Spark's checkpoint does, the offsets of its batches."""

    def __init__(self, reader: PenstockStreamReader) -> None:
        self.reader = reader
        self.offsets: list[dict[str, Any]] = []

    def next_end(self, limit: ReadLimit | None = None) -> dict[str, Any]:
        start = self.start
        end = self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
        return through_json(end)

    @property
    def start(self) -> dict[str, Any]:
        return self.offsets[-1] if self.offsets else through_json(self.reader.initialOffset())

    def batch(self, limit: ReadLimit | None = None) -> list[Row] | None:
        """The rows of the next batch, None if Spark would start none."""
        start, end = self.start, self.next_end(limit)
        if json.dumps(end) == json.dumps(start):
            return None
        found = self.replay(start, end)
        self.offsets.append(end)
        return found

    def values(self, limit: ReadLimit | None = None) -> list[bytes | None] | None:
        found = self.batch(limit)
        return None if found is None else [row["value"] for row in found]

    def replay(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Row]:
        """What tasks read. What the driver has read in their place, if it has, is the same."""
        tasks = self.reader.partitions(dict(start), dict(end))
        prefetched = self.reader.getCache(dict(start), dict(end))
        found = rows(self.reader, tasks)
        assert prefetched is None or [row for batch in prefetched for row in batch.to_pylist()] == found
        return found


def rows(
    reader: PenstockReader | PenstockStreamReader, tasks: list[InputPartition], *, wire: bool = False
) -> list[Row]:
    return [row for task in tasks for row in task_rows(reader, task, wire=wire)]


def task_rows(
    reader: PenstockReader | PenstockStreamReader, task: InputPartition, *, wire: bool = False
) -> Iterator[Row]:
    there = pickle.loads(pickle.dumps(reader))
    task = pickle.loads(pickle.dumps(task))
    if wire and isinstance(task, SliceTask):
        task.files = Files(now_ms=task.files.now_ms)
    for batch in there.read(task):
        yield from batch.to_pylist()


def through_json(offset: Mapping[str, Any]) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(json.dumps(offset))
    return decoded


def run(broker: RunningBroker, work: Coroutine[Any, Any, T]) -> T:
    """Something on the broker's own loop."""
    thread = broker._thread
    assert thread is not None
    return thread.run(work)


def engine_of(broker: RunningBroker) -> EmbeddedEngine:
    engine = broker.server.engine
    assert isinstance(engine, EmbeddedEngine)
    return engine


def maintain(broker: RunningBroker) -> None:
    """One pass of retention, merging and compaction."""
    run(broker, engine_of(broker).maintain())
