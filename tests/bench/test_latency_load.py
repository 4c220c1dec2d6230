"""The load at a fixed rate: what it reports was stored, and a refusal is no fast reply."""

from __future__ import annotations

import itertools
import os

import pytest

from bench.dialects import FlyMQProduce
from bench.latency_load import LatencyJob, LatencyLoad, LatencyResult, Link
from bench.processes import run_program
from penstock.testing.broker import RunningBroker


def job_of(broker: RunningBroker) -> LatencyJob:
    host, _, port = broker.addresses["flymq"].rpartition(":")
    return LatencyJob(
        side="flymq",
        host=host,
        port=int(port),
        name="orders",
        payload_bytes=100,
        connections=2,
        rate=1000,
        warm_up_s=0.01,
        seconds=0.05,
        server_pid=os.getpid(),
    )


def test_every_request_is_counted_and_stored() -> None:
    with RunningBroker(topics=[{"name": "orders"}]) as broker:
        result = run_program("bench.latency_load", job_of(broker), LatencyResult)
        [partition] = broker.connect().describe_topic("orders").partitions
    assert result.acknowledged == {0: partition.next_offset} == {0: 60}
    assert set(result.percentiles_us) == {"50", "90", "99", "99.9"}
    assert result.late_us > 0


def test_requests_that_are_refused_have_no_latency(capfd: pytest.CaptureFixture[str]) -> None:
    with RunningBroker(topics=[{"name": "orders"}]) as broker:
        broker.disk.disk_full()
        with pytest.raises(RuntimeError, match="a program of the benchmark failed"):
            run_program("bench.latency_load", job_of(broker), LatencyResult)
    assert "RecordLost: a PRODUCE was answered with something else than its success" in capfd.readouterr().err


def test_connections_have_their_ticks_one_after_the_other() -> None:
    sent: list[tuple[int, float]] = []

    class Noted(LatencyLoad):
        def _send(self, link: Link, due: float) -> None:
            sent.append((link.first, due))
            super()._send(link, due)

    with RunningBroker(topics=[{"name": "orders"}]) as broker:
        load = Noted(FlyMQProduce("orders", 100, 1), job_of(broker))
        latencies, _ = load.drive(0.02)
        load.close()
    assert [number for number, _ in sent] == [0, 1] * 10
    assert len(latencies) == 20
    due = [each for _, each in sent]
    apart = [later - earlier for earlier, later in itertools.pairwise(due)]
    assert apart == pytest.approx([0.001] * 19)
