"""`penstock.spark.load`: what others push down as filters, turned into options of a fresh load.

A filter on a DataFrame reads everything and drops most of it. Partitions and times are better said here: what lies outside is not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.errors import InvalidRequest
from penstock.spark.sessions import parallelism_option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MS_PER_S = 1000


def load_options(
    topics: str | Sequence[str],
    partitions: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    since: datetime | int | None = None,
    until: datetime | int | None = None,
) -> dict[str, str]:
    """The options for what is to be read. Raises InvalidRequest."""
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names:
        raise InvalidRequest("name a topic to load")
    options: dict[str, str] = {}
    if partitions is None:
        options["subscribe"] = ",".join(names)
    else:
        by_topic = partitions if isinstance(partitions, Mapping) else dict.fromkeys(names, partitions)
        missing = sorted(set(names) - set(by_topic))
        if missing:
            raise InvalidRequest(f"partitions are given, but none of {', '.join(missing)}: give some of each topic")
        options["assign"] = json.dumps({name: list(by_topic[name]) for name in names})
    if since is not None:
        # A topic with nothing as late is an empty part of the answer, not an error.
        options |= {"startingTimestamp": str(_milliseconds(since)), "startingOffsetsByTimestampStrategy": "latest"}
    if until is not None:
        options["endingTimestamp"] = str(_milliseconds(until))
    return options


def load_topics(
    spark: SparkSession,
    topics: str | Sequence[str],
    partitions: Sequence[int] | Mapping[str, Sequence[int]] | None,
    since: datetime | int | None,
    until: datetime | int | None,
    columns: Sequence[str] | None,
    options: Mapping[str, str],
) -> DataFrame:
    chosen = {**parallelism_option(spark), **load_options(topics, partitions, since, until)}
    reader = spark.read.format("penstock").options(**chosen, **options)
    if columns is not None:
        from penstock.spark.schema import SPARK_TYPES, chosen_schema

        unknown = [name for name in columns if name not in SPARK_TYPES]
        if unknown or not columns:
            raise InvalidRequest(f"columns {', '.join(unknown) or '(none)'}: there are {', '.join(SPARK_TYPES)}")
        reader = reader.schema(chosen_schema(columns))
    return reader.load()


def _milliseconds(time: datetime | int) -> int:
    """A datetime without a zone is local time, as everywhere in Python."""
    return time if isinstance(time, int) else round(time.timestamp() * _MS_PER_S)
