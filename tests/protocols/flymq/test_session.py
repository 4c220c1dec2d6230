"""The order of a conversation: what is pipelined, what waits, what is bounded, and what a failure costs."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.broker.access.audit import AuditQuery
from penstock.broker.access.checks import SYSTEM, AccessRules, Operation, Principal, Resource
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.broker.records.spreading import OnPlaced, Placement
from penstock.errors import AccessDenied, NoSpace, ProtocolViolation
from penstock.log.api import Appended, Engine, TopicConfig
from penstock.protocols.conversation import REQUEST_BYTES_MIN, ROOM_NEEDED_BYTES_MIN
from penstock.protocols.flymq.codec.frames import CodecLimits
from penstock.protocols.flymq.codec.record_layouts import (
    decode_fetched,
    decode_produced,
    encode_produce,
    encode_produce_many,
)
from penstock.protocols.flymq.operations.access import AuditQuery as AuditRequest
from penstock.protocols.flymq.operations.access import Whoami
from penstock.protocols.flymq.operations.blocks import FetchBlocks
from penstock.protocols.flymq.operations.operation import decode_reply, encode_request
from penstock.protocols.flymq.operations.records import Consume, Fetch, FetchRecords, ProduceRecords, ProduceWithTtl
from penstock.protocols.flymq.operations.topics import (
    Commit,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    GetOffset,
    ListGroups,
    ListTopics,
)
from penstock.protocols.flymq.operations.transactions import encode_txn_produces
from penstock.protocols.flymq.server.dispatch import Node
from penstock.protocols.flymq.session import REQUESTS_PER_TURN_MAX, FlyMQ
from penstock.protocols.flymq.wire import frame
from penstock.testing.clock import ManualClock
from tests.broker.accounts import broker_with_users, user
from tests.open_access import OpenAccess
from tests.protocols.flymq.conversation import Conversation, Frame

LIST_TOPICS = encode_request(ListTopics())


class HeldWrites(Broker):
    """A broker whose writes are answered when the test says so."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.writes: list[tuple[Sequence[bytes | None], OnPlaced]] = []

    def hold(self, *args: Any, done: OnPlaced, **kwargs: Any) -> bool:
        self.writes.append((args[3], done))
        return False

    def answer(self, index: int, base_offset: int) -> None:
        _, done = self.writes[index]
        done([Placement(0, slice(None), Appended(base_offset, 1))])


