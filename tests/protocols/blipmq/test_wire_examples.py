"""BlipMQ byte for byte: the frames of its contract, and conversations with deployed clients as they were recorded."""

from __future__ import annotations

import pytest

from penstock.errors import ProtocolViolation
from penstock.protocols.blipmq import codec
from penstock.protocols.blipmq.codec import Decoder, Frame, IdRun, PublishRun
from tests.protocols.blipmq.conversation import Conversation


def frame(text: str) -> bytes:
    return bytes.fromhex(text)


HELLO = frame("0000000B 01 0000000000000001 0001")
AUTH_DEV = frame("00000012 02 0000000000000002 0007 6465762D6B6579")
AUTH_BENCH = frame("00000014 02 0000000000000002 0009 62656e63682d6b6579")
SUBSCRIBE_DEMO = frame("00000010 04 0000000000000003 0004 64656D6F 01")
PUBLISH_DEMO = frame("00000012 03 0000000000000004 01 0004 64656D6F 6869")
ACK_42 = frame("00000011 05 0000000000000003 000000000000002A")

ACK_HELLO = frame("00000011 05 0000000000000001 0000000000000000")
ACK_AUTH = frame("00000011 05 0000000000000002 0000000000000000")
SUBSCRIBE_ORDERS = frame("00000012 04 0000000000000003 0006 6f7264657273 01")
PUBLISH_A = frame("00000013 03 0000000000000004 01 0006 6f7264657273 61")
NACK_404 = frame(
    "00000031 06 0000000000000001 0194 0024756e6b6e6f776e20737562736372697074696f6e206f722064656c697665727920746167"
)
PUBLISH_EMPTY_QOS0 = frame("00000012 03 0000000000000006 00 0006 6f7264657273")
DELIVERED_EMPTY_QOS0 = frame("00000012 03 0000000000000007 00 0006 6f7264657273")
PING = frame("00000009 07 0000000000000008")
PONG = frame("00000009 08 0000000000000008")
NACK_401 = frame("0000001c 06 0000000000000009 0191 000f 756e61757468656e74696361746564")
NACK_426 = frame("00000029 06 0000000000000001 01aa 001c 756e737570706f727465642070726f746f636f6c2076657273696f6e")
NACK_EMPTY_TOPIC = frame("00000018 06 000000000000000a 0190 000b 656d70747920746f706963")
NACK_HELLO_AGAIN = frame("00000024 06 000000000000000b 0190 0017 48454c4c4f20616c726561647920706572666f726d6564")


def poll(correlation_id: int, subscription_id: int) -> bytes:
    return frame("00000011 09") + correlation_id.to_bytes(8, "big") + subscription_id.to_bytes(8, "big")


def test_the_encoder_writes_the_frames_of_the_contract() -> None:
    assert codec.encode_hello(1, 1) == HELLO
    assert codec.encode_auth(2, "dev-key") == AUTH_DEV
    assert codec.encode_auth(2, "bench-key") == AUTH_BENCH
    assert codec.encode_subscribe(3, "demo", 1) == SUBSCRIBE_DEMO
    assert codec.encode_publish(4, 1, "demo", b"hi") == PUBLISH_DEMO
    assert codec.encode_ack(3, 42) == ACK_42
    assert codec.encode_poll(5, 2) == frame("00000011 09 0000000000000005 0000000000000002")
    assert codec.encode_ping(8) == PING
    assert codec.encode_pong(8) == PONG
    assert codec.encode_nack(9, 401, "unauthenticated") == NACK_401


def test_the_decoder_reads_the_frames_of_the_contract() -> None:
    messages = Decoder().feed(HELLO + AUTH_DEV + SUBSCRIBE_DEMO + PUBLISH_DEMO + ACK_42)
    assert messages == [
        Frame(1, 1, b"\0\1"),
        Frame(2, 2, b"\0\7dev-key"),
        Frame(4, 3, b"\0\4demo\1"),
        PublishRun(1, "demo", [4], [b"hi"], len(PUBLISH_DEMO)),
        IdRun(5, 42, [3]),
    ]
    assert codec.parse_hello(b"\0\1") == 1
    assert codec.parse_auth(b"\0\7dev-key") == "dev-key"
    assert codec.parse_subscribe(b"\0\4demo\1") == ("demo", 1)
    assert codec.parse_id((42).to_bytes(8, "big")) == 42


async def test_a_deployed_client_gets_its_recorded_answers(stranger: Conversation) -> None:
    talk = stranger
    assert await talk.ask(HELLO) == ACK_HELLO
    assert await talk.ask(AUTH_BENCH) == ACK_AUTH
    assert await talk.ask(SUBSCRIBE_ORDERS) == frame("00000011 05 0000000000000003 0000000000000001")
    assert await talk.ask(SUBSCRIBE_ORDERS) == frame("00000011 05 0000000000000003 0000000000000002")
    talk.say(PUBLISH_A)
    delivery = frame("00000013 03 0000000000000001 01 0006 6f7264657273 61")
    assert await talk.ask(poll(5, 2)) == delivery
    acknowledgement = frame("00000011 05 0000000000000001 0000000000000002")
    assert await talk.ask(acknowledgement, PING) == PONG
    assert await talk.ask(acknowledgement) == NACK_404
    talk.say(PUBLISH_EMPTY_QOS0)
    assert await talk.ask(poll(7, 2)) == DELIVERED_EMPTY_QOS0
    assert await talk.ask(PING) == PONG
    assert await talk.ask(frame("0000000c 03 000000000000000a 01 0000")) == NACK_EMPTY_TOPIC
    assert await talk.ask(frame("0000000b 01 000000000000000b 0001")) == NACK_HELLO_AGAIN


async def test_what_comes_too_early_gets_its_recorded_answers(stranger: Conversation) -> None:
    assert await stranger.ask(frame("00000009 07 0000000000000009")) == NACK_401
    assert await stranger.ask(frame("0000000b 01 0000000000000001 0002")) == NACK_426
    assert await stranger.ask(HELLO) == ACK_HELLO


@pytest.mark.dense
async def test_the_whole_handshake_may_come_in_one_read(stranger: Conversation) -> None:
    stranger.say(HELLO, AUTH_DEV, SUBSCRIBE_DEMO, PUBLISH_DEMO, poll(5, 1))
    assert [await stranger.reply() for _ in range(4)] == [
        ACK_HELLO,
        ACK_AUTH,
        frame("00000011 05 0000000000000003 0000000000000001"),
        frame("00000012 03 0000000000000001 01 0004 64656D6F 6869"),
    ]


@pytest.mark.parametrize(
    "data", ["00000000", "00000008", "01000001", "00000009 0a 0000000000000002", "00000009 00 0000000000000002"]
)
async def test_broken_framing_ends_the_conversation_after_what_came_before_it(
    stranger: Conversation, data: str
) -> None:
    with pytest.raises(ProtocolViolation):
        stranger.say(HELLO, frame(data))
    assert await stranger.reply() == ACK_HELLO
    with pytest.raises(ProtocolViolation):
        stranger.say(AUTH_DEV)


async def test_an_unknown_type_is_noticed_when_its_frame_is_whole(stranger: Conversation) -> None:
    stranger.say(frame("0000000a 0a 0000000000000002"))
    with pytest.raises(ProtocolViolation, match="0x0a"):
        stranger.say(b"x")
