"""One log, every protocol: what one writes the others read, byte for byte, with the same offset, key and order; and groups likewise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from penstock.broker.schemas.marks import SCHEMA_HEADER, confluent_frame
from penstock.testing import RunningBroker
from tests.interop.protocols import GROUP_SPEAKERS, SPEAKERS, GroupSpeaker, Published, Seen, Speaker

TOPIC = "orders"
RECORDS = [
    Published(b"k1", b"plain"),
    Published(None, b""),
    Published(b"\0", b"\0\xff\n\r\t bytes of any kind " + bytes(range(256))),
    Published("Schlüssel".encode(), "größer ✓ 𝄞".encode()),
    *(Published(b"k%d" % (number % 3), b"%d" % number) for number in range(200)),
    Published(b"large", bytes(300_000)),
]

Connect = Callable[[Any], Any]


@pytest.fixture
def connect() -> Iterator[Connect]:
    with RunningBroker() as broker, ExitStack() as open_clients:
        broker.connect().create_topic(TOPIC)
        yield lambda speaker: open_clients.enter_context(closing(speaker(broker, TOPIC)))


def named(speakers: Any) -> list[Any]:
    return [pytest.param(speaker, id=speaker.name) for speaker in speakers]


@pytest.mark.parametrize("reads", named(SPEAKERS))
@pytest.mark.parametrize("writes", named(SPEAKERS))
def test_what_one_protocol_writes_another_reads(connect: Connect, writes: Any, reads: Any) -> None:
    reader: Speaker = connect(reads)
    writer: Speaker = connect(writes)
    published = [record for record in RECORDS if record.value or writes.has_empty]
    writer.publish(published)
    expected = [
        Seen(
            record.value,
            record.key if writes.has_keys and reads.has_keys else None,
            offset if reads.has_offsets else None,
        )
        for offset, record in enumerate(published)
        if record.value or reads.has_empty
    ]
    assert reader.read(len(expected)) == expected


@pytest.mark.parametrize("reads", named(SPEAKERS))
def test_what_all_protocols_write_in_turn_is_read_in_that_order(connect: Connect, reads: Any) -> None:
    reader: Speaker = connect(reads)
    writers: list[Speaker] = [connect(writes) for writes in SPEAKERS]
    values = []
    for turn in range(5):
        for writer in writers:
            values.append(f"{turn} over {writer.name}".encode())
            writer.publish([Published(None, values[-1])])
    seen = reader.read(len(values))
    assert [each.value for each in seen] == values
    if reads.has_offsets:
        assert [each.offset for each in seen] == list(range(len(values)))


@pytest.mark.parametrize("speaks", named(SPEAKERS))
def test_records_in_and_out_are_counted_whatever_protocol_they_came_over(speaks: Any) -> None:
    with RunningBroker() as broker:
        broker.connect().create_topic(TOPIC)
        with closing(speaks(broker, TOPIC)) as speaker:
            speaker.publish([Published(None, b"%d" % number) for number in range(7)])
            assert len(speaker.read(7)) == 7
        for name, stats in broker.server.sessions.items():
            expected = (7, 7) if speaks.name.startswith(name) else (0, 0)
            assert (stats.received_records, stats.sent_records) == expected, name


@pytest.mark.parametrize("writes", named(SPEAKERS))
def test_what_follows_a_schema_says_which_version_whatever_protocol_it_came_over(writes: Any) -> None:
    with RunningBroker() as broker:
        client = broker.connect()
        client.schemas.register("order", '{"type": "object", "properties": {"id": {"type": "integer"}}}')
        client.schemas.register("order", '{"type": "object", "properties": {"id": {"type": "number"}}}')
        client.create_topic(TOPIC, schema="order")
        client.create_topic("free")
        framed = confluent_frame(client.schemas.get("order", 1).registry_id or 0) + b'{"id": 1}'
        for topic in (TOPIC, "free"):
            with closing(writes(broker, topic)) as speaker:
                speaker.publish([Published(b"k", b'{"id": 1.5}'), Published(b"k", framed)])
        stamps = [dict(record.headers).get(SCHEMA_HEADER) for record in client.records(TOPIC)]
        assert stamps == [b"order:2", None], "a frame says it itself"
        assert not any(SCHEMA_HEADER in dict(record.headers) for record in client.records("free"))


@pytest.mark.parametrize("looks", named(GROUP_SPEAKERS))
@pytest.mark.parametrize("commits", named(GROUP_SPEAKERS))
def test_what_one_protocol_commits_another_sees(connect: Connect, commits: Any, looks: Any) -> None:
    writer: GroupSpeaker = connect(commits)
    other: GroupSpeaker = connect(looks)
    writer.publish(RECORDS)
    assert other.committed("billing") is None
    for offset in (0, 7, len(RECORDS), 3):
        writer.commit("billing", offset)
        assert other.committed("billing") == offset
