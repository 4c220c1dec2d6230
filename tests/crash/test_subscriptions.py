"""kill -9 between publishing, delivering and acknowledging: what was not acknowledged comes again, what was does not."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.errors import PenstockError
from penstock.protocols.blipmq.sync import BlipMQClient
from penstock.testing.process import BrokerProcess

# Deliveries are taken back at once, so that a test waits for nothing, and repeated without end, so that none becomes a dead letter.
CONFIG = """
[subscriptions]
deliveries_max = 1000000
backoff_ms = 20
[listeners.blipmq]
bind = "127.0.0.1:0"
api_keys = ["key"]
"""
ROUNDS = 5


def client_of(broker: BrokerProcess) -> BlipMQClient:
    options = ClientOptions(retry=NO_RETRY, request_timeout_s=20.0)
    return BlipMQClient(f"blipmq://key@{broker.addresses['blipmq']}", options=options)


def drained(client: BlipMQClient, subscription: int, expected: set[bytes]) -> list[bytes]:
    """Everything that is delivered until all that is expected was, acknowledged."""
    values: list[bytes] = []
    for message in client.records("orders", subscription=subscription, follow=True):
        values.append(message.value)
        if expected <= set(values):
            break
    if expected:
        client.send("orders", b"end")
        for message in client.records("orders", subscription=subscription, follow=True):
            if message.value == b"end":
                break
            values.append(message.value)
    return values


@pytest.mark.timeout(120)
def test_unacknowledged_records_come_again_and_acknowledged_ones_do_not(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", config=CONFIG) as broker:
        with client_of(broker) as client:
            subscription = client.subscribe("orders")
            client.send_many("orders", [b"%d" % n for n in range(10)])
            delivered = client.poll(subscription, 6)
            assert [message.value for message in delivered] == [b"%d" % n for n in range(6)]
            done = [delivered[n] for n in (0, 2, 5)]
            client.ack(subscription, *(message.tag for message in done if message.tag is not None))
        broker.kill9()
        broker.start()
        with client_of(broker) as client:
            again = drained(client, subscription, {b"1", b"3", b"4", b"6", b"7", b"8", b"9"})
            assert not set(again) & {b"0", b"2", b"5"}
            assert client.subscribe("orders") == subscription + 1


@pytest.mark.timeout(120)
def test_nothing_confirmed_is_lost_and_nothing_acknowledged_repeated_over_many_kills(tmp_path: Path) -> None:
    """A publisher and a reader work while the broker is killed; each notes only what a PONG has confirmed."""
    chance = random.Random(4)
    published: set[bytes] = set()
    tried: set[bytes] = set()
    acknowledged: set[bytes] = set()
    repeated: list[bytes] = []
    with BrokerProcess(tmp_path / "data", config=CONFIG) as broker:
        with client_of(broker) as client:
            subscription = client.subscribe("orders")
        for turn in range(ROUNDS):
            publisher = threading.Thread(target=publish, args=(broker, turn, published))
            reader = threading.Thread(target=read, args=(broker, subscription, tried, acknowledged, repeated))
            publisher.start()
            reader.start()
            reader.join(chance.uniform(0.1, 0.5))  # the moment of the kill is the thing that varies
            broker.kill9()
            publisher.join()
            reader.join()
            broker.start()
        assert published
        assert acknowledged
        assert repeated == []
        with client_of(broker) as client:
            rest = drained(client, subscription, published - tried)
        assert not set(rest) & acknowledged


def publish(broker: BrokerProcess, turn: int, published: set[bytes]) -> None:
    try:
        with client_of(broker) as client:
            for batch in range(1_000_000):
                values = [b"%d/%d/%d" % (turn, batch, row) for row in range(5)]
                client.send_many("orders", values)
                published.update(values)
    except PenstockError:
        return  # the broker is gone, which is what this is about


def read(
    broker: BrokerProcess, subscription: int, tried: set[bytes], acknowledged: set[bytes], repeated: list[bytes]
) -> None:
    try:
        with client_of(broker) as client:
            while True:
                messages = client.poll(subscription, 20)
                repeated += [message.value for message in messages if message.value in acknowledged]
                for message in messages[: len(messages) // 2 + 1]:
                    assert message.tag is not None
                    tried.add(message.value)  # killed now, nobody knows whether it was acknowledged
                    client.ack(subscription, message.tag)
                    acknowledged.add(message.value)
    except PenstockError:
        return  # the broker is gone, or took a delivery back before it was acknowledged


@pytest.mark.timeout(120)
def test_a_record_becomes_a_dead_letter_once_whenever_the_broker_is_killed(tmp_path: Path) -> None:
    """Nobody acknowledges anything. Each record ends up in the dead letters, and none of them twice."""
    config = CONFIG.replace("deliveries_max = 1000000", "deliveries_max = 1")
    chance = random.Random(5)
    values = [b"%d" % number for number in range(300)]
    with BrokerProcess(tmp_path / "data", config=config) as broker:
        with client_of(broker) as client:
            subscription = client.subscribe("orders")
            client.send_many("orders", values)
        for _ in range(3):
            reader = threading.Thread(target=ignore_all, args=(broker, subscription))
            reader.start()
            reader.join(chance.uniform(0.1, 0.4))  # the moment of the kill is the thing that varies
            broker.kill9()
            reader.join()
            broker.start()
        with client_of(broker) as client, broker.connect() as reader_of_letters:
            letters: list[bytes] = []
            while len(set(letters)) < len(values):
                client.poll(subscription, 100)
                if "orders.dlq" in reader_of_letters.topics():
                    letters = [record.value or b"" for record in reader_of_letters.records("orders.dlq")]
            assert sorted(letters) == sorted(values)


def ignore_all(broker: BrokerProcess, subscription: int) -> None:
    try:
        with client_of(broker) as client:
            while True:
                client.poll(subscription, 10)
    except PenstockError:
        return  # the broker is gone, which is what this is about
