"""The sink without Spark: schemas, tasks and drivers as Spark would have them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.spark.schema import HEADERS_TYPE
from penstock.spark.sink import PenstockStreamWriter, PenstockWriter, StagedMessage
from penstock.spark.source import PenstockDataSource

T = TypeVar("T")
_TYPES: Mapping[str, DataType] = {
    "BINARY": BinaryType(),
    "STRING": StringType(),
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "TIMESTAMP": TimestampType(),
    "HEADERS": HEADERS_TYPE,
}


def schema_of(columns: str) -> StructType:
    """Of columns as SQL has them: "key STRING, value BINARY, headers HEADERS"."""
    return StructType(
        [StructField(name, _TYPES[kind]) for name, kind in (each.split() for each in columns.split(", "))]
    )


def values_batch(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


class TaskContext:
    """What a task knows of where it is."""

    def __init__(self, partition: int, properties: Mapping[str, str]) -> None:
        self._partition = partition
        self._properties = properties

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self._partition

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(name)


class Query:
    """One run of a streaming query, or a batch job: makes tasks and commits them, each in what might be another process."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, address: str, columns: str = "value BINARY", **options: str
    ) -> None:
        self._monkeypatch = monkeypatch
        self._options = {"penstock.bootstrap": address, **options}
        self._schema = schema_of(columns)
        self.query_id, self.run_id = "query-1", "run-1"

    @property
    def stream(self) -> PenstockStreamWriter:
        writer = PenstockDataSource(dict(self._options)).streamWriter(self._schema, False)
        assert isinstance(writer, PenstockStreamWriter)
        return _travelled(writer)

    def batch(self) -> PenstockWriter:
        writer = PenstockDataSource(dict(self._options)).writer(self._schema, False)
        assert isinstance(writer, PenstockWriter)
        return writer

    def task(
        self,
        batch_id: int | None,
        batches: Sequence[pa.RecordBatch] | Iterator[pa.RecordBatch],
        *,
        partition: int = 0,
        writer: Any = None,
    ) -> StagedMessage:
        """One attempt of one task."""
        properties = {"spark.jobGroup.id": self.run_id}
        if batch_id is not None:
            properties |= {"sql.streaming.queryId": self.query_id, "streaming.sql.batchId": str(batch_id)}
        context = TaskContext(partition, properties)
        with self._monkeypatch.context() as patch:
            patch.setattr(pyspark.TaskContext, "get", lambda: context)
            message = _travelled(writer or self.stream).write(iter(batches))
        assert isinstance(message, StagedMessage)
        return _travelled(message)

    def commit(self, batch_id: int, *messages: WriterCommitMessage | None) -> None:
        self.stream.commit(messages, batch_id)

    def abort(self, batch_id: int, *messages: WriterCommitMessage | None) -> None:
        self.stream.abort(messages, batch_id)


def _travelled(thing: T) -> T:
    copy: T = pickle.loads(pickle.dumps(thing))
    return copy
