"""Every topic a Spark table: the data source, the sink, a tuned session, and ready-made pipelines.

```python
import penstock.spark

spark = penstock.spark.session()
spark.read.format("penstock").option("penstock.bootstrap", "127.0.0.1:9092").option("subscribe", "orders").load().show()
```
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["decode", "encode", "load", "register", "session", "table", "write_batch"]


# Spark imports this package in every one of its Python processes: what a session needs is imported when one is made.
def session(
    app_name: str = "penstock", master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a Spark session with settings that suit the penstock source and sink.

    A session that is running already is returned as it is, with a warning that names the settings that differ. Without a master (here, or
    as `spark.master` in `config`) a new one is local, on all processors. With a cluster's, as in `spark://host:7077`, settings that only
    make sense on one machine are left out, and the source is registered. With `spark.remote` in `config`, or SPARK_REMOTE set, it is a
    session of that Spark Connect server.

    `config` wins over every setting made here. `spark.penstock.bootstrap` and the like name the broker for all queries of the session.
    Raises ConfigError if Spark or a Java that it runs on is missing; the message names what to install.
    """
    from penstock.spark.sessions import build_session

    return build_session(app_name, master, config)


def register(spark: SparkSession) -> None:
    """Register the source and sink "penstock", and the source "penstock-delta", with a session.

    On one machine Spark finds them by itself. On a cluster it would run what it finds with the interpreter that `PYSPARK_DRIVER_PYTHON`,
    `PYSPARK_PYTHON` or the PATH of the driver names, on executors too. A registered source runs with the session's own
    (`spark.pyspark.python`) and its `--py-files` and archives. It also knows the session's settings `spark.penstock.*`, as they are now.
    `session` registers it whenever the master is not local, or there are such settings.
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


def decode(
    df: DataFrame,
    schema: str,
    *,
    column: str = "value",
    framing: Literal["auto", "header", "confluent", "single-object", "none"] = "auto",
    rejects: Literal["column", "null", "fail"] = "column",
    unmarked: str = "auto",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return a DataFrame with the members of its records as typed columns, besides the columns that it has.

    `schema` is a registered schema: "orders", "orders:3" or "orders:shop.Order". The columns are those of the version that it names, by
    default the latest. A record of another version is read by the one that wrote it, which the record says itself: by the header
    `penstock-schema` (load it with `includeHeaders`), by Confluent framing or Avro's single-object encoding. `framing` narrows that to one
    of header, confluent, single-object, or none.

    A record that does not say it is read by the version that `schema` names. If it names none, JSON and Protobuf are read by the latest,
    and Avro is rejected unless there never was another. `unmarked` makes that "read" or "reject" for all, or names the version that wrote
    such records, as in "orders:1", whatever version the columns are of.

    `rejects` says what becomes of a record that cannot be read: "column" adds the column `_reason`, and keeps `column` for such
    records; "null" leaves its columns empty; "fail" fails the query. A tombstone has nulls and no reason.

    The broker (`options`, as for `load`) is asked once, here. Executors ask nobody, so a version that is registered later is not known.
    """
    with _naming_what_to_install():
        from penstock.spark.records import decode_records

    return decode_records(df, schema, column, framing, rejects, unmarked, options)


def encode(
    df: DataFrame,
    schema: str,
    *,
    column: str = "value",
    framing: Literal["header", "confluent", "single-object", "none"] = "header",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return a DataFrame for the sink: the columns that are members of a schema, as one column of encoded records.

    The columns are named as `decode` names them. `key`, `topic`, `partition` and `headers` are passed on. `framing` says how records tell
    their version: "header" adds the header `penstock-schema`, "confluent" and "single-object" (Avro) put it before the value, "none"
    leaves it out. A row that does not follow the schema fails the query.
    """
    with _naming_what_to_install():
        from penstock.spark.records import encode_records

    return encode_records(df, schema, column, framing, options)


@contextmanager
def _naming_what_to_install() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        from penstock.errors import ConfigError

        raise ConfigError(
            f'{error.name} is not installed: run pip install "penstock-client[spark,schemas]" on driver and executors'
        ) from error


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


def write_batch(
    batch: DataFrame, batch_id: int, *, topic: str | None = None, options: Mapping[str, str] | None = None
) -> None:
    """Write a micro-batch to a topic, once, in a function that is given to `foreachBatch`.

    The columns are those of the sink, and so are `options`. A small batch is written by the driver, without the Python processes that the
    sink needs. A larger one is written by tasks, and so is one that was shuffled, unless it and the one before have few rows. A batch that
    Spark repeats is left out: batches are numbered under the query's id and the topic. Name them with `txnAppId` if a function writes to
    one topic twice, or leaves the topic to the column.

    ```python
    def copy(batch, batch_id):
        penstock.spark.write_batch(batch.select("key", "value"), batch_id, topic="copies")
    ```
    """
    from penstock.spark.batch_writing import write_micro_batch

    write_micro_batch(batch, batch_id, topic, options)
