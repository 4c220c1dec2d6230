"""Bronze, silver and gold: what each does with a batch.

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

from penstock.broker.deadletters import dead_letter_topic
from penstock.errors import ConfigError, PenstockError, ValidationFailed
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.pipelines.applications import application_name
from penstock.spark.pipelines.dead_letters import letters
from penstock.spark.pipelines.decoding import (
    METADATA_COLUMNS,
    RAW_COLUMNS,
    REASON,
    ROW,
    Plan,
    decoder,
    decoding_function,
)
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.model import Gold, Pipeline
from penstock.spark.pipelines.schemas import Plans, batch_to_repeat
from penstock.spark.pipelines.tables.table import Table, merged_columns
from penstock.spark.pipelines.views import mentions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

FORMAT: Final = "penstock"


class Stopped(Exception):
    """Ends a query whose next batch must not begin."""


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
            "startingOffsets": pipeline.starting,
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
        self._claimed_table(self._table, rows, batch_id).append(rows, batch_id)


class SilverStage(Stage):
    """Records decoded by their schema; those that do not fit become dead letters."""

    def __init__(self, house: House, topic: str, table: Table, plans: Plans | None) -> None:
        super().__init__(house, "silver", topic)
        self._table = table
        self._plans = plans
        self._columns: StructType | None = None

    def start(self) -> StreamingQuery:
        self._repeated = batch_to_repeat(self.house.files, self.checkpoint)
        return self._started(self._stream(self.subject).select(*RAW_COLUMNS), self._batch)

    def _batch(self, rows: DataFrame, batch_id: int) -> None:
        table = self._claimed_table(self._table, rows, batch_id)
        if self._plans is None:
            table.append(undecoded(rows), batch_id)
            return
        plan = self._plan(self._plans, batch_id)
        decoded = with_decoded(rows, plan).persist()
        try:
            counts = decoded.selectExpr(f"count({REASON}) AS rejects").first()
            rejects = 0 if counts is None else int(counts.rejects)
            if rejects:
                self._reject(decoded.where(f"{REASON} IS NOT NULL"), rejects, batch_id)
            fitting = fitting_rows(decoded)
            self._check_columns(fitting.schema, plan)
            table.append(fitting, batch_id)
            self.rejects += rejects
        finally:
            decoded.unpersist()

    def _plan(self, plans: Plans, batch_id: int) -> Plan:
        plan = plans.pinned() if batch_id == self._repeated else None
        if plan is None:
            plan = plans.newest()
            plans.pin(plan)
        return plan

    def _check_columns(self, columns: StructType, plan: Plan) -> None:
        if self._columns is None:
            try:
                self._columns = self._table.read().schema if self._table.exists() else columns
            except Exception as error:  # a table of empty batches has no schema yet
                if isinstance(error, PenstockError):
                    raise
                self._columns = columns
        self._columns = merged_columns(self._columns, columns, f"schema {plan.name}-v{plan.version.number}")

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


class GoldStage(Stage):
    """A query over decoded records, with a watermark, to a table, a topic, or both."""

    def __init__(
        self, house: House, gold: Gold, table: Table | None, views: dict[str, tuple[str, Plan | None]]
    ) -> None:
        super().__init__(house, "gold", gold.name)
        self._gold = gold
        self._table = table
        self._views = views
        """Topic and plan by the name of the view."""
        # Its own: views of two queries may have one name and different watermarks.
        self.session = house.spark.newSession()

    def start(self) -> StreamingQuery:
        for view, (topic, plan) in self._views.items():
            rows = self._stream(topic).select(*RAW_COLUMNS)
            rows = undecoded(rows) if plan is None else fitting_rows(with_decoded(rows, plan))
            if self._gold.event_time in rows.columns:
                rows = rows.withWatermark(self._gold.event_time, f"{self._gold.watermark_ms} milliseconds")
            elif mentions(self._gold.sql, view):
                raise ConfigError(
                    f"gold {self._gold.name} takes its time from column {self._gold.event_time}, which {view} does not have: it has "
                    f"{', '.join(rows.columns)}"
                )
            rows.createOrReplaceTempView(view)
        return self._started(self._queried(), self._batch, self._gold.mode)

    def _queried(self) -> DataFrame:
        from pyspark.errors import AnalysisException, ParseException

        try:
            rows = self.session.sql(self._gold.sql)
        except (AnalysisException, ParseException) as error:
            from penstock.spark.pipelines.failures import explain_failure

            raise ConfigError(
                f"the sql of gold {self._gold.name} is refused: {explain_failure(error)}; it can use {', '.join(self._views)}"
            ) from error
        if not rows.isStreaming:
            raise ConfigError(
                f"the sql of gold {self._gold.name} reads none of the pipeline's topics: it can use {', '.join(self._views)}"
            )
        if self._gold.key is not None and self._gold.key not in rows.columns:
            raise ConfigError(
                f"the key of gold {self._gold.name} is {self._gold.key}, and its sql gives {', '.join(rows.columns)}"
            )
        return rows

    def _batch(self, rows: DataFrame, batch_id: int) -> None:
        # The result is used twice, and computing it again would commit its state again.
        rows = rows.persist()
        try:
            if self._table is not None:
                self._claimed_table(self._table, rows, batch_id).append(rows, batch_id)
            if self._gold.topic is not None:
                self._write_to_topic(self._records(rows), self._gold.topic, self._query_id(rows), batch_id)
        finally:
            rows.unpersist()

    def _records(self, rows: DataFrame) -> DataFrame:
        key = f"CAST(`{self._gold.key}` AS STRING)" if self._gold.key is not None else "CAST(NULL AS STRING)"
        return rows.selectExpr(f"CAST({key} AS BINARY) AS key", "CAST(to_json(struct(*)) AS BINARY) AS value")


# --- rows ---


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
