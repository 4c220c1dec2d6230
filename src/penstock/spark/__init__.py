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

__all__ = ["load", "session"]


# Spark imports this package in every one of its Python processes: what a session needs is imported when one is made.
def session(
    app_name: str = "penstock", master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Create a Spark session with settings that suit the penstock source and sink, or return the running one.

    Without a master (here, or as `spark.master` in `config`) it is a local session on all processors. With a cluster's, as in
    `spark://host:7077`, settings that only make sense on one machine are left out. `config` overrides every setting made here.
    A running session is returned with the SQL settings applied to it, as by Spark's `getOrCreate`; to keep the settings of a session
    of your own, use that session: the source and the sink work in any. Raises ConfigError if Spark or Java is missing; the message
    names what to install.
    """
    from penstock.spark.sessions import build_session

    return build_session(app_name, master, config)


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