@pytest.fixture
async def held(engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> HeldWrites:
    broker = HeldWrites(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess())
    monkeypatch.setattr(broker.records, "produce", broker.hold)
    await engine.create_topic("orders", TopicConfig())
    return broker


@pytest.fixture
async def held_talk(held: HeldWrites, clock: ManualClock, node: Node) -> Conversation:
    return Conversation(FlyMQ(held, clock=clock, node=node))


def placed(frames: list[Frame]) -> list[int]:
    """Offsets of PRODUCE replies."""
    assert {each.opcode for each in frames} == {0x01}
    return [decode_produced(each.payload)[2] for each in frames]


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# --- order ---


async def test_writes_are_started_without_waiting_for_each_other(held: HeldWrites, held_talk: Conversation) -> None:
    for value in (b"a", b"b", b"c"):
        held_talk.say(encode_produce("orders", value))
    assert [values for values, _ in held.writes] == [[b"a"], [b"b"], [b"c"]]


async def test_a_run_in_one_read_is_one_append(held: HeldWrites, held_talk: Conversation) -> None:
    held_talk.say(encode_produce_many("orders", [b"v%d" % n for n in range(500)]))
    assert [len(values) for values, _ in held.writes] == [500]


async def test_replies_keep_the_order_of_requests_whatever_is_committed_first(
    held: HeldWrites, held_talk: Conversation
) -> None:
    for value in (b"a", b"b", b"c"):
        held_talk.say(encode_produce("orders", value))
    held.answer(2, 30)
    held.answer(0, 10)
    await turns()
    assert placed(await held_talk.replies(1)) == [10]
    assert held_talk.connection.sends == []
    held.answer(1, 20)
    assert placed(await held_talk.replies(2)) == [20, 30]


async def test_replies_that_are_ready_together_leave_as_one_send(held: HeldWrites, held_talk: Conversation) -> None:
    for value in (b"a", b"b", b"c"):
        held_talk.say(encode_produce("orders", value))
    for index in range(3):
        held.answer(index, index)
    await turns()
    assert len(held_talk.connection.sends) == 1
    assert placed(await held_talk.replies(3)) == [0, 1, 2]


async def test_another_request_waits_for_the_writes_before_it(held: HeldWrites, held_talk: Conversation) -> None:
    held_talk.say(encode_produce("orders", b"a"), LIST_TOPICS, encode_produce("orders", b"b"))
    await turns()
    assert len(held.writes) == 1, "what stands behind it waits too"
    assert held_talk.connection.sends == []
    held.answer(0, 7)
    assert [each.opcode for each in await held_talk.replies(2)] == [0x01, 0x08]
    assert len(held.writes) == 2


async def test_a_fetch_behind_a_produce_sees_the_record(talk: Conversation) -> None:
    talk.say(
        encode_produce("orders", b"hello"),
        encode_request(Fetch("orders", 0, 0, 10)),
        encode_produce("orders", b"again"),
        encode_request(Fetch("orders", 0, 0, 10)),
    )
    _, first, _, second = await talk.replies(4)
    assert decode_fetched(first.payload, native=False).values == [b"hello"]
    assert decode_fetched(second.payload, native=False).values == [b"hello", b"again"]


async def test_requests_that_wait_for_the_log_are_answered_in_order(talk: Conversation) -> None:
    talk.say(
        encode_request(CreateTopic("orders", 1)),
        encode_request(Commit("orders", "g", 0, 5)),
        encode_request(GetOffset("orders", "g", 0)),
        encode_produce("orders", b"x"),
        encode_request(DeleteTopic("orders")),
        LIST_TOPICS,
    )
    replies = await talk.replies(6)
    assert [each.opcode for each in replies] == [0x03, 0x06, 0x60, 0x01, 0x09, 0x08]
    assert decode_reply(GetOffset, replies[2].payload) == 5
    assert decode_reply(ListTopics, replies[5].payload) == []


@pytest.mark.dense
async def test_a_missing_topic_is_made_before_what_follows_is_written(talk: Conversation) -> None:
    talk.say(
        encode_produce_many("new", [b"1", b"2"]),
        encode_produce("newer", b"3"),
        encode_produce("new", b"4"),
    )
    replies = await talk.replies(4)
    assert [decode_produced(each.payload)[0] for each in replies] == ["new", "new", "newer", "new"]
    assert placed(replies) == [0, 1, 0, 2]


@pytest.mark.dense
async def test_two_sessions_make_a_missing_topic_once(flymq: FlyMQ) -> None:
    talks = [Conversation(flymq, f"192.0.2.1:{port}") for port in range(5)]
    for each in talks:
        each.say(encode_produce("new", b"x"))
    offsets = [placed(await each.replies(1))[0] for each in talks]
    assert sorted(offsets) == [0, 1, 2, 3, 4]


# --- bounds ---


async def test_request_bytes_are_held_until_the_answer(held: HeldWrites, held_talk: Conversation) -> None:
    connection = held_talk.connection
    big = encode_produce("orders", bytes(5000))
    held_talk.say(big, LIST_TOPICS)
    assert connection.held_bytes == len(big) + REQUEST_BYTES_MIN
    held.answer(0, 0)
    await held_talk.replies(2)
    assert connection.held_bytes == 0


async def test_nothing_is_started_while_the_peer_does_not_take_its_replies(talk: Conversation) -> None:
    await talk.ask(encode_produce("orders", b"hello"))
    talk.connection.writable = False
    talk.say(encode_request(Fetch("orders", 0, 0, 10)), encode_produce("orders", b"later"))
    await turns()
    assert talk.connection.sends == []
    assert talk.connection.held_bytes > 0
    talk.connection.writable = True
    talk.session.resume()
    assert [each.opcode for each in await talk.replies(2)] == [0x07, 0x01]
    assert talk.connection.held_bytes == 0


async def test_a_flood_of_small_requests_lets_others_have_their_turn(talk: Conversation) -> None:
    count = REQUESTS_PER_TURN_MAX * 3
    talk.say(LIST_TOPICS * count)
    answered = sum(map(len, talk.connection.sends)) // 12
    assert answered == REQUESTS_PER_TURN_MAX
    assert len(await talk.replies(count)) == count
    assert talk.connection.held_bytes == 0


async def test_a_half_frame_is_reported_until_it_is_whole(talk: Conversation) -> None:
    for part in (LIST_TOPICS[:5], LIST_TOPICS[5:] + LIST_TOPICS[:1], LIST_TOPICS[1:]):
        talk.say(part)
    assert talk.connection.pending_calls == [True, True, False]
    await talk.replies(2)


# --- endings ---


async def test_requests_before_broken_framing_are_answered_and_then_the_connection_ends(talk: Conversation) -> None:
    with pytest.raises(ProtocolViolation, match="not a FlyMQ frame"):
        talk.say(encode_produce("orders", b"hello"), b"GET / HTTP/1.1")
    [reply] = await talk.replies(1)
    assert reply.opcode == 0x01
    assert talk.connection.held_bytes == 0


async def test_broken_framing_gets_no_error_frame(talk: Conversation) -> None:
    with pytest.raises(ProtocolViolation):
        talk.say(b"\xaf\x01\x01\x01\x02\x00\x00\x01")
    await turns()
    assert talk.connection.sends == []


async def test_a_connection_that_is_gone_gives_back_what_it_held(held: HeldWrites, held_talk: Conversation) -> None:
    held_talk.say(encode_produce("orders", b"a"), LIST_TOPICS, LIST_TOPICS)
    held_talk.session.closed()
    assert held_talk.connection.held_bytes == REQUEST_BYTES_MIN, "the write is still under way"
    held.answer(0, 0)
    assert held_talk.connection.held_bytes == 0
    await turns()


async def test_a_request_that_has_begun_is_carried_out_though_the_peer_left(talk: Conversation, broker: Broker) -> None:
    talk.say(encode_request(CreateTopic("orders", 1)))
    talk.session.closed()
    await talk.replies(1)
    assert broker.topics.exists("orders")
    assert talk.connection.held_bytes == 0


# --- refusals ---


@pytest.mark.dense
async def test_only_the_record_at_fault_is_refused_in_a_run(engine: Engine, clock: ManualClock, node: Node) -> None:
    limits = BrokerLimits(record_bytes_max=10)
    broker = Broker(engine, clock=clock, limits=limits, access=OpenAccess())
    await engine.create_topic("orders", TopicConfig())
    talk = Conversation(FlyMQ(broker, clock=clock, node=node))
    talk.say(encode_produce_many("orders", [b"fits", b"does not fit", b"fits too"]))
    first, second, third = await talk.replies(3)
    assert placed([first, third]) == [0, 1]
    assert second.error.startswith("record too large: ")
    assert talk.connection.held_bytes == 0


@pytest.mark.dense
async def test_a_compacted_topic_refuses_only_records_without_a_key(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 1, [("cleanup", "compact")])))
    talk.say(encode_produce_many("orders", [b"1", b"2", b"3"], [b"k", None, b"k"]))
    first, second, third = await talk.replies(3)
    assert placed([first, third]) == [0, 1]
    assert second.error.startswith("invalid request: topic orders keeps the latest record of each key")


