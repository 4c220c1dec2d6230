from __future__ import annotations

import pytest

from bench.cases.spark import batch_rows, floor_rows
from bench.spark import MADE, SparkResult

RESULT = SparkResult(
    read_s={
        "Penstock": [1.0, 2.0, 4.0],
        "Penstock over the wire": [4.0],
        "Penstock on Kafka": [8.0],
        "Kafka": [5.0, 4.0, 3.0],
    },
    write_s={"Penstock": [2.0], "Penstock on Kafka": [4.0], "Kafka": [1.0], MADE: [0.5]},
    to_noop_ms={"Penstock": [100.0], "Penstock by tasks": [160.0], "Kafka": [120.0]},
    to_topic_ms={"Penstock": [240.0], "Penstock by write_batch": [180.0], "Kafka": [150.0]},
)


def test_seconds_become_rates_and_each_way_is_held_against_kafka() -> None:
    files, wire, on_kafka, write, written_on_kafka = batch_rows(RESULT, 1_000)
    assert (files.value, files.against_value, files.ratio, files.met) == (500.0, 250.0, 2.0, False)
    assert (wire.ratio, wire.met) == (1.0, True)
    assert (on_kafka.ratio, on_kafka.met) == (0.5, False)
    assert (write.value, write.ratio, write.met) == (500.0, 0.5, False)
    assert (written_on_kafka.ratio, written_on_kafka.met) == (0.25, None)
    assert "2,000 rows/s" in write.note


def test_promises_stand_beside_the_figures_they_cost() -> None:
    write, on_kafka = batch_rows(RESULT, 1_000)[-2:]
    assert "exactly once" in write.setting
    assert "exactly once" in on_kafka.setting
    assert "fsync" in write.setting
    assert "at least once" in write.against
    assert "page cache" in write.against


def test_the_floor_is_in_milliseconds_and_less_is_better() -> None:
    rows = floor_rows(RESULT)
    to_noop, not_by_tasks, to_topic, by_write_batch = rows
    assert (to_noop.value, to_noop.unit) == (100.0, "ms")
    assert to_noop.ratio == pytest.approx(100 / 120)
    assert (to_noop.aim, to_noop.met) == ("at most 1x", True)
    assert (not_by_tasks.value, not_by_tasks.against_value, not_by_tasks.met) == (100.0, 160.0, None)
    assert (to_topic.value, to_topic.aim, to_topic.met) == (240.0, "at most 1.3x", False)
    assert (by_write_batch.value, by_write_batch.met) == (180.0, True)
    assert {row.note for row in rows} == {"less is better"}
