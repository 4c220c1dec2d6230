"""The clients that the benchmarks compare with notice records that Kafka does not have."""

from __future__ import annotations

import asyncio
import os

import pytest

from bench import kafka_load
from bench.dialects import RecordLost
from bench.kafka import Kafka
from bench.kafka_load import KafkaJob, _read_with_aiokafka, _read_with_confluent
from penstock.log.api import TopicConfig
from tests.kafka.cluster import Cluster
from tests.log.records import append
from tests.log.storage import make_partition


@pytest.mark.parametrize("client", ["aiokafka", "confluent-kafka"])
async def test_a_reader_does_not_wait_forever_for_a_record_that_is_missing(
    client: str, kafka: Kafka, storage: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_load, "SILENCE_S_MAX", 1.0)
    partition = await make_partition(await storage.open(), "short", TopicConfig())
    await append(partition, [b"x"] * 3)
    job = KafkaJob(
        client=client, bootstrap=kafka.bootstrap, topic=f"{prefix}short", read_records=4, server_pid=os.getpid()
    )
    reads = _read_with_aiokafka(job) if client == "aiokafka" else asyncio.to_thread(_read_with_confluent, job)
    with pytest.raises(RecordLost, match="nothing came for 1 s"):
        await reads