async def test_a_refused_run_is_refused_record_by_record(talk: Conversation, flymq: FlyMQ) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 1)))
    talk.say(encode_produce_many("orders", [b"1", b"2", b"3"], partition=5), LIST_TOPICS)
    *refused, last = await talk.replies(4)
    assert {each.error[:24] for each in refused} == {"partition 5 out of range"}
    assert last.opcode == 0x08
    assert flymq.stats.errors == 3


async def test_records_for_several_partitions_in_one_read_are_answered_in_order(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 3)))
    partitions = [0, 2, 1, 2, 2, 0] * 10
    talk.say(*(encode_produce("orders", b"%d" % n, None, each) for n, each in enumerate(partitions)))
    replies = [decode_produced(each.payload) for each in await talk.replies(len(partitions))]
    assert [reply[1] for reply in replies] == partitions
    assert [reply[2] for reply in replies] == [partitions[:n].count(each) for n, each in enumerate(partitions)]


async def test_of_records_for_several_partitions_only_those_for_a_missing_one_are_refused(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 2)))
    talk.say(*(encode_produce("orders", b"v", None, each) for each in (0, 7, 1, 0)))
    first, refused, third, fourth = await talk.replies(4)
    assert placed([first, third, fourth]) == [0, 0, 1]
    assert refused.error.startswith("partition 7 out of range")


