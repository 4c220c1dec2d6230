"""kill -9 of the node, and of Kafka, under load: nothing acknowledged is lost, nothing refused comes back, nothing is there twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.kafka import Kafka
from penstock.testing.checker import ReadRecord
from penstock.testing.workload import SINGLE, SPREAD, Workload
from tests.kafka import foreign

KILLS = 2


@pytest.fixture
def workload(tmp_path: Path, kafka: Kafka, prefix: str) -> Iterator[Workload]:
    config = f'engine = "kafka"\nkafka.bootstrap = ["{kafka.bootstrap}"]\nkafka.topic_prefix = "{prefix}"'
    workload = Workload(tmp_path, config)
    try:
        yield workload
    finally:
        workload.close()


def check(workload: Workload, kafka: Kafka, prefix: str) -> None:
    """By our own reader, and by one that we did not write."""
    workload.check().raise_for_violations()
    theirs = [
        ReadRecord(topic, record.partition, record.offset, record.key, record.value or b"")
        for topic in (SINGLE, SPREAD)
        for record in foreign.read_all(kafka, prefix + topic)
    ]
    assert sorted(workload.read_all()) == sorted(theirs)


@pytest.mark.timeout(180)
def test_nothing_acknowledged_is_lost_when_the_node_is_killed(workload: Workload, kafka: Kafka, prefix: str) -> None:
    for _ in range(KILLS):
        workload.broker.start()
        with workload.running() as load:
            load.wait_until_acked(200)
            workload.broker.kill9()
    workload.broker.start()
    check(workload, kafka, prefix)


@pytest.mark.timeout(180)
def test_nothing_acknowledged_is_lost_when_kafka_is_killed_and_the_node_continues(
    workload: Workload, kafka: Kafka, prefix: str
) -> None:
    workload.broker.start()
    with workload.running() as load:
        load.wait_until_acked(500)
        kafka.kill()
        before = load.summary.acked
        kafka.start()
        load.wait_until_acked(before + 500, timeout_s=60)
    check(workload, kafka, prefix)
