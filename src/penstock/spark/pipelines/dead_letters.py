"""Records that do not fit their schema, as dead letters of their topic: in the form the broker gives its own, so that `penstock dlq` shows
them and can replay them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.deliveries.deadletter_entries import FailedRecord, failure_headers
from penstock.record_headers import decode_headers, encode_headers
from penstock.spark.pipelines.decoding import REASON

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LETTER_COLUMNS: Final = "key binary, value binary, headers array<struct<key: string, value: binary>>"


def letters(rejected: DataFrame, now_ms: int) -> DataFrame:
    """The columns of the sink for decoded rows that have a reason."""
    return rejected.mapInArrow(_letters(now_ms), LETTER_COLUMNS)


def _letters(now_ms: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def as_letters(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        for batch in batches:
            rows = batch.select(["topic", "partition", "offset", "key", "value", "headers", REASON]).to_pylist()
            headers = [letter_headers(row, now_ms) for row in rows]
            yield pa.record_batch(
                [
                    batch.column("key"),
                    batch.column("value"),
                    pa.array(headers, pa.list_(header)),
                ],
                names=["key", "value", "headers"],
            )

    return as_letters


def letter_headers(row: dict[str, Any], now_ms: int) -> list[dict[str, Any]]:
    """The record's own headers and its story, as the sink takes them."""
    own = [(each["key"], each["value"]) for each in row["headers"] or ()]
    failed = FailedRecord(
        topic=row["topic"],
        partition=row["partition"],
        offset=row["offset"],
        value=row["value"],
        key=row["key"],
        headers=encode_headers(own) if own else None,
        reason=row[REASON],
        attempts=1,
        first_failed_ms=now_ms,
        failed_ms=now_ms,
    )
    return [{"key": name, "value": value} for name, value in decode_headers(failure_headers(failed))]
