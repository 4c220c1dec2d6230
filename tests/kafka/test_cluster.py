"""Two nodes on one Kafka: what is written over any protocol on one is read over any protocol on the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from bench.kafka import Kafka
from tests.interop.protocols import SPEAKERS, GroupSpeaker, Published, Speaker
from tests.kafka.nodes import Certificates, NodeThread

PREFIX = "cluster."


@pytest.fixture(scope="module")
def nodes(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeThread]]:
    certificates = Certificates(tmp_path_factory.mktemp("nodes"))
    with ExitStack() as running:
        yield [
            running.enter_context(NodeThread(kafka, PREFIX, name, certificates, admin=True)) for name in ("one", "two")
        ]


@pytest.mark.parametrize("leader_writes", [True, False], ids=["leader writes", "leader reads"])
@pytest.mark.parametrize("reads", [pytest.param(speaker, id=speaker.name) for speaker in SPEAKERS])
def test_what_all_protocols_write_on_one_node_is_read_on_the_other(
    nodes: list[NodeThread], reads: type[Speaker], leader_writes: bool
) -> None:
    writes_on, reads_on = nodes if leader_writes else reversed(nodes)
    topic = f"{'to' if leader_writes else 'from'}-{reads.name.replace('+', '-')}"
    writes_on.connect().create_topic(topic)
    with ExitStack() as clients:
        reader = clients.enter_context(closing(reads(reads_on, topic)))
        values = []
        for speaker in SPEAKERS:
            writer = clients.enter_context(closing(speaker(writes_on, topic)))
            values.append(f"over {writer.name}".encode())
            writer.publish([Published(None, values[-1])])
        if isinstance(reader, GroupSpeaker):
            reads_on.server.engine.partition(topic, 0)
        seen = reader.read(len(values))
    assert [each.value for each in seen] == values
