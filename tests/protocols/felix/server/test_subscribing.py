"""Subscriptions: where they begin, what form events come in, and what becomes of slow ones."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, cast

import pytest
from msgspec import UNSET

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.errors import AccessDenied, CorruptBlock
from penstock.log.api import Batch, Engine, Partition, TopicConfig
from penstock.protocols.felix.codec.binary import Events
from penstock.protocols.felix.codec.frames import encode_frame
from penstock.protocols.felix.codec.messages import (
    Error,
    Event,
    EventBatch,
    EventStreamHello,
    Ok,
    StartOffset,
    Subscribe,
    SubscribeCursorError,
    Subscribed,
)
from penstock.protocols.felix.server.events import Chunk, Form, Kind
from penstock.protocols.felix.server.feed import CHUNKS_KEPT_BYTES_MAX, Feed, _Chunks
from penstock.protocols.felix.session import Felix
from penstock.protocols.felix.wire import CLOSE_GONE, CLOSE_SLOW
from penstock.testing.clock import ManualClock
from tests.broker.producing import appended, by_partition, produce
from tests.protocols.felix.conversation import Peer, Talk
from tests.protocols.felix.server.test_publishing import DEMO, NOPE, NOT_FOUND, batch

ALL_FLAGS = 0x1FFF


async def subscribed(talk: Talk, peer: Peer, stream: str = "demo", **given: Any) -> Talk:
    """The stream of events, greeting included."""
    answer = await talk.ask(Subscribe(**{**DEMO, "stream": stream}, **given))
    assert isinstance(answer, Ok | Subscribed), answer
    events = peer.events
    hello = await events.reply()
    assert isinstance(hello, EventStreamHello)
    if isinstance(answer, Subscribed):
        assert hello.subscription_id == answer.subscription_id
    return events


async def received(events: Talk, count: int) -> list[bytes]:
    """This many events, in whatever frames they come."""
    values: list[bytes] = []
    while len(values) < count:
        frame = await events.reply()
        if isinstance(frame, Event):
            values.append(frame.payload)
        else:
            assert isinstance(frame, Events | EventBatch)
            assert len(frame.payloads) <= 64
            values += frame.payloads
    assert len(values) == count
    return values


async def published(broker: Broker, *values: bytes, topic: str = "demo") -> int:
    """Store events in one append for each partition; returns the offset of the first in the first one."""
    return appended((await produce(broker, topic, values))[0]).base_offset


# --- dialects and forms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "given", "answer", "hello"),
    [
        ("auto", {}, Ok(), "1"),
        ("auto", {"request_id": "r1"}, Ok(request_id="r1"), "1"),
        ("auto", {"subscription_id": "mine"}, Ok(), "mine"),
        ("auto", {"subscription_id": 77}, Subscribed(subscription_id=77), 77),
        ("auto", {"request_id": 5}, Subscribed(subscription_id=1, request_id=5), 1),
        ("native", {}, Subscribed(subscription_id=1), 1),
        ("spec", {"subscription_id": 77, "request_id": 3}, Ok(request_id=3), 77),
    ],
)
async def test_the_dialect_decides_the_answer_and_the_kind_of_id(
    broker: Broker, clock: ManualClock, dialect: Any, given: Any, answer: Any, hello: int | str
) -> None:
    peer = Peer(Felix(broker, clock=clock, dialect=dialect))
    assert await peer.open().ask(Subscribe(**DEMO, **given)) == answer
    assert await peer.events.reply() == EventStreamHello(subscription_id=hello)


@pytest.mark.parametrize("shard", [0, None])
async def test_a_stream_has_one_shard(talk: Talk, peer: Peer, broker: Broker, shard: int | None) -> None:
    assert await talk.ask(Subscribe(**DEMO, shard=1, request_id=1)) == Error(
        request_id=1, message="shard 1 not found: every stream has one, which is 0"
    )
    assert not peer.connection.opened
    assert await talk.ask(Subscribe(**DEMO, shard=shard)) == Ok()


async def test_the_contract_gets_events_and_batches_in_json(talk: Talk, peer: Peer, broker: Broker) -> None:
    events = await subscribed(talk, peer)
    await published(broker, b"one")
    assert await events.reply() == Event(**DEMO, payload=b"one")
    await published(broker, b"two", b"three")
    assert await events.reply() == EventBatch(**DEMO, payloads=[b"two", b"three"])


async def test_a_deployed_client_that_does_not_say_what_it_reads_gets_single_events(peer: Peer, broker: Broker) -> None:
    events = await subscribed(await peer.log_in(), peer)
    await published(broker, b"two", b"three")
    assert [await events.reply() for _ in range(2)] == [
        Event(**DEMO, payload=b"two"),
        Event(**DEMO, payload=b"three"),
    ]


@pytest.mark.dense
@pytest.mark.parametrize(
    ("client_flags", "expected"),
    [
        (0x0007, Events([b"two", b"three"], None, None)),
        (0x0027, Events([b"two", b"three"], 1, None)),
        (0x0003, Events([b"two", b"three"], None, 1)),
        (0x0023, Events([b"two", b"three"], 1, 1)),
        (ALL_FLAGS, Events([b"two", b"three"], 1, None)),
    ],
)
async def test_a_deployed_client_gets_what_it_says_it_reads(
    peer: Peer, broker: Broker, client_flags: int, expected: Events
) -> None:
    await published(broker, b"before")
    events = await subscribed(await peer.log_in(client_flags=client_flags), peer)
    await published(broker, b"two", b"three")
    assert await events.reply() == expected


async def test_offsets_are_told_only_where_there_is_one_partition(peer: Peer, broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "wide", TopicConfig(partitions=2))
    events = await subscribed(await peer.log_in(client_flags=ALL_FLAGS), peer, "wide")
    await published(broker, *(b"%d" % number for number in range(6)), topic="wide")
    frames = [await events.reply(), await events.reply()]
    assert sorted(frames, key=repr) == [Events([b"0", b"2", b"4"], None, None), Events([b"1", b"3", b"5"], None, None)]


@pytest.mark.dense
@pytest.mark.parametrize(
    ("start", "start_offset"), [(UNSET, 2), ("latest", 2), ("earliest", 0), (StartOffset(1), 1), (StartOffset(2), 2)]
)
async def test_a_client_that_is_told_offsets_hears_where_it_starts_and_where_live_events_begin(
    peer: Peer, broker: Broker, start: Any, start_offset: int
) -> None:
    await published(broker, b"one", b"two")
    told = await (await peer.log_in(client_flags=ALL_FLAGS)).ask(Subscribe(**DEMO, start=start))
    assert told == Subscribed(subscription_id=1, start_offset=start_offset, live_offset=2)
    not_told = await (await peer.log_in(client_flags=0x0007)).ask(Subscribe(**DEMO, start=start))
    assert not_told == Subscribed(subscription_id=2)


# --- beginning ------------------------------------------------------------------------------------------------------------


async def test_a_subscription_begins_at_the_end(talk: Talk, peer: Peer, broker: Broker) -> None:
    await published(broker, b"before")
    events = await subscribed(talk, peer)
    await published(broker, b"after")
    assert await received(events, 1) == [b"after"]


async def test_nobody_subscribes_to_their_own_past(talk: Talk, peer: Peer) -> None:
    talk.say(batch(b"before", request_id=1), Subscribe(**DEMO), batch(b"after", request_id=2))
    for _ in range(3):
        await talk.reply()
    events = peer.events
    assert isinstance(await events.reply(), EventStreamHello)
    assert await received(events, 1) == [b"after"]


async def test_a_deployed_client_may_begin_earlier(peer: Peer, broker: Broker) -> None:
    first = await published(broker, b"0", b"1", b"2")
    talk = await peer.log_in()
    assert await received(await subscribed(talk, peer, start="earliest"), 3) == [b"0", b"1", b"2"]
    assert await received(await subscribed(talk, peer, start=StartOffset(first + 2)), 1) == [b"2"]
    late = await subscribed(talk, peer, start="latest")
    at_end = await subscribed(talk, peer, start=StartOffset(first + 3))
    await published(broker, b"3")
    assert await received(late, 1) == await received(at_end, 1) == [b"3"]


async def test_a_beginning_that_is_not_there_is_refused(peer: Peer, broker: Broker, engine: Engine, talk: Talk) -> None:
    end = await published(broker, b"0", b"1") + 2
    native = await peer.log_in()
    assert await native.ask(Subscribe(**DEMO, start=StartOffset(end + 1))) == SubscribeCursorError(
        reason="in_future", requested=end + 1, available=end
    )
    refusal = await talk.ask(Subscribe(**DEMO, start=StartOffset(end + 1), request_id="r"))
    assert isinstance(refusal, Error)
    assert f"cursor {end + 1} is in the future" in refusal.message
    for request in (Subscribe(**DEMO, start=StartOffset(-1)), past_every_number()):
        refusal = await native.ask(request)
        assert isinstance(refusal, Error)
        assert "out of range" in refusal.message
    await broker.topics.create(ANONYMOUS, "wide", TopicConfig(partitions=2))
    refusal = await native.ask(Subscribe(**{**DEMO, "stream": "wide"}, start=StartOffset(0)))
    assert isinstance(refusal, Error)
    assert "offset in one partition" in refusal.message
    assert not peer.connection.opened


def past_every_number() -> bytes:
    """No encoder writes it."""
    scope = '"tenant_id":"default","namespace":"default","stream":"demo"'
    return encode_frame(0, f'{{"type":"subscribe",{scope},"start":{{"offset":{1 << 64}}}}}'.encode())


async def test_the_id_of_the_request_comes_back_in_every_answer(peer: Peer, talk: Talk) -> None:
    native = await peer.log_in()
    for asking, id_ in ((native, 7), (native, "r"), (talk, 7)):
        answer = await asking.ask(Subscribe(**DEMO, request_id=id_))
        assert isinstance(answer, Subscribed)
        assert answer.request_id == id_
        refusal = await asking.ask(Subscribe(**DEMO, start=StartOffset(3), request_id=id_))
        assert refusal == SubscribeCursorError(reason="in_future", requested=3, available=0, request_id=id_)
    assert await talk.ask(Subscribe(**DEMO, request_id="r")) == Ok(request_id="r")


async def test_an_unknown_stream_is_refused(talk: Talk, peer: Peer) -> None:
    assert await talk.ask(Subscribe(**NOPE, request_id="r")) == Error(request_id="r", message=NOT_FOUND)
    assert await (await peer.log_in()).ask(Subscribe(**NOPE)) == Error(message=NOT_FOUND)
    assert not peer.connection.opened


async def test_an_unknown_stream_is_made_where_the_listener_says_so(broker: Broker, clock: ManualClock) -> None:
    peer = Peer(Felix(broker, clock=clock, auto_create=True))
    events = await subscribed(peer.open(), peer, "nope")
    await published(broker, b"first", topic="nope")
    assert await received(events, 1) == [b"first"]


async def test_a_peer_that_allows_no_more_streams_hears_of_it(talk: Talk, peer: Peer, felix: Felix) -> None:
    peer.connection.streams_max = 0
    answer = await talk.ask(Subscribe(**DEMO))
    assert isinstance(answer, Error)
    assert "no more streams" in answer.message
    assert felix.stats.subscribers == 0


async def test_a_connection_has_a_bounded_number_of_subscriptions(broker: Broker, clock: ManualClock) -> None:
    felix = Felix(broker, clock=clock, subscriptions_max=3)
    peer = Peer(felix)
    talk = await peer.log_in()
    events = [await subscribed(talk, peer) for _ in range(3)]
    answer = await talk.ask(Subscribe(**DEMO, request_id="r"))
    assert isinstance(answer, Error)
    assert (answer.request_id, felix.stats.subscribers) == ("r", 3)
    assert (
        "3 subscriptions, which is as many as it may: end one, or raise listeners.felix.subscriptions_max"
        in answer.message
    )
    events[0].session.aborted(0)
    await subscribed(talk, peer)


# --- sharing --------------------------------------------------------------------------------------------------------------


async def test_events_are_laid_out_once_for_all_who_read_the_same_form(broker: Broker, felix: Felix) -> None:
    peers = [Peer(felix) for _ in range(10)]
    streams = [await subscribed(await peer.log_in(client_flags=ALL_FLAGS), peer) for peer in peers]
    in_json = Peer(felix)
    streams.append(await subscribed(in_json.open(), in_json))
    values = [b"%d" % number for number in range(150)]
    await published(broker, *values)
    assert [await received(each, 150) for each in streams] == [values] * 11
    assert felix.stats.sent_records == 11 * 150
    assert felix.stats.encoded_events == 2 * 150


async def test_frames_hold_64_events_and_256_kib(talk: Talk, peer: Peer, broker: Broker) -> None:
    events = await subscribed(talk, peer)
    values = [bytes(100_000)] * 5 + [b"x"] * 100 + [bytes(400_000)]
    await published(broker, *values)
    sizes: list[list[int]] = []
    while sum(map(len, sizes)) < len(values):
        frame = await events.reply()
        sizes.append(
            [len(frame.payload)] if isinstance(frame, Event) else [len(value) for value in frame.payloads]  # type: ignore[union-attr]
        )
    assert [size for frame_sizes in sizes for size in frame_sizes] == [len(value) for value in values]
    assert all(len(each) <= 64 and (len(each) == 1 or sum(each) <= 256 << 10) for each in sizes)
    assert len(sizes) <= 6  # and is filled


@pytest.mark.embedded
async def test_events_leave_in_the_turn_of_the_loop_in_which_they_were_committed(
    peer: Peer, broker: Broker, engine: Engine
) -> None:
    events = await subscribed(await peer.log_in(client_flags=ALL_FLAGS), peer)
    committed = asyncio.Event()
    stop = engine.partition("demo", 0).watch(committed.set)  # told behind the feed, and so woken behind it
    for number in range(20):
        engine.partition("demo", 0).append(Batch([b"%d" % number]), lambda _: None)
        await committed.wait()
        committed.clear()
        assert not events.silent()
        assert await events.reply() == Events([b"%d" % number], number, None)
    stop()


async def test_expired_records_are_not_delivered_and_offsets_stay_right(
    peer: Peer, broker: Broker, clock: ManualClock
) -> None:
    expiry = clock.now_ms() + 1000
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.records.produce(
        ANONYMOUS,
        "demo",
        0,
        [b"0", b"1", b"2", b"3"],
        expiries=[0, expiry, 0, 0],
        done=done.set_result,
    )
    (placement,) = by_partition(await done)
    first = appended(placement).base_offset
    clock.advance(2)
    with_offsets = await subscribed(await peer.log_in(client_flags=ALL_FLAGS), peer, start="earliest")
    assert [await with_offsets.reply() for _ in range(2)] == [
        Events([b"0"], first, None),
        Events([b"2", b"3"], first + 2, None),
    ]
    without = await subscribed(await peer.log_in(client_flags=0x0007), peer, start="earliest")
    assert await received(without, 3) == [b"0", b"2", b"3"]


async def test_a_record_that_has_expired_since_it_was_laid_out_is_not_shown(
    peer: Peer, broker: Broker, clock: ManualClock
) -> None:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    expiries = [clock.now_ms() + 1000, 0]
    broker.records.produce(ANONYMOUS, "demo", 0, [b"brief", b"lasting"], expiries=expiries, done=done.set_result)
    await done
    talk = await peer.log_in(client_flags=ALL_FLAGS)
    assert await received(await subscribed(talk, peer, start="earliest"), 2) == [b"brief", b"lasting"]
    clock.advance(2)
    assert await received(await subscribed(talk, peer, start="earliest"), 1) == [b"lasting"]


@pytest.mark.dense
async def test_small_commits_share_frames_with_their_neighbours(peer: Peer, broker: Broker) -> None:
    for number in range(150):
        await published(broker, b"%d" % number)
    for flags in (0x0007, ALL_FLAGS):
        events = await subscribed(await peer.log_in(client_flags=flags), peer, start="earliest")
        frames = [await events.reply() for _ in range(3)]
        assert [len(frame.payloads) for frame in frames if isinstance(frame, Events)] == [64, 64, 22]
        assert [frame.base_offset for frame in frames if isinstance(frame, Events)] == (
            [0, 64, 128] if flags == ALL_FLAGS else [None] * 3
        )


async def test_a_null_value_is_an_empty_event(peer: Peer, broker: Broker, engine: Engine, talk: Talk) -> None:
    events = await subscribed(talk, peer)
    engine.partition("demo", 0).append(Batch([None], [b"k"]), lambda _: None)
    assert await received(events, 1) == [b""]


# --- ending ---------------------------------------------------------------------------------------------------------------


async def test_a_subscription_outlives_the_stream_that_asked_for_it(talk: Talk, peer: Peer, broker: Broker) -> None:
    events = await subscribed(talk, peer)
    talk.session.ended()
    assert talk.ended()
    talk.session.aborted(0)
    talk.close()
    await published(broker, b"still here")
    assert await received(events, 1) == [b"still here"]


@pytest.mark.parametrize("how", ["aborted", "closed"])
async def test_a_subscription_ends_with_its_own_stream(
    talk: Talk, peer: Peer, broker: Broker, felix: Felix, how: str
) -> None:
    events = await subscribed(talk, peer)
    assert felix.stats.subscribers == 1
    if how == "aborted":
        events.session.aborted(9)
    events.session.closed()
    assert felix.stats.subscribers == 0
    await published(broker, b"nobody listens")
    assert events.silent()


async def test_when_the_server_stops_subscriptions_end_in_good_order(
    talk: Talk, peer: Peer, broker: Broker, felix: Felix
) -> None:
    events = await subscribed(talk, peer)
    peer.session.stopping()
    assert events.ended()
    assert felix.stats.subscribers == 0
    await published(broker, b"too late")
    assert events.silent()


async def test_a_subscription_ends_when_its_topic_is_deleted(
    talk: Talk, peer: Peer, broker: Broker, felix: Felix
) -> None:
    events = await subscribed(talk, peer)
    await broker.topics.delete(ANONYMOUS, "demo")
    await broker.topics.ensure(ANONYMOUS, "demo")
    again = await subscribed(talk, peer)  # of the new topic
    assert events.stream.was_reset == CLOSE_GONE
    await published(broker, b"new")
    assert await received(again, 1) == [b"new"]
    await broker.topics.delete(ANONYMOUS, "demo")
    felix.shared.feeds._sweep()
    assert again.stream.was_reset == CLOSE_GONE
    assert felix.stats.subscribers == 0


async def test_nothing_is_kept_of_a_topic_to_which_nobody_could_subscribe(
    talk: Talk, broker: Broker, felix: Felix
) -> None:
    refused = await talk.ask(Subscribe(**DEMO, start=StartOffset(offset=9)))
    assert isinstance(refused, Error)
    feeds = felix.shared.feeds
    assert list(feeds._feeds) == ["demo"]
    feeds._sweep()
    assert feeds._feeds == {}
    assert feeds._sweeping is None


async def test_tiny_chunks_are_kept_in_bounded_memory_too() -> None:
    chunks = _Chunks()
    for offset in range(100_000):
        chunks.keep((cast(Partition, None), Form(Kind.SHARED), offset), Chunk((b"",), 0, offset + 1, 0))
    assert chunks.get((cast(Partition, None), Form(Kind.SHARED), 99_999)) is not None
    assert len(chunks._chunks) * 500 <= CHUNKS_KEPT_BYTES_MAX


async def test_the_last_chunk_is_kept_however_large_it_is() -> None:
    chunks = _Chunks()
    form, partition = Form(Kind.SHARED), cast(Partition, None)
    for offset in range(3):
        chunks.keep((partition, form, offset), Chunk((bytes(CHUNKS_KEPT_BYTES_MAX + 1),), 1, offset + 1, 0))
    assert [chunks.get((partition, form, offset)) is not None for offset in range(3)] == [False, False, True]
    chunks.keep((partition, form, 3), Chunk((b"small",), 1, 4, 0))
    assert [chunks.get((partition, form, offset)) is not None for offset in (2, 3)] == [False, True]


async def test_a_subscription_ends_when_its_reader_may_read_no_more(
    talk: Talk, peer: Peer, broker: Broker, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = await subscribed(talk, peer)

    def deny(*_: object) -> None:
        raise AccessDenied("unauthorized: not any more")

    monkeypatch.setattr(broker.access, "check", deny)
    engine.partition("demo", 0).append(Batch([b"secret"]), lambda _: None)
    await events.cut_off()
    assert events.silent()


@pytest.mark.parametrize("error", [CorruptBlock("block 7 is damaged"), RuntimeError("a bug")])
async def test_a_subscription_whose_records_cannot_be_read_is_ended(
    peer: Peer, broker: Broker, felix: Felix, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Feed, "chunk", lambda *_: None)  # not in memory
    monkeypatch.setattr(Feed, "load", fail)
    await published(broker, b"damaged")
    events = await subscribed(await peer.log_in(), peer, start="earliest")
    await events.cut_off()
    assert events.stream.was_reset == CLOSE_GONE
    assert felix.stats.subscribers == 0


# --- being slow -----------------------------------------------------------------------------------------------------------


async def flooded(broker: Broker, peer: Peer, slow: Talk, brisk: Talk, *, batches: int = 40) -> list[bytes]:
    """Publish until the slow one is far behind; the brisk one reads along."""
    values: list[bytes] = []
    for number in range(batches):
        some = [b"%d-%d:" % (number, row) + bytes(2000) for row in range(50)]
        await published(broker, *some)
        assert await received(brisk, 50) == some
        values += some
    return values


async def a_slow_and_a_brisk_one(broker: Broker, felix: Felix) -> tuple[Peer, Talk, Talk]:
    peer = Peer(felix)
    slow = await subscribed(await peer.log_in(client_flags=ALL_FLAGS), peer)
    brisk = await subscribed(await peer.log_in(client_flags=ALL_FLAGS), peer)
    slow.stream.stalled = True
    return peer, slow, brisk


@pytest.mark.dense
async def test_a_slow_subscriber_skips_to_the_end_and_others_notice_nothing(broker: Broker, clock: ManualClock) -> None:
    felix = Felix(broker, clock=clock, slow_subscriber="drop", subscriber_lag_records_max=500)
    peer, slow, brisk = await a_slow_and_a_brisk_one(broker, felix)
    values = await flooded(broker, peer, slow, brisk)
    assert slow.stream.unsent_bytes < 2 << 20
    assert felix.stats.dropped_events > 500
    slow.stream.stalled = False
    slow.drain()
    await published(broker, b"last")
    got: list[bytes] = []
    while not got or got[-1] != b"last":
        frame = await slow.reply()
        assert isinstance(frame, Events)
        assert frame.base_offset is not None
        assert frame.payloads[0] == [*values, b"last"][frame.base_offset]  # offsets show the gap
        got += frame.payloads
    assert len(got) == len(values) + 1 - felix.stats.dropped_events


@pytest.mark.parametrize("slow", ["drop", "close"])
@pytest.mark.parametrize("skipped", [None, 5], ids=["earliest", "offset"])
async def test_a_subscriber_that_asks_for_older_records_gets_all_of_them_however_many(
    broker: Broker, clock: ManualClock, slow: Literal["drop", "close"], skipped: int | None
) -> None:
    felix = Felix(broker, clock=clock, slow_subscriber=slow, subscriber_lag_records_max=100)
    values = [b"%d:" % number + bytes(3_000) for number in range(3_000)]
    first = await published(broker, *values)
    peer = Peer(felix)
    at = "earliest" if skipped is None else StartOffset(first + skipped)
    replay = await subscribed(await peer.log_in(client_flags=ALL_FLAGS), peer, start=at)
    assert await received(replay, len(values) - (skipped or 0)) == values[skipped or 0 :]
    assert felix.stats.dropped_events == 0


async def test_a_subscriber_that_has_caught_up_is_held_to_the_lag_limit(broker: Broker, clock: ManualClock) -> None:
    felix = Felix(broker, clock=clock, slow_subscriber="close", subscriber_lag_records_max=500)
    await published(broker, *[b"old"] * 600)
    peer = Peer(felix)
    slow = await subscribed(await peer.log_in(client_flags=ALL_FLAGS), peer, start="earliest")
    brisk = await subscribed(await peer.log_in(client_flags=ALL_FLAGS), peer)
    await received(slow, 600)
    slow.stream.stalled = True
    await flooded(broker, peer, slow, brisk)
    assert slow.stream.was_reset == CLOSE_SLOW


async def test_a_slow_subscriber_that_is_paused_reads_everything_later_from_disk(
    broker: Broker, clock: ManualClock
) -> None:
    felix = Felix(broker, clock=clock, slow_subscriber="pause", subscriber_lag_records_max=500)
    peer, slow, brisk = await a_slow_and_a_brisk_one(broker, felix)
    values = await flooded(broker, peer, slow, brisk, batches=60)
    assert slow.stream.unsent_bytes < 2 << 20
    slow.stream.stalled = False
    slow.drain()
    assert await received(slow, len(values)) == values
    assert felix.stats.dropped_events == 0


async def test_a_slow_subscriber_is_ended_where_the_listener_says_so(broker: Broker, clock: ManualClock) -> None:
    felix = Felix(broker, clock=clock, slow_subscriber="close", subscriber_lag_records_max=500)
    peer, slow, brisk = await a_slow_and_a_brisk_one(broker, felix)
    await flooded(broker, peer, slow, brisk)
    assert slow.stream.was_reset == CLOSE_SLOW
    assert brisk.stream.was_reset is None
    assert (felix.stats.closed_subscribers, felix.stats.subscribers) == (1, 1)


@pytest.mark.dense
async def test_what_retention_took_from_a_paused_subscriber_is_counted(
    broker: Broker, clock: ManualClock, engine: Engine
) -> None:
    await broker.topics.create(ANONYMOUS, "short", TopicConfig(segment_bytes=1 << 16))
    felix = Felix(broker, clock=clock, slow_subscriber="pause")
    peer = Peer(felix)
    slow = await subscribed(await peer.log_in(client_flags=ALL_FLAGS), peer, "short")
    slow.stream.unsent_bytes = 1 << 20
    for number in range(20):
        await published(broker, *(b"%d" % number + bytes(5000) for _ in range(10)), topic="short")
    start = await engine.partition("short", 0).delete_before(100)
    assert start > 50
    slow.drain()
    assert len(await received(slow, 200 - start)) == 200 - start
    assert felix.stats.dropped_events == start
