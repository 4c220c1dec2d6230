"""The names that belong to the source that reads Delta tables without a jar, and how a session gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT: Final = "penstock-delta"
VERSION: Final = "version"
"""In the position of a stream: the version of the table that it has read."""
RECORDS: Final = "records"
"""In the position of a stream: how many records the stream has up to there. What the number grows by is what it has read."""
TABLE: Final = "table"
"""In the position of a stream: the id that the table was given when it was made."""
STORAGE_PREFIX: Final = "storage.secret."
"""Of options that are passed on to the deltalake library. Spark shows no option of such a name in plans and event logs."""


def with_delta_source(session: SparkSession) -> SparkSession:
    """Register the source with a session on a cluster, where Spark does not find it by itself."""
    from penstock.spark.sessions import is_local

    if not is_local(session.conf.get("spark.master", None) or "local"):
        from penstock.spark.delta_source import DeltaDataSource

        session.dataSource.register(DeltaDataSource)
    return session
