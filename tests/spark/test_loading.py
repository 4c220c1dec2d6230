"""What `penstock.spark.load` makes of its arguments."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest.mock import MagicMock

import pytest

import penstock.spark
from penstock.errors import InvalidRequest
from penstock.spark.loading import load_options
from penstock.spark.options import PARALLELISM, parse_source_options


def test_topics_are_subscribed_to() -> None:
    assert load_options("orders") == {"subscribe": "orders"}
    assert load_options(["orders", "payments"]) == {"subscribe": "orders,payments"}


def test_partitions_are_assigned_to_every_topic_or_to_each_its_own() -> None:
    assert load_options(["a", "b"], [0, 2]) == {"assign": '{"a": [0, 2], "b": [0, 2]}'}
    assert load_options(["a", "b"], {"a": [0], "b": (1,)}) == {"assign": '{"a": [0], "b": [1]}'}
    with pytest.raises(InvalidRequest, match="none of b: give some of each topic"):
        load_options(["a", "b"], {"a": [0]})


def test_times_are_datetimes_or_milliseconds() -> None:
    options = load_options("orders", since=datetime(2026, 1, 1, tzinfo=UTC), until=1_767_225_600_500)
    assert options == {
        "subscribe": "orders",
        "startingTimestamp": "1767225600000",
        "startingOffsetsByTimestampStrategy": "latest",
        "endingTimestamp": "1767225600500",
    }


def test_tasks_are_planned_for_the_cluster_unless_the_options_say_otherwise() -> None:
    spark = MagicMock()
    spark.sparkContext.defaultParallelism = 48
    options = spark.read.format.return_value.options
    penstock.spark.load(spark, "orders", options={"minPartitions": "3"})
    assert options.call_args.kwargs == {PARALLELISM: "48", "subscribe": "orders", "minPartitions": "3"}
    parsed = parse_source_options(options.call_args.kwargs, streaming=False)
    assert (parsed.parallelism, parsed.tasks_min) == (48, 3)


def test_no_topic_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="name a topic"):
        load_options([])
