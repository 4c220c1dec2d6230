"""Delay, time to live and dead letters through both clients, against a real broker."""

from __future__ import annotations

import pytest

import penstock
from penstock.errors import EntryNotFound, InvalidRequest, InvalidTopicName, PartitionNotFound, RecordTooLarge
from penstock.testing import RunningBroker

LETTER = b'{"id":"%s","original_topic":"orders","payload":"aGk=","error_message":"boom","retry_count":2}'


def test_a_record_comes_later_with_its_key(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    client.create_topic("orders", 3)
    delayed = client.send_later("orders", b"v", 1.5, key=b"user-123")
    assert (delayed.topic, delayed.partition) == ("orders", 2)
    assert delayed.due_ms == penstock_broker.clock.now_ms() + 1500
    penstock_broker.clock.advance(1.5)
    [record] = client.records("orders", follow=True, limit=1)
    assert (record.partition, record.key, record.value) == (2, b"user-123", b"v")


def test_a_record_that_waits_can_be_cancelled_once(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    delayed = client.send_later("orders", b"v", 60)
    client.cancel("orders", delayed.id)
    with pytest.raises(EntryNotFound, match="delayed message not found"):
        client.cancel("orders", delayed.id)


def test_a_record_without_a_delay_is_there(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    assert client.send_later("orders", b"v", 0).id == ""
    assert [record.value for record in client.records("orders")] == [b"v"]


def test_a_record_ends_when_its_time_has_come(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    assert client.send("orders", b"short", ttl_s=0.25, partition=0).offset == 0
    assert client.send("orders", b"long", key=b"k", ttl_s=60).offset == 1
    assert [record.value for record in client.records("orders")] == [b"short", b"long"]
    penstock_broker.clock.advance(0.25)
    assert [(record.key, record.value) for record in client.records("orders")] == [(b"k", b"long")]


def test_a_delayed_record_lives_from_its_delivery_on(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    client.send_later("orders", b"v", 1, ttl_s=5)
    penstock_broker.clock.advance(3)
    assert [record.value for record in client.records("orders", follow=True, limit=1)] == [b"v"]
    penstock_broker.clock.advance(4.9)
    assert len(list(client.records("orders"))) == 1
    penstock_broker.clock.advance(0.1)
    assert len(list(client.records("orders"))) == 0


def test_what_cannot_be_is_refused(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    client.create_topic("orders")
    for seconds in (-1, float("nan"), float("inf")):
        with pytest.raises(InvalidRequest, match="must be a number of seconds from 0"):
            client.send_later("orders", b"v", seconds)
        with pytest.raises(InvalidRequest, match="must be a number of seconds from 0"):
            client.send("orders", b"v", ttl_s=seconds)
    with pytest.raises(InvalidRequest, match="exceeds maximum allowed delay 24h0m0s"):
        client.send_later("orders", b"v", 90_000)
    with pytest.raises(PartitionNotFound):
        client.send_later("orders", b"v", 5, partition=3)
    with pytest.raises(InvalidTopicName):
        client.send_later("", b"v", 5)
    with pytest.raises(RecordTooLarge):
        client.send_later("orders", bytes(33 << 20), 5)


def test_dead_letters_are_listed_replayed_and_purged(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    client.create_topic("orders")
    assert client.dead_letters.list("orders") == []
    client.send_many("orders.dlq", [(b"k", LETTER % b"%d" % number) for number in range(5)])
    letters = client.dead_letters.list("orders")
    assert [letter.id for letter in letters] == ["0", "1", "2", "3", "4"]
    assert (letters[0].value, letters[0].reason, letters[0].attempts, letters[0].key) == (b"hi", "boom", 2, b"k")
    assert len(client.dead_letters.list("orders", 2)) == 2
    client.dead_letters.replay("orders", "1")
    client.dead_letters.replay_at("orders", 3)
    with pytest.raises(EntryNotFound, match="message not found"):
        client.dead_letters.replay("orders", "3")
    assert client.dead_letters.replay_all("orders", "nowhere") == 0
    assert client.dead_letters.replay_all("orders", dry_run=True) == 3
    assert client.dead_letters.replay_all("orders") == 3
    assert [(record.key, record.value) for record in client.records("orders")] == [(b"k", b"hi")] * 5
    client.dead_letters.purge("orders")
    client.dead_letters.purge("orders")
    assert client.topics() == ["orders"]


async def test_the_async_client_has_the_same_calls(penstock_broker: RunningBroker) -> None:
    async with await penstock.connect_async(penstock_broker.url) as client:
        delayed = await client.send_later("orders", b"v", 60, ttl_s=5)
        await client.cancel("orders", delayed.id)
        await client.send("orders", b"v", ttl_s=1)
        await client.send("orders.dlq", LETTER % b"m-1")
        assert [letter.id for letter in await client.dead_letters.list("orders")] == ["m-1"]
        assert await client.dead_letters.replay_all("orders") == 1
        await client.dead_letters.purge("orders")
