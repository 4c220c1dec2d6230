"""The options and columns of the sink: every one of them, and what is said where they make no sense."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidRequest
from penstock.spark.connection import ConnectionSettings
from penstock.spark.sink_options import SinkColumns, SinkOptions, parse_sink_options
from tests.spark.sink_by_hand import schema_of

VALUE = "value BINARY"
HEADERS = "headers HEADERS"


def parsed(columns: str = VALUE, *, streaming: bool = False, **options: str) -> SinkOptions:
    named = {name.replace("__", "."): value for name, value in options.items()}
    return parse_sink_options(named, schema_of(columns), streaming=streaming)


def test_what_is_left_out_has_a_default() -> None:
    assert parsed(topic="orders") == SinkOptions(
        ConnectionSettings(), "orders", None, None, False, SinkColumns(0, None, None, None, None)
    )


def test_every_option_and_column_is_read() -> None:
    options = parsed(
        f"{HEADERS}, other INT, Partition INT, TOPIC STRING, key STRING, VALUE STRING",
        penstock__bootstrap="broker:1234",
        penstock__user="ann",
        penstock__password="secret",
        topic="orders",
        txnappid="job",
        TXNVERSION="7",
        includeHeaders="true",
    )
    assert options.connection.url == "flymq://ann:secret@broker:1234"
    assert (options.topic, options.application, options.version) == ("orders", "job", 7)
    assert options.columns == SinkColumns(value=5, key=4, topic=3, partition=2, headers=0)


def test_headers_can_be_left_out() -> None:
    assert parsed(f"{VALUE}, {HEADERS}", topic="t").columns.headers == 1
    assert parsed(f"{VALUE}, {HEADERS}", topic="t", includeHeaders="false").columns.headers is None


def test_rows_of_the_source_can_be_written_as_they_are() -> None:
    columns = (
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
    )
    assert parsed(columns).columns == SinkColumns(1, 0, 2, 3, None)


def test_a_table_that_is_read_too_has_the_options_of_both() -> None:
    assert (
        parsed(topic="orders", subscribe="orders", startingOffsets="earliest", failOnDataLoss="false").topic == "orders"
    )


def test_what_spark_adds_to_a_stream_is_known() -> None:
    assert parsed(topic="t", checkpointLocation="/cp", queryName="q", streaming=True).topic == "t"


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        ("key BINARY", {"topic": "t"}, r"no column value \(columns: key\)"),
        (
            "value INT",
            {"topic": "t"},
            r"column value is int: it must be string or binary; write CAST\(value AS STRING\)",
        ),
        ("value STRING, key BIGINT", {"topic": "t"}, "column key is bigint"),
        ("value STRING, topic BINARY", {}, "column topic is binary: it must be string"),
        ("value STRING, partition STRING", {"topic": "t"}, "column partition is string: it must be int"),
        (
            "value STRING, headers STRING",
            {"topic": "t"},
            "column headers is string: it must be array<struct<key:string",
        ),
        ("value STRING, VALUE STRING", {"topic": "t"}, "two columns value"),
        (VALUE, {}, "set the option topic, or add a column topic"),
        (VALUE, {"topic": ""}, "option topic"),
        (VALUE, {"topic": "t", "toppic": "t"}, "option toppic is not known: did you mean topic"),
        (VALUE, {"topic": "t", "path": "x"}, "topics are not paths"),
        (VALUE, {"topic": "t", "kafka__bootstrap__servers": "x"}, r"set penstock\.bootstrap"),
        (VALUE, {"topic": "t", "kafka__acks": "all"}, "belongs to Spark's Kafka connector"),
        (VALUE, {"topic": "t", "txnVersion": "1"}, "txnVersion is set without txnAppId"),
        (VALUE, {"topic": "t", "txnAppId": "", "txnVersion": "1"}, "txnAppId has 0 bytes"),
        (VALUE, {"topic": "t", "txnAppId": "a" * 201, "txnVersion": "1"}, "txnAppId has 201 bytes: use 1 to 200"),
        (VALUE, {"topic": "t", "txnAppId": "a", "txnVersion": "-1"}, "txnVersion is -1: use 0 or more"),
        (VALUE, {"topic": "t", "txnAppId": "a", "txnVersion": "x"}, "txnVersion is 'x': use a whole number"),
        (VALUE, {"topic": "t", "includeHeaders": "yes"}, "includeHeaders is 'yes': use true or false"),
        (VALUE, {"topic": "t", "penstock__user": "ann"}, "belong together"),
    ],
)
def test_whatever_is_wrong_is_named(columns: str, options: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        parse_sink_options(
            {name.replace("__", "."): value for name, value in options.items()}, schema_of(columns), streaming=False
        )


def test_a_stream_numbers_its_batches_itself() -> None:
    assert parsed(topic="t", txnAppId="a", streaming=True).application == "a"
    with pytest.raises(InvalidRequest, match="a stream numbers its batches itself"):
        parsed(topic="t", txnAppId="a", txnVersion="1", streaming=True)
