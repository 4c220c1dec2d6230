"""Records of a topic, distinguished: those that become rows of silver, those that are rejected with a reason, those that are dropped.

A record is decoded by the schema of its topic, and must then meet the expectations of the pipeline. One counts as met only where it is
true: neither false nor NULL. A tombstone has no columns to judge, and is a row with its key alone; of a table with a key it deletes rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import ConfigError, ValidationFailed
from penstock.spark.pipelines.decoded_rows import fitting_rows, undecoded, with_decoded
from penstock.spark.pipelines.decoding import METADATA_COLUMNS, RAW_COLUMNS, REASON, Plan, decoder
from penstock.spark.pipelines.failures import explain_failure
from penstock.spark.pipelines.model import Expectation, Rules
from penstock.spark.schema import SPARK_TYPES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

VERDICT: Final = "__penstock_verdict"
"""The number of the first expectation that a row does not meet."""


class Sorted(NamedTuple):
    fitting: DataFrame
    rejected: DataFrame | None
    """The columns of the source and the reason; None if nothing was."""
    tombstones: DataFrame | None
    """For a table with a key: the columns of the source of records without a value."""
    rejects: int = 0
    dropped: int = 0


def silver_columns(plan: Plan | None) -> StructType:
    """Return the columns of silver for records of a schema, None for records that are passed on undecoded."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    metadata = [StructField(name, SPARK_TYPES[name], True) for name in METADATA_COLUMNS]
    if plan is None:
        return StructType([StructField("value", SPARK_TYPES["value"], True), *metadata])
    decoded = [
        StructField(field.name, from_arrow_type(field.type, prefer_timestamp_ntz=False), True)
        for field in decoder(plan).schema
    ]
    return StructType([*decoded, *metadata])


@contextmanager
def sorted_records(rows: DataFrame, plan: Plan | None, rules: Rules) -> Iterator[Sorted]:
    """The records of a batch, whose rows are read more than once. Raises ValidationFailed if one must not be as it is."""
    expectations = expected(rules)
    if plan is None and not expectations:
        yield Sorted(undecoded(rows), None, None)
        return
    present, tombstones = rows, None
    if expectations:
        present, tombstones = rows.where("value IS NOT NULL"), rows.where("value IS NULL")
    # Decoded once, whatever is asked of it.
    decoded = None if plan is None else with_decoded(present, plan).persist()
    fitting = undecoded(present) if decoded is None else fitting_rows(decoded)
    judged = _judged(fitting, expectations).persist() if expectations else None
    try:
        rejects, rejected = 0, None
        if decoded is not None:
            rejects = _count(decoded.selectExpr(f"count({REASON}) AS n"))
            rejected = decoded.where(f"{REASON} IS NOT NULL").select(*RAW_COLUMNS, REASON)
        if judged is None:
            yield Sorted(fitting, rejected if rejects else None, None, rejects)
            return
        counts = _verdicts(judged, expectations)
        failing = [number for number, (_, action) in enumerate(expectations) if action == "reject" and counts[number]]
        if failing:
            unmet = _rejected_by(rows, judged, expectations, failing)
            rejected = unmet if rejected is None else rejected.unionByName(unmet)
            rejects += sum(counts[number] for number in failing)
        dropped = sum(counts[number] for number, (_, action) in enumerate(expectations) if action == "drop")
        fitting = judged.where(f"{VERDICT} IS NULL").drop(VERDICT)
        assert tombstones is not None
        if not rules.key:
            without_value = undecoded(tombstones) if plan is None else fitting_rows(with_decoded(tombstones, plan))
            fitting, tombstones = fitting.unionByName(without_value), None
        yield Sorted(fitting, rejected if rejects else None, tombstones, rejects, dropped)
    finally:
        for each in (decoded, judged):
            if each is not None:
                each.unpersist()


class Changes(NamedTuple):
    rows: DataFrame
    """One for each key, the last."""
    deleted: pa.Array
    """Keys of records that a tombstone deletes."""


def check_key(columns: StructType, key: Sequence[str]) -> None:
    """Raises ConfigError if rows cannot be told apart by these columns."""
    for field in columns.fields:
        if field.name in key and "map<" in field.dataType.simpleString():
            raise ConfigError(
                f"the key of [silver] names {field.name}, which is {field.dataType.simpleString()}: maps cannot be compared; name other "
                "columns"
            )


