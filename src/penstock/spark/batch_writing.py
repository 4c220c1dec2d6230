"""Writing a micro-batch inside `foreachBatch`: a small one by the driver, a large one by tasks, either once.

Spark's sink takes a batch through three Python processes, of the task, of its commit and of the plan, which is most of the time of a small
one. The driver has the function's own process and a connection that stays open, and stages no records that fit into the commit. Both ways
commit under one application and epoch, so a batch that is done again, maybe the other way, is left out.

To learn how many tasks a batch has takes Spark another plan of it, a third of what a small batch adds to a trigger. So after a batch of few
rows the next is expected to be one too, and its tasks are only counted if more rows come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import InvalidRequest
from penstock.spark.applications import application_name
from penstock.spark.session_options import with_session_defaults
from penstock.spark.sink import Work, publish, stage
from penstock.spark.sink_options import APPLICATION, VERSION, parse_sink_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

FORMAT: Final = "penstock"
QUERY_ID: Final = "sql.streaming.queryId"
RUN_ID: Final = "spark.jobGroup.id"
DRIVER_ROWS_MAX: Final = 50_000
"""Rows of a batch that the driver writes, instead of its tasks."""
DRIVER_BYTES_MAX: Final = 4 << 20
"""Of records that the driver writes with its commit; it stages more."""
FEW_ROWS_MAX: Final = 10
"""Rows that the driver takes of a batch whose tasks it has not counted: with records as large as they can be (32 MiB), it can hold them."""
APPLICATIONS_MAX: Final = 1_000
"""Whose last batch is remembered."""
ARROW_ROWS_MAX: Final = 10_000
"""What Spark gives a task at once: rows without keys go to another partition after as many."""

_had_few_rows: set[str] = set()
"""Applications whose last batch had few rows."""


def is_small(batch: DataFrame) -> bool:
    """Whether the driver can hold a micro-batch of the penstock source.

    The source plans a single task for up to `planner.TASK_BYTES_MIN` (8 MiB) of log, and more tasks for anything larger.
    """
    return batch.rdd.getNumPartitions() <= 1


def write_micro_batch(batch: DataFrame, batch_id: int, topic: str | None, options: Mapping[str, str] | None) -> None:
    """See `penstock.spark.write_batch`."""
    given = with_session_defaults(batch.sparkSession, options or {})
    names = {name.lower() for name in given}
    if VERSION.lower() in names:
        raise InvalidRequest(f"option {VERSION}: the number of the batch is the version; remove it")
    if topic is not None:
        given["topic"] = topic
    if APPLICATION.lower() not in names:
        given[APPLICATION] = application_name(query_id(batch), *([topic] if topic is not None else []))
    given[VERSION] = str(batch_id)
    if not _written_by_driver(batch, batch_id, given):
        batch.write.format(FORMAT).options(**given).mode("append").save()


def _written_by_driver(batch: DataFrame, batch_id: int, options: Mapping[str, str]) -> bool:
    """Write a batch here and now, unless it is too large."""
    sink = parse_sink_options(options, batch.schema, streaming=False)
    assert sink.application is not None
    found = _rows(batch, sink.application)
    if found is None:
        return False
    run, query = _property(batch, RUN_ID), query_id(batch)
    work = Work(sink.application, run, batch_id, True, query, turn=batch_id, message_bytes_max=DRIVER_BYTES_MAX)
    publish(sink.connection, [stage(sink, work, iter(found.to_batches(ARROW_ROWS_MAX)))])
    return True


def _rows(batch: DataFrame, application: str) -> pa.Table | None:
    """Return the rows of a batch that the driver can hold, otherwise None."""
    if application in _had_few_rows:
        found = batch.limit(FEW_ROWS_MAX + 1).toArrow()
        if found.num_rows <= FEW_ROWS_MAX:
            return found
        _had_few_rows.discard(application)
    if not is_small(batch):
        return None
    found = batch.limit(DRIVER_ROWS_MAX + 1).toArrow()
    if found.num_rows <= FEW_ROWS_MAX and len(_had_few_rows) < APPLICATIONS_MAX:
        _had_few_rows.add(application)
    return found if found.num_rows <= DRIVER_ROWS_MAX else None


def query_id(batch: DataFrame) -> str:
    """Return the id of the query whose batch is being written in this thread."""
    return _property(batch, QUERY_ID)


def _property(batch: DataFrame, name: str) -> str:
    from pyspark.errors import PySparkAttributeError

    session: Any = batch.sparkSession
    try:
        value = session.sparkContext.getLocalProperty(name)
    except PySparkAttributeError:
        raise InvalidRequest(
            f"Spark Connect does not tell which query a batch belongs to: write it with batch.write.format({FORMAT!r}) and the option "
            f"{APPLICATION}"
        ) from None
    if not value:
        raise InvalidRequest(
            f"there is no query whose batch this is: call it in foreachBatch, or use df.write.format({FORMAT!r})"
        )
    return str(value)
