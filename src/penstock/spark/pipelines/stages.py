"""What stages have in common, and bronze and silver: what they do with a batch. Gold is in gold.py.

All of them are structured streaming queries that hand each batch to Python on the driver (`foreachBatch`), where it goes to its table and
wherever else it belongs, each of those being done once for a batch however often the batch is tried: tables by the number of the batch,
topics by the sink's transactions. A query reads its topic from the broker, not the table of the stage before: any stage can be added,
removed or begun anew without the others, and no stage waits for another's files.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.deliveries.deadletters import dead_letter_topic
from penstock.broker.schemas.reference import Reference
from penstock.errors import ValidationFailed
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.pipelines.applications import application_name
from penstock.spark.pipelines.dead_letters import letters
from penstock.spark.pipelines.decoded_rows import fitting_rows, undecoded, with_decoded
from penstock.spark.pipelines.decoding import RAW_COLUMNS, REASON, Plan
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.model import Pipeline, Starting
from penstock.spark.pipelines.schemas import Plans, batch_to_repeat
from penstock.spark.pipelines.tables.data_files import is_small
from penstock.spark.pipelines.tables.table import Table

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

    A batch that is turned away ends its query. Spark cannot be asked to: it waits for a batch in Python for ever.
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
    def __init__(self, house: House, kind: str, subject: str) -> None:
        self.house = house
        self.kind = kind
        self.subject = subject
        self.name = f"{kind}/{subject}"
        self.checkpoint = house.pipeline.checkpoint(kind, subject)
        self.rejects = 0
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
    def group(self) -> str:
        """Under which the broker shows how far the stage has read."""
        name = f"{self.house.pipeline.name}.{self.kind}"
        return f"{name}.{self.subject}" if self.kind == "gold" else name

    @abstractmethod
    def start(self) -> StreamingQuery: ...

    # -- for the stages ---------------------------------------------------------------------------------------------------

    def _stream(self, topic: str) -> DataFrame:
        pipeline = self.house.pipeline
        options = {
            **self.house.broker_options,
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

    def _claimed_table(self, table: Table, rows: DataFrame, batch_id: int) -> Table:
        if table.path not in self._claimed:
            table.claim(self._query_id(rows), batch_id, self.checkpoint)
            self._claimed.add(table.path)
        return table

    def _query_id(self, rows: DataFrame) -> str:
        session: Any = rows.sparkSession
        return str(session.sparkContext.getLocalProperty("sql.streaming.queryId"))

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


class BronzeStage(Stage):
    """Every record as it is."""

    def __init__(self, house: House, topic: str, table: Table) -> None:
        super().__init__(house, "bronze", topic)
        self._table = table

    def start(self) -> StreamingQuery:
        return self._started(self._stream(self.subject).select(*RAW_COLUMNS), self._batch)

    def _batch(self, rows: DataFrame, batch_id: int) -> None:
        self._claimed_table(self._table, rows, batch_id).append(rows, batch_id, small=is_small(rows))


class SilverStage(Stage):
    """Records decoded by their schema; those that do not fit become dead letters."""

    def __init__(self, house: House, topic: str, table: Table, plans: Plans | None) -> None:
        super().__init__(house, "silver", topic)
        self._table = table
        self._plans = plans

    def start(self) -> StreamingQuery:
        self._repeated = batch_to_repeat(self.house.files, self.checkpoint)
        return self._started(self._stream(self.subject).select(*RAW_COLUMNS), self._batch)

    def _batch(self, rows: DataFrame, batch_id: int) -> None:
        table = self._claimed_table(self._table, rows, batch_id)
        small = is_small(rows)
        if self._plans is None:
            table.append(undecoded(rows), batch_id, small=small)
            return
        decoded = self._decoded(self._plans, rows, batch_id).persist()
        try:
            counts = decoded.selectExpr(f"count({REASON}) AS rejects").first()
            rejects = 0 if counts is None else int(counts.rejects)
            if rejects:
                self._reject(decoded.where(f"{REASON} IS NOT NULL"), rejects, batch_id)
            table.append(fitting_rows(decoded), batch_id, small=small)
            self.rejects += rejects
        finally:
            decoded.unpersist()

    def _decoded(self, plans: Plans, rows: DataFrame, batch_id: int) -> DataFrame:
        """By the version the batch was begun with, else by the newest, which is then written down."""
        pinned = plans.pinned()
        if pinned is not None and batch_id == self._repeated:
            return with_decoded(rows, pinned)
        plan = plans.newest()
        decoded = with_decoded(rows, plan)
        # Before it is written down, and before anything is written: a version the table cannot take must not become one that has to be
        # repeated.
        self._table.check_columns(
            fitting_rows(decoded).schema,
            f"version {plan.version.number} of schema {plan.name}",
            self._advice(plan, pinned),
        )
        plans.pin(plan)
        return decoded

    def _advice(self, plan: Plan, pinned: Plan | None) -> str:
        """What to do about a version that changes the type of a column."""
        stay = ""
        if pinned is not None and pinned.name == plan.name and pinned.version.number != plan.version.number:
            before = str(Reference(plan.name, pinned.version.number, plan.message))
            stay = f'stay with the version before, with schemas = {{ "{self.subject}" = "{before}" }} under [silver]; '
        return (
            f"{stay}register a version that keeps the type; or remove {self._table.path} and {self.checkpoint} to read the topic again "
            "into a new table"
        )

    def _reject(self, rejected: DataFrame, count: int, batch_id: int) -> None:
        silver = self.house.pipeline.silver
        if silver is not None and silver.rejects == "fail":
            first: Any = rejected.select("partition", "offset", REASON).first()
            raise ValidationFailed(
                f"{count} records of topic {self.subject} do not fit, the first at partition {first.partition}, offset "
                f'{first.offset}: {first[REASON]}; mend them, or set rejects = "dead_letters"'
            )
        topic = dead_letter_topic(self.subject)
        self._write_to_topic(letters(rejected, int(time.time() * 1000)), topic, self._query_id(rejected), batch_id)
