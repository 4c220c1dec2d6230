"""Rates between two samples."""

from __future__ import annotations

import pytest

from penstock.cli.rates import Rates, rates_json
from penstock.cli.sample import GroupSample, ListenerSample, Sample, TopicSample


def sample(at_s: float, records: int, lag: int, *, started_s: float = 1.0) -> Sample:
    return Sample(
        at_s,
        True,
        "ready",
        [],
        "1",
        started_s=started_s,
        cpu_s=at_s / 2,
        appended_records=records,
        flushes=records,
        flush_s=records / 500,
        listeners={"flymq": ListenerSample("a:1", 2, requests=records, sent_records=2 * records)},
        topics={"t": TopicSample(1, records, records, 10)},
        groups=[GroupSample("g", "t", lag)],
    )


def test_rates_are_differences_by_time() -> None:
    rates = Rates(sample(10, 100, 50), sample(12, 300, 10))
    assert rates.of("appended_records") == rates.topic("t") == rates.listener("flymq", "requests") == 100
    assert rates.of("cpu_s") == 0.5
    assert rates.lag(rates.after.groups[0]) == -20
    assert rates.flush_ms == pytest.approx(2.0)
    document = rates_json(rates)
    assert document["interval_s"] == 2
    assert document["topics"] == [
        {"topic": "t", "partitions": 1, "records": 300, "size_bytes": 10, "records_per_s": 100.0}
    ]
    assert document["groups"][0]["lag_per_s"] == -20
    assert document["listeners"][0]["requests_per_s"] == 100
    assert document["listeners"][0]["sent_records_per_s"] == 200


@pytest.mark.parametrize("before", [None, sample(10, 900, 0, started_s=0.5)])
def test_without_a_sample_of_the_same_run_there_are_no_rates(before: Sample | None) -> None:
    rates = Rates(before, sample(12, 300, 10))
    assert (rates.seconds, rates.of("appended_records"), rates.topic("t"), rates.flush_ms) == (0, 0, 0, None)
    assert rates.lag(rates.after.groups[0]) == 0


def test_a_counter_that_fell_is_no_negative_rate() -> None:
    assert Rates(sample(10, 300, 0), sample(12, 100, 0)).topic("t") == 0
