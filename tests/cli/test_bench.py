"""`penstock bench` against a real broker: what is reported, not how fast it is."""

from __future__ import annotations

import json

from penstock.testing import RunningBroker
from tests.cli.conftest import Run


def test_both_phases_are_measured_and_the_topic_is_gone(run: Run, broker: RunningBroker) -> None:
    result = run("bench", "-n", "500", "--size", "1 KiB", "-c", "2", "-p", "3", "--durability", "none")
    assert result.code == 0
    lines = result.text.splitlines()
    assert lines[:4] == ["records     500", "payload     1 KiB", "partitions  3", "durability  none"]
    assert lines[5].split() == [
        "connections",
        "in",
        "flight",
        "records/s",
        "MB/s",
        "p50",
        "ms",
        "p99",
        "ms",
        "max",
        "ms",
    ]
    assert [line.split()[:3] for line in lines[6:]] == [["produce", "2", "4096"], ["fetch", "2", "1"]]
    assert broker.connect().topics() == []


def test_programs_get_json(run: Run, broker: RunningBroker) -> None:
    produce, fetch = json.loads(run("bench", "-n", "20", "--in-flight", "1", "--json").out)
    assert (produce["phase"], produce["in_flight"], produce["records"], produce["durability"]) == (
        "produce",
        1,
        20,
        "fsync",
    )
    assert (fetch["phase"], fetch["records"], fetch["payload_bytes"]) == ("fetch", 20, 100)
    assert produce["records_per_s"] > 0
    assert 0 < produce["latency_ms"]["p50"] <= produce["latency_ms"]["p99"] <= produce["latency_ms"]["max"]


def test_the_topic_goes_when_the_load_fails_too(run: Run, broker: RunningBroker) -> None:
    result = run("bench", "-n", "1", "--size", "33 MiB")
    assert result.code == 1
    assert broker.connect().topics() == []


def test_a_size_that_is_none_is_refused(run: Run, broker: RunningBroker) -> None:
    result = run("bench", "--size", "big")
    assert result.code == 2
    assert "'big' is not a size" in result.err