async def test_a_failed_commit_refuses_its_records_and_no_others(held: HeldWrites, held_talk: Conversation) -> None:
    held_talk.say(encode_produce_many("orders", [b"1", b"2", b"3"]))
    _, done = held.writes[0]
    done(
        [
            Placement(0, slice(0, None, 2), Appended(5, 1)),
            Placement(1, [1], NoSpace("the disk is full: make room and send again")),
        ]
    )
    first, second, third = await held_talk.replies(3)
    assert placed([first, third]) == [5, 6]
    assert second.error == "no space left: the disk is full: make room and send again"


class NoWrites:
    def check(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        if operation is not Operation.DESCRIBE:
            raise AccessDenied(f"unauthorized: {principal.name} may not {operation.value} {resource.name}")


@pytest.mark.dense
async def test_who_loses_a_right_is_refused_on_the_connection_that_has_used_it(
    engine: Engine, clock: ManualClock, node: Node
) -> None:
    broker = broker_with_users(engine, clock)
    await broker.start()
    await broker.topics.create(SYSTEM, "orders", TopicConfig())
    ann = await user(broker, "ann", "producer")
    talk = Conversation(FlyMQ(broker, clock=clock, node=node, principal=ann))
    for _ in range(3):
        await talk.ask(encode_produce("orders", b"x"))
    await broker.users.update_user(SYSTEM, "ann", enabled=False)
    refused = await talk.ask(encode_produce("orders", b"x"))
    assert refused.error == "user account is disabled"
    await broker.users.update_user(SYSTEM, "ann", enabled=True)
    assert placed([await talk.ask(encode_produce("orders", b"x"))]) == [3]
    await broker.close()


async def test_what_is_not_allowed_is_refused_and_creates_nothing(
    engine: Engine, clock: ManualClock, node: Node
) -> None:
    policy: AccessRules = NoWrites()
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=policy)
    talk = Conversation(FlyMQ(broker, clock=clock, node=node, principal=Principal("eve")))
    for request in (
        encode_produce("orders", b"x"),
        encode_request(CreateTopic("orders", 1)),
        encode_request(Fetch("orders", 0, 0, 1)),
        encode_request(Commit("orders", "g", 0, 1)),
        encode_request(ListGroups()),
        encode_request(DeleteGroup("orders", "g")),
    ):
        assert (await talk.ask(request)).error.startswith("unauthorized: eve may not ")
    assert not broker.topics.exists("orders")
    reply = await talk.ask(encode_request(Whoami()))
    assert reply == (0x72, b"\x01\0\x03eve" + bytes(8))


@pytest.mark.parametrize("partitions", [(0, 0), (0, 1)], ids=["one partition", "several partitions"])
async def test_a_run_that_is_not_allowed_is_checked_and_audited_once(
    engine: Engine, broker: Broker, clock: ManualClock, node: Node, partitions: tuple[int, int]
) -> None:
    await broker.topics.create(SYSTEM, "orders", TopicConfig(partitions=2))
    guarded = Broker(engine, clock=clock, limits=BrokerLimits(), access=NoWrites())
    await guarded.start()
    talk = Conversation(FlyMQ(guarded, clock=clock, node=node, principal=Principal("eve")))
    talk.say(b"".join(encode_produce("orders", b"x", partition=each) for each in partitions * 50))
    for reply in await talk.replies(100):
        assert reply.error == "unauthorized: eve may not write orders"
    denied = await guarded.audit.query(SYSTEM, AuditQuery(types=["access.denied"]))
    assert denied.total == 1
    assert guarded.audit.stats.folded == 0
    await guarded.close()


