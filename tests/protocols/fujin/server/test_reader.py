"""Readers: pushed and fetched, alone and in groups; what becomes of their records is in test_settling.py."""

from __future__ import annotations

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.deliveries.subscription import QOS0_HEADERS
from penstock.log.api import TopicConfig
from penstock.protocols.fujin.server.settings import FujinAlias
from tests.broker.producing import produce
from tests.protocols.fujin.conftest import Connect
from tests.protocols.fujin.memory import Client, Side, Timers, settle, until
from tests.protocols.fujin.records import in_flight, make
from tests.protocols.fujin.requests import (
    DISCONNECT,
    ack,
    connect_reader,
    failed,
    fetch,
    fetched,
    message,
    nack,
    settled,
    tag,
)

UNKNOWN = b"unknown id"


# -- connecting --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (connect_reader(b"t", kind=0), b"invalid reader type"),
        (connect_reader(b"t", kind=3), b"invalid reader type"),
        (connect_reader(b"t", auto_commit=2), b"connect reader is auto commit arg invalid"),
        (connect_reader(b""), b"reader name size arg not provided"),
        (b"\2\1\0\xff\xff\xff\xff", b"reader not found"),
        (connect_reader(b"\xff"), b"reader not found"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_the_stream_ends_later(
    client: Client, timers: Timers, request_: bytes, reason: bytes
) -> None:
    side = client.open()
    side.say(request_)
    expected = b"\1\1" + len(reason).to_bytes(4, "big") + reason
    assert await side.hear(len(expected)) == expected
    assert len(expected) <= 500
    assert side.stream.sends == [(expected, False)]
    timers.advance(0.09)
    assert not side.stream.has_ended
    timers.advance(0.02)
    assert side.stream.sends == [(expected, False), (b"", True)]
    assert side.stream.stopped == 0
    assert side.stream.held_bytes == 0
    assert client.connection.closed_with is None


@pytest.mark.parametrize("when", ["with it", "later"])
async def test_a_client_that_ends_its_side_hears_the_reason_alone_too(
    client: Client, timers: Timers, when: str
) -> None:
    side = client.open()
    side.say(connect_reader(b"t", kind=9))
    if when == "later":
        await until(lambda: side.stream.sends)
    side.session.ended()
    await until(lambda: side.stream.sends)
    await settle()
    assert [end for _, end in side.stream.sends] == [False]
    timers.advance(0.1)
    assert side.stream.sends[1:] == [(b"", True)], "and no goodbye"


async def test_a_long_reason_is_cut_to_what_clients_read_at_once(client: Client) -> None:
    side = client.open()
    side.say(connect_reader(b"x" * 60_000))
    await until(lambda: side.stream.sends)
    reply = side.stream.sent
    assert reply[:2] == b"\1\1"
    assert 10 < len(reply) <= 500
    assert int.from_bytes(reply[2:6], "big") == len(reply) - 6


async def test_commands_behind_a_refused_connect_are_forgotten(client: Client, timers: Timers) -> None:
    side = client.open()
    side.say(connect_reader(b"t", kind=9), fetch(1, 1), DISCONNECT)
    await until(lambda: side.stream.sends)
    timers.advance(0.1)
    assert (await side.end())[:2] == b"\1\1"
    assert side.stream.held_bytes == 0


async def test_a_topic_of_one_character_is_a_topic(client: Client, broker: Broker) -> None:
    await client.reader(b"t")
    assert broker.topics.exists("t")


async def test_a_missing_topic_is_refused_where_none_may_be_made(connect: Connect, broker: Broker) -> None:
    client = connect(auto_create=False)
    side = client.open()
    side.say(connect_reader(b"missing"))
    assert await side.hear(22) == b"\1\1\0\0\0\x10reader not found"
    await broker.topics.ensure(ANONYMOUS, "there")
    await client.reader(b"there")
    assert not broker.topics.exists("missing")


@pytest.mark.dense
async def test_a_group_begins_at_the_earliest_record_and_continues_where_it_was(client: Client, broker: Broker) -> None:
    await make(broker, "orders", [b"one", b"two"])
    first = await client.reader(b"orders")
    assert await first.hear(40) == message(b"one", 1) + message(b"two", 2)
    await first.ask(ack(1, [tag(1)]), size=23)
    first.say(DISCONNECT)
    await first.end()
    second = await client.reader(b"orders")
    assert await second.hear(20) == message(b"two", 2)
    await second.silence()


@pytest.mark.dense
async def test_aliases_name_topic_group_and_start(connect: Connect, broker: Broker) -> None:
    await make(broker, "orders", [b"old"])
    aliases = {
        "sub": FujinAlias(topic="orders", group="billing", start="latest"),
        "all": FujinAlias(topic="orders", group="audit", start="earliest"),
    }
    client = connect(aliases=aliases)
    late, everything = await client.reader(b"sub"), await client.reader(b"all")
    await produce(broker, "orders", [b"new"])
    assert await late.hear(20) == message(b"new", 1)
    assert await everything.hear(40) == message(b"old", 1) + message(b"new", 2)


async def test_groups_see_every_record_each(connect: Connect, broker: Broker) -> None:
    await make(broker, "orders", [b"one"])
    for group in ("a", "b"):
        reader = await connect(group=group).reader(b"orders", auto_commit=True)
        assert await reader.hear(8) == message(b"one")


# -- pushing -----------------------------------------------------------------------------------------------------------------


async def test_records_are_pushed_as_they_come(client: Client, broker: Broker) -> None:
    reader = await client.reader(b"orders", auto_commit=True)
    for number in range(5):
        await produce(broker, "orders", [b"%d" % number, b"more"])
        assert await reader.hear(15) == message(b"%d" % number) + message(b"more")


@pytest.mark.dense
async def test_nothing_is_pushed_for_a_moment_after_the_connect(client: Client, broker: Broker, timers: Timers) -> None:
    await make(broker, "orders", [b"one"])
    side = client.open()
    assert await side.ask(connect_reader(b"orders"), size=2) == b"\1\0"
    await side.silence()
    timers.advance(0.009)
    await side.silence()
    timers.advance(0.001)
    assert await side.hear(20) == message(b"one", 1)
    assert side.stream.sends[0] == (b"\1\0", False)


@pytest.mark.dense
async def test_what_was_asked_for_behind_the_connect_waits_for_that_moment_too(
    client: Client, broker: Broker, timers: Timers
) -> None:
    await make(broker, "orders", [b"one"])
    side = client.open()
    side.say(connect_reader(b"orders", kind=2), fetch(1, 5), fetch(2, 0), ack(3, []))
    assert await side.hear(2) == b"\1\0"
    await side.silence()
    assert side.stream.sends == [(b"\1\0", False)]
    timers.advance(0.01)
    expected = {fetched(1, b"one", first=1), failed(7, 2, b"fetch arg not provided"), settled(8, 3)}
    await until(lambda: all(each in side.stream.sent for each in expected))


@pytest.mark.dense
@pytest.mark.parametrize("arrives", [True, False])
async def test_that_moment_is_longer_where_the_answer_may_not_have_arrived(
    client: Client, broker: Broker, timers: Timers, arrives: bool
) -> None:
    await make(broker, "orders", [b"one"])
    side = client.open()
    side.stream.unacknowledged_bytes = 2
    side.say(connect_reader(b"orders"))
    assert await side.hear(2) == b"\1\0"
    timers.advance(0.05)
    await side.silence()
    assert side.stream.sends == [(b"\1\0", False)]
    if arrives:
        side.stream.unacknowledged_bytes = 0
    timers.advance(0.01 if arrives else 0.2)  # however long that takes, it is not forever
    assert await side.hear(20) == message(b"one", 1)


async def test_a_goodbye_waits_for_that_moment_too(client: Client, timers: Timers) -> None:
    side = client.open()
    side.say(connect_reader(b"orders"), DISCONNECT)
    assert await side.hear(2) == b"\1\0"
    await side.silence()
    timers.advance(0.01)
    assert await side.end() == DISCONNECT


async def test_a_long_log_is_pushed_from_disk_in_order(client: Client, broker: Broker) -> None:
    await broker.topics.ensure(ANONYMOUS, "orders")
    values = [b"%05d" % number for number in range(3000)]
    for at in range(0, 3000, 500):
        await produce(broker, "orders", values[at : at + 500])
    reader = await client.reader(b"orders", auto_commit=True)
    assert await reader.hear(30_000) == b"".join(map(message, values))


async def test_a_reader_that_does_not_take_its_records_gets_no_more(client: Client, broker: Broker) -> None:
    reader = await client.reader(b"orders", auto_commit=True)
    reader.stream.writable = False
    await produce(broker, "orders", [b"one"])
    await reader.silence()
    reader.stream.writable = True
    reader.session.resume()
    assert await reader.hear(8) == message(b"one")


async def test_no_more_are_pushed_than_may_be_unacknowledged(connect: Connect, broker: Broker) -> None:
    reader = await connect(unacknowledged_max=3).reader(b"orders")
    await produce(broker, "orders", [b"%d" % number for number in range(10)])
    size = len(message(b"0", 1))
    expected = [message(b"%d" % number, number + 1) for number in range(10)]
    assert await reader.hear(3 * size) == b"".join(expected[:3])
    await reader.silence()
    reader.say(ack(1, [tag(2)]))
    both = await reader.hear(size + 23)
    assert expected[3] in both
    assert settled(8, 1, (tag(2), None)) in both
    await reader.silence()
    reader.say(ack(2, [tag(1), tag(3), tag(4)]))
    assert b"".join(expected[4:7]) in await reader.hear(3 * size + 10 + 3 * 13)
    await reader.silence()


async def test_by_default_well_under_a_thousand_are_unacknowledged(client: Client, broker: Broker) -> None:
    reader = await client.reader(b"orders")
    await produce(broker, "orders", [b"x"] * 1000)
    await reader.hear(256 * len(message(b"x", 1)))
    await reader.silence()


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_readers_of_a_group_share_the_records_of_one_partition(
    client: Client, broker: Broker, auto_commit: bool
) -> None:
    readers = [await client.reader(b"orders", auto_commit=auto_commit) for _ in range(3)]
    count, size = 600, len(message(b"000", None if auto_commit else 1))
    await produce(broker, "orders", [b"%03d" % number for number in range(count)])
    await until(lambda: sum(len(reader.stream.sent) - 2 for reader in readers) == count * size)
    seen = [reader.stream.sent[at + size - 3 : at + size] for reader in readers for at in _starts(reader, size)]
    assert sorted(seen) == [b"%03d" % number for number in range(count)]
    assert all(len(reader.stream.sent) > 2 for reader in readers)


async def test_readers_of_a_group_share_the_partitions_of_a_topic(client: Client, broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "orders", TopicConfig(partitions=4))
    readers = [await client.reader(b"orders", auto_commit=True) for _ in range(2)]
    await produce(broker, "orders", [b"%03d" % number for number in range(500)])
    size = len(message(b"000"))
    await until(lambda: sum(len(reader.stream.sent) - 2 for reader in readers) == 500 * size)
    seen = [reader.stream.sent[at + size - 3 : at + size] for reader in readers for at in _starts(reader, size)]
    assert sorted(seen) == [b"%03d" % number for number in range(500)]


def _starts(reader: Side, size: int) -> range:
    return range(2, len(reader.stream.sent), size)


async def test_records_of_every_protocol_are_delivered_at_least_once(client: Client, broker: Broker) -> None:
    """Also those that were published to be delivered at most once: nothing of this protocol says so."""
    reader = await client.reader(b"orders")
    broker.records.produce(ANONYMOUS, "orders", 0, [b"x"], None, [QOS0_HEADERS], done=lambda placed: None)
    assert await reader.hear(18) == message(b"x", 1)
    assert await reader.ask(ack(1, [tag(1)]), size=23) == settled(8, 1, (tag(1), None))


@pytest.mark.parametrize("pull", [True, False])
async def test_records_with_nothing_in_them_are_skipped(client: Client, broker: Broker, pull: bool) -> None:
    reader = await client.reader(b"orders", pull=pull, auto_commit=True)
    await produce(broker, "orders", [b"", b"x", b""])
    if pull:
        assert await reader.ask(fetch(1, 10), size=15) == fetched(1, b"x")
    else:
        assert await reader.hear(6) == message(b"x")
    await reader.silence()
    await until(lambda: in_flight(broker) <= 1)


async def test_records_with_nothing_in_them_are_delivered_where_that_is_wanted(
    connect: Connect, broker: Broker
) -> None:
    reader = await connect(empty_values="deliver").reader(b"orders", auto_commit=True)
    await produce(broker, "orders", [b"", b"x"])
    assert await reader.hear(11) == message(b"") + message(b"x")


async def test_a_record_too_large_for_a_reader_becomes_a_dead_letter(connect: Connect, broker: Broker) -> None:
    reader = await connect(body_bytes_max=10).reader(b"orders")
    await produce(broker, "orders", [b"x" * 11, b"y" * 10])
    assert await reader.hear(27) == message(b"y" * 10, 2)
    await until(lambda: broker.dead_letters.stats.sent == 1)


# -- fetching ----------------------------------------------------------------------------------------------------------------


async def test_a_fetch_is_answered_at_once_where_there_is_something(client: Client, broker: Broker) -> None:
    await make(broker, "orders", [b"one", b"two", b"six"])
    reader = await client.reader(b"orders", pull=True, auto_commit=True)
    assert await reader.ask(fetch(1, 2), size=24) == fetched(1, b"one", b"two")
    assert await reader.ask(fetch(2, 100), size=17) == fetched(2, b"six")


async def test_a_fetch_is_held_until_there_is_something(client: Client, broker: Broker, timers: Timers) -> None:
    reader = await client.reader(b"orders", pull=True)
    reader.say(fetch(1, 10))
    await reader.silence()
    assert reader.stream.held_bytes > 0
    timers.advance(4.9)
    await reader.silence()
    await produce(broker, "orders", [b"one"])
    assert await reader.hear(29) == fetched(1, b"one", first=1)
    assert reader.stream.held_bytes == 0
    timers.advance(10)
    await reader.silence()


async def test_fetches_in_a_row_are_all_answered(connect: Connect, broker: Broker, timers: Timers) -> None:
    reader = await connect(dialect="spec").reader(b"orders", pull=True, auto_commit=True)
    reader.say(fetch(1, 1), fetch(2, 2), fetch(3, 9))
    await settle()
    await produce(broker, "orders", [b"a", b"b", b"c"])
    assert await reader.hear(15 + 20) == fetched(1, b"a") + fetched(2, b"b", b"c")
    timers.advance(5)
    assert await reader.hear(10) == fetched(3)


async def test_more_fetches_than_may_wait_are_refused(connect: Connect) -> None:
    reader = await connect(fetches_max=3).reader(b"orders", pull=True)
    reader.say(*(fetch(number, 1) for number in range(4)))
    reason = b"3 fetches wait for records already: send fewer, or raise listeners.fujin.fetches_max"
    expected = failed(7, 3, reason)
    assert await reader.hear(len(expected)) == expected


async def test_acknowledgements_do_not_wait_for_a_fetch_that_is_held(client: Client, broker: Broker) -> None:
    reader = await client.reader(b"orders", pull=True)
    await produce(broker, "orders", [b"a"])
    await reader.ask(fetch(1, 1), size=27)
    reader.say(fetch(2, 1), ack(3, [tag(1)]))
    assert await reader.hear(23) == settled(8, 3, (tag(1), None))


async def test_a_fetch_of_nothing_is_refused(client: Client) -> None:
    reader = await client.reader(b"orders", pull=True)
    expected = failed(7, 1, b"fetch arg not provided")
    assert await reader.ask(fetch(1, 0), size=len(expected)) == expected
    assert not reader.stream.has_ended


async def test_a_fetch_by_a_reader_that_is_pushed_to_is_refused(client: Client, broker: Broker) -> None:
    reader = await client.reader(b"orders")
    expected = failed(7, 1, b"invalid reader type")
    assert await reader.ask(fetch(1, 1), size=len(expected)) == expected
    await produce(broker, "orders", [b"a"])
    assert await reader.hear(18) == message(b"a", 1)


async def test_a_held_fetch_is_dropped_when_the_stream_ends(client: Client, timers: Timers) -> None:
    reader = await client.reader(b"orders", pull=True)
    reader.say(fetch(1, 1), DISCONNECT)
    assert await reader.end() == DISCONNECT
    assert reader.stream.held_bytes == 0
    timers.advance(10)
    await settle()
    assert reader.stream.sent == b"\1\0" + DISCONNECT


@pytest.mark.embedded
async def test_a_fetch_is_no_larger_than_memory_allows(client: Client, broker: Broker) -> None:
    await broker.topics.ensure(ANONYMOUS, "orders")
    for _ in range(5):
        await produce(broker, "orders", [bytes(400_000)])
    reader = await client.reader(b"orders", pull=True, auto_commit=True)
    reader.say(fetch(1, 0xFFFFFFFF))
    await until(lambda: len(reader.stream.sent) > 2)
    assert reader.stream.sent[2:12] == b"\7\0\0\0\1\0\0\0\0\3"


# -- the end -----------------------------------------------------------------------------------------------------------------


async def test_acknowledgements_are_answered_before_the_goodbye(client: Client, broker: Broker) -> None:
    reader = await client.reader(b"orders")
    await produce(broker, "orders", [b"a"])
    await reader.hear(18)
    reader.say(ack(1, [tag(1)]), DISCONNECT)
    assert await reader.end() == settled(8, 1, (tag(1), None)) + DISCONNECT
    assert reader.stream.sends[-1] == (DISCONNECT, True)


async def test_nothing_is_pushed_after_the_goodbye(client: Client, broker: Broker) -> None:
    reader = await client.reader(b"orders")
    reader.say(DISCONNECT)
    assert await reader.end() == DISCONNECT
    await produce(broker, "orders", [b"a"])
    await settle()
    assert reader.stream.sent == b"\1\0" + DISCONNECT


async def test_a_reader_whose_topic_is_deleted_is_told_goodbye(client: Client, broker: Broker) -> None:
    reader = await client.reader(b"orders")
    await broker.topics.delete(ANONYMOUS, "orders")
    assert await reader.end() == DISCONNECT


async def test_a_fetch_whose_topic_is_deleted_is_refused(client: Client, broker: Broker) -> None:
    reader = await client.reader(b"orders", pull=True)
    reader.say(fetch(1, 1))
    await settle()
    await broker.topics.delete(ANONYMOUS, "orders")
    expected = failed(7, 1, b"the topic was deleted") + DISCONNECT
    assert await reader.hear(len(expected)) == expected
    assert reader.stream.has_ended, "nothing can come on it any more"


async def test_everything_that_was_held_is_released(client: Client, broker: Broker) -> None:
    reader = await client.reader(b"orders", pull=True)
    reader.stream.writable = False
    reader.say(fetch(1, 1), ack(2, [tag(1)]), nack(3, []))
    client.hang_up()
    await settle()
    assert reader.stream.held_bytes == 0
    assert not broker.subscriptions.find(1).watched  # type: ignore[union-attr]
