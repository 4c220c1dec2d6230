"""What one protocol says of a record's life, readers of the others keep to: groups, dead letters, time to live, delay, headers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

import penstock
from penstock.protocols.fujin.sync import FujinClient
from penstock.testing import RunningBroker
from tests.interop.protocols import SPEAKERS, Fujin, Published, Speaker

TOPIC = "orders"
HOUR_S = 3600.0
SETTINGS = {"fujin": {"fetch_wait_s": 0.2}}

Connect = Callable[[type[Speaker]], Speaker]


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with RunningBroker(listeners=SETTINGS, topics=[{"name": TOPIC}]) as broker:
        yield broker


@pytest.fixture
def connect(broker: RunningBroker) -> Iterator[Connect]:
    with ExitStack() as clients:
        yield lambda speaker: clients.enter_context(closing(speaker(broker, TOPIC)))


@pytest.fixture
def fujin(broker: RunningBroker) -> Iterator[FujinClient]:
    with FujinClient(broker.fujin_url) as client:
        yield client


def named(speakers: Any) -> list[Any]:
    return [pytest.param(speaker, id=speaker.name) for speaker in speakers]


def test_readers_of_a_group_share_what_all_protocols_write(connect: Connect, fujin: FujinClient) -> None:
    with fujin.reader(TOPIC, pull=True) as one, closing(connect(Fujin)) as other_speaker:
        other = other_speaker.client.reader(TOPIC, pull=True)
        values = []
        for turn in range(4):
            for writes in SPEAKERS:
                values.append(f"{turn} over {writes.name}".encode())
                connect(writes).publish([Published(None, values[-1])])
        got: list[bytes] = []
        with other:
            while len(got) < len(values):
                for reader in (one, other):
                    messages = reader.fetch(3)
                    got += [message.value for message in messages]
                    if messages:
                        reader.ack(*messages)
        assert sorted(got) == sorted(values)
        assert one.fetch(10) == []


def test_what_a_fujin_reader_refuses_for_good_is_a_dead_letter_for_flymq(
    broker: RunningBroker, fujin: FujinClient
) -> None:
    flymq = broker.connect()
    flymq.send(TOPIC, b"\0poison", key=b"k1")
    flymq.send(TOPIC, b"fine", key=b"k2")
    deliveries = 0
    with fujin.reader(TOPIC, pull=True) as reader:
        while not flymq.dead_letters.list(TOPIC):
            for message in reader.fetch(10):
                deliveries += message.value == b"\0poison"
                (reader.nack if message.value == b"\0poison" else reader.ack)(message)
            broker.clock.advance(60)
    assert deliveries == 3
    (letter,) = flymq.dead_letters.list(TOPIC)
    assert (letter.value, letter.key, letter.attempts) == (b"\0poison", b"k1", 3)
    flymq.dead_letters.replay(TOPIC, letter.id)
    with fujin.reader(TOPIC, pull=True) as reader:
        (again,) = reader.fetch(10)
        assert again.value == b"\0poison"
        reader.ack(again)


@pytest.mark.parametrize("pull", [True, False])
def test_a_record_that_ends_every_fujin_reader_is_a_dead_letter_for_flymq_and_what_is_after_it_is_not(
    broker: RunningBroker, pull: bool
) -> None:
    flymq = broker.connect()
    flymq.send_many(TOPIC, [b"fine", b"\0poison", *(b"%d" % number for number in range(20))])
    seen: list[bytes] = []

    def read(reader: Any) -> None:
        """What a program does that dies of one record."""
        messages = reader.fetch(100) if pull else iter(reader.next, None)
        for message in messages:
            if message.value == b"\0poison":
                raise ZeroDivisionError
            seen.append(message.value)
            reader.ack(message)
            if message.value == b"19":
                return

    for _ in range(3):
        with (
            pytest.raises(ZeroDivisionError),
            FujinClient(broker.fujin_url) as client,
            client.reader(TOPIC, pull=pull) as reader,
        ):
            read(reader)
    with FujinClient(broker.fujin_url) as client, client.reader(TOPIC, pull=pull) as reader:
        read(reader)
    assert seen == [b"fine", *(b"%d" % number for number in range(20))]
    (letter,) = flymq.dead_letters.list(TOPIC)
    assert (letter.value, letter.attempts) == (b"\0poison", 3)


@pytest.mark.parametrize("reads", named(SPEAKERS))
def test_a_record_whose_time_is_over_is_read_by_nobody(broker: RunningBroker, connect: Connect, reads: Any) -> None:
    flymq = broker.connect()
    flymq.send(TOPIC, b"gone", ttl_s=5)
    broker.clock.advance(5)
    reader = connect(reads)
    flymq.send(TOPIC, b"lives", ttl_s=HOUR_S)
    flymq.send(TOPIC, b"stays")
    assert [seen.value for seen in reader.read(2)] == [b"lives", b"stays"]


@pytest.mark.parametrize("start", ["earliest", 0])
def test_a_felix_subscriber_that_begins_earlier_gets_nothing_that_has_expired(
    broker: RunningBroker, start: Any
) -> None:
    flymq = broker.connect()
    flymq.send(TOPIC, b"gone", ttl_s=5)
    flymq.send(TOPIC, b"stays")
    broker.clock.advance(5)
    with penstock.connect(broker.felix_url) as felix, felix.subscribe(TOPIC, start=start) as subscription:
        event = subscription.next(20)
        assert (event.value, event.offset) == (b"stays", 1)


@pytest.mark.parametrize("reads", named(SPEAKERS))
def test_a_delayed_record_is_read_by_everyone_when_it_is_due_and_not_before(
    broker: RunningBroker, connect: Connect, reads: Any
) -> None:
    flymq = broker.connect()
    reader = connect(reads)
    flymq.send_later(TOPIC, b"later", 10)
    flymq.send(TOPIC, b"now")
    assert [seen.value for seen in reader.read(1)] == [b"now"]
    broker.clock.advance(10)
    list(flymq.records(TOPIC, follow=True, limit=2))  # until it is there
    assert [seen.value for seen in reader.read(1)][-1] == b"later"


@pytest.mark.parametrize("reads", named(SPEAKERS))
def test_headers_of_one_protocol_do_not_get_in_the_way_of_another(
    fujin: FujinClient, connect: Connect, reads: Any
) -> None:
    reader = connect(reads)
    fujin.send(TOPIC, b"\0\1with", headers={"trace": b"\xff\0", "größe": b""})
    fujin.send(TOPIC, b"without")
    assert [seen.value for seen in reader.read(2)] == [b"\0\1with", b"without"]
