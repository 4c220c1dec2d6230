from __future__ import annotations

from typing import Any

import pytest

from penstock.clock import SystemClock
from penstock.errors import InvalidRequest, NotWritten
from penstock.log.api import Appended, TopicConfig, TopicInfo
from penstock.log.kafka.client import Place
from penstock.log.kafka.faults import Code, KafkaFault
from penstock.log.kafka.reader import Reader
from penstock.log.kafka.settings import KafkaSettings
from penstock.log.kafka.topics import StoredTopic, TopicStore

TOPIC = StoredTopic(TopicInfo("t", "id", TopicConfig(cleanup="compact"), 0), "t")


class Refusing:
    """A cluster that has the topic, and lets nobody delete anything."""

    def partition_counts(self) -> dict[str, int]:
        return {"t": 1}

    def leader(self, place: Place) -> int:
        return 0

    async def refresh(self) -> bool:
        return True

    async def delete_topic(self, name: str) -> None:
        raise KafkaFault(Code.TOPIC_AUTHORIZATION_FAILED)

    async def delete_records(self, node: int, before: dict[Place, int]) -> dict[Place, KafkaFault]:
        return dict.fromkeys(before, KafkaFault(Code.POLICY_VIOLATION))


class Rows:
    """The partition of the table: keeps the last row."""

    last = b""

    def append(self, batch: Any, done: Any) -> None:
        self.last = batch.values[0]
        done(Appended(0, 0))


def store() -> tuple[TopicStore, Rows]:
    client: Any = Refusing()
    made = TopicStore(client, Reader(client, 1.0), KafkaSettings(), SystemClock(), 1)
    rows = Rows()
    made._partition = rows  # type: ignore[assignment]
    return made, rows


async def test_a_topic_that_kafka_did_not_delete_is_not_deleted_at_the_next_start() -> None:
    topics, rows = store()
    with pytest.raises(NotWritten):
        await topics.delete(TOPIC)
    assert b'"change":null' in rows.last


async def test_a_truncation_that_kafka_refuses_does_not_stop_the_next_start() -> None:
    topics, rows = store()
    with pytest.raises(InvalidRequest):
        await topics.truncate(TOPIC, {0: 5})
    assert b'"change":null' in rows.last