async def test_bad_requests_are_answered_and_the_conversation_continues(talk: Conversation, flymq: FlyMQ) -> None:
    assert (await talk.ask(frame(0xEE))).error == "unknown opcode: 238"
    assert (await talk.ask(frame(Consume.opcode, b"\0"))).error.startswith("buffer too small: ")
    assert (await talk.ask(LIST_TOPICS)).opcode == 0x08
    assert flymq.stats.errors == 2
    assert flymq.stats.requests_by_name() == {"unknown": 1, "consume": 1, "list_topics": 1}


async def test_a_bug_is_logged_once_and_answered_without_details(
    talk: Conversation, flymq: FlyMQ, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    await broker.topics.ensure(SYSTEM, "x")
    for part, operation in ((broker.topics, "names"), (broker.topics, "delete"), (broker.records, "produce")):
        monkeypatch.setattr(part, operation, broken)
    with capture_logs() as logs:
        for request in (LIST_TOPICS, encode_request(DeleteTopic("x")), encode_produce("x", b"v")):
            assert (await talk.ask(request)).error.startswith("internal error")
        assert (await talk.ask(encode_request(Whoami()))).opcode == 0x72
    assert [(line["event"], line["log_level"]) for line in logs] == [("request_failed", "error")]
    assert flymq.stats.internal_errors == 3
    assert talk.connection.held_bytes == 0


# --- gzip ---


def compressed(data: bytes) -> bytes:
    return frame(data[2], gzip.compress(data[8:]), 0x03)


async def test_compressed_requests_are_served_in_their_turn(talk: Conversation) -> None:
    talk.say(
        compressed(encode_produce("orders", b"x" * 1000)),
        encode_produce("orders", b"y"),
        compressed(encode_request(Fetch("orders", 0, 0, 10))),
        compressed(encode_request(Commit("orders", "g", 0, 1))),
        LIST_TOPICS,
    )
    replies = await talk.replies(5)
    assert [each.opcode for each in replies] == [0x01, 0x01, 0x07, 0x06, 0x08]
    assert decode_fetched(replies[2].payload, native=False).values == [b"x" * 1000, b"y"]
    assert talk.connection.held_bytes == 0


async def test_an_inflated_payload_counts_with_its_real_size(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 1)))
    await talk.ask(compressed(encode_produce("orders", bytes(1_000_000))))
    assert talk.connection.held_bytes_peak > 1_000_000
    assert talk.connection.held_bytes == 0


async def test_a_bomb_is_refused_and_the_conversation_continues(broker: Broker, clock: ManualClock, node: Node) -> None:
    limits = CodecLimits(inflated_bytes_max=10_000)
    talk = Conversation(FlyMQ(broker, clock=clock, node=node, codec_limits=limits))
    reply = await talk.ask(compressed(encode_produce("orders", bytes(1_000_000))))
    assert reply.error == "gzip: the payload inflates to more than 10000 bytes"
    assert (await talk.ask(LIST_TOPICS)).opcode == 0x08


async def test_a_compressed_request_that_makes_no_sense_is_refused(talk: Conversation) -> None:
    assert (await talk.ask(frame(0x08, b"no gzip", 0x03))).error.startswith("gzip: invalid header")
    assert (await talk.ask(compressed(frame(0x09, b"\0\x09x")))).error.startswith("buffer too small: topic")
    assert (await talk.ask(compressed(frame(0x01, b"\0\x09x")))).error.startswith("buffer too small: topic")


