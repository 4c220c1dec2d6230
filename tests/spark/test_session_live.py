"""The shared session does what a session must: it runs Python on executors and keeps streaming state in RocksDB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def _doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in batches:
        yield pa.record_batch([pc.multiply(batch.column(0), 2)], names=["id"])


def test_executors_run_the_python_of_the_driver(spark: SparkSession) -> None:
    doubled = spark.range(5).mapInArrow(_doubled, "id long")
    assert sorted(row.id for row in doubled.collect()) == [0, 2, 4, 6, 8]


def test_the_state_of_streams_is_kept_in_rocksdb(spark: SparkSession) -> None:
    assert str(spark.conf.get("spark.sql.streaming.stateStore.providerClass")).endswith("RocksDBStateStoreProvider")
