"""Every topic a Spark table: the data source, the sink, a tuned session, and ready-made pipelines.

```python
import penstock.spark

spark = penstock.spark.session()
spark.read.format("penstock").option("penstock.bootstrap", "127.0.0.1:9092").option("subscribe", "orders").load().show()
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["load", "register", "session", "table"]


# Spark imports this package in every one of its Python processes: what a session needs is imported when one is made.
def session(
    app_name: str = "penstock", master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a Spark session with settings that suit the penstock source and sink.

    A session that is running already is returned as it is, with a warning that names the settings that differ. Without a master (here, or
    as `spark.master` in `config`) a new one is local, on all processors. With a cluster's, as in `spark://host:7077`, settings that only
    make sense on one machine are left out, and the source is registered. `config` wins over every setting made here.
    Raises ConfigError where Spark or a Java that it runs on is missing; the message names what to install.
    """
    from penstock.spark.sessions import build_session

    return build_session(app_name, master, config)


def register(spark: SparkSession) -> None:
    """Register the source and sink "penstock", and the source "penstock-delta", with a session.

    On one machine Spark finds them by itself. On a cluster it would run what it finds with the interpreter that `PYSPARK_DRIVER_PYTHON`,
    `PYSPARK_PYTHON` or the PATH of the driver names, on executors too. A registered source runs with the session's own
    (`spark.pyspark.python`) and its `--py-files` and archives. `session` registers it whenever the master is not local.
    """
    from penstock.spark.delta_source import DeltaDataSource
    from penstock.spark.sessions import register_source

    register_source(spark)
    spark.dataSource.register(DeltaDataSource)


def table(spark: SparkSession, path: str, storage_options: Mapping[str, str] | None = None) -> DataFrame:
    """Return a Delta table that a pipeline wrote, as it is now, without a Delta jar.

    `storage_options` are those of the deltalake library, for a table in an object store; Spark reads the files themselves, so it must
    reach the store too.
    """
    from penstock.spark.pipelines.tables.delta import DeltaLakeTable

    return DeltaLakeTable(spark, path, storage_options).read()


def load(
    spark: SparkSession,
    topics: str | Sequence[str],
    *,
    partitions: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    since: datetime | int | None = None,
    until: datetime | int | None = None,
    columns: Sequence[str] | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the records that topics have now as a DataFrame, reading only what the arguments select.

    `partitions` are partitions of every topic, or partitions by topic. `since` and `until` (exclusive) are datetimes or milliseconds since
    1970. `columns` selects columns of the source, and `options` sets further options of it, as in
    `{"penstock.bootstrap": "broker:9092"}`.
    """
    from penstock.spark.loading import load_topics

    return load_topics(spark, topics, partitions, since, until, columns, options or {})
