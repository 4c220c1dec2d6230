"""Conversations: every refusal and the order in which faults are looked for, delivery, order, bounds, and what is on disk when."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.access.checks import ANONYMOUS, SYSTEM, Operation, Principal, Resource
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.errors import AccessDenied
from penstock.log.api import Engine
from penstock.protocols.blipmq import session
from penstock.protocols.blipmq.codec import (
    Frame,
    encode_ack,
    encode_auth,
    encode_frame,
    encode_hello,
    encode_ping,
    encode_poll,
    encode_publish,
    encode_subscribe,
    parse_nack,
)
from penstock.protocols.blipmq.session import BlipMQ
from penstock.protocols.blipmq.wire import LENGTH_MAX, FrameType
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.broker.producing import produce
from tests.broker.subscribing import write_dead_letters
from tests.open_access import OpenAccess
from tests.protocols.blipmq.conversation import Conversation

HELLO, AUTH, PUBLISH, SUBSCRIBE, ACK, NACK, PING, PONG, POLL = FrameType


# -- the handshake --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\1\0"])
async def test_a_malformed_hello_is_refused_and_may_be_repeated(stranger: Conversation, payload: bytes) -> None:
    assert await refused(stranger, encode_frame(HELLO, 5, payload)) == (5, 400, "invalid HELLO payload")
    assert await stranger.ask(encode_hello(6, 1)) == encode_ack(6)


@pytest.mark.parametrize("payload", [b"", b"\0\1", b"\0\2", b"\0\1\0"])
async def test_a_second_hello_is_refused_whatever_it_says(talk: Conversation, payload: bytes) -> None:
    assert await talk.nack(encode_frame(HELLO, 5, payload)) == (5, 400, "HELLO already performed")


async def test_a_key_before_hello_is_refused(stranger: Conversation) -> None:
    assert await refused(stranger, encode_auth(5, "dev-key")) == (5, 400, "HELLO not performed")


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\x08dev-key", b"\0\x06dev-key", b"\0\2\xff\xff"])
async def test_a_malformed_key_is_refused(stranger: Conversation, payload: bytes) -> None:
    await stranger.ask(encode_hello(1, 1))
    assert await refused(stranger, encode_frame(AUTH, 5, payload)) == (5, 400, "invalid AUTH payload")


@pytest.mark.parametrize("key", ["", "dev-ke", "dev-key ", "DEV-KEY"])
async def test_a_wrong_key_is_refused_and_the_next_may_be_right(stranger: Conversation, key: str) -> None:
    await stranger.ask(encode_hello(1, 1))
    assert await refused(stranger, encode_auth(5, key)) == (5, 401, "invalid API key")
    assert await stranger.ask(encode_auth(6, "dev-key")) == encode_ack(6)


@pytest.mark.parametrize("payload", [b"", b"\0\7dev-key"])
async def test_a_second_key_is_refused_before_it_is_checked(talk: Conversation, payload: bytes) -> None:
    assert await talk.nack(encode_frame(AUTH, 5, payload)) == (5, 400, "already authenticated")


@pytest.mark.parametrize("greeted", [False, True])
@pytest.mark.parametrize("kind", [PUBLISH, SUBSCRIBE, ACK, NACK, PING, PONG, POLL])
async def test_nothing_else_is_answered_before_the_key(stranger: Conversation, kind: int, greeted: bool) -> None:
    if greeted:
        await stranger.ask(encode_hello(1, 1))
    assert await refused(stranger, encode_frame(kind, 5)) == (5, 401, "unauthenticated")


async def test_publishes_before_the_key_are_refused_one_by_one(stranger: Conversation, broker: Broker) -> None:
    stranger.say(encode_publish(5, 1, "t", b"a"), encode_publish(6, 1, "t", b"b"))
    assert [nack_of(await stranger.reply()) for _ in range(2)] == [
        (5, 401, "unauthenticated"),
        (6, 401, "unauthenticated"),
    ]
    assert not broker.topics.exists("t")


# -- malformed requests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "payload", "reason"),
    [
        (PUBLISH, b"", "invalid PUBLISH payload"),
        (PUBLISH, b"\1\0", "invalid PUBLISH payload"),
        (PUBLISH, b"\1\0\2t", "invalid PUBLISH payload"),
        (PUBLISH, b"\1\0\1\xffm", "invalid PUBLISH payload"),
        (PUBLISH, b"\2\0\1\xffm", "invalid PUBLISH payload"),
        (PUBLISH, b"\1\0\0m", "empty topic"),
        (PUBLISH, b"\2\0\0m", "empty topic"),
        (PUBLISH, b"\2\0\1tm", "invalid QoS value"),
        (SUBSCRIBE, b"", "invalid SUBSCRIBE payload"),
        (SUBSCRIBE, b"\0\0", "invalid SUBSCRIBE payload"),
        (SUBSCRIBE, b"\0\1t", "invalid SUBSCRIBE payload"),
        (SUBSCRIBE, b"\0\2t\1", "invalid SUBSCRIBE payload"),
        (SUBSCRIBE, b"\0\1\xff\1", "invalid SUBSCRIBE payload"),
        (SUBSCRIBE, b"\0\0\1", "empty topic"),
        (SUBSCRIBE, b"\0\0\2", "empty topic"),
        (SUBSCRIBE, b"\0\1t\2", "invalid QoS value"),
        (ACK, b"", "invalid ACK payload"),
        (ACK, bytes(7), "invalid ACK payload"),
        (ACK, bytes(9), "invalid ACK payload"),
        (ACK, bytes(8), "subscription_id must be non-zero"),
        (POLL, b"", "invalid POLL payload"),
        (POLL, bytes(7), "invalid POLL payload"),
        (POLL, bytes(9), "invalid POLL payload"),
        (POLL, bytes(8), "subscription_id must be non-zero"),
    ],
)
async def test_a_malformed_request_is_refused_and_the_conversation_continues(
    talk: Conversation, kind: int, payload: bytes, reason: str
) -> None:
    assert await talk.nack(encode_frame(kind, 77, payload)) == (77, 400, reason)
    assert await talk.answers() == []


async def test_what_is_lenient_stays_lenient(talk: Conversation) -> None:
    [frame] = await talk.answers(encode_frame(SUBSCRIBE, 5, b"\0\1t\1and more"))
    assert frame == Frame(ACK, 5, (1).to_bytes(8, "big"))
    [frame] = await talk.answers(encode_frame(PING, 6, b"anything"))
    assert frame == Frame(PONG, 6, b"")
    assert await talk.answers(encode_frame(PONG, 7), encode_frame(NACK, 8, b"nonsense")) == []


@pytest.mark.parametrize("subscription_id", [1, 99])
async def test_acknowledging_what_was_not_delivered_is_unknown(talk: Conversation, subscription_id: int) -> None:
    await talk.subscribe("t")
    unknown = (5, 404, "unknown subscription or delivery tag")
    assert await talk.nack(encode_ack(5, subscription_id)) == unknown


async def test_polling_an_unknown_subscription_or_an_empty_one_is_silence(talk: Conversation) -> None:
    await talk.subscribe("t")
    assert await talk.answers(encode_poll(5, 99), encode_poll(6, 1)) == []


@pytest.mark.parametrize("topic", ["a//b", "../x", "a\0b", "x" * 250])
async def test_a_topic_that_cannot_be_is_refused_with_the_reason(talk: Conversation, topic: str) -> None:
    for request in (encode_publish(5, 1, topic, b"m"), encode_subscribe(5, topic, 1)):
        correlation_id, code, reason = await talk.nack(request)
        assert (correlation_id, code) == (5, 400)
        assert "topic name" in reason


async def test_the_brokers_own_topics_are_closed(talk: Conversation) -> None:
    for request in (
        encode_publish(5, 1, "__groups", b"m"),
        encode_publish(5, 1, "__new", b"m"),
        encode_subscribe(5, "__groups", 1),
    ):
        correlation_id, code, reason = await talk.nack(request)
        assert (correlation_id, code) == (5, 401)
        assert "internal" in reason


async def test_only_the_publish_at_fault_is_refused(talk: Conversation) -> None:
    subscription = await talk.subscribe("t")
    large = encode_publish(8, 1, "t", bytes((1 << 20) + 1))
    correlation_id, code, reason = await talk.nack(
        encode_publish(7, 1, "t", b"a"), large, encode_publish(9, 1, "t", b"b")
    )
    assert (correlation_id, code) == (8, 400)
    assert "at most" in reason
    assert [await talk.message(subscription) for _ in range(2)] == [b"a", b"b"]


# -- delivery -------------------------------------------------------------------------------------------------------------


async def test_a_publish_is_answered_with_silence_and_read_by_other_protocols(
    talk: Conversation, engine: Engine
) -> None:
    await talk.publish("t", b"a", b"", b"c")
    [block] = await engine.partition("t", 0).read(0)
    assert block.values() == [b"a", b"", b"c"]
    assert block.headers() is None


@pytest.mark.embedded
async def test_a_run_of_publishes_is_one_append(talk: Conversation, engine: Engine) -> None:
    await talk.publish("t", b"first")
    before = engine.stats.commit_records.count
    await talk.publish("t", *[b"%d" % n for n in range(500)])
    assert engine.stats.commit_records.count == before + 1


async def test_the_effective_qos_and_the_correlation_id_of_a_delivery(talk: Conversation) -> None:
    careful, careless = await talk.subscribe("t", 1), await talk.subscribe("t", 0)
    await talk.publish("t", b"one", qos=1)
    await talk.publish("t", b"zero", qos=0)
    assert await talk.poll(careful, 70) == (1, 1, "t", b"one")
    assert await talk.poll(careful, 71) == (71, 0, "t", b"zero")
    assert await talk.poll(careless, 72) == (72, 0, "t", b"one")
    assert await talk.poll(careless, 73) == (73, 0, "t", b"zero")
    assert await talk.poll(careless, 74) is None


@pytest.mark.dense
async def test_what_other_protocols_write_is_delivered_too(talk: Conversation, broker: Broker) -> None:
    subscription = await talk.subscribe("t")
    await produce(broker, "t", [b"theirs", None], [b"k", b"k"])
    assert await talk.poll(subscription) == (1, 1, "t", b"theirs")
    assert await talk.poll(subscription) == (2, 1, "t", b"")


async def test_a_subscription_outlives_its_connection_and_any_other_may_use_it(
    talk: Conversation, blipmq: BlipMQ
) -> None:
    subscription = await talk.subscribe("t")
    talk.session.closed()
    other = Conversation(blipmq)
    await other.log_in("bench-key")
    await other.publish("t", b"a")
    delivered = await other.poll(subscription)
    assert delivered is not None
    third = Conversation(blipmq)
    await third.log_in()
    assert await third.answers(encode_ack(delivered[0], subscription)) == []
    assert await third.poll(subscription) is None


@pytest.mark.dense
async def test_a_subscription_does_not_see_what_its_own_connection_published_before(talk: Conversation) -> None:
    await talk.publish("t", b"first")
    talk.say(encode_publish(4, 1, "t", b"before"), encode_subscribe(5, "t", 1), encode_publish(6, 1, "t", b"after"))
    assert await talk.reply() == encode_ack(5, 1)
    assert await talk.poll(1) == (1, 1, "t", b"after")


@pytest.mark.dense
async def test_polls_in_a_row_get_records_in_a_row(talk: Conversation) -> None:
    subscription = await talk.subscribe("t")
    await talk.publish("t", *[b"%d" % n for n in range(1000)])
    frames = await talk.answers(*[encode_poll(n, subscription) for n in range(1001)])
    assert [frame.payload[4:] for frame in frames] == [b"%d" % n for n in range(1000)]
    assert [frame.correlation_id for frame in frames] == list(range(1, 1001))


@pytest.mark.dense
async def test_an_unacknowledged_delivery_comes_again_with_its_tag(talk: Conversation, clock: ManualClock) -> None:
    subscription = await talk.subscribe("t")
    await talk.publish("t", b"a")
    first = await talk.poll(subscription)
    assert await talk.poll(subscription) is None
    clock.advance(0.1)
    assert await talk.poll(subscription) == first
    clock.advance(0.2)
    assert await talk.nack(encode_ack(1, subscription)) == (1, 404, "unknown subscription or delivery tag")
    assert await talk.poll(subscription) == first
    assert await talk.answers(encode_ack(1, subscription)) == []
    clock.advance(10)
    assert await talk.poll(subscription) is None


async def test_deliveries_used_up_make_a_dead_letter(talk: Conversation, clock: ManualClock, broker: Broker) -> None:
    subscription = await talk.subscribe("t")
    await talk.publish("t", b"poison", b"fine")
    for _ in range(3):
        assert await talk.message(subscription) == b"poison"
        clock.advance(1)
    assert await talk.message(subscription) == b"fine"
    broker.subscriptions.sweep()
    await write_dead_letters(broker)
    [letter] = await broker.dead_letters.letters(ANONYMOUS, "t", 10)
    assert (letter.value, letter.attempts) == (b"poison", 3)


async def test_a_record_too_large_for_a_frame_becomes_a_dead_letter_and_the_next_is_delivered(
    engine: Engine, clock: ManualClock
) -> None:
    broker = Broker(engine, clock=clock, limits=BrokerLimits())
    await broker.start()
    talk = Conversation(BlipMQ(broker, clock=clock, api_keys=["dev-key"]))
    await talk.log_in()
    subscription = await talk.subscribe("t")
    largest = LENGTH_MAX - 9 - 3 - 1
    await produce(broker, "t", [bytes(largest + 1)])
    await talk.publish("t", bytes(largest))
    delivered = await talk.poll(subscription)
    assert delivered is not None
    assert len(delivered[3]) == largest
    assert await talk.answers(encode_ack(delivered[0], subscription)) == []
    await write_dead_letters(broker)
    [letter] = await broker.dead_letters.letters(SYSTEM, "t", 10)
    assert "does not fit" in letter.reason
    await broker.close()


async def test_published_messages_expire_where_the_listener_says_so(broker: Broker, clock: ManualClock) -> None:
    talk = Conversation(BlipMQ(broker, clock=clock, api_keys=["dev-key"], message_ttl_ms=60_000))
    await talk.log_in()
    subscription = await talk.subscribe("t")
    await talk.publish("t", b"old")
    clock.advance(60)
    await talk.publish("t", b"new")
    assert await talk.message(subscription) == b"new"


# -- what is on disk when ---------------------------------------------------------------------------------------------------


@pytest.mark.embedded
async def test_a_pong_means_that_publishes_of_qos_1_and_acknowledgements_are_on_disk(
    talk: Conversation, disk: FaultyDisk
) -> None:
    subscription = await talk.subscribe("t")
    with disk.fsync_held() as held:
        talk.say(encode_publish(4, 1, "t", b"a"), encode_ping(5))
        assert await asyncio.to_thread(held.wait, 5)
        assert not talk.connection.sends
    assert await talk.reply() == encode_frame(PONG, 5)
    assert await talk.poll(subscription) is not None
    with disk.fsync_held() as held:
        talk.say(encode_ack(1, subscription), encode_ping(6))
        assert await asyncio.to_thread(held.wait, 5)
        assert not talk.connection.sends
    assert await talk.reply() == encode_frame(PONG, 6)


@pytest.mark.embedded
async def test_a_publish_of_qos_0_is_not_waited_for(talk: Conversation, disk: FaultyDisk) -> None:
    subscription = await talk.subscribe("t")
    with disk.fsync_held():
        assert await talk.ask(encode_publish(4, 0, "t", b"a"), encode_ping(5)) == encode_frame(PONG, 5)
    assert await talk.message(subscription) == b"a"


@pytest.mark.embedded
@pytest.mark.parametrize("qos", [0, 1])
async def test_a_poll_that_would_find_nothing_waits_for_what_others_are_publishing(
    talk: Conversation, blipmq: BlipMQ, other: Conversation, disk: FaultyDisk, qos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "POLL_WAIT_S_MAX", 60)
    subscription = await talk.subscribe("t")
    with disk.fsync_held() as held:
        other.say(encode_publish(4, qos, "t", b"a"))
        assert await asyncio.to_thread(held.wait, 5)
        talk.say(encode_poll(5, subscription), encode_poll(6, subscription), encode_ping(7))
        assert not talk.connection.sends
    delivery, pong = await talk.reply(), await talk.reply()
    assert delivery == encode_publish(1 if qos else 5, qos, "t", b"a")
    assert pong == encode_frame(PONG, 7)
    assert not blipmq.writes
    assert await talk.message(subscription) is None


async def test_a_poll_finds_what_another_connection_has_published_in_the_same_turn(
    talk: Conversation, other: Conversation
) -> None:
    subscription = await talk.subscribe("t")
    for value in (b"a", b"b"):
        other.say(encode_publish(4, 0, "t", value))
        assert await talk.message(subscription) == value


@pytest.mark.embedded
async def test_a_poll_that_finds_something_does_not_wait_for_what_others_are_publishing(
    talk: Conversation, other: Conversation, disk: FaultyDisk
) -> None:
    subscription = await talk.subscribe("t")
    await other.publish("t", b"a")
    with disk.fsync_held() as held:
        other.say(encode_publish(4, 1, "t", b"b"))
        assert await asyncio.to_thread(held.wait, 5)
        assert await talk.message(subscription) == b"a"
    assert await talk.message(subscription) == b"b"


@pytest.mark.embedded
async def test_a_poll_does_not_wait_for_ever_for_what_others_are_publishing(
    talk: Conversation, other: Conversation, disk: FaultyDisk
) -> None:
    subscription = await talk.subscribe("t")
    with disk.fsync_held() as held:
        other.say(encode_publish(4, 0, "t", b"a"))
        assert await asyncio.to_thread(held.wait, 5)
        assert await talk.answers(encode_poll(5, subscription)) == []
    assert await talk.message(subscription) == b"a"


@pytest.mark.embedded
async def test_a_poll_whose_subscription_is_deleted_while_it_waits_takes_nothing(
    talk: Conversation, other: Conversation, broker: Broker, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "POLL_WAIT_S_MAX", 60)
    subscription = await talk.subscribe("t")
    with disk.fsync_held() as held:
        other.say(encode_publish(4, 1, "t", b"a"))
        assert await asyncio.to_thread(held.wait, 5)
        talk.say(encode_poll(5, subscription), encode_ping(6))
        deleting = asyncio.create_task(broker.subscriptions.delete_group(f"#{subscription}", None))
        while broker.subscriptions.find(subscription) is not None:
            await asyncio.sleep(0)
    assert await talk.reply() == encode_frame(PONG, 6)
    await deleting
    assert broker.subscriptions.in_flight == 0


@pytest.mark.embedded
async def test_a_poll_that_has_waited_for_a_publish_that_fails_is_silence(
    talk: Conversation, other: Conversation, disk: FaultyDisk
) -> None:
    subscription = await talk.subscribe("t")
    disk.disk_full()
    other.say(encode_publish(4, 1, "t", b"a"))
    assert await talk.answers(encode_poll(5, subscription)) == []
    assert (await other.reply())[4] == NACK


@pytest.mark.embedded
async def test_a_connection_that_is_gone_while_its_poll_waits_takes_nothing(
    talk: Conversation, other: Conversation, disk: FaultyDisk
) -> None:
    subscription = await talk.subscribe("t")
    with disk.fsync_held() as held:
        other.say(encode_publish(4, 0, "t", b"a"))
        assert await asyncio.to_thread(held.wait, 5)
        talk.say(encode_poll(5, subscription))
        talk.session.closed()
    assert await other.message(subscription) == b"a"
    while talk.connection.held_bytes:
        await asyncio.sleep(0)


@pytest.mark.embedded
async def test_a_full_disk_is_said_and_publishing_continues_when_there_is_space(
    talk: Conversation, disk: FaultyDisk
) -> None:
    subscription = await talk.subscribe("t")
    disk.disk_full()
    correlation_id, code, reason = await talk.nack(encode_publish(4, 1, "t", b"a"))
    assert (correlation_id, code) == (4, 500)
    assert reason.startswith("durable publish failed: ")
    disk.disk_full_off()
    await talk.publish("t", b"b")
    assert await talk.message(subscription) == b"b"


# -- bounds and rights ------------------------------------------------------------------------------------------------------


async def test_everything_held_is_released(talk: Conversation) -> None:
    subscription = await talk.subscribe("t")
    await talk.publish("t", b"a", b"b")
    await talk.answers(encode_poll(5, subscription), encode_ack(1, subscription), encode_frame(PUBLISH, 6))
    assert talk.connection.held_bytes == 0
    talk.say(encode_publish(7, 1, "t", b"half")[:-1])
    assert talk.connection.pending
    talk.session.closed()
    assert talk.connection.held_bytes == 0


async def test_nothing_is_handled_while_the_peer_takes_no_replies(talk: Conversation) -> None:
    talk.connection.writable = False
    talk.say(encode_ping(5))
    assert talk.connection.held_bytes
    assert not talk.connection.sends
    talk.connection.writable = True
    talk.session.resume()
    assert await talk.reply() == encode_frame(PONG, 5)
    assert talk.connection.held_bytes == 0


async def test_a_stored_key_logs_in_until_it_is_revoked(blipmq: BlipMQ, broker: Broker) -> None:
    key = await broker.api_keys.create(SYSTEM, "worker")
    talk = Conversation(blipmq)
    await talk.log_in(key)
    await talk.subscribe("t")
    await broker.api_keys.revoke(SYSTEM, "worker")
    assert await refused(talk, encode_poll(5, 1)) == (5, 401, "unauthenticated")
    assert await refused(talk, encode_auth(6, key)) == (6, 401, "invalid API key")
    assert await talk.ask(encode_auth(7, "dev-key")) == encode_ack(7)


class Refusing(OpenAccess):
    def check(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        raise AccessDenied(f"{principal.name} may not {operation.value}")


async def test_every_request_is_checked(talk: Conversation, broker: Broker, engine: Engine) -> None:
    subscription = await talk.subscribe("t")
    await talk.publish("t", b"a")
    assert await talk.poll(subscription) is not None
    broker.records.access = broker.topics.access = broker.subscriptions.access = Refusing()
    for request in (
        encode_publish(5, 1, "t", b"m"),
        encode_publish(5, 1, "new", b"m"),
        encode_subscribe(5, "t", 1),
        encode_poll(5, subscription),
        encode_ack(5, subscription),
    ):
        correlation_id, code, reason = await talk.nack(request)
        assert (correlation_id, code) == (5, 401)
        assert "key:configured may not" in reason


async def test_requests_and_refusals_are_counted(talk: Conversation, blipmq: BlipMQ) -> None:
    await talk.publish("t", b"a", b"b")
    await talk.nack(encode_frame(ACK, 5))
    counted = blipmq.stats.requests_by_name()
    assert counted["publish"] == 2
    assert counted["hello"] == counted["auth"] == counted["ack"] == 1
    assert (blipmq.stats.errors, blipmq.stats.internal_errors) == (1, 0)


async def test_a_bug_of_ours_is_answered_and_logged_once(
    talk: Conversation, broker: Broker, blipmq: BlipMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("oops")

    await talk.publish("t", b"a")
    monkeypatch.setattr(broker.records, "produce", broken)
    monkeypatch.setattr(broker.subscriptions, "find", broken)
    for request in (encode_publish(5, 1, "t", b"m"), encode_poll(5, 1)):
        correlation_id, code, reason = await talk.nack(request)
        assert (correlation_id, code) == (5, 500)
        assert reason.endswith("internal error: the server's log has the details")
    assert blipmq.stats.internal_errors == 2


async def refused(talk: Conversation, request: bytes) -> tuple[int, int, str]:
    """The NACK to one request, where a PING would be refused too."""
    return nack_of(await talk.ask(request))


def nack_of(reply: bytes) -> tuple[int, int, str]:
    assert reply[4] == NACK
    parsed = parse_nack(reply[13:])
    assert parsed is not None
    return int.from_bytes(reply[5:13], "big"), *parsed
