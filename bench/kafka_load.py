"""Clients of Kafka that write to it or read from it without Penstock. Run by the benchmarks as `python -m bench.kafka_load`.

A job comes as JSON on standard input, its result goes as JSON to standard output, as with `bench.load` and `bench.reader`. There are two
clients that Python programs use: aiokafka, in Python, and confluent-kafka, a layer over librdkafka in C. Both write as Penstock does:
acknowledged by all replicas in sync, and recognized by Kafka when they send again.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import time
from collections.abc import Callable, Iterator, Sized
from typing import Any

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from bench.dialects import RecordLost
from bench.jobs import answer_job
from bench.load import LoadResult, cpu_seconds
from bench.reader import FETCH_RECORDS, ReadResult, measured

BATCH_BYTES = 1 << 20
"""Of one partition, in a request: larger than the defaults of both clients, so that none of them waits for small requests."""
LINGERING_IN_FLIGHT_MIN = 1_000
"""confluent-kafka waits 5 ms for more records to join a batch, which with few in flight is all that would be measured."""
SILENCE_S_MAX = 10.0
"""Records that do not come for so long are lost."""
CONSUMER = {"group.id": "bench", "enable.auto.commit": False, "enable.auto.offset.store": False}


class KafkaJob(msgspec.Struct, frozen=True, kw_only=True):
    client: str
    """`aiokafka` or `confluent-kafka`."""
    bootstrap: str
    topic: str
    payload_bytes: int = 0
    in_flight: int = 1
    partitions: int = 1
    """Each record goes to the next one."""
    warm_up_s: float = 0.5
    seconds: float = 2.0
    read_records: int = 0
    """If set, read this many records from partition 0 instead of writing."""
    server_pid: int


class _Clock:
    """Counts what is acknowledged between the warm-up and the end."""

    def __init__(self, job: KafkaJob) -> None:
        self._job = job
        self._begin = time.perf_counter() + job.warm_up_s
        self._started: tuple[float, float, float] | None = None
        self._records = 0
        self._result: LoadResult | None = None

    def acknowledged(self, records: int) -> None:
        self._records += records
        now = time.perf_counter()
        if self._started is None:
            if now >= self._begin:
                self._records = 0
                self._started = (now, time.process_time(), cpu_seconds(self._job.server_pid))
        elif self._result is None and now - self._started[0] >= self._job.seconds:
            began, own, server = self._started
            seconds = now - began
            self._result = LoadResult(
                records=self._records,
                seconds=seconds,
                load_cpu=(time.process_time() - own) / seconds,
                server_cpu=(cpu_seconds(self._job.server_pid) - server) / seconds,
                acknowledged={},
            )

    @property
    def over(self) -> bool:
        return self._result is not None

    def result(self) -> LoadResult:
        assert self._result is not None
        return self._result


async def _write_with_aiokafka(job: KafkaJob) -> LoadResult:
    clock, value = _Clock(job), bytes(job.payload_bytes)
    room = asyncio.Semaphore(job.in_flight)
    failures: list[BaseException] = []

    def answered(sent: asyncio.Future[Any]) -> None:
        room.release()
        error = sent.exception()
        if error is not None:
            failures.append(error)
        else:
            clock.acknowledged(1)

    async with AIOKafkaProducer(
        bootstrap_servers=job.bootstrap, enable_idempotence=True, max_batch_size=BATCH_BYTES
    ) as producer:
        for partition in _round_robin(job.partitions):
            await room.acquire()
            if clock.over or failures:
                break
            (await producer.send(job.topic, value, partition=partition)).add_done_callback(answered)
        await producer.flush()
    if failures:
        raise RecordLost(f"a record was not stored: {failures[0]}")
    return clock.result()


def _write_with_confluent(job: KafkaJob) -> LoadResult:
    clock, value = _Clock(job), bytes(job.payload_bytes)
    waiting = 0

    def answered(error: object, _: object) -> None:
        nonlocal waiting
        waiting -= 1
        if error is not None:
            raise RecordLost(f"a record was not stored: {error}")
        clock.acknowledged(1)

    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": job.bootstrap,
        "enable.idempotence": True,
        "batch.size": BATCH_BYTES,
    }
    if job.in_flight < LINGERING_IN_FLIGHT_MIN:
        settings["linger.ms"] = 0
    producer = Producer(settings)
    for partition in _round_robin(job.partitions):
        while waiting >= job.in_flight and not clock.over:
            producer.poll(0.1)
        if clock.over:
            break
        waiting += 1
        producer.produce(job.topic, value, partition=partition, on_delivery=answered)
        producer.poll(0)
    producer.flush()
    return clock.result()


def _round_robin(partitions: int) -> Iterator[int]:
    while True:
        yield from range(partitions)


async def _read_with_aiokafka(job: KafkaJob) -> int:
    partition, expected = TopicPartition(job.topic, 0), 0
    consumer = AIOKafkaConsumer(
        bootstrap_servers=job.bootstrap,
        enable_auto_commit=False,
        isolation_level="read_committed",
        max_partition_fetch_bytes=BATCH_BYTES,
    )
    async with consumer:
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        while expected < job.read_records:
            found = await consumer.getmany(timeout_ms=int(1000 * SILENCE_S_MAX), max_records=FETCH_RECORDS)
            _check_some(found, expected)
            for record in found[partition]:
                _check(record.offset, expected)
                expected += 1
    return expected


def _read_with_confluent(job: KafkaJob) -> int:
    expected = 0
    consumer = Consumer({"bootstrap.servers": job.bootstrap, **CONSUMER})
    consumer.assign([ConfluentPartition(job.topic, 0, 0)])
    try:
        while expected < job.read_records:
            messages = consumer.consume(FETCH_RECORDS, timeout=SILENCE_S_MAX)
            _check_some(messages, expected)
            for message in messages:
                _check(message.offset(), expected)
                message.value()
                expected += 1
    finally:
        consumer.close()
    return expected


def _check_some(found: Sized, expected: int) -> None:
    if not found:
        raise RecordLost(f"nothing came for {SILENCE_S_MAX:g} s where offset {expected} was due")


def _check(offset: int | None, expected: int) -> None:
    if offset != expected:
        raise RecordLost(f"offset {offset} came where {expected} was due")


def run(job: KafkaJob) -> LoadResult | ReadResult:
    if job.read_records:
        read: dict[str, Callable[[], int]] = {
            "aiokafka": lambda: asyncio.run(_read_with_aiokafka(job)),
            "confluent-kafka": functools.partial(_read_with_confluent, job),
        }
        return measured(read[job.client], job.server_pid)
    gc.disable()
    return asyncio.run(_write_with_aiokafka(job)) if job.client == "aiokafka" else _write_with_confluent(job)


def main() -> None:
    answer_job(KafkaJob, run)


if __name__ == "__main__":
    main()
