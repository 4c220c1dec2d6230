"""A client of Kafka that we did not write: librdkafka, through confluent-kafka."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.kafka import Kafka

POLL_S = 0.2
POLLS_MAX = 300


class ForeignRecord(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


def read_all(kafka: Kafka, topic: str, *, committed: bool = True) -> list[ForeignRecord]:
    """Every record of a topic, by partition and offset."""
    isolation = "read_committed" if committed else "read_uncommitted"
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "foreign",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
    )
    found: list[ForeignRecord] = []
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in partitions])
        unfinished = set(partitions)
        for _ in range(POLLS_MAX):
            for message in consumer.consume(10_000, POLL_S):
                if message.error() is None:
                    found.append(_record_of(message))
                else:
                    unfinished.discard(_known(message.partition()))
            if not unfinished:
                return sorted(found, key=lambda record: record[:2])
        raise TimeoutError(f"{topic} was not read to its end")
    finally:
        consumer.close()


def producer(kafka: Kafka, **settings: str) -> Producer:
    """`settings` are librdkafka's, with low lines for dots."""
    more = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": "0", **more})


def _record_of(message: Message) -> ForeignRecord:
    headers = [(pair[0], _bytes(pair[1])) for pair in message.headers() or []]
    partition, offset = _known(message.partition()), _known(message.offset())
    return ForeignRecord(
        partition, offset, _bytes(message.key()), _bytes(message.value()), headers, message.timestamp()[1]
    )


def _known(number: int | None) -> int:
    assert number is not None
    return number


def _bytes(cell: str | bytes | None) -> bytes | None:
    return cell.encode() if isinstance(cell, str) else cell


def admin(kafka: Kafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap})


def create_topic(client: AdminClient, name: str, partitions: int, config: dict[str, str]) -> None:
    for future in client.create_topics([NewTopic(name, partitions, 1, config=config)]).values():
        future.result(30)
    for _ in range(POLLS_MAX):  # until the broker that is asked knows of it
        if len(client.list_topics(name, timeout=POLL_S).topics[name].partitions) == partitions:
            return
    raise TimeoutError(f"{name} was not created")


def delete_topic(client: AdminClient, name: str) -> None:
    for future in client.delete_topics([name]).values():
        future.result(30)
