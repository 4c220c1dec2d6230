"""Offsets of a stream as Spark writes them down."""

from __future__ import annotations

import json

import pytest

from penstock.errors import InvalidRequest
from penstock.spark.offsets import EARLIEST, START, StreamOffset, is_start


def test_topics_partitions_and_offsets_are_written_as_kafka_writes_them() -> None:
    assert json.dumps(StreamOffset({"orders": {0: 23, 1: 5}}).encode()) == '{"orders": {"0": 23, "1": 5}}'


def test_keys_are_sorted_whatever_order_they_came_in() -> None:
    one = StreamOffset({"b": {10: 1, 9: 2}, "a": {0: 3}}, {"b": "2", "a": "1"}, {"b": {9: 0}, "a": {0: 0}})
    two = StreamOffset({"a": {0: 3}, "b": {9: 2, 10: 1}}, {"a": "1", "b": "2"}, {"a": {0: 0}, "b": {9: 0}})
    assert json.dumps(one.encode()) == json.dumps(two.encode())
    assert list(one.encode()["b"]) == ["9", "10"]


def test_an_offset_comes_back_as_it_was() -> None:
    epochs = {"orders": {0: 2, 11: 0}}
    offset = StreamOffset({"orders": {0: 23, 11: 5}}, {"orders": "ab"}, {"orders": {0: 1, 11: 0}}, epochs)
    assert StreamOffset.decode(json.loads(json.dumps(offset.encode()))) == offset


def test_offsets_of_kafkas_connector_are_understood() -> None:
    offset = StreamOffset.decode({"orders": {"0": 23}})
    assert (offset.positions, offset.ids, offset.began, offset.epochs) == ({"orders": {0: 23}}, {}, {}, {})


def test_the_start_is_always_the_same_and_told_from_all_else() -> None:
    assert is_start(START)
    assert is_start(json.loads(json.dumps(START)))
    assert not is_start(StreamOffset({"orders": {0: 23}}).encode())


def test_a_batch_begins_where_the_last_one_ended_and_in_what_is_new_where_its_end_says() -> None:
    start = StreamOffset({"a": {0: 5}, "b": {0: 9}}, {"a": "1", "b": "2"}).encode()
    end = StreamOffset({"a": {0: 7}, "c": {0: 4, 1: 0}}, {"a": "1", "c": "3"}, {"c": {0: 2, 1: 0}})
    assert end.begin(start) == {"a": {0: 5}, "c": {0: 2, 1: 0}}
    first = StreamOffset({"a": {0: 7}}, {"a": "1"}, {"a": {0: 6}})
    assert first.begin(START) == {"a": {0: 6}}


def test_offsets_of_a_deleted_topic_say_nothing_of_the_one_that_has_its_name() -> None:
    start = StreamOffset({"a": {0: 5}}, {"a": "1"}).encode()
    assert StreamOffset({"a": {0: 7}}, {"a": "2"}, {"a": {0: 3}}).begin(start) == {"a": {0: 3}}


def test_a_checkpoint_from_before_starts_were_on_record_begins_in_what_is_new_with_the_earliest() -> None:
    start = StreamOffset({"a": {0: 5}}, {"a": "1"}).encode()
    assert StreamOffset({"a": {0: 5}, "b": {0: 7}}, {"a": "1", "b": "2"}).begin(start) == {
        "a": {0: 5},
        "b": {0: EARLIEST},
    }


def test_what_another_source_has_written_is_refused() -> None:
    for other in (
        {"logOffset": 5},
        {"orders": {"zero": 1}},
        {"orders": {"0": "many"}},
        {"orders": [1]},
        {"__epochs__": 1},
    ):
        with pytest.raises(InvalidRequest, match="use a new one"):
            StreamOffset.decode(other)
