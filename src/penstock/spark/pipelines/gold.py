"""Gold: a query over decoded records, with a watermark, to a table, a topic, or both.

What a query decodes by is part of it, so that one that runs knows one version of each schema. Each batch looks whether that is still the
newest; if it is not, it ends its query before anything is read, and the run starts another in its place, which begins with that batch.
A batch that a run before did not finish is done with the versions it was begun with, like those of silver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import ConfigError
from penstock.spark.batch_writing import DRIVER_ROWS_MAX, query_id
from penstock.spark.delta_format import FORMAT as DELTA
from penstock.spark.delta_format import STORAGE_PREFIX, with_delta_source
from penstock.spark.pipelines.decoded_rows import fitting_rows, undecoded, with_decoded
from penstock.spark.pipelines.decoding import RAW_COLUMNS, Plan
from penstock.spark.pipelines.failures import explain_failure
from penstock.spark.pipelines.model import Gold
from penstock.spark.pipelines.progress import FUTURE
from penstock.spark.pipelines.schemas import Plans, batch_to_repeat
from penstock.spark.pipelines.silver import met, silver_columns
from penstock.spark.pipelines.stages import House, Outdated, Stage
from penstock.spark.pipelines.tables.table import Table
from penstock.spark.sessions import with_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


class View(NamedTuple):
    """A topic as the SQL sees it."""

    topic: str
    plans: Plans | None
    """None if its records are passed on undecoded."""


class GoldStage(Stage):
    def __init__(
        self, house: House, gold: Gold, table: Table | None, views: Mapping[str, View], known: Sequence[str]
    ) -> None:
        """`views` are those that the SQL mentions, `known` all that it could."""
        super().__init__(house, "gold", gold.name, [("gold", gold.name)] if table is not None else [])
        self._gold = gold
        self._table = table
        self._views = views
        self._known_views = ", ".join(known)
        self._in_use: dict[str, Plan | None] = {}
        """By the name of the view."""
        self._turned_away: int | None = None
        """The batch that ended the query before: it was planned, and not begun."""
        self._written_down = False
        # Its own: views of two queries may have one name and different watermarks.
        self.session = with_delta_source(with_source(house.spark.newSession()))
        self.reads_tables = house.pipeline.gold_source(gold, [view.topic for view in views.values()]) == "silver"

    @property
    def group(self) -> str:
        return f"{self.house.pipeline.name}.gold.{self.subject}"

    def start(self) -> StreamingQuery:
        self.outdated = self._written_down = False
        self._repeated = batch_to_repeat(self.house.files, self.checkpoint)
        if self._repeated is not None and self._repeated == self._turned_away:
            self._repeated = None
        rows = self._of_the_batch_to_repeat() if self._repeated is not None else None
        if rows is None:
            rows = self._queried({name: _newest(view) for name, view in self._views.items()})
        return self._started(rows, self._batch, self._gold.mode)

    def _of_the_batch_to_repeat(self) -> DataFrame | None:
        """The query as it was when the batch was begun; None if that is not known, or its SQL is another now."""
        plans: dict[str, Plan | None] = {}
        for name, view in self._views.items():
            plans[name] = None if view.plans is None else view.plans.pinned()
            if plans[name] is None and view.plans is not None:
                return None
        try:
            return self._queried(plans)
        except ConfigError:
            return None  # what it says now may need columns that came with a later version

    def _queried(self, plans: Mapping[str, Plan | None]) -> DataFrame:
        from pyspark.errors import AnalysisException, ParseException

        for name, view in self._views.items():
            self._create_view(name, view.topic, plans[name])
        self._in_use = dict(plans)
        try:
            rows = self.session.sql(self._gold.sql)
        except (AnalysisException, ParseException) as error:
            raise ConfigError(
                f"the sql of gold {self._gold.name} is refused: {explain_failure(error)}; it can use {self._known_views}"
            ) from error
        if not rows.isStreaming:
            raise ConfigError(
                f"the sql of gold {self._gold.name} reads none of the pipeline's topics: it can use {self._known_views}"
            )
        if self._gold.key is not None and self._gold.key not in rows.columns:
            raise ConfigError(
                f"the key of gold {self._gold.name} is {self._gold.key}, and its sql gives {', '.join(rows.columns)}"
            )
        return rows

    def _create_view(self, name: str, topic: str, plan: Plan | None) -> None:
        rows = self._silver_stream(topic, plan) if self.reads_tables else self._topic_stream(topic, plan)
        if self._gold.event_time not in rows.columns:
            raise ConfigError(
                f"gold {self._gold.name} takes its time from column {self._gold.event_time}, which {name} does not have: it has "
                f"{', '.join(rows.columns)}"
            )
        rows = self._without_the_future(name, rows)
        rows = rows.withWatermark(self._gold.event_time, f"{self._gold.watermark_ms} milliseconds")
        rows.createOrReplaceTempView(name)

    def _silver_stream(self, topic: str, plan: Plan | None) -> DataFrame:
        """The rows of silver; of a table that is not there yet, none."""
        pipeline = self.house.pipeline
        storage = {f"{STORAGE_PREFIX}{name}": value for name, value in pipeline.storage.items()}
        stream = self.session.readStream.format(DELTA).options(**storage).schema(silver_columns(plan))
        return stream.load(pipeline.table("silver", topic))

    def _topic_stream(self, topic: str, plan: Plan | None) -> DataFrame:
        """What the rows of silver are or would be."""
        rows = self._stream(topic).select(*RAW_COLUMNS)
        rows = undecoded(rows) if plan is None else fitting_rows(with_decoded(rows, plan))
        silver = self.house.pipeline.silver
        return rows if silver is None else met(rows, silver.rules(topic))

    def _without_the_future(self, view: str, rows: DataFrame) -> DataFrame:
        """Without rows that would move the watermark past everything that comes after them; they are counted.

        The time of a batch is in Spark's checkpoint, so a batch that is repeated leaves out the same rows.
        """
        from pyspark.sql.functions import count_if, expr

        ahead = f"coalesce(`{self._gold.event_time}` > current_timestamp() + INTERVAL {self._gold.future_ms} MILLISECOND, false)"
        return rows.observe(view, count_if(expr(ahead)).alias(FUTURE)).where(f"NOT {ahead}")

    def _batch(self, rows: DataFrame, batch_id: int) -> None:
        self._check_versions(batch_id)
        if self._table is not None:
            self._claimed_table(self._table, rows, batch_id).check_columns(
                rows.schema,
                f"gold {self._gold.name}",
                f"CAST it to what it was in the sql; or give the changed query another name, or remove {self._table.path} and "
                f"{self.checkpoint}, to begin a new table",
            )
        self._write_down_versions()
        # The result is used twice, and computing it again would commit its state again.
        rows = rows.persist()
        try:
            if self._table is not None:
                self._table.append(rows, batch_id, small=rows.count() <= DRIVER_ROWS_MAX)
            if self._gold.topic is not None:
                self._write_to_topic(self._records(rows), self._gold.topic, query_id(rows), batch_id)
        finally:
            rows.unpersist()

    def _check_versions(self, batch_id: int) -> None:
        """Raises Outdated if the batch must not begin with this query."""
        if batch_id == self._repeated:
            return
        if any(self._in_use[name] != _newest(view) for name, view in self._views.items()):
            self._turned_away = batch_id
            raise Outdated

    def _write_down_versions(self) -> None:
        """Not before the first batch: Spark may refuse the query until then, and what it refuses must not have to be repeated."""
        if self._written_down:
            return
        for name, view in self._views.items():
            plan = self._in_use[name]
            if view.plans is not None and plan is not None:
                view.plans.pin(plan)
        self._written_down = True

    def _records(self, rows: DataFrame) -> DataFrame:
        key = f"CAST(`{self._gold.key}` AS STRING)" if self._gold.key is not None else "CAST(NULL AS STRING)"
        return rows.selectExpr(f"CAST({key} AS BINARY) AS key", "CAST(to_json(struct(*)) AS BINARY) AS value")


def _newest(view: View) -> Plan | None:
    return None if view.plans is None else view.plans.newest()