def latest_changes(rows: DataFrame, tombstones: DataFrame, key: Sequence[str]) -> Changes:
    """What a batch leaves of its own records: the highest offset wins, and a tombstone takes what came before it."""
    from pyspark.sql import Window
    from pyspark.sql.functions import broadcast, col, row_number

    check_key(rows.schema, key)
    # Offsets of different partitions say nothing about each other: of a key that is in several, the later timestamp wins.
    columns = [f"`{column}`" for column in key]
    in_a_partition = Window.partitionBy(*columns, "partition").orderBy(col("offset").desc())
    in_all = Window.partitionBy(*columns).orderBy(col("timestamp").desc(), col("partition").desc())
    places = tombstones.selectExpr("key AS __key", "partition AS __partition", "offset AS __offset").distinct()
    later = (col("key") == col("__key")) & (col("partition") == col("__partition")) & (col("offset") < col("__offset"))
    left = rows.join(broadcast(places), later, "left_anti")
    latest = left
    for order in (in_a_partition, in_all):
        latest = latest.withColumn(VERDICT, row_number().over(order)).where(f"{VERDICT} = 1").drop(VERDICT)
    deleted = tombstones.where("key IS NOT NULL").select("key").distinct().toArrow().column("key").combine_chunks()
    return Changes(latest, deleted)


def met(rows: DataFrame, rules: Rules) -> DataFrame:
    """Those of the decoded rows that meet every expectation."""
    expectations = expected(rules)
    return _judged(rows, expectations).where(f"{VERDICT} IS NULL").drop(VERDICT) if expectations else rows


def expected(rules: Rules) -> list[tuple[str, Expectation]]:
    """SQL and what becomes of rows that do not meet it. A row without a key belongs nowhere."""
    keys: dict[str, Expectation] = {f"`{column}` IS NOT NULL": "reject" for column in rules.key}
    return list({**keys, **rules.expect}.items())


def _judged(rows: DataFrame, expectations: list[tuple[str, Expectation]]) -> DataFrame:
    from pyspark.errors import AnalysisException, ParseException

    for sql, _ in expectations:
        try:
            rows.selectExpr(f"CAST(({sql}) AS BOOLEAN)")
        except (AnalysisException, ParseException) as error:
            raise ConfigError(
                f"the expectation {sql!r} of [silver] is refused: {explain_failure(error)}; the columns are {', '.join(rows.columns)}"
            ) from error
    cases = " ".join(
        f"WHEN NOT coalesce(CAST(({sql}) AS BOOLEAN), false) THEN {number}"
        for number, (sql, _) in enumerate(expectations)
    )
    return rows.selectExpr("*", f"CASE {cases} END AS {VERDICT}")


def _verdicts(judged: DataFrame, expectations: list[tuple[str, Expectation]]) -> Mapping[int, int]:
    """How many rows do not meet an expectation first. Raises ValidationFailed if none may be."""
    found: dict[int, int] = dict.fromkeys(range(len(expectations)), 0)
    found |= {row[0]: row[1] for row in judged.groupBy(VERDICT).count().collect() if row[0] is not None}
    for number, (sql, action) in enumerate(expectations):
        if action == "fail" and found[number]:
            first: Any = judged.where(f"{VERDICT} = {number}").select("topic", "partition", "offset").first()
            raise ValidationFailed(
                f"{found[number]} records of topic {first.topic} do not meet {sql!r}, the first at partition {first.partition}, offset "
                f'{first.offset}: mend them, or set the expectation to "drop" or "reject"'
            )
    return found


def _rejected_by(
    rows: DataFrame, judged: DataFrame, expectations: list[tuple[str, Expectation]], failing: list[int]
) -> DataFrame:
    """The records as they were: what was decoded is found by its place."""
    from pyspark.sql.functions import broadcast, col, lit, when

    reason = lit(None).cast("string")
    for number in failing:
        reason = when(col(VERDICT) == number, lit(f"does not meet {expectations[number][0]}")).otherwise(reason)
    places = judged.where(col(VERDICT).isin(failing)).select("partition", "offset", reason.alias(REASON))
    return rows.join(broadcast(places), ["partition", "offset"]).select(*RAW_COLUMNS, REASON)


def _count(counted: DataFrame) -> int:
    row: Any = counted.first()
    return int(row.n)
