"""One node on Kafka serves all five protocols: what each writes every other reads, and Kafka's own clients too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from bench.kafka import Kafka
from penstock.testing import RunningBroker
from tests.interop.protocols import GROUP_SPEAKERS, SPEAKERS, GroupSpeaker, Published, Speaker
from tests.kafka import foreign

PREFIX = "protocols."
TURNS = 3


@pytest.fixture(scope="module")
def broker(kafka: Kafka) -> Iterator[RunningBroker]:
    settings = {"bootstrap": [kafka.bootstrap], "topic_prefix": PREFIX}
    with RunningBroker(engine="kafka", kafka=settings) as running:
        yield running


@pytest.mark.parametrize("reads", [pytest.param(speaker, id=speaker.name) for speaker in SPEAKERS])
def test_what_all_protocols_write_is_read_in_that_order(
    broker: RunningBroker, kafka: Kafka, reads: type[Speaker]
) -> None:
    topic = f"read-{reads.name.replace('+', '-')}"
    broker.connect().create_topic(topic)
    with ExitStack() as clients:
        reader, *writers = [clients.enter_context(closing(speaker(broker, topic))) for speaker in (reads, *SPEAKERS)]
        values = []
        for turn in range(TURNS):
            for writer in writers:
                values.append(f"{turn} over {writer.name}".encode())
                writer.publish([Published(None, values[-1])])
        seen = reader.read(len(values))
    assert [each.value for each in seen] == values
    theirs = foreign.read_all(kafka, PREFIX + topic)
    assert [record.value for record in theirs] == values
    if reads.has_offsets:
        assert [each.offset for each in seen] == [record.offset for record in theirs]


def test_groups_transactions_and_subscriptions_survive_a_restart_of_the_node(
    broker: RunningBroker, kafka: Kafka
) -> None:
    client: Any = broker.connect()
    client.create_topic("state", partitions=2)
    with client.transaction() as transaction:
        transaction.send("state", b"a", partition=0)
        transaction.send("state", b"b", partition=1)
    client.send("state", b"c", partition=0)
    for speaker in GROUP_SPEAKERS:
        with closing(speaker(broker, "state")) as group_client:
            assert isinstance(group_client, GroupSpeaker)
            group_client.commit(f"group-{speaker.name}", 1)
    client.schemas.register("order", '{"type": "object"}')
    broker.restart()
    client = broker.connect()
    assert [record.value for record in client.records("state")] == [b"a", b"c", b"b"]
    for speaker in GROUP_SPEAKERS:
        with closing(speaker(broker, "state")) as group_client:
            assert isinstance(group_client, GroupSpeaker)
            assert group_client.committed(f"group-{speaker.name}") == 1
    assert client.schemas.get("order", 1).version == 1
    assert [record.value for record in foreign.read_all(kafka, f"{PREFIX}state")] == [b"a", b"c", b"b"]
