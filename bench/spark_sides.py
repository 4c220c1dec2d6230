"""Brokers as Spark reaches them: the same reads, writes and streams of each, with its own format and options."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import penstock.spark
from bench.dialects import RecordLost
from penstock.protocols.flymq.operations.blocks import TopicSpans
from penstock.protocols.flymq.sync import FlyMQClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

PARTITIONS = 2
_BY_TASKS = "penstock-by-tasks"
STREAM_S_MAX = 600


class Side(ABC):
    name: str

    def __init__(self, spark: SparkSession, address: str) -> None:
        """`address` is host:port."""
        self._spark = spark
        self._address = address

    @abstractmethod
    def make_topic(self, topic: str) -> None: ...

    @property
    @abstractmethod
    def _format(self) -> tuple[str, dict[str, str]]:
        """The name Spark knows it by, and the options that say where it is."""

    @contextmanager
    def apart(self, topic: str) -> Iterator[None]:
        """What must be so while a topic is read."""
        yield

    def rows(self, topic: str) -> DataFrame:
        """All that a topic holds now, all columns of it."""
        name, options = self._format
        return self._spark.read.format(name).options(**options, subscribe=topic).load()

    def write(self, rows: DataFrame, topic: str) -> None:
        name, options = self._format
        rows.write.format(name).options(**options, topic=topic).mode("append").save()

    def triggers_ms(self, source: str, sink: str | None, checkpoint: Path) -> list[float]:
        """How long each trigger took that took one record, from a topic to Spark's `noop` sink or to another topic."""
        name, options = self._format
        stream = self._spark.readStream.format(name).options(**options, subscribe=source)
        rows = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger="1").load().select("value")
        writing = rows.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query = (writing.format("noop") if sink is None else self._into(writing, sink)).start()
        try:
            if not query.awaitTermination(STREAM_S_MAX):
                raise RecordLost(f"{self.name}: the stream from {source} did not come to its end in {STREAM_S_MAX} s")
            return [
                each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"] == 1
            ]
        finally:
            query.stop()

    def _into(self, writing: DataStreamWriter, topic: str) -> DataStreamWriter:
        name, options = self._format
        return writing.format(name).options(**options, topic=topic)


class Penstock(Side):
    """A task reads from the broker's files where it can."""

    name = "Penstock"

    def make_topic(self, topic: str) -> None:
        with FlyMQClient(f"flymq://{self._address}") as client:
            client.create_topic(topic, PARTITIONS)

    @property
    def _format(self) -> tuple[str, dict[str, str]]:
        return "penstock", {"penstock.bootstrap": self._address}


class PenstockOverTheWire(Penstock):
    """As if the broker were on another machine: its files are there only for who finds the proof that they are its own."""

    name = "Penstock over the wire"

    @contextmanager
    def apart(self, topic: str) -> Iterator[None]:
        with FlyMQClient(f"flymq://{self._address}") as client:
            plan = client.blocks.plan([TopicSpans(topic, [])])
        proof = Path(plan.directory, plan.proof)
        hidden = proof.with_name(f"{proof.name}.hidden")
        proof.rename(hidden)
        try:
            yield
        finally:
            hidden.rename(proof)


class PenstockByTasks(Penstock):
    """Without what the driver does for small batches: a task reads them."""

    name = "Penstock by tasks"

    def __init__(self, spark: SparkSession, address: str) -> None:
        super().__init__(spark, address)
        spark.dataSource.register(_source_by_tasks())

    @property
    def _format(self) -> tuple[str, dict[str, str]]:
        return _BY_TASKS, super()._format[1]


class PenstockByWriteBatch(Penstock):
    """The driver writes small batches too, in `foreachBatch`."""

    name = "Penstock by write_batch"

    def _into(self, writing: DataStreamWriter, topic: str) -> DataStreamWriter:
        options = self._format[1]
        return writing.foreachBatch(
            lambda batch, batch_id: penstock.spark.write_batch(batch, batch_id, topic=topic, options=options)
        )


class PenstockOnKafka(Penstock):
    """A broker that has no files: its log is in Kafka."""

    name = "Penstock on Kafka"


class Kafka(Side):
    name = "Kafka"

    def make_topic(self, topic: str) -> None:
        """The first write does."""

    @property
    def _format(self) -> tuple[str, dict[str, str]]:
        return "kafka", {"kafka.bootstrap.servers": self._address}


def _source_by_tasks() -> type[DataSource]:
    """Made in a function, so that Spark sends it by value: its processes need not find this module."""
    from penstock.spark.source import PenstockDataSource
    from penstock.spark.stream import PenstockStreamReader

    class Reader(PenstockStreamReader):
        def prefetch(self, *given: object) -> None:
            """Leave the batch to its task."""

    class ByTasks(PenstockDataSource):
        @classmethod
        def name(cls) -> str:
            return _BY_TASKS

        def streamReader(self, schema: StructType) -> PenstockStreamReader:  # noqa: N802 - Spark's name
            made = super().streamReader(schema)
            assert isinstance(made, PenstockStreamReader)
            return Reader(made._options, made._schema)  # noqa: SLF001

    return ByTasks