async def test_many_writes_that_are_refused_at_once_are_each_answered(talk: Conversation, broker: Broker) -> None:
    await broker.topics.create(SYSTEM, "orders", TopicConfig())
    refused = encode_request(ProduceRecords("orders", [b"x"], partition=9, delay_ms=1000))
    talk.say(encode_request(AuditRequest()))  # the others wait for its thread
    reads = 5
    for _ in range(reads):
        talk.say(refused * REQUESTS_PER_TURN_MAX)
    async with asyncio.timeout(20):
        _, *replies = await talk.replies(1 + reads * REQUESTS_PER_TURN_MAX)
    for reply in replies:
        [failure] = decode_reply(ProduceRecords, reply.payload).failures
        assert failure.error.startswith("partition 9 not found")
    assert talk.connection.held_bytes == 0


# --- room for replies ---


async def test_whole_records_without_room_for_their_reply_are_read_again_when_there_is(
    talk: Conversation, flymq: FlyMQ, broker: Broker
) -> None:
    await broker.topics.create(SYSTEM, "orders", TopicConfig())
    value = bytes(ROOM_NEEDED_BYTES_MIN)
    talk.say(encode_produce("orders", value))
    await talk.replies(1)
    talk.connection.has_room = False
    talk.say(encode_request(FetchRecords("orders", 0, 0, 10)))
    await turns()
    assert talk.connection.sends == []
    talk.connection.has_room = talk.connection.writable = True
    talk.session.resume()
    [reply] = await talk.replies(1)
    assert decode_reply(FetchRecords, reply.payload).values == [value]
    assert talk.connection.held_bytes == 0
    assert flymq.stats.requests[FetchRecords.opcode] == 1
    assert flymq.stats.sent_records == 1
    talk.say(encode_request(FetchRecords("orders", 0, 0, 10)))
    assert flymq.stats.requests[FetchRecords.opcode] == 2


async def test_a_read_that_must_wait_begins_when_there_is_room_for_its_reply(talk: Conversation, flymq: FlyMQ) -> None:
    talk.connection.has_room = False
    talk.say(encode_request(AuditRequest()))
    await turns()
    assert talk.connection.sends == []
    talk.connection.has_room = talk.connection.writable = True
    talk.session.resume()
    [reply] = await talk.replies(1)
    assert reply.opcode == AuditRequest.opcode
    assert talk.connection.held_bytes == 0
    assert flymq.stats.requests[AuditRequest.opcode] == 1


async def test_records_in_and_out_are_counted_whatever_request_has_them(
    talk: Conversation, flymq: FlyMQ, broker: Broker
) -> None:
    await broker.topics.create(SYSTEM, "orders", TopicConfig())

    async def counted(request: bytes, replies: int = 1) -> tuple[int, int]:
        before = flymq.stats.received_records, flymq.stats.sent_records
        talk.say(request)
        await talk.replies(replies)
        return flymq.stats.received_records - before[0], flymq.stats.sent_records - before[1]

    assert await counted(encode_produce_many("orders", [b"1", b"2", b"3"]), 3) == (3, 0)
    assert await counted(encode_produce_many("orders", [b"1", b"2"], partition=5), 2) == (2, 0)  # refused
    assert await counted(encode_request(ProduceRecords("orders", [b"4", None]))) == (2, 0)
    assert await counted(encode_request(ProduceWithTtl("orders", b"6", 60_000))) == (1, 0)
    assert await counted(encode_txn_produces("gone", "orders", [b"x", b"y"]), 2) == (2, 0)
    assert await counted(encode_request(Consume("orders", 0, 0))) == (0, 1)
    assert await counted(encode_request(Consume("orders", 0, 99))) == (0, 0)
    assert await counted(encode_request(Fetch("orders", 0, 0, 2))) == (0, 2)
    assert await counted(encode_request(Fetch("orders", 0, 6, 2))) == (0, 0)
    assert await counted(encode_request(FetchRecords("orders", 0, 2, 10))) == (0, 4)
    assert await counted(encode_request(FetchBlocks("orders", "", 0, 0, 1 << 20))) == (0, 6)
    assert await counted(LIST_TOPICS) == (0, 0)
