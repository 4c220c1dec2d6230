"""Schemas across kill -9: acknowledged versions and bindings are there, numbers have no gaps, and no topic is created half."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.errors import PenstockError, ValidationFailed
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing import BrokerProcess
from penstock.testing.crashing import CRASHED, CrashAt
from penstock.testing.diskfaults import Crash
from tests.crash import crash_targets

ROUNDS = 4
# What registering, binding, creating and deleting do.
TARGETS = (*crash_targets.APPEND, *crash_targets.TOPIC)
OPTIONS = ClientOptions(retry=NO_RETRY)


class Writer:
    """Registers versions, creates, binds and deletes bound topics until the broker dies; remembers what it was told is done."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        """By definition, the number it was given."""
        self.bound: dict[str, str] = {}
        self.released: set[str] = set()
        """Topics that were deleted and created again without a schema."""
        self.creating = ""
        """The topic of which something is asked and not answered yet."""
        self._turn = 0
        self._registered = threading.Condition()

    def work(self, broker: BrokerProcess) -> None:
        try:
            with FlyMQClient(broker.url, options=OPTIONS) as client:
                while True:
                    self._one_turn(client)
        except PenstockError:
            pass

    def _one_turn(self, client: FlyMQClient) -> None:
        self._turn += 1
        definition = f'{{"type": "object", "required": ["id"], "title": "{self._turn}"}}'
        version = client.schemas.register("order", definition).version
        with self._registered:
            self.versions[definition] = version
            self._registered.notify()
        topic = f"orders-{self._turn}"
        self.creating = topic
        client.create_topic(topic, schema="order")
        self.creating = ""
        self.bound[topic] = "order"
        if self._turn % 3 == 0:
            pinned = f"order:{version}"
            client.schemas.bind(topic, pinned)
            self.bound[topic] = pinned
        if self._turn % 4 == 0:
            del self.bound[topic]
            client.delete_topic(topic)
            client.create_topic(topic)
            self.released.add(topic)

    def wait_until_registered(self, more: int) -> None:
        """Wait until it has registered so many versions from now on."""
        with self._registered:
            wanted = len(self.versions) + more
            assert self._registered.wait_for(lambda: len(self.versions) >= wanted, timeout=30)

    def check(self, client: FlyMQClient) -> None:
        found = {schema.version for schema in client.schemas.list("order")}
        assert found == set(range(1, len(found) + 1))
        for definition, version in self.versions.items():
            assert client.schemas.get("order", version).definition == definition
            assert client.schemas.register("order", definition).version == version
        for topic, schema in self.bound.items():
            assert client.describe_topic(topic).config["schema"].startswith("order")
            assert schema == "order" or client.describe_topic(topic).config["schema"] == schema
            with pytest.raises(ValidationFailed):
                client.send(topic, b"{}")
            client.send(topic, b'{"id": 1}')
        for topic in self.released:
            assert "schema" not in client.describe_topic(topic).config
        if self.creating in client.topics():
            assert client.describe_topic(self.creating).config["schema"] == "order"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("at", TARGETS, ids=crash_targets.named)
def test_a_crash_at_any_operation_leaves_all_of_a_change_or_nothing(tmp_path: Path, at: CrashAt) -> None:
    writer = Writer()
    with BrokerProcess(tmp_path / "data") as broker:
        broker.kill9()
        broker.start(disk=Crash(str(at._replace(nth=random.Random(str(at)).randrange(2, 6)))))
        writer.work(broker)
        assert broker.wait_exit() == CRASHED
        broker.start()
        writer.check(broker.connect())


@pytest.mark.timeout(240)
def test_nothing_acknowledged_is_lost_over_many_kills(tmp_path: Path) -> None:
    chance = random.Random(7)
    writer = Writer()
    with BrokerProcess(tmp_path / "data") as broker:
        for _ in range(ROUNDS):
            thread = threading.Thread(target=writer.work, args=(broker,))
            thread.start()
            writer.wait_until_registered(2)
            thread.join(chance.uniform(0, 1))  # the moment of the kill is the thing that varies
            broker.kill9()
            thread.join()
            broker.start()
            writer.check(broker.connect())
    assert len(writer.versions) > ROUNDS
