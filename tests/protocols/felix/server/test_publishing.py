"""Publishing: what is committed, what is answered, and in which dialect."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.records.keys import fnv1a
from penstock.log.api import TopicConfig
from penstock.protocols.conversation import REQUEST_BYTES_MIN
from penstock.protocols.felix.codec import binary
from penstock.protocols.felix.codec.binary import PublishAck
from penstock.protocols.felix.codec.frames import encode_frame, encode_message
from penstock.protocols.felix.codec.messages import (
    ROUTING_KEY_BYTES_MAX,
    CacheGet,
    CachePut,
    CacheValue,
    Error,
    Ok,
    Publish,
    PublishBatch,
    PublishError,
    PublishOk,
    Subscribe,
)
from penstock.protocols.felix.server.publishing import EVENT_BYTES, RUN_BYTES_MAX
from penstock.protocols.felix.server.stream import REQUESTS_PER_TURN_MAX
from penstock.protocols.felix.session import Felix
from penstock.protocols.felix.wire import CLOSE_PROTOCOL_ERROR
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.broker.producing import read_values
from tests.protocols.felix.conversation import Peer, Talk

DEMO: Any = {"tenant_id": "default", "namespace": "default", "stream": "demo"}
NOPE: Any = {**DEMO, "stream": "nope"}
NOT_FOUND = "stream not found: tenant=default namespace=default stream=nope"
BARRIER = CacheGet(key="barrier", request_id="barrier")
"""Answered after everything before it."""


def batch(*values: bytes, stream: str = "demo", **given: Any) -> bytes:
    flags = 1 | (8 if "request_id" in given else 0) | (0x40 if "key" in given else 0)
    return encode_frame(flags, binary.encode_publish("default", "default", stream, values, **given))


async def stored(broker: Broker, topic: str = "demo", partition: int = 0) -> list[bytes | None]:
    return await read_values(broker.records.partition(ANONYMOUS, topic, partition))


async def committed(broker: Broker, count: int, topic: str = "demo") -> None:
    partition = broker.records.partition(ANONYMOUS, topic, 0)
    arrived = asyncio.Event()
    stop = partition.watch(arrived.set)
    while len(await read_values(partition)) < count:
        await arrived.wait()
        arrived.clear()
    stop()


# --- answers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ack", [{}, {"ack": "per_message"}, {"ack": "per_batch"}, {"ack": None}])
async def test_a_publish_is_answered_unless_it_says_not_to(talk: Talk, broker: Broker, ack: Any) -> None:
    assert await talk.ask(Publish(**DEMO, payload=b"a", **ack)) == Ok()
    assert await talk.ask(PublishBatch(**DEMO, payloads=[b"b", b"c"], **ack)) == Ok()
    assert await stored(broker) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("dialect", "request_id", "ok"),
    [
        ("auto", 7, PublishOk(request_id=7)),
        ("auto", 0, PublishOk(request_id=0)),
        ("auto", "r7", Ok(request_id="r7")),
        ("auto", None, Ok()),
        ("native", 7, PublishOk(request_id=7)),
        ("native", "r7", Ok(request_id="r7")),
        ("native", None, Ok()),
        ("spec", 7, Ok(request_id=7)),
        ("spec", "r7", Ok(request_id="r7")),
    ],
)
async def test_the_id_decides_who_answers_and_comes_back_as_it_came(
    broker: Broker, clock: ManualClock, dialect: Any, request_id: int | str | None, ok: Any
) -> None:
    talk = Peer(Felix(broker, clock=clock, dialect=dialect)).open()
    assert await talk.ask(Publish(**DEMO, payload=b"a", request_id=request_id)) == ok
    refusal = await talk.ask(Publish(**NOPE, payload=b"a", request_id=request_id))
    if isinstance(ok, PublishOk):
        assert refusal == PublishError(request_id=ok.request_id, message=NOT_FOUND)
    else:
        assert refusal == Error(request_id=ok.request_id, message=NOT_FOUND)


@pytest.mark.dense
@pytest.mark.parametrize(("client_flags", "offset"), [(0x1000, 0), (0x0FFF, UNSET), (None, UNSET)])
async def test_an_offset_is_told_to_those_who_read_it(peer: Peer, client_flags: int | None, offset: Any) -> None:
    talk = await peer.log_in(client_flags=client_flags)
    publish = Publish(tenant_id="t1", namespace="default", stream="demo", payload=b"x", request_id=1)
    assert await talk.ask(publish) == PublishOk(request_id=1, offset=offset)


async def test_answers_keep_the_order_of_their_requests(talk: Talk) -> None:
    talk.say(
        batch(b"1", request_id=1),
        Publish(**NOPE, payload=b"2", request_id=2),
        Publish(**DEMO, payload=b"3", request_id=3),
        BARRIER,
        batch(b"5", request_id=5),
    )
    assert [getattr(await talk.reply(), "request_id", None) for _ in range(5)] == [1, 2, 3, "barrier", 5]


async def test_an_unacked_publish_is_not_answered_where_it_succeeds(talk: Talk, broker: Broker) -> None:
    talk.say(Publish(**DEMO, payload=b"a", ack="none"), batch(b"b"), PublishBatch(**DEMO, payloads=[b"c"], ack="none"))
    await committed(broker, 3)
    assert isinstance(await talk.ask(BARRIER), CacheValue)
    assert await stored(broker) == [b"a", b"b", b"c"]


async def test_an_unacked_publish_that_fails_is_answered_where_it_follows_the_contract(talk: Talk) -> None:
    assert await talk.ask(Publish(**NOPE, payload=b"a", ack="none")) == Error(message=NOT_FOUND)
    assert await talk.ask(batch(b"a", stream="nope")) == Error(message=NOT_FOUND)


async def test_an_unacked_publish_of_a_deployed_client_that_fails_is_not_answered(peer: Peer) -> None:
    talk = await peer.log_in()
    talk.say(
        Publish(**NOPE, payload=b"a", ack="none"),
        batch(b"a", stream="nope"),
        Publish(**NOPE, payload=b"a", request_id=1, ack="none"),
    )
    assert isinstance(await talk.ask(BARRIER), CacheValue)


@pytest.mark.dense
async def test_a_binary_request_is_answered_in_binary_unless_its_client_cannot_read_that(peer: Peer) -> None:
    plain, old, new = peer.open(), await peer.log_in(client_flags=0x0007), await peer.log_in(client_flags=0x1FFF)
    assert await plain.ask(batch(b"x", request_id=1)) == PublishAck(1, None)
    assert await old.ask(batch(b"x", request_id=2)) == PublishOk(request_id=2)
    assert await new.ask(batch(b"x", request_id=3)) == PublishAck(3, None, 2)
    assert await plain.ask(batch(b"x", stream="nope", request_id=1)) == PublishAck(1, NOT_FOUND)
    assert await old.ask(batch(b"x", stream="nope", request_id=2)) == PublishError(request_id=2, message=NOT_FOUND)


async def test_a_batch_that_makes_no_sense_is_answered_and_the_next_one_is_taken(talk: Talk, broker: Broker) -> None:
    broken = encode_frame(9, (7).to_bytes(8, "big") + b"\x02" + b"\xff\xff")
    answer = await talk.ask(broken)
    assert isinstance(answer, PublishAck)
    assert answer.request_id == 7
    assert "malformed publish batch" in (answer.error or "")
    assert await talk.ask(batch(b"x", request_id=8)) == PublishAck(8, None)
    assert await stored(broker) == [b"x"]


# --- what is written ------------------------------------------------------------------------------------------------------


@pytest.mark.embedded
async def test_the_answer_comes_after_the_commit(talk: Talk, broker: Broker, disk: FaultyDisk) -> None:
    await broker.audit.written()  # so that the next flush is ours
    disk.fail_next_fsync()
    failed = await talk.ask(batch(b"lost", request_id=1))
    assert isinstance(failed, PublishAck)
    assert failed.error
    again = await talk.ask(Publish(**DEMO, payload=b"also", request_id=2))
    assert isinstance(again, PublishError)  # the partition takes no more writes
    assert talk.stream.held_bytes == 0


async def test_an_empty_batch_writes_nothing_and_is_answered(talk: Talk, broker: Broker) -> None:
    assert await talk.ask(PublishBatch(**DEMO, payloads=[])) == Ok()
    assert await talk.ask(batch(request_id=1)) == PublishAck(1, None)
    assert await talk.ask(PublishBatch(**NOPE, payloads=[])) == Error(message=NOT_FOUND)
    assert await stored(broker) == []


async def test_a_batch_stays_together_and_batches_take_turns(talk: Talk, broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "wide", TopicConfig(partitions=3))
    for number in range(4):
        values = [b"%d-%d" % (number, row) for row in range(5)]
        assert await talk.ask(batch(*values, stream="wide", request_id=number)) == PublishAck(number, None)
    assert [len(await stored(broker, "wide", index)) for index in range(3)] == [10, 5, 5]
    assert (await stored(broker, "wide", 0))[5:] == [b"3-%d" % row for row in range(5)]


async def test_a_key_is_stored_and_decides_the_partition(talk: Talk, broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "wide", TopicConfig(partitions=5))
    for number, key in enumerate((b"a", b"", b"user-123")):
        await talk.ask(batch(b"v", b"w", stream="wide", key=key, request_id=number))
        (block,) = await broker.records.partition(ANONYMOUS, "wide", fnv1a(key) % 5).read(0)
        assert key in (block.keys() or [])


@pytest.mark.parametrize("key", ["Sw==", None])
@pytest.mark.parametrize("kind", ['"publish","payload":"eA=="', '"publish_batch","payloads":["eA=="]'])
async def test_a_key_may_be_said_in_json(talk: Talk, broker: Broker, kind: str, key: str | None) -> None:
    fields = msgspec.json.encode({**DEMO, "key": key}).decode()[1:]
    assert await talk.ask(encode_frame(0, f'{{"type":{kind},{fields}'.encode())) == Ok()
    (block,) = await broker.records.partition(ANONYMOUS, "demo", 0).read(0)
    assert block.keys() == (None if key is None else [b"K"])


async def test_a_shard_that_no_stream_has_is_refused(talk: Talk, broker: Broker) -> None:
    for request in (Publish(**DEMO, payload=b"x", shard=1), PublishBatch(**DEMO, payloads=[b"x"], shard=1)):
        assert await talk.ask(request) == Error(message="shard 1 not found: every stream has one, which is 0")
    assert await talk.ask(Publish(**DEMO, payload=b"x", shard=0)) == Ok()
    assert await stored(broker) == [b"x"]


async def test_a_key_that_a_binary_batch_has_no_room_for_is_refused(talk: Talk) -> None:
    key = bytes(ROUTING_KEY_BYTES_MAX + 1)
    answer = await talk.ask(Publish(**DEMO, payload=b"x", key=key))
    assert isinstance(answer, Error)
    assert "malformed publish" in answer.message


async def test_a_batch_of_which_one_event_is_too_large_is_refused_whole(talk: Talk, broker: Broker) -> None:
    answer = await talk.ask(batch(b"small", bytes((1 << 20) + 1), b"small", request_id=1))
    assert isinstance(answer, PublishAck)
    assert "record 1 has 1048577 bytes" in (answer.error or "")
    assert await stored(broker) == []


@pytest.mark.dense
async def test_publishes_that_came_together_are_one_append(
    peer: Peer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = await peer.log_in(client_flags=0x1FFF)
    appends: list[int] = []
    produce = broker.records.produce_together

    def counted(principal: Any, topic: str, values: Any, key: Any, **given: Any) -> None:
        appends.append(len(values))
        produce(principal, topic, values, key, **given)

    monkeypatch.setattr(broker.records, "produce_together", counted)
    talk.say(*(batch(b"%d" % number, b"-", request_id=number) for number in range(100)))
    assert [await talk.reply() for _ in range(100)] == [PublishAck(number, None, 2 * number) for number in range(100)]
    assert appends == [200]


async def test_publishes_that_came_together_keep_their_order_whatever_they_ask_for(talk: Talk, broker: Broker) -> None:
    await broker.topics.ensure(ANONYMOUS, "other")
    talk.say(
        batch(b"0", request_id=0),
        batch(b"1", key=b"k", request_id=1),
        Publish(**DEMO, payload=b"2", ack="none"),
        batch(b"x", stream="other", request_id=2),
        batch(b"3", request_id=3),
        PublishBatch(**DEMO, payloads=[], request_id=4),
        batch(b"4", request_id=5),
    )
    for _ in range(6):
        await talk.reply()
    assert await stored(broker) == [b"0", b"1", b"2", b"3", b"4"]
    assert talk.stream.held_bytes == 0


async def test_of_publishes_that_came_together_only_those_at_fault_fail(talk: Talk, broker: Broker) -> None:
    large = bytes((1 << 20) + 1)
    talk.say(batch(b"0", request_id=0), batch(large, request_id=1), batch(b"2", request_id=2), batch(b"3"), BARRIER)
    first, failed, third = [await talk.reply() for _ in range(3)]
    assert (first, third) == (PublishAck(0, None), PublishAck(2, None))
    assert isinstance(failed, PublishAck)
    assert "at most 1048576" in (failed.error or "")
    assert isinstance(await talk.reply(), CacheValue)
    await committed(broker, 3)
    assert await stored(broker) == [b"0", b"2", b"3"]


async def test_streams_are_made_where_the_listener_says_so(broker: Broker, clock: ManualClock) -> None:
    talk = Peer(Felix(broker, clock=clock, auto_create=True)).open()
    talk.say(batch(b"1", stream="new", request_id=1), batch(b"2", stream="new", request_id=2), BARRIER)
    assert [await talk.reply() for _ in range(2)] == [PublishAck(1, None), PublishAck(2, None)]
    assert await stored(broker, "new") == [b"1", b"2"]
    refused = await talk.ask(batch(b"1", stream="a//b", request_id=3), b"")
    assert isinstance(refused, CacheValue)
    refused = await talk.reply()
    assert isinstance(refused, PublishAck)
    assert "topic name" in (refused.error or "")


# --- tenants and namespaces -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tenant_id", "namespace", "stream", "topic"),
    [
        ("default", "default", "demo", "demo"),
        ("t1", "default", "demo", "t1/demo"),
        ("t1", "shop", "orders", "t1/shop/orders"),
        ("t1", "default", "shop/orders", "t1/shop/orders"),
        ("default", "shop", "orders", "shop/orders"),
        ("shop", "default", "orders", "shop/orders"),
        ("default", "default", "site/hall/sensor", "site/hall/sensor"),
    ],
)
async def test_a_stream_is_a_topic(
    talk: Talk, broker: Broker, tenant_id: str, namespace: str, stream: str, topic: str
) -> None:
    await broker.topics.ensure(ANONYMOUS, topic)
    publish = Publish(tenant_id=tenant_id, namespace=namespace, stream=stream, payload=b"x")
    assert await talk.ask(publish) == Ok()
    assert await stored(broker, topic) == [b"x"]


@pytest.mark.parametrize(
    ("tenant_id", "namespace", "words"),
    [
        ("", "default", "unknown tenant"),
        ("a/b", "default", "unknown tenant"),
        ("t1", "", "not found"),
        ("t1", "a/b", "not found"),
    ],
)
async def test_names_that_reach_into_others_are_refused(talk: Talk, tenant_id: str, namespace: str, words: str) -> None:
    answer = await talk.ask(Publish(tenant_id=tenant_id, namespace=namespace, stream="demo", payload=b"x"))
    assert isinstance(answer, Error)
    assert words in answer.message


async def test_internal_topics_stay_closed(talk: Talk) -> None:
    answer = await talk.ask(Publish(**{**DEMO, "stream": "__groups"}, payload=b"x"))
    assert isinstance(answer, Error)
    assert "unauthorized" in answer.message


# --- streams --------------------------------------------------------------------------------------------------------------


async def test_one_byte_at_a_time_is_enough(talk: Talk, broker: Broker) -> None:
    data = encode_message(Publish(**DEMO, payload=b"slow")) + batch(b"but", b"sure", request_id=1)
    for at in range(len(data)):
        talk.say(data[at : at + 1])
    assert [await talk.reply(), await talk.reply()] == [Ok(), PublishAck(1, None)]
    assert await stored(broker) == [b"slow", b"but", b"sure"]
    assert not talk.stream.pending


async def test_a_one_way_stream_of_the_client_publishes_and_hears_nothing(peer: Peer, broker: Broker) -> None:
    talk = peer.open(one_way=True)
    talk.say(Publish(**DEMO, payload=b"a"), batch(b"b", request_id=1), Publish(**NOPE, payload=b"c"))
    await committed(broker, 2)
    stopped = talk.stream.stopped
    assert stopped is None
    talk.say(BARRIER)
    assert talk.stream.stopped == CLOSE_PROTOCOL_ERROR
    assert talk.silent()
    talk.close()


@pytest.mark.parametrize(
    "question", [BARRIER, CachePut(key="k", value=b"v"), Subscribe(**DEMO), encode_frame(0, b"nonsense")]
)
async def test_a_one_way_stream_that_asks_is_stopped_and_nothing_behind_is_done(
    peer: Peer, broker: Broker, felix: Felix, question: Any
) -> None:
    talk = peer.open(one_way=True)
    talk.say(batch(b"before"), question, batch(b"behind"), question)
    await committed(broker, 1)
    assert talk.stream.stopped == CLOSE_PROTOCOL_ERROR
    assert await stored(broker) == [b"before"]
    assert (len(broker.cache), felix.stats.subscribers, felix.stats.errors) == (0, 0, 1)
    talk.close()


async def test_what_came_before_the_end_of_the_stream_is_answered_before_ours_ends(talk: Talk) -> None:
    talk.say(batch(b"x", request_id=1))
    talk.session.ended()
    assert not talk.ended()
    assert await talk.reply() == PublishAck(1, None)
    assert talk.ended()
    talk.close()


async def test_an_end_inside_a_frame_is_answered_with_an_error(talk: Talk) -> None:
    talk.say(batch(b"x", request_id=1), batch(b"y", request_id=2)[:-1])
    talk.session.ended()
    assert await talk.reply() == PublishAck(1, None)
    assert await talk.reply() == Error(message="the stream ended inside a frame")
    assert talk.ended()


async def test_an_end_inside_a_header_is_an_end(talk: Talk) -> None:
    talk.say(b"FLX1")
    talk.session.ended()
    assert talk.silent()
    assert talk.ended()


async def test_a_stream_that_is_cut_off_owes_nothing_once_its_writes_are_done(talk: Talk, broker: Broker) -> None:
    talk.say(*(batch(b"x" * 1000, request_id=number) for number in range(50)))
    assert talk.stream.held_bytes > 50_000
    talk.session.aborted(0)
    talk.stream.reset(0)
    talk.session.closed()
    await committed(broker, 50)
    while talk.stream.held_bytes:
        await asyncio.sleep(0)
    assert talk.silent()


async def test_requests_wait_while_the_peer_takes_no_answers(talk: Talk, broker: Broker) -> None:
    talk.stream.stalled = True
    talk.stream.unsent_bytes = 1 << 20
    talk.say(batch(b"x", request_id=1))
    assert talk.stream.held_bytes
    assert broker.records.partition(ANONYMOUS, "demo", 0).committed_end == 0
    talk.stream.stalled = False
    talk.drain()
    assert await talk.reply() == PublishAck(1, None)


async def test_what_waits_is_held_for_what_it_takes_in_memory(
    talk: Talk, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk.stream.unsent_bytes = 1 << 20
    talk.say(*([encode_frame(0, b"")] * 100))
    assert talk.stream.held_bytes == 100 * REQUEST_BYTES_MIN
    talk.drain()
    assert talk.stream.held_bytes == 0
    monkeypatch.setattr(broker.records, "produce_together", lambda *_, **__: None)  # on their way
    talk.say(batch(*[b""] * 1000))
    assert talk.stream.held_bytes > 1000 * EVENT_BYTES


async def test_what_came_together_is_written_in_parts_where_it_is_much(
    talk: Talk, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    appends: list[int] = []
    monkeypatch.setattr(
        broker.records, "produce_together", lambda _, __, values, *___, **____: appends.append(len(values))
    )
    talk.say(*(batch(bytes(100_000), request_id=number) for number in range(40)))
    assert sum(appends) == 40
    assert max(appends) * 100_000 < RUN_BYTES_MAX + 100_000


async def test_a_header_that_cannot_be_one_ends_the_connection(peer: Peer, talk: Talk) -> None:
    talk.say(b"GET / HTTP/1.1\r\n\r\n")
    assert peer.connection.was_closed is not None
    code, reason = peer.connection.was_closed
    assert code == 1
    assert "not Felix" in reason
    talk.say(batch(b"x", request_id=1))
    assert talk.silent()


async def test_many_requests_at_once_let_others_have_their_turn(talk: Talk, felix: Felix) -> None:
    talk.say(*(CacheGet(key="k", request_id=number) for number in range(1000)))
    assert felix.stats.requests["cache_get"] == REQUESTS_PER_TURN_MAX
    answers = [await talk.reply() for _ in range(1000)]
    assert [answer.request_id for answer in answers if isinstance(answer, CacheValue)] == list(range(1000))
    assert talk.stream.held_bytes == 0


async def test_a_bug_of_ours_is_answered_and_the_stream_continues(
    talk: Talk, broker: Broker, monkeypatch: pytest.MonkeyPatch, felix: Felix
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(broker.cache, "get", fail)
    monkeypatch.setattr(broker.records, "produce_together", fail)
    assert await talk.ask(BARRIER) == Error(request_id="barrier", message="internal error: see the broker's log")
    assert await talk.ask(Publish(**DEMO, payload=b"x", request_id=1)) == PublishError(
        request_id=1, message="internal error: see the broker's log"
    )
    assert felix.stats.internal_errors == 2
    monkeypatch.undo()
    assert isinstance(await talk.ask(BARRIER), CacheValue)


async def test_what_was_asked_is_counted(talk: Talk, felix: Felix) -> None:
    talk.say(
        Publish(**DEMO, payload=b"x"),
        batch(b"a", b"b", request_id=1),
        b"FLX1\0\1\0\0\0\0\0\0",
        Publish(**NOPE, payload=b""),
    )
    for _ in range(4):
        await talk.reply()
    assert felix.stats.requests_by_name() == {"publish": 2, "publish_binary": 1, "malformed": 1}
    assert (felix.stats.errors, felix.stats.internal_errors, felix.stats.received_records) == (2, 0, 4)


async def test_when_the_server_stops_streams_are_told(peer: Peer, talk: Talk) -> None:
    peer.session.stopping()
    assert talk.stream.closing
