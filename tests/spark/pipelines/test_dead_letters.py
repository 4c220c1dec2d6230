"""A record that does not fit becomes a dead letter as the broker makes them."""

from __future__ import annotations

from penstock.broker.deliveries.deadletter_entries import HEADER_PREFIX
from penstock.spark.pipelines.dead_letters import letter_headers


def test_a_letter_has_the_records_own_headers_and_its_story() -> None:
    row = {
        "topic": "orders",
        "partition": 2,
        "offset": 17,
        "key": b"k",
        "value": b"v",
        "headers": [{"key": "trace", "value": b"1"}, {"key": "empty", "value": None}],
        "reason": "not a JSON document (orders-v1)",
    }
    headers = {each["key"]: each["value"] for each in letter_headers(row, 1_000)}
    assert (headers["trace"], headers["empty"]) == (b"1", None)
    story = {
        name.removeprefix(HEADER_PREFIX): value for name, value in headers.items() if name.startswith(HEADER_PREFIX)
    }
    assert story == {
        "reason": b"not a JSON document (orders-v1)",
        "topic": b"orders",
        "partition": b"2",
        "offset": b"17",
        "attempts": b"1",
        "first-failed-ms": b"1000",
        "failed-ms": b"1000",
    }


def test_a_record_without_headers_has_its_story_only() -> None:
    row = {"topic": "t", "partition": 0, "offset": 0, "key": None, "value": b"", "headers": None, "reason": "why"}
    assert all(each["key"].startswith(HEADER_PREFIX) for each in letter_headers(row, 0))
