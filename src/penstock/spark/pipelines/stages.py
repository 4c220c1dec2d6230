"""What the queries of a pipeline have in common. Those that read topics are in topic_stage.py, those of gold in gold.py.

All of them are structured streaming queries that hand each batch to Python on the driver (`foreachBatch`), where it goes to its tables and
wherever else it belongs, each of those being done once for a batch however often the batch is tried: tables by the number of the batch,
topics by the sink's transactions.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.applications import application_name
from penstock.spark.batch_writing import query_id
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.model import Pipeline, Starting
from penstock.spark.pipelines.progress import Counts
from penstock.spark.pipelines.tables.table import Table
from penstock.spark.sessions import parallelism_option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT: Final = "penstock"


class Stopped(Exception):
    """Ends a query whose next batch must not begin."""


class Outdated(Stopped):
    """Ends a query whose next batch must begin with another query, to be started in its place."""


class Gate:
    """What every batch passes, until a run is asked to stop: what was begun is finished, and nothing else is begun.

    A batch that is turned away ends its query. Spark cannot be asked to: it waits for a batch in Python forever.
    """

    def __init__(self) -> None:
        self._closed = threading.Event()
        self._turned_away: set[str] = set()

    def close(self) -> None:
        self._closed.set()

    def ended(self, stage: str) -> bool:
        """Whether a batch of the stage was turned away."""
        return stage in self._turned_away

    def enter(self, stage: str) -> None:
        if self._closed.is_set():
            self._turned_away.add(stage)
            raise Stopped


@dataclass(frozen=True)
class House:
    """What every stage of a run shares."""

    spark: SparkSession
    pipeline: Pipeline
    client: FlyMQClient
    files: Files
    broker_options: dict[str, str]
    gate: Gate
    once: bool


class Stage(ABC):
    """One query."""

    def __init__(self, house: House, kind: str, subject: str, tables: Sequence[tuple[str, str]]) -> None:
        """`tables` are the stage and name of each table that it writes."""
        self.house = house
        self.subject = subject
        self.name = f"{kind}/{subject}"
        self.checkpoint = house.pipeline.checkpoint(kind, subject)
        self.tables = list(tables)
        self.shown = [self.name]
        """The names under which people see its progress."""
        self.reads_tables = False
        """Whether what it reads is written by other stages of the run."""
        self.failure: BaseException | None = None
        """What a batch failed of, as it was raised."""
        self.outdated = False
        """Whether its query ended itself because another is to be started in its place."""
        self.starting: Starting = house.pipeline.starting
        """Where a query without a checkpoint begins."""
        self.session = house.spark
        """The session its query belongs to, which is the one that tells of it."""
        self._claimed: set[str] = set()

    @property
    @abstractmethod
    def group(self) -> str:
        """Under which the broker shows how far the stage has read."""

    @abstractmethod
    def start(self) -> StreamingQuery: ...

    def counts(self, shown: str) -> Counts:
        """What became of its records since the run began, for one of the names in `shown`."""
        return Counts()

    # -- for the stages ---------------------------------------------------------------------------------------------------

    def _stream(self, topic: str) -> DataFrame:
        pipeline = self.house.pipeline
        options = {
            **self.house.broker_options,
            **parallelism_option(self.session),
            "subscribe": topic,
            "startingOffsets": self.starting,
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": str(pipeline.batch_records_max),
            "maxBytesPerTrigger": str(pipeline.batch_bytes_max),
            "group": self.group,
        }
        return self.session.readStream.format(FORMAT).options(**options).load()

    def _started(self, rows: DataFrame, each: Callable[[DataFrame, int], None], mode: str = "append") -> StreamingQuery:
        def batch(rows: DataFrame, batch_id: int) -> None:
            self.house.gate.enter(self.name)
            try:
                each(rows, batch_id)
            except Outdated:
                self.outdated = True
                raise
            except BaseException as error:
                self.failure = error
                raise

        writer = rows.writeStream.queryName(f"{self.house.pipeline.name}/{self.name}").outputMode(mode)
        writer = writer.option("checkpointLocation", self.checkpoint).foreachBatch(batch)
        if self.house.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self.house.pipeline.trigger_ms} milliseconds")
        return writer.start()

    def _claimed_table(self, table: Table, rows: DataFrame, batch_id: int, **given: Any) -> Table:
        if table.path not in self._claimed:
            table.claim(query_id(rows), batch_id, self.checkpoint, **given)
            self._claimed.add(table.path)
        return table

    def _write_to_topic(self, rows: DataFrame, topic: str, query: str, batch_id: int) -> None:
        """Once for each batch: the sink passes over a version of an application that it has."""
        options = {
            **self.house.broker_options,
            "topic": topic,
            "includeHeaders": "true" if "headers" in rows.columns else "false",
            "txnAppId": application_name(self.house.pipeline.name, self.name, topic, query),
            "txnVersion": str(batch_id),
        }
        rows.write.format(FORMAT).options(**options).mode("append").save()
