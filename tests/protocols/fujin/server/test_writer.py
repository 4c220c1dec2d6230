"""Writers: what is answered when, in which order, and what transactions leave behind."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.schemas import validation
from penstock.log.api import Engine, TopicConfig
from penstock.protocols.fujin.server.settings import FujinAlias
from penstock.protocols.fujin.server.stream import COMMANDS_PER_TURN_MAX
from penstock.protocols.fujin.server.writer import Writer
from penstock.record_headers import decode_headers
from penstock.testing.faults import FaultyDisk
from tests.broker.producing import produce, read_values
from tests.protocols.fujin.conftest import Connect
from tests.protocols.fujin.memory import ENDINGS, Client, Timers, leave, settle, until
from tests.protocols.fujin.requests import (
    CONNECT_WRITER,
    DISCONNECT,
    begin,
    commit,
    done,
    failed,
    rollback,
    write,
    write_table,
    written,
)


async def values(broker: Broker, topic: str) -> list[bytes]:
    if not broker.topics.exists(topic):
        return []
    return [value or b"" for value in await read_values(broker.records.partition(ANONYMOUS, topic, 0))]


async def test_writes_are_answered_in_order_once_they_are_on_disk(client: Client, broker: Broker) -> None:
    side = client.writer()
    side.say(*(write(number, b"orders", b"%d" % number) for number in range(50)))
    assert side.stream.sent == b""
    assert await side.hear(300) == written(*range(50))
    assert await values(broker, "orders") == [b"%d" % number for number in range(50)]
    assert side.stream.held_bytes == 0


async def test_the_replies_to_one_read_are_one_send(client: Client, broker: Broker) -> None:
    await broker.topics.ensure(ANONYMOUS, "orders")
    side = client.writer()
    side.say(*(write(number, b"orders", b"x") for number in range(500)))
    await side.hear(3000)
    assert len(side.stream.sends) == 1


async def test_writes_to_several_topics_are_answered_in_order(client: Client, broker: Broker) -> None:
    side = client.writer()
    topics = [b"a", b"b", b"a", b"c", b"c", b"b"]
    side.say(*(write(number, topic, b"%d" % number) for number, topic in enumerate(topics)))
    assert await side.hear(36) == written(*range(6))
    assert [await values(broker, topic) for topic in "abc"] == [[b"0", b"2"], [b"1", b"5"], [b"3", b"4"]]


async def test_a_conversation_in_single_bytes_is_like_one_in_one_read(client: Client, broker: Broker) -> None:
    side = client.open()
    side.say_byte_by_byte(CONNECT_WRITER + write(1, b"a", b"one") + write(2, b"a", b"two") + DISCONNECT)
    assert await side.end() == written(1, 2) + DISCONNECT
    assert await values(broker, "a") == [b"one", b"two"]


async def test_headers_are_stored_with_their_record(client: Client, broker: Broker) -> None:
    side = client.writer()
    side.say(write_table(1, b"a", b"x", b"trace", b"17", b"kind", b""), write_table(2, b"a", b"y"))
    assert await side.hear(12) == written(1, 2)
    (block,) = await broker.records.partition(ANONYMOUS, "a", 0).read(0)
    cells = block.headers(0, 2)
    assert cells is not None
    assert cells[0] is not None
    assert decode_headers(cells[0]) == [("trace", b"17"), ("kind", b"")]
    assert not cells[1]


async def test_an_empty_body_is_refused_and_the_conversation_continues(client: Client) -> None:
    side = client.writer()
    side.say(write(1, b"a", b"x"), write(2, b"a", b""), write(3, b"a", b"y"))
    expected = written(1) + failed(2, 2, b"write size arg not provided") + written(3)
    assert await side.hear(len(expected)) == expected
    assert not side.stream.has_ended


async def test_an_empty_first_body_is_refused_after_a_moment(client: Client, timers: Timers) -> None:
    side = client.writer()
    side.say(write(7, b"a", b""))
    await side.silence()
    assert side.stream.pending
    timers.advance(0.05)
    expected = failed(2, 7, b"write size arg not provided")
    assert await side.hear(len(expected)) == expected
    assert not side.stream.pending


async def test_a_slow_first_write_of_the_table_form_is_no_empty_body(client: Client, timers: Timers) -> None:
    side = client.writer()
    data = write_table(7, b"a", b"body")
    side.say(data[:14])
    timers.advance(0.04)
    side.say(data[14:15])
    timers.advance(0.04)
    await side.silence()
    side.say(data[15:])
    assert await side.hear(6) == written(7)


async def test_a_body_beyond_the_bound_is_refused_and_the_conversation_continues(
    connect: Connect, broker: Broker
) -> None:
    side = connect(body_bytes_max=10).writer()
    side.say(write(1, b"a", b"x" * 10), write(2, b"a", b"x" * 11), write(3, b"a", b"y"))
    reason = b"a message of 11 bytes is too large: at most 10 are allowed"
    expected = written(1) + failed(2, 2, reason) + written(3)
    assert await side.hear(len(expected)) == expected
    assert await values(broker, "a") == [b"x" * 10, b"y"]


async def test_a_topic_that_cannot_be_is_refused_and_the_conversation_continues(client: Client) -> None:
    side = client.writer()
    side.say(write(1, b"__groups", b"x"), write(2, b"a", b"y"))
    head = await side.hear(10)
    assert head[:6] == b"\2\0\0\0\1\1"
    await side.hear(int.from_bytes(head[6:], "big"))
    assert await side.hear(6) == written(2)


async def test_an_exception_out_of_background_work_does_not_hold_up_the_commands_after_it(
    client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise MemoryError

    await broker.topics.create(ANONYMOUS, "a", TopicConfig())
    monkeypatch.setattr(Writer, "_create_and_write", broken)
    side = client.writer()
    side.say(write(1, b"new", b"x"), write(2, b"a", b"y"))
    while await values(broker, "a") != [b"y"]:
        await asyncio.sleep(0)


async def test_only_those_at_fault_fail_where_the_broker_refuses_a_run(client: Client, broker: Broker) -> None:
    """A topic that keeps the latest record of each key takes none without."""
    await broker.topics.create(ANONYMOUS, "latest", TopicConfig(cleanup="compact"))
    side = client.writer()
    side.say(write(1, b"latest", b"x"), write(2, b"latest", b"y"))
    [placement] = await produce(broker, "latest", [b"x"])
    reason = str(placement.result).encode()
    expected = failed(2, 1, reason) + failed(2, 2, reason)
    assert await side.hear(len(expected)) == expected


async def test_names_stand_for_topics(connect: Connect, broker: Broker) -> None:
    side = connect(aliases={"pub": FujinAlias(topic="orders")}).writer()
    assert await side.ask(write(1, b"pub", b"x"), size=6) == written(1)
    assert await values(broker, "orders") == [b"x"]
    assert not broker.topics.exists("pub")


async def test_a_missing_topic_is_refused_where_none_may_be_made(connect: Connect, broker: Broker) -> None:
    side = connect(auto_create=False).writer()
    await broker.topics.ensure(ANONYMOUS, "there")
    side.say(write(1, b"missing", b"x"), write(2, b"there", b"x"))
    expected = failed(2, 1, b"writer not found") + written(2)
    assert await side.hear(len(expected)) == expected


@pytest.mark.embedded
async def test_a_disk_that_fails_is_told(client: Client, engine: Engine, disk: FaultyDisk) -> None:
    side = client.writer()
    assert await side.ask(write(1, b"a", b"x"), size=6) == written(1)
    disk.fail_next_fsync()
    side.say(write(2, b"a", b"y"))
    head = await side.hear(10)
    assert head[:6] == b"\2\0\0\0\2\1"
    assert len(await side.hear(int.from_bytes(head[6:], "big"))) > 10


async def test_nothing_is_begun_while_the_client_does_not_take_its_replies(client: Client, broker: Broker) -> None:
    side = client.writer()
    side.stream.writable = False
    side.say(write(1, b"a", b"x"))
    await side.silence()
    assert side.stream.held_bytes > 0
    side.stream.writable = True
    side.session.resume()
    assert await side.hear(6) == written(1)
    assert side.stream.held_bytes == 0


# -- the end -----------------------------------------------------------------------------------------------------------------


async def test_disconnect_comes_after_every_reply_and_only_once(client: Client) -> None:
    side = client.writer()
    side.say(*(write(number, b"a", b"x") for number in range(20)), DISCONNECT, DISCONNECT, write(99, b"a", b"x"))
    side.say(DISCONNECT)
    assert await side.end() == written(*range(20)) + DISCONNECT
    assert side.stream.sends[-1] == (DISCONNECT, True)
    assert side.stream.stopped == 0
    await settle()
    assert side.stream.held_bytes == 0


async def test_the_end_of_the_clients_side_is_a_disconnect(client: Client) -> None:
    side = client.writer()
    side.say(*(write(number, b"a", b"x") for number in range(20)))
    side.session.ended()
    assert await side.end() == written(*range(20)) + DISCONNECT


@pytest.mark.parametrize("connects", [CONNECT_WRITER, b"\1\0\0\0\7"])
async def test_a_writer_that_says_nothing_more_is_told_goodbye(client: Client, connects: bytes) -> None:
    side = client.open()
    side.say(connects)
    side.session.ended()
    assert await side.end() == DISCONNECT


@pytest.mark.parametrize("data", [b"", b"\1\0\0"])
async def test_a_stream_that_never_said_what_it_is_ends_silently(client: Client, data: bytes) -> None:
    side = client.open()
    if data:
        side.say(data)
    side.session.ended()
    assert await side.end() == b""


@pytest.mark.parametrize("bad", [b"\0", b"\1\0\0\0\0", b"\7\0\0\0\1\0\0\0\1", b"\xff"])
async def test_a_bad_command_ends_the_stream_after_what_was_asked_before(client: Client, bad: bytes) -> None:
    side, other = client.writer(), client.writer()
    side.say(write(1, b"a", b"x"), bad)
    assert await side.end() == written(1) + DISCONNECT
    assert side.stream.stopped == 0
    assert client.connection.closed_with is None
    assert await other.ask(write(1, b"a", b"x"), size=6) == written(1)


@pytest.mark.parametrize("bad", [b"\0", b"\3", b"\x0a", b"\x0b", b"\xff"])
async def test_a_bad_beginning_ends_the_stream_and_nothing_is_said(client: Client, bad: bytes) -> None:
    side = client.open()
    side.say(bad)
    assert await side.end() == b""
    assert side.stream.stopped == 0
    assert client.connection.closed_with is None


async def test_a_stream_that_is_reset_is_not_answered(client: Client, broker: Broker) -> None:
    side = client.writer()
    side.say(write(1, b"a", b"x"), begin(2), write(3, b"a", b"y"))
    side.session.aborted(5)
    await until(lambda: side.stream.held_bytes == 0)
    side.session.closed()
    await settle()
    assert side.stream.sent == b""


# -- transactions ------------------------------------------------------------------------------------------------------------


async def test_a_transaction_is_seen_whole_when_it_is_committed(client: Client, broker: Broker) -> None:
    side = client.writer()
    assert await side.ask(begin(1), size=6) == done(3, 1)
    assert await side.ask(write(2, b"a", b"x"), write(3, b"b", b"y"), size=12) == written(2, 3)
    assert await values(broker, "a") == []
    assert await side.ask(commit(4), size=6) == done(4, 4)
    assert (await values(broker, "a"), await values(broker, "b")) == ([b"x"], [b"y"])


async def test_a_transaction_that_is_rolled_back_was_never_there(client: Client, broker: Broker) -> None:
    side = client.writer()
    side.say(begin(1), write(2, b"a", b"x"), rollback(3), write(4, b"a", b"y"))
    assert await side.hear(24) == done(3, 1) + written(2) + done(5, 3) + written(4)
    assert await values(broker, "a") == [b"y"]


async def test_a_whole_transaction_in_one_read(client: Client, broker: Broker) -> None:
    side = client.writer()
    side.say(write(1, b"a", b"0"), begin(2), write(3, b"a", b"1"), commit(4), write(5, b"a", b"2"), DISCONNECT)
    assert await side.end() == written(1) + done(3, 2) + written(3) + done(4, 4) + written(5) + DISCONNECT
    assert await values(broker, "a") == [b"0", b"1", b"2"]


async def test_headers_are_kept_in_a_transaction(client: Client, broker: Broker) -> None:
    side = client.writer()
    side.say(begin(1), write_table(2, b"a", b"x", b"k", b"v"), commit(3))
    await side.hear(18)
    (block,) = await broker.records.partition(ANONYMOUS, "a", 0).read(0)
    cells = block.headers(0, 1)
    assert cells is not None
    assert cells[0] is not None
    assert decode_headers(cells[0]) == [("k", b"v")]


async def test_what_does_not_fit_the_state_is_refused_and_changes_nothing(client: Client, broker: Broker) -> None:
    side = client.writer()
    refusal = b"invalid tx state"
    for request, reply in ((commit, 4), (rollback, 5)):
        assert await side.ask(request(1), size=26) == failed(reply, 1, refusal)
    side.say(begin(2), write(3, b"a", b"x"))
    assert await side.hear(12) == done(3, 2) + written(3)
    assert await side.ask(begin(4), size=26) == failed(3, 4, refusal)
    assert await side.ask(commit(5), size=6) == done(4, 5)
    assert await values(broker, "a") == [b"x"]
    assert await side.ask(commit(6), size=26) == failed(4, 6, refusal)


@pytest.mark.parametrize("how", ENDINGS)
async def test_a_stream_that_ends_rolls_back(client: Client, broker: Broker, how: str) -> None:
    side = client.writer()
    await side.ask(begin(1), write(2, b"a", b"x"), size=12)
    assert broker.transactions.stats.open == 1
    leave(client, side, how)
    await until(lambda: broker.transactions.stats.open == 0)
    assert broker.transactions.stats.rolled_back == 1
    assert await values(broker, "a") == []


async def test_a_commit_that_fails_leaves_the_transaction_open(client: Client, broker: Broker) -> None:
    side = client.writer()
    await side.ask(begin(1), write(2, b"a", b"x"), size=12)
    await broker.topics.delete(ANONYMOUS, "a")
    side.say(commit(3))
    head = await side.hear(10)
    assert head[:6] == b"\4\0\0\0\3\1"
    await side.hear(int.from_bytes(head[6:], "big"))
    assert await side.ask(begin(4), size=26) == failed(3, 4, b"invalid tx state")
    assert await side.ask(rollback(5), size=6) == done(5, 5)
    assert await side.ask(begin(6), size=6) == done(3, 6)


async def test_a_rollback_ends_a_transaction_that_has_timed_out(client: Client, broker: Broker, timers: Timers) -> None:
    side = client.writer()
    await side.ask(begin(1), write(2, b"a", b"x"), size=12)
    timers.advance(61)
    broker.transactions.sweep()
    side.say(write(3, b"a", b"y"))
    head = await side.hear(10)
    assert head[:6] == b"\2\0\0\0\3\1"
    await side.hear(int.from_bytes(head[6:], "big"))
    side.say(rollback(4))
    assert (await side.hear(6))[:5] == b"\5\0\0\0\4"
    await settle()
    side.say(begin(5))
    await until(lambda: side.stream.sent.endswith(done(3, 5)))


async def test_a_stream_that_ends_during_its_commit_does_not_hinder_it(client: Client, broker: Broker) -> None:
    side = client.writer()
    await side.ask(begin(1), write(2, b"a", b"x"), size=12)
    side.say(commit(3))
    side.session.aborted(0)
    await until(lambda: broker.transactions.stats.committed == 1)
    assert await values(broker, "a") == [b"x"]
    await until(lambda: side.stream.held_bytes == 0)


@pytest.mark.parametrize("how", ["reset", "connection lost"])
@pytest.mark.parametrize("in_transaction", [True, False])
async def test_what_waits_for_its_topic_is_not_written_once_the_stream_is_gone(
    client: Client, broker: Broker, how: str, in_transaction: bool
) -> None:
    """Above all not the record of a transaction that was rolled back meanwhile."""
    side = client.writer()
    side.say(*([begin(1)] if in_transaction else []), write(2, b"new", b"x"), write(3, b"newer", b"y"))
    assert not broker.topics.exists("new")
    leave(client, side, how)
    await until(lambda: broker.topics.exists("new") and side.stream.held_bytes == 0)
    await settle()
    assert (await values(broker, "new"), broker.topics.exists("newer")) == ([], False)
    assert broker.transactions.stats.open == 0


async def test_a_run_whose_check_ends_after_the_rollback_is_not_written(
    client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "ON_LOOP_COST_MAX", -1)
    await broker.schemas.register(ANONYMOUS, "numbers", "json", '{"type": "integer"}')
    await broker.topics.create(ANONYMOUS, "a", TopicConfig(), "numbers")
    side = client.writer()
    await side.ask(begin(1), write(2, b"a", b"1"), size=12)
    side.say(write(3, b"a", b"2"), write(4, b"a", b"z"))
    side.session.aborted(0)
    await until(lambda: side.stream.held_bytes == 0)
    await settle()
    assert await values(broker, "a") == []
    assert broker.transactions.stats.open == 0


async def test_many_streams_at_once(client: Client, broker: Broker) -> None:
    sides = [client.writer() for _ in range(20)]
    for number, side in enumerate(sides):
        side.say(*(write(each, b"a", b"%d-%d" % (number, each)) for each in range(10)))
    replies = await asyncio.gather(*(side.hear(60) for side in sides))
    assert replies == [written(*range(10))] * 20
    assert len(await values(broker, "a")) == 200


async def test_a_stream_that_ends_inside_a_command_after_a_full_turn_is_ended(client: Client) -> None:
    side = client.writer()
    side.say(*(begin(1), rollback(1)) * (COMMANDS_PER_TURN_MAX // 2), begin(2)[:1])
    side.session.ended()
    replies = await side.end()
    assert replies.endswith(bytes((10,)))
    assert side.stream.held_bytes == 0
