"""The query of a topic: one micro-batch goes to bronze as it is, and decoded to silver; what does not fit becomes dead letters.

Each of those is done once for a batch. A batch that a crash cut short is repeated whole, and every table skips it that has it already; the
sink skips it by its number. Dead letters are written before silver: a batch that silver has needs nothing more. Bronze is written first,
so it has whatever silver has, and silver can be made again from it (rebuild.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.deliveries.deadletters import dead_letter_topic
from penstock.broker.schemas.reference import Reference
from penstock.errors import InvalidRequest, ValidationFailed
from penstock.spark.batch_writing import DRIVER_ROWS_MAX, is_small, query_id
from penstock.spark.pipelines.dead_letters import letters
from penstock.spark.pipelines.decoding import RAW_COLUMNS, REASON, Plan
from penstock.spark.pipelines.model import Rules
from penstock.spark.pipelines.progress import Counts
from penstock.spark.pipelines.rebuild_hold import wait_for_rebuild
from penstock.spark.pipelines.schemas import Plans, batch_to_repeat
from penstock.spark.pipelines.silver import latest_changes, silver_columns, sorted_records
from penstock.spark.pipelines.stages import House, Stage
from penstock.spark.pipelines.tables.table import READ_AGAIN, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

TOPICS: Final = "topics"
"""Where checkpoints of these queries are, next to those of gold."""


class TopicStage(Stage):
    def __init__(
        self,
        house: House,
        topic: str,
        bronze: Table | None,
        silver: Table | None,
        rejects: Table | None,
        plans: Plans | None,
    ) -> None:
        """`bronze` and `silver` are None if the pipeline has no such table, `plans` where records are passed on undecoded."""
        tables = [("bronze", bronze), ("silver", silver), ("rejects", rejects)]
        super().__init__(house, TOPICS, topic, [(kind, topic) for kind, table in tables if table is not None])
        self._bronze = bronze
        self._silver = silver
        self._rejects = rejects
        self._plans = plans
        self._repeated: int | None = None
        self._rules = Rules() if house.pipeline.silver is None else house.pipeline.silver.rules(topic)
        self._counts = Counts()
        self.shown = [f"{kind}/{topic}" for kind in ("bronze", "silver") if (kind, topic) in self.tables]

    @property
    def group(self) -> str:
        return self.house.pipeline.name

    def counts(self, shown: str) -> Counts:
        return self._counts if shown.startswith("silver/") else Counts()

    def start(self) -> StreamingQuery:
        self._repeated = batch_to_repeat(self.house.files, self.checkpoint)
        return self._started(self._stream(self.subject).select(*RAW_COLUMNS), self._batch)

    def _batch(self, rows: DataFrame, batch_id: int) -> None:
        bronze, silver = self._bronze, self._silver
        if bronze is not None:
            self._claimed_table(bronze, rows, batch_id)
        if silver is not None:
            self._claimed_table(silver, rows, batch_id, remedy=self._remedy())
        to_bronze = bronze is not None and not bronze.has(batch_id)
        if silver is not None:
            wait_for_rebuild(self.house.files, self.house.pipeline, self.subject)
        to_silver = silver is not None and not silver.has(batch_id)
        small = is_small(rows)
        # Both tables get the same records, and the broker is asked for them once. Of a DataFrame that was examined before it is
        # persisted (is_small), Spark would not use what is kept.
        rows = rows.select("*")
        if to_bronze and to_silver:
            rows = rows.persist()
        try:
            if bronze is not None and to_bronze:
                bronze.append(rows, batch_id, small=small)
            if silver is not None and to_silver:
                self._to_silver(silver, rows, batch_id, small=small)
        finally:
            rows.unpersist()

    def _remedy(self) -> str:
        if self._bronze is None:
            return READ_AGAIN
        return f"make it from bronze with penstock pipeline rebuild FILE silver/{self.subject}"

    # -- silver -----------------------------------------------------------------------------------------------------------

    def _to_silver(self, silver: Table, rows: DataFrame, batch_id: int, *, small: bool) -> None:
        plan = None if self._plans is None else self._plan(silver, self._plans, batch_id)
        with sorted_records(rows, plan, self._rules) as records:
            if records.rejected is not None:
                self._reject(records.rejected, records.rejects, batch_id)
            if records.tombstones is not None:
                changed = latest_changes(records.fitting, records.tombstones, self._rules.key)
                silver.merge(changed.rows, changed.deleted, self._rules.key, batch_id)
            else:
                silver.append(records.fitting, batch_id, small=small)
            before = self._counts
            self._counts = Counts(before.rejects + records.rejects, before.dropped + records.dropped)

    def _plan(self, silver: Table, plans: Plans, batch_id: int) -> Plan:
        """The version the batch was begun with, else the newest, which is then written down."""
        pinned = plans.pinned()
        if pinned is not None and batch_id == self._repeated:
            try:
                silver.check_columns(silver_columns(pinned), "the batch", "")
            except InvalidRequest:
                pass  # silver was rebuilt since, by a version that has other types
            else:
                return pinned
        plan = plans.newest()
        # Before it is written down, and before anything is written: a version the table cannot take must not become one that has to be
        # repeated.
        silver.check_columns(
            silver_columns(plan),
            f"version {plan.version.number} of schema {plan.name}",
            self._advice(silver, plan, pinned),
        )
        plans.pin(plan)
        return plan

    def _advice(self, silver: Table, plan: Plan, pinned: Plan | None) -> str:
        """What to do about a version that changes the type of a column, or the case of its name."""
        stay = ""
        if pinned is not None and pinned.name == plan.name and pinned.version.number != plan.version.number:
            before = str(Reference(plan.name, pinned.version.number, plan.message))
            stay = f'stay with the version before, with schemas = {{ "{self.subject}" = "{before}" }} under [silver]; '
        anew = f"or remove {silver.path} and {self.checkpoint} to read the topic again into a new table"
        if self._bronze is not None:
            anew = f"or make the table anew by the new one, with penstock pipeline rebuild FILE silver/{self.subject}"
        return f"{stay}register a version that keeps the column as it is; {anew}"

    def _reject(self, rejected: DataFrame, count: int, batch_id: int) -> None:
        silver = self.house.pipeline.silver
        if silver is not None and silver.rejects == "fail":
            first: Any = rejected.select("partition", "offset", REASON).first()
            raise ValidationFailed(
                f"{count} records of topic {self.subject} do not fit, the first at partition {first.partition}, offset "
                f'{first.offset}: {first[REASON]}; mend them, or set rejects = "dead_letters"'
            )
        topic = dead_letter_topic(self.subject)
        self._write_to_topic(letters(rejected, int(time.time() * 1000)), topic, query_id(rejected), batch_id)
        if self._rejects is not None:
            table = self._claimed_table(self._rejects, rejected, batch_id, every_batch=False)
            table.append(rejected, batch_id, small=count <= DRIVER_ROWS_MAX)
