"""Frames byte for byte, written down here by hand: the contract's messages and those of deployed clients."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.protocols.felix.codec import binary
from penstock.protocols.felix.codec.frames import (
    Frame,
    FrameDecoder,
    decode_reply,
    decode_request,
    encode_frame,
    encode_message,
)
from penstock.protocols.felix.codec.messages import (
    Auth,
    AuthOk,
    BinaryPublish,
    CacheGet,
    CacheOk,
    CachePut,
    CacheValue,
    Error,
    Event,
    EventBatch,
    EventStreamHello,
    Message,
    Ok,
    Publish,
    PublishBatch,
    PublishError,
    PublishOk,
    SpecCacheValue,
    Subscribe,
    SubscribeCursorError,
    Subscribed,
)
from tests.protocols.felix.conversation import Peer, Talk


def frame(text: str) -> bytes:
    """A JSON message as one frame: magic, version 1, no flags, length."""
    payload = text.encode()
    return b"FLX1\x00\x01\x00\x00" + len(payload).to_bytes(4, "big") + payload


SCOPE: Any = {"tenant_id": "acme", "namespace": "shop", "stream": "orders"}
SCOPED = '"tenant_id":"acme","namespace":"shop","stream":"orders"'
CACHE: Any = {"tenant_id": "acme", "namespace": "shop", "cache": "prices"}
CACHED = '"tenant_id":"acme","namespace":"shop","cache":"prices"'

REQUESTS: list[tuple[str, Message]] = [
    (f'{{"type":"publish",{SCOPED},"payload":"Zmlyc3Q="}}', Publish(**SCOPE, payload=b"first")),
    (
        f'{{"type":"publish",{SCOPED},"payload":"Zmlyc3Q=","ack":"per_message"}}',
        Publish(**SCOPE, payload=b"first", ack="per_message"),
    ),
    (
        f'{{"type":"publish",{SCOPED},"payload":"","request_id":7,"ack":"none"}}',
        Publish(**SCOPE, payload=b"", request_id=7, ack="none"),
    ),
    (
        f'{{"type":"publish_batch",{SCOPED},"payloads":["eA==","","eXk="],"ack":"per_batch"}}',
        PublishBatch(**SCOPE, payloads=[b"x", b"", b"yy"], ack="per_batch"),
    ),
    (
        f'{{"type":"publish_batch",{SCOPED},"payloads":[],"request_id":18446744073709551615,"ack":"per_batch"}}',
        PublishBatch(**SCOPE, payloads=[], request_id=(1 << 64) - 1, ack="per_batch"),
    ),
    (f'{{"type":"subscribe",{SCOPED}}}', Subscribe(**SCOPE)),
    (f'{{"type":"subscribe",{SCOPED},"subscription_id":3}}', Subscribe(**SCOPE, subscription_id=3)),
    (
        f'{{"type":"cache_put",{CACHED},"key":"k","value":"OQ==","request_id":4,"ttl_ms":250}}',
        CachePut(**CACHE, key="k", value=b"9", request_id=4, ttl_ms=250),
    ),
    (f'{{"type":"cache_put",{CACHED},"key":"k","value":"OQ==","ttl_ms":null}}', CachePut(**CACHE, key="k", value=b"9")),
    (f'{{"type":"cache_get",{CACHED},"key":"k"}}', CacheGet(**CACHE, key="k")),
    (f'{{"type":"cache_get",{CACHED},"key":"k","request_id":5}}', CacheGet(**CACHE, key="k", request_id=5)),
    ('{"type":"auth","tenant_id":"acme","token":"secret"}', Auth(tenant_id="acme", token="secret")),
    (
        '{"type":"auth","tenant_id":"acme","token":"secret","client_flags":127}',
        Auth(tenant_id="acme", token="secret", client_flags=127),
    ),
]

REPLIES: list[tuple[str, Message]] = [
    ('{"type":"ok"}', Ok()),
    ('{"type":"ok","request_id":"r7"}', Ok(request_id="r7")),
    ('{"type":"error","message":"no"}', Error(message="no")),
    ('{"type":"error","request_id":"r7","message":"no"}', Error(request_id="r7", message="no")),
    ('{"type":"publish_ok","request_id":7}', PublishOk(request_id=7)),
    ('{"type":"publish_error","request_id":7,"message":"no"}', PublishError(request_id=7, message="no")),
    ('{"type":"subscribed","subscription_id":3}', Subscribed(subscription_id=3)),
    ('{"type":"event_stream_hello","subscription_id":3}', EventStreamHello(subscription_id=3)),
    ('{"type":"event_stream_hello","subscription_id":"3"}', EventStreamHello(subscription_id="3")),
    (f'{{"type":"event",{SCOPED},"payload":"Zmlyc3Q="}}', Event(**SCOPE, payload=b"first")),
    (f'{{"type":"event_batch",{SCOPED},"payloads":["eA==","eXk="]}}', EventBatch(**SCOPE, payloads=[b"x", b"yy"])),
    ('{"type":"cache_ok","request_id":4}', CacheOk(request_id=4)),
    (
        f'{{"type":"cache_value",{CACHED},"key":"k","value":null,"request_id":5}}',
        CacheValue(**CACHE, key="k", value=None, request_id=5),
    ),
    (f'{{"type":"cache_value",{CACHED},"key":"k","value":"OQ=="}}', CacheValue(**CACHE, key="k", value=b"9")),
    ('{"type":"auth_ok","server_flags":127}', AuthOk(server_flags=127)),
    (
        '{"type":"subscribe_cursor_error","reason":"too_old","requested":2,"available":9}',
        SubscribeCursorError(reason="too_old", requested=2, available=9),
    ),
]

# In the order of the contract, which no deployed encoder has: what is asked is read all the same, what is answered is written so.
SPEC_REQUESTS: list[tuple[str, Message]] = [
    (
        '{"type":"cache_put","request_id":"r1","key":"k","value":"OQ==","ttl_ms":null}',
        CachePut(request_id="r1", key="k", value=b"9"),
    ),
    ('{"type":"cache_get","request_id":"r2","key":"k"}', CacheGet(request_id="r2", key="k")),
]
SPEC_REPLIES: list[tuple[str, Message]] = [
    (
        '{"type":"cache_value","request_id":"r3","key":"k","value":null}',
        SpecCacheValue(request_id="r3", key="k", value=None),
    ),
]


def decoded(data: bytes) -> Frame:
    decoder = FrameDecoder()
    (found,) = decoder.feed(data)
    assert not decoder.partial
    return found


@pytest.mark.parametrize(("text", "message"), REQUESTS + REPLIES + SPEC_REPLIES)
def test_a_message_is_written_as_deployed_encoders_write_it(text: str, message: Message) -> None:
    assert encode_message(message) == frame(text)


@pytest.mark.parametrize(("text", "message"), REQUESTS + SPEC_REQUESTS)
def test_a_request_is_read_as_it_was_written(text: str, message: Message) -> None:
    assert decode_request(decoded(frame(text))) == message


@pytest.mark.parametrize(("text", "message"), REPLIES)
def test_a_reply_is_read_as_it_was_written(text: str, message: Message) -> None:
    assert decode_reply(decoded(frame(text))) == message


def test_fields_come_in_any_order_and_unknown_ones_are_ignored() -> None:
    text = '{"ack":"none","stream":"s","later":{"a":[1]},"payload":"","namespace":"n","type":"publish","tenant_id":"t"}'
    assert decode_request(decoded(frame(text))) == Publish(
        tenant_id="t", namespace="n", stream="s", payload=b"", ack="none"
    )


NAMES = b"\x00\x04acme\x00\x04shop\x00\x06orders"
PAYLOADS = b"\x00\x00\x00\x02" + b"\x00\x00\x00\x01x" + b"\x00\x00\x00\x02yy"

BATCHES: list[tuple[int, bytes, BinaryPublish]] = [
    (0x0001, NAMES + PAYLOADS, BinaryPublish("acme", "shop", "orders", [b"x", b"yy"])),
    (0x0001, NAMES + bytes(4), BinaryPublish("acme", "shop", "orders", [])),
    (
        0x0009,
        b"\x00\x00\x00\x00\x00\x00\x00\x07\x02" + NAMES + PAYLOADS,
        BinaryPublish("acme", "shop", "orders", [b"x", b"yy"], request_id=7),
    ),
    (0x0041, b"\x00\x01K" + NAMES + PAYLOADS, BinaryPublish("acme", "shop", "orders", [b"x", b"yy"], b"K")),
    (0x0041, b"\x00\x00" + NAMES + PAYLOADS, BinaryPublish("acme", "shop", "orders", [b"x", b"yy"], b"")),
    (
        0x0049,
        b"\x00\x00\x00\x00\x00\x00\x00\x07\x02" + b"\x00\x01K" + NAMES + PAYLOADS,
        BinaryPublish("acme", "shop", "orders", [b"x", b"yy"], b"K", 7),
    ),
]


@pytest.mark.parametrize(("flags", "payload", "batch"), BATCHES)
def test_a_binary_batch_is_read_and_written(flags: int, payload: bytes, batch: BinaryPublish) -> None:
    whole = b"FLX1\x00\x01" + flags.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload
    assert decode_request(decoded(whole)) == batch
    written = binary.encode_publish(
        "acme", "shop", "orders", batch.payloads, key=batch.key, request_id=batch.request_id
    )
    assert encode_frame(flags, written) == whole


def test_bytes_behind_the_last_payload_and_a_bit_nobody_knows_are_ignored() -> None:
    batch = decode_request(Frame(0x8001, NAMES + PAYLOADS + b"more"))
    assert batch == BinaryPublish("acme", "shop", "orders", [b"x", b"yy"])
    assert decode_request(Frame(0x8000, b'{"type":"cache_get","key":"k"}')) == CacheGet(key="k")


def test_a_binary_acknowledgement_is_read_and_written() -> None:
    ok = b"\x00" + b"\x00\x00\x00\x00\x00\x00\x00\x07" + b"\x00\x00"
    assert binary.encode_ack(7, None) == ok
    assert decode_reply(Frame(0x0010, ok)) == binary.PublishAck(7, None)
    assert binary.encode_ack(7, 300) == ok + b"\x00\x00\x00\x00\x00\x00\x01\x2c"
    assert decode_reply(Frame(0x1010, binary.encode_ack(7, 300))) == binary.PublishAck(7, None, 300)
    refused = b"\x01" + b"\x00\x00\x00\x00\x00\x00\x00\x07" + b"\x00\x02no"
    assert binary.encode_failed_ack(7, "no") == refused
    assert decode_reply(Frame(0x0010, refused)) == binary.PublishAck(7, "no")
    assert decode_reply(Frame(0x0210, refused + b"\x00\x03\x05")) == binary.PublishAck(7, "no")


def test_binary_events_are_read_in_each_of_their_forms() -> None:
    id_, base = (9).to_bytes(8, "big"), (42).to_bytes(8, "big")
    events = [b"x", b"yy"]
    assert decode_reply(Frame(0x0004, PAYLOADS)) == binary.Events(events, None, None)
    assert decode_reply(Frame(0x0024, base + PAYLOADS)) == binary.Events(events, 42, None)
    assert decode_reply(Frame(0x0002, id_ + PAYLOADS)) == binary.Events(events, None, 9)
    assert decode_reply(Frame(0x0022, id_ + base + PAYLOADS)) == binary.Events(events, 42, 9)


# --- the contract's conversations -----------------------------------------------------------------------------------------


@pytest.fixture
async def orders(broker: Broker) -> None:
    await broker.topics.ensure(ANONYMOUS, "acme/shop/orders")


@pytest.mark.usefixtures("orders")
async def test_publish_with_acknowledgement(talk: Talk) -> None:
    for text in (
        f'{{"type":"publish",{SCOPED},"payload":"Zmlyc3Q=","ack":"per_message"}}',
        f'{{"type":"publish_batch",{SCOPED},"payloads":["eA==","eXk="],"ack":"per_batch"}}',
    ):
        assert await talk.ask_raw(frame(text)) == frame('{"type":"ok"}')


@pytest.mark.usefixtures("orders")
async def test_subscribe_and_receive_events(peer: Peer, talk: Talk) -> None:
    assert await talk.ask_raw(frame(f'{{"type":"subscribe",{SCOPED}}}')) == frame('{"type":"ok"}')
    events = peer.events
    assert not events.stream.can_receive
    assert await events.raw() == frame('{"type":"event_stream_hello","subscription_id":"1"}')
    talk.say(frame(f'{{"type":"publish",{SCOPED},"payload":"Zmlyc3Q=","ack":"none"}}'))
    assert await events.raw() == frame(f'{{"type":"event",{SCOPED},"payload":"Zmlyc3Q="}}')
    talk.say(frame(f'{{"type":"publish_batch",{SCOPED},"payloads":["eA==","eXk="],"ack":"none"}}'))
    assert await events.raw() == frame(f'{{"type":"event_batch",{SCOPED},"payloads":["eA==","eXk="]}}')
    talk.say(encode_frame(0x0001, NAMES + PAYLOADS))
    assert await events.raw() == frame(f'{{"type":"event_batch",{SCOPED},"payloads":["eA==","eXk="]}}')
    assert talk.silent()


async def test_cache_operations_without_a_scope(talk: Talk) -> None:
    put = '{"type":"cache_put","request_id":"1","key":"k","value":"OQ==","ttl_ms":null}'
    assert await talk.ask_raw(frame(put)) == frame('{"type":"ok","request_id":"1"}')
    get = '{"type":"cache_get","request_id":"2","key":"k"}'
    assert await talk.ask_raw(frame(get)) == frame('{"type":"cache_value","request_id":"2","key":"k","value":"OQ=="}')
    get = '{"type":"cache_get","request_id":"3","key":"other"}'
    assert await talk.ask_raw(frame(get)) == frame('{"type":"cache_value","request_id":"3","key":"other","value":null}')


# --- what deployed clients say --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("orders")
async def test_a_deployed_client_before_there_was_a_login(peer: Peer, talk: Talk) -> None:
    subscribe = f'{{"type":"subscribe",{SCOPED},"subscription_id":77}}'
    assert await talk.ask_raw(frame(subscribe)) == frame('{"type":"subscribed","subscription_id":77}')
    assert await peer.events.raw() == frame('{"type":"event_stream_hello","subscription_id":77}')
    publish = f'{{"type":"publish",{SCOPED},"payload":"Zmlyc3Q=","request_id":1,"ack":"per_message"}}'
    assert await talk.ask_raw(frame(publish)) == frame('{"type":"publish_ok","request_id":1}')
    assert await peer.events.raw() == frame(f'{{"type":"event",{SCOPED},"payload":"Zmlyc3Q="}}')
    put = f'{{"type":"cache_put",{CACHED},"key":"k","value":"OQ==","request_id":2,"ttl_ms":1500}}'
    assert await talk.ask_raw(frame(put)) == frame('{"type":"cache_ok","request_id":2}')
    get = f'{{"type":"cache_get",{CACHED},"key":"k","request_id":3}}'
    assert await talk.ask_raw(frame(get)) == frame(
        f'{{"type":"cache_value",{CACHED},"key":"k","value":"OQ==","request_id":3}}'
    )
    unknown = publish.replace("orders", "nope")
    assert await talk.ask_raw(frame(unknown)) == frame(
        '{"type":"publish_error","request_id":1,"message":"stream not found: tenant=acme namespace=shop stream=nope"}'
    )


@pytest.mark.dense
@pytest.mark.usefixtures("orders")
async def test_a_deployed_client_that_logs_in_and_says_what_it_reads(peer: Peer) -> None:
    auth = '{"type":"auth","tenant_id":"acme","token":"secret","client_flags":8191,"client_features":4218945535}'
    talk, asking = peer.open(), peer.open()
    for each in (talk, asking):
        assert await each.ask_raw(frame(auth)) == frame(
            '{"type":"auth_ok","server_flags":4735,"server_features":690220,"publish_window":256}'
        )
    asking.say(frame(f'{{"type":"subscribe",{SCOPED}}}'))
    asking.session.ended()
    subscribed = '{"type":"subscribed","subscription_id":1,"start_offset":0,"live_offset":0}'
    assert await asking.raw() == frame(subscribed)
    assert asking.ended()
    asking.session.aborted(0)
    asking.close()
    assert await peer.events.raw() == frame('{"type":"event_stream_hello","subscription_id":1}')
    acked = b"\x00\x00\x00\x00\x00\x00\x00\x07\x01" + NAMES + PAYLOADS
    assert await talk.ask_raw(encode_frame(0x0009, acked)) == encode_frame(
        0x1010, b"\x00" + b"\x00\x00\x00\x00\x00\x00\x00\x07" + b"\x00\x00" + bytes(8)
    )
    assert await peer.events.raw() == encode_frame(0x0024, bytes(8) + PAYLOADS)
    text = b"stream not found: tenant=acme namespace=shop stream=nopes!"
    unknown = acked.replace(b"orders", b"nopes!")
    assert await talk.ask_raw(encode_frame(0x0009, unknown)) == encode_frame(
        0x0210, b"\x01" + b"\x00\x00\x00\x00\x00\x00\x00\x07" + bytes((0, len(text))) + text + b"\x00\x03" + b"\x05"
    )
    unknown_subscribe = f'{{"type":"subscribe",{SCOPED}}}'.replace("orders", "nope")
    assert await talk.ask_raw(frame(unknown_subscribe)) == frame(
        '{"type":"error","message":"stream not found: tenant=acme namespace=shop stream=nope",'
        '"code":"not_found","retry":"fatal"}'
    )


async def test_every_reply_that_is_json_can_be_read_by_anyone() -> None:
    for text, message in REPLIES:
        assert msgspec.json.decode(text)["type"] == message.__struct_config__.tag
