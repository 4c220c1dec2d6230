"""What peers do that mean harm or know no better: guessing keys, large frames before the login, one bad publish among good ones."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.access.audit import AuditQuery
from penstock.broker.access.checks import ANONYMOUS, SYSTEM
from penstock.broker.access.throttle import DELAY_S_FIRST
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.broker.schemas import validation
from penstock.errors import ProtocolViolation
from penstock.protocols.blipmq.codec import (
    Decoder,
    Frame,
    Message,
    encode_ack,
    encode_auth,
    encode_hello,
    encode_ping,
    encode_poll,
    encode_pong,
    encode_publish,
    encode_subscribe,
    parse_nack,
)
from penstock.protocols.blipmq.session import BlipMQ, BlipMQSession
from penstock.protocols.blipmq.wire import LENGTH_MAX, LENGTH_MIN, LOGIN_LENGTH_MAX, FrameType
from penstock.testing import RunningBroker
from penstock.testing.clock import ManualClock
from tests.protocols.blipmq.conversation import Conversation

LIMITS = BrokerLimits()

# -- guessing keys --------------------------------------------------------------------------------------------------------


async def failed(talk: Conversation, key: str) -> str:
    """The reason why a key is refused."""
    reply = await talk.ask(encode_auth(5, key))
    assert reply[4] == FrameType.NACK
    parsed = parse_nack(reply[13:])
    assert parsed is not None
    assert parsed[0] == 401
    return parsed[1]


async def test_guesses_from_one_address_have_to_wait_also_over_several_connections(
    blipmq: BlipMQ, clock: ManualClock
) -> None:
    for guess in range(LIMITS.login_failures_per_address_max + 1):
        guesser = Conversation(blipmq)
        await guesser.ask(encode_hello(1, 1))
        assert await failed(guesser, f"guess-{guess}") == "invalid API key"
    talk = Conversation(blipmq)
    await talk.ask(encode_hello(1, 1))
    assert await failed(talk, "dev-key") == f"too many failed attempts: try again in {DELAY_S_FIRST:.1f} s"
    clock.advance(DELAY_S_FIRST)
    assert await talk.ask(encode_auth(6, "dev-key")) == encode_ack(6)


async def test_guesses_from_elsewhere_keep_nobody_waiting(blipmq: BlipMQ) -> None:
    guesser, other = Conversation(blipmq), Conversation(blipmq)
    guesser.connection.peer = "198.51.100.9:40000"
    await guesser.ask(encode_hello(1, 1))
    for guess in range(LIMITS.login_failures_per_address_max + 5):
        await failed(guesser, f"guess-{guess}")
    await other.log_in("dev-key")


async def test_a_key_made_by_the_broker_is_accepted_even_if_others_fail_at_its_address(
    blipmq: BlipMQ, broker: Broker
) -> None:
    key = await broker.api_keys.create(SYSTEM, "worker")
    talk = Conversation(blipmq)
    await talk.ask(encode_hello(1, 1))
    for guess in range(LIMITS.login_failures_per_address_max + 5):
        await failed(talk, f"guess-{guess}")
    assert await talk.ask(encode_auth(6, key)) == encode_ack(6)


async def test_failures_are_in_the_audit_trail_and_the_key_is_not(stranger: Conversation, broker: Broker) -> None:
    await stranger.ask(encode_hello(1, 1))
    await failed(stranger, "my-secret")
    page = await broker.audit.query(SYSTEM, AuditQuery(types=["auth.failure"]))
    [event] = page.events
    assert (event.user, event.client_ip, event.action, event.result) == ("key:unknown", "192.0.2.1", "login", "failure")
    assert "my-secret" not in repr(event)


# -- frames before the login ----------------------------------------------------------------------------------------------


def publish_of(length: int) -> bytes:
    """A PUBLISH whose length field has this value."""
    return encode_publish(7, 1, "t", bytes(length - LENGTH_MIN - 4))


async def test_a_large_frame_before_the_login_is_refused_at_its_header(stranger: Conversation) -> None:
    with pytest.raises(ProtocolViolation, match=f"at most {LOGIN_LENGTH_MAX} before the peer has authenticated"):
        stranger.say(publish_of(LOGIN_LENGTH_MAX + 1)[:13])
    reply = await stranger.reply()
    assert parse_nack(reply[13:]) == (401, "unauthenticated")
    assert stranger.connection.held_bytes == 0


async def test_the_largest_frame_allowed_before_the_login_is_answered(stranger: Conversation) -> None:
    reply = await stranger.ask(publish_of(LOGIN_LENGTH_MAX))
    assert parse_nack(reply[13:]) == (401, "unauthenticated")


@pytest.mark.parametrize("kind", [0, FrameType.PUBLISH, 0x77, 0xFF])
async def test_a_large_frame_is_not_collected_before_the_login(stranger: Conversation, kind: int) -> None:
    head = (LENGTH_MAX).to_bytes(4, "big") + bytes((kind,)) + bytes(8)
    stranger.say(head[:12])
    with pytest.raises(ProtocolViolation):
        stranger.say(head[12:])


async def test_a_login_allows_large_frames_after_it_in_the_same_read(stranger: Conversation) -> None:
    large = encode_publish(7, 1, "t", bytes(1 << 19))
    assert await stranger.answers(encode_hello(1, 1), encode_auth(2, "dev-key"), large) == [
        Frame(FrameType.ACK, 1, bytes(8)),
        Frame(FrameType.ACK, 2, bytes(8)),
    ]


async def test_a_revoked_key_takes_large_frames_with_it(blipmq: BlipMQ, broker: Broker) -> None:
    key = await broker.api_keys.create(SYSTEM, "worker")
    talk = Conversation(blipmq)
    await talk.log_in(key)
    await talk.publish("t", bytes(1 << 19))
    await broker.api_keys.revoke(SYSTEM, "worker")
    with pytest.raises(ProtocolViolation, match="before the peer has authenticated"):
        talk.say(publish_of(LOGIN_LENGTH_MAX + 1))


# -- one bad publish among good ones --------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
async def test_only_the_publish_at_fault_is_refused_when_schemas_are_checked_in_the_background(
    talk: Conversation, broker: Broker, monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    monkeypatch.setattr(validation, "ON_LOOP_COST_MAX", -1)
    await broker.schemas.register(ANONYMOUS, "numbers", "json", '{"type": "integer"}')
    subscription = await talk.subscribe("t", qos)
    await broker.schemas.bind(ANONYMOUS, "t", "numbers")
    values = [b"1", b"2", b'"three"', b"4", b"{}", b"6"]
    frames = [encode_publish(10 + row, qos, "t", value) for row, value in enumerate(values)]
    nothing_yet = encode_poll(3, 1 << 60)  # waits until all of them are stored
    nacks = await talk.answers(*frames, nothing_yet)
    assert [(nack.type, nack.correlation_id) for nack in nacks] == [(FrameType.NACK, 12), (FrameType.NACK, 14)]
    assert [await talk.message(subscription) for _ in range(5)] == [b"1", b"2", b"4", b"6", None]
    assert talk.connection.held_bytes == 0


async def test_an_exception_out_of_background_work_is_answered_and_the_conversation_continues(
    talk: Conversation, blipmq: BlipMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(BlipMQSession, "_create_topic_and", broken)
    nacks = await talk.answers(encode_publish(5, 1, "new", b"a"), encode_publish(6, 1, "new", b"b"))
    assert [(nack.type, nack.correlation_id) for nack in nacks] == [(FrameType.NACK, 5), (FrameType.NACK, 6)]
    assert blipmq.stats.internal_errors == 2
    assert talk.connection.held_bytes == 0


# -- closed connections ---------------------------------------------------------------------------------------------------


async def test_a_client_that_closes_its_half_after_a_ping_hears_that_its_acknowledgement_is_on_disk() -> None:
    with RunningBroker(dev=True) as broker:
        host, _, port = broker.addresses["blipmq"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        decoder = Decoder(runs=False)

        async def ask(*frames: bytes) -> list[Message]:
            writer.writelines(frames)
            replies = decoder.feed(await reader.read(4096))
            while not replies:
                replies = decoder.feed(await reader.read(4096))
            return replies

        await ask(encode_hello(1, 1))
        await ask(encode_auth(2, "dev-key"))
        [subscribed] = await ask(encode_subscribe(3, "orders", 1))
        assert isinstance(subscribed, Frame)
        id_ = int.from_bytes(subscribed.payload)
        [delivery] = await ask(encode_publish(4, 1, "orders", b"x"), encode_poll(5, id_))
        assert isinstance(delivery, Frame)
        writer.writelines([encode_ack(delivery.correlation_id, id_), encode_ping(6)])
        writer.write_eof()
        assert await reader.read() == encode_pong(6)
        writer.close()
        await writer.wait_closed()
