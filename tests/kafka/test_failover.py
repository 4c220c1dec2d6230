"""Clients that know both nodes, each of which is killed once: an idempotent producer and a consumer group go on at the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.kafka import Kafka
from penstock.errors import PenstockError
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing import BrokerProcess
from tests.kafka.nodes import node_process

CHUNK = 20


@pytest.fixture
def nodes(kafka: Kafka, prefix: str, tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    with node_process(tmp_path, kafka, prefix, "one") as one, node_process(tmp_path, kafka, prefix, "two") as two:
        yield [one, two]


class Producer(threading.Thread):
    """Sends until it is told to stop. An error ends it, and is raised by `stop`."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        """All of them acknowledged."""
        self._url = url
        self._stopping = threading.Event()
        self._error: PenstockError | None = None

    def run(self) -> None:
        try:
            with FlyMQClient(self._url) as client:
                while not self._stopping.is_set():
                    chunk = [b"%d" % (len(self.sent) + number) for number in range(CHUNK)]
                    client.send_many("orders", chunk)
                    self.sent += chunk
        except PenstockError as error:
            self._error = error

    def until_sent(self, more: int) -> None:
        least = len(self.sent) + more
        while len(self.sent) < least:
            assert self.is_alive(), self._error

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        assert self._error is None


def test_each_record_is_stored_once_and_consumed_though_both_nodes_are_killed(nodes: list[BrokerProcess]) -> None:
    one, two = nodes
    url = f"flymq://{one.address},{two.address}"
    with closing(one.connect()) as client:
        client.create_topic("orders")
    producer = Producer(url)
    producer.start()
    try:
        with FlyMQClient(url) as client, client.consumer(["orders"], group="billing") as consumer:
            consumed: list[bytes | None] = []

            def consume(more: int) -> None:
                least = len(consumed) + more
                while len(consumed) < least:
                    consumed.extend(record.value for record in consumer.poll())

            consume(5 * CHUNK)
            for node in (one, two):
                node.kill9()
                producer.until_sent(5 * CHUNK)
                consume(5 * CHUNK)
                node.start()
            producer.until_sent(CHUNK)
            producer.stop()
            while len(set(consumed)) < len(producer.sent):
                consumed.extend(record.value for record in consumer.poll())
    finally:
        producer.stop()
    with closing(two.connect()) as client:
        list(client.records("orders", follow=True, limit=len(producer.sent)))  # other nodes show it a moment later
        stored = [record.value for record in client.records("orders")]
    assert stored == producer.sent, "each once, and in order"
    assert list(dict.fromkeys(consumed)) == stored, "in order, some of them perhaps twice"
