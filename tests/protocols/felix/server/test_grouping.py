"""Consumer groups over Felix: polling, waiting, acknowledging, handing back, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock.broker.access.checks import ANONYMOUS, SYSTEM
from penstock.broker.broker import Broker
from penstock.broker.deliveries.subscription import Subscription
from penstock.broker.limits import BrokerLimits
from penstock.log.api import TopicConfig
from penstock.protocols.felix.codec.frames import encode_frame
from penstock.protocols.felix.codec.messages import (
    Auth,
    CacheOk,
    Error,
    GroupAck,
    GroupNack,
    GroupPoll,
    GroupRecord,
    GroupRecords,
    Ok,
    StreamShards,
    StreamShardsView,
)
from penstock.protocols.felix.server import grouping
from penstock.protocols.felix.server.caching import VALUE_BYTES_MAX
from penstock.protocols.felix.server.grouping import ACK_MS, POLL_RECORDS_MAX
from penstock.protocols.felix.session import Felix
from penstock.testing.clock import ManualClock
from tests.broker.producing import appended, produce
from tests.protocols.felix.conversation import Peer, Talk

SCOPE: Any = {"tenant_id": "t1", "namespace": "default", "stream": "demo"}
GROUP: Any = {**SCOPE, "group": "billing"}
TOPIC = "t1/demo"
LONG_MS = 60_000


@pytest.fixture
def limits() -> BrokerLimits:
    return BrokerLimits(record_bytes_max=20 << 20)


def poll(number: int = 1, *, max_records: int = 10, wait_ms: int = 0, **given: Any) -> GroupPoll:
    return GroupPoll(**{**GROUP, **given}, max_records=max_records, wait_ms=wait_ms, request_id=number)


def ack(offset: int, number: int = 1, **given: Any) -> GroupAck:
    return GroupAck(**{**GROUP, **given}, offset=offset, request_id=number)


def nack(offset: int, number: int = 1, **given: Any) -> GroupNack:
    return GroupNack(**{**GROUP, **given}, offset=offset, request_id=number)


def records(*rows: tuple[int, bytes, int], number: int = 1) -> GroupRecords:
    return GroupRecords(records=[GroupRecord(*row) for row in rows], request_id=number)


async def stored(broker: Broker, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> int:
    """Produce records in one append; returns the offset of the first."""
    (placement,) = await produce(broker, TOPIC, values, keys)
    return appended(placement).base_offset


def group_of(broker: Broker, name: str = "billing") -> Subscription:
    found = broker.subscriptions.find_named(TOPIC, name)
    assert found is not None
    return found


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


async def waiting(broker: Broker, talk: Talk, request: GroupPoll) -> None:
    """Ask for what is not there, and let it wait."""
    talk.say(request)
    await until(lambda: broker.subscriptions.find_named(TOPIC, "billing") and group_of(broker).watched)
    await asyncio.sleep(0)
    assert talk.silent()


# -- polling -----------------------------------------------------------------------------------------------------------------


async def test_a_new_group_begins_with_the_earliest_record(talk: Talk, broker: Broker) -> None:
    first = await stored(broker, [b"one", b"two"])
    assert await talk.ask(poll(7)) == records((first, b"one", 1), (first + 1, b"two", 1), number=7)
    assert await talk.ask(poll(8)) == records(number=8)


async def test_no_more_is_claimed_than_was_asked_for_and_the_rest_goes_to_others(peer: Peer, broker: Broker) -> None:
    first = await stored(broker, [b"one", b"two"])
    assert await peer.open().ask(poll(max_records=1)) == records((first, b"one", 1))
    assert await peer.open().ask(poll()) == records((first + 1, b"two", 1))


async def test_groups_are_independent(talk: Talk, broker: Broker) -> None:
    first = await stored(broker, [b"one"])
    for group in ("billing", "shipping"):
        assert await talk.ask(poll(group=group)) == records((first, b"one", 1))


async def test_a_group_is_the_same_one_after_a_restart_of_its_clients(felix: Felix, broker: Broker) -> None:
    first = await stored(broker, [b"one", b"two"])
    talk = Peer(felix).open()
    await talk.ask(poll(max_records=1))
    assert await talk.ask(ack(first)) == CacheOk(request_id=1)
    assert await Peer(felix).open().ask(poll()) == records((first + 1, b"two", 1))


async def test_a_group_of_another_protocol_keeps_the_time_that_its_readers_have(
    talk: Talk, broker: Broker, clock: ManualClock
) -> None:
    await broker.subscriptions.subscribe(ANONYMOUS, TOPIC, 2, name="billing", start="earliest", ack_ms=90_000)
    first = await stored(broker, [b"one"])
    assert await talk.ask(poll()) == records((first, b"one", 1))
    clock.advance(89)
    assert await talk.ask(poll()) == records()
    assert await talk.ask(ack(first)) == CacheOk(request_id=1)


async def test_a_tombstone_is_a_record_with_nothing_in_it(talk: Talk, broker: Broker) -> None:
    first = await stored(broker, [None, b""], keys=[b"k", None])
    assert await talk.ask(poll()) == records((first, b"", 1), (first + 1, b"", 1))


async def test_a_poll_is_bounded_in_records_and_in_bytes(talk: Talk, broker: Broker) -> None:
    first = await stored(broker, [b"x"] * (POLL_RECORDS_MAX + 1))
    answer = await talk.ask(poll(max_records=(1 << 32) - 1))
    assert isinstance(answer, GroupRecords)
    assert len(answer.records) == POLL_RECORDS_MAX
    assert await talk.ask(poll(max_records=2)) == records((first + POLL_RECORDS_MAX, b"x", 1))


async def test_records_that_do_not_fit_into_one_frame_come_in_several(
    talk: Talk, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouping, "VALUE_BYTES_MAX", 100)
    values = [bytes(size) for size in (60, 41, 30, 101, 29, 1)]
    first = await stored(broker, values)
    assert await talk.ask(poll()) == records((first, values[0], 1))
    assert await talk.ask(poll()) == records(
        (first + 1, values[1], 1), (first + 2, values[2], 1), (first + 4, values[4], 1)
    )
    assert await talk.ask(poll()) == records((first + 5, values[5], 1))
    await until(lambda: broker.dead_letters.stats.sent == 1)


async def test_the_largest_record_fits_into_a_frame(talk: Talk, broker: Broker) -> None:
    largest = bytes(VALUE_BYTES_MAX)
    first = await stored(broker, [largest])
    assert await talk.ask(poll()) == records((first, largest, 1))


async def test_a_record_that_fits_into_no_frame_becomes_a_dead_letter(talk: Talk, broker: Broker) -> None:
    first = await stored(broker, [bytes(VALUE_BYTES_MAX + 1), b"last"])
    assert await talk.ask(poll()) == records((first + 1, b"last", 1))
    await until(lambda: broker.dead_letters.stats.sent == 1)


async def test_records_that_are_not_in_memory_are_read_even_where_nothing_is_waited_for(
    talk: Talk, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await stored(broker, [b"one"])
    partition = type(broker.records.partition(SYSTEM, TOPIC, 0))
    monkeypatch.setattr(partition, "read_cached", lambda self, offset, bytes_max=0: None)
    assert await talk.ask(poll()) == records((first, b"one", 1))


# -- waiting -----------------------------------------------------------------------------------------------------------------


async def test_a_poll_waits_for_a_record(talk: Talk, broker: Broker) -> None:
    await waiting(broker, talk, poll(3, wait_ms=LONG_MS))
    first = await stored(broker, [b"late"])
    assert await talk.reply() == records((first, b"late", 1), number=3)
    assert talk.stream.held_bytes == 0
    assert not group_of(broker).watched


async def test_a_poll_for_which_nothing_comes_is_answered_with_nothing(talk: Talk, broker: Broker) -> None:
    assert await talk.ask(poll(wait_ms=1)) == records()
    assert not group_of(broker).watched


async def test_what_is_asked_behind_a_poll_waits_for_it(talk: Talk, broker: Broker) -> None:
    await waiting(broker, talk, poll(1, wait_ms=LONG_MS))
    talk.say(poll(2))
    first = await stored(broker, [b"late"])
    assert await talk.reply() == records((first, b"late", 1), number=1)
    assert await talk.reply() == records(number=2)


@pytest.mark.parametrize("ending", ["closed", "aborted"])
async def test_a_stream_that_ends_claims_nothing_more(peer: Peer, broker: Broker, ending: str) -> None:
    talk = peer.open()
    await waiting(broker, talk, poll(wait_ms=LONG_MS))
    if ending == "closed":
        talk.session.closed()
    else:
        talk.say(poll(2))
        talk.session.aborted(0)
    await until(lambda: not group_of(broker).watched and not talk.stream.held_bytes)
    first = await stored(broker, [b"for others"])
    assert await peer.open().ask(poll(5)) == records((first, b"for others", 1), number=5)


async def test_a_broker_that_stops_answers_polls_with_nothing(peer: Peer, broker: Broker) -> None:
    talk = peer.open()
    await waiting(broker, talk, poll(1, wait_ms=LONG_MS))
    talk.say(poll(2, wait_ms=LONG_MS))
    peer.session.stopping()
    for number in (1, 2):
        assert await talk.reply() == records(number=number)
    assert talk.stream.closing


async def test_a_stream_that_is_deleted_ends_polls_with_an_error(talk: Talk, broker: Broker) -> None:
    await waiting(broker, talk, poll(wait_ms=LONG_MS))
    await broker.topics.delete(ANONYMOUS, TOPIC)
    answer = await talk.reply()
    assert isinstance(answer, Error)
    assert answer.message == "stream not found: tenant=t1 namespace=default stream=demo"


# -- settling ----------------------------------------------------------------------------------------------------------------


async def test_what_is_acknowledged_is_finished_and_may_be_acknowledged_again(
    peer: Peer, broker: Broker, clock: ManualClock
) -> None:
    first = await stored(broker, [b"one", b"two"])
    talk = peer.open()
    await talk.ask(poll())
    assert await peer.open().ask(ack(first, 5)) == CacheOk(request_id=5)
    assert await talk.ask(ack(first, 6)) == CacheOk(request_id=6), "the first answer may have been lost"
    clock.advance(ACK_MS / 1000)
    assert await talk.ask(poll()) == records((first + 1, b"two", 2))


async def test_what_is_handed_back_comes_again_after_a_moment(talk: Talk, broker: Broker, clock: ManualClock) -> None:
    first = await stored(broker, [b"one"])
    await talk.ask(poll())
    assert await talk.ask(nack(first, 2)) == CacheOk(request_id=2)
    clock.advance(0.1)
    assert await talk.ask(poll()) == records((first, b"one", 2))


@pytest.mark.dense
async def test_records_come_in_the_order_of_their_offsets(talk: Talk, broker: Broker, clock: ManualClock) -> None:
    await produce(broker, TOPIC, [b"one", b"two"])
    await talk.ask(poll())
    for offset in (1, 0):
        await talk.ask(nack(offset))
        clock.advance(0.01)
    clock.advance(0.1)
    await produce(broker, TOPIC, [b"new"])
    assert await talk.ask(poll()) == records((0, b"one", 2), (1, b"two", 2), (2, b"new", 1))


async def test_what_is_left_alone_comes_again_and_then_becomes_a_dead_letter(
    talk: Talk, broker: Broker, clock: ManualClock
) -> None:
    first = await stored(broker, [b"one"])
    for attempt in (1, 2, 3):
        assert await talk.ask(poll()) == records((first, b"one", attempt))
        clock.advance(ACK_MS / 1000 - 1)
        assert await talk.ask(poll()) == records()
        clock.advance(1)
    assert await talk.ask(poll()) == records()
    broker.subscriptions.sweep()
    await until(lambda: broker.dead_letters.stats.sent == 1)


STALE = "stale claim: offset {} is not with a member of group billing; it may be delivered again"


@pytest.mark.embedded
async def test_a_claim_that_does_not_stand_is_refused(talk: Talk, broker: Broker, clock: ManualClock) -> None:
    first = await stored(broker, [b"one", b"two"])
    await talk.ask(poll(max_records=1))
    clock.advance(ACK_MS / 1000)
    broker.subscriptions.sweep()
    for request in (ack(first), nack(first), ack(first + 1), nack(first + 1), ack((1 << 64) - 1), nack((1 << 64) - 1)):
        assert await talk.ask(request) == Error(request_id=1, message=STALE.format(request.offset))
    assert await talk.ask(poll()) == records((first, b"one", 2), (first + 1, b"two", 1))


async def test_a_finished_record_cannot_be_handed_back(talk: Talk, broker: Broker) -> None:
    first = await stored(broker, [b"one"])
    await talk.ask(poll())
    await talk.ask(ack(first))
    assert await talk.ask(nack(first)) == Error(request_id=1, message=STALE.format(first))


async def test_a_delivery_may_be_named_by_its_number(talk: Talk, broker: Broker, clock: ManualClock) -> None:
    first = await stored(broker, [b"one"])
    await talk.ask(poll())
    assert await talk.ask(nack(first, attempts=2)) == Error(request_id=1, message=STALE.format(first))
    assert await talk.ask(nack(first, attempts=1)) == CacheOk(request_id=1)


async def test_records_before_the_group_are_not_its_own(peer: Peer, broker: Broker) -> None:
    first = await stored(broker, [b"before"])
    await broker.subscriptions.subscribe(ANONYMOUS, TOPIC, 2, name="billing", start="latest")
    assert await peer.open().ask(ack(first)) == Error(request_id=1, message=STALE.format(first))


async def test_an_acknowledgement_is_answered_once_it_is_on_disk(
    talk: Talk, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await stored(broker, [b"one"])
    await talk.ask(poll())
    waiting_for: list[Any] = []
    monkeypatch.setattr(broker.subscriptions, "when_durable", waiting_for.append)
    talk.say(ack(first))
    await until(lambda: waiting_for)
    await asyncio.sleep(0)
    assert talk.silent()
    waiting_for[0](None)
    assert await talk.reply() == CacheOk(request_id=1)


# -- what is refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", [ack(0), nack(0)])
async def test_a_group_that_nobody_polled_is_not_found_and_not_made(talk: Talk, broker: Broker, request_: Any) -> None:
    assert await talk.ask(request_) == Error(request_id=1, message="group not found: billing has never polled t1/demo")
    assert len(broker.subscriptions) == 0


@pytest.mark.parametrize("make", [poll, lambda **given: ack(0, **given), lambda **given: nack(0, **given)])
async def test_a_stream_has_one_shard_and_one_partition(talk: Talk, broker: Broker, make: Any) -> None:
    assert await talk.ask(make(shard=1)) == Error(
        request_id=1, message="shard 1 not found: every stream has one, which is 0"
    )
    await broker.topics.create(ANONYMOUS, "t1/wide", TopicConfig(partitions=2))
    answer = await talk.ask(make(stream="wide"))
    assert isinstance(answer, Error)
    assert answer.message.startswith("a group needs a stream with one partition")
    answer = await talk.ask(make(stream="nope"))
    assert isinstance(answer, Error)
    assert answer.message == "stream not found: tenant=t1 namespace=default stream=nope"
    assert len(broker.subscriptions) == 0


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (poll(consumer="me"), "claims are not recorded by consumer"),
        (poll(visibility_ms=1), "claims stand for 30000 ms"),
        (poll(max_records=0), "ask for at least one record"),
        (nack(0, delay_ms=1), "hand it back without delay_ms"),
        (poll(group=""), "malformed group_poll"),
        (poll(group="x" * 257), "malformed group_poll"),
        (poll(wait_ms=-1), "wait_ms -1 is out of range"),
        (ack(1 << 64), "offset 18446744073709551616 is out of range"),
    ],
)
async def test_what_is_not_served_is_refused_and_not_ignored(
    talk: Talk, broker: Broker, request_: Any, text: str
) -> None:
    await broker.subscriptions.subscribe(ANONYMOUS, TOPIC, 2, name="billing")
    answer = await talk.ask(request_)
    assert isinstance(answer, Error)
    assert text in answer.message


async def test_a_missing_stream_is_created_where_the_listener_says_so(broker: Broker, clock: ManualClock) -> None:
    talk = Peer(Felix(broker, clock=clock, auto_create=True)).open()
    assert await talk.ask(poll(stream="new")) == records()
    assert broker.topics.exists("t1/new")


async def test_a_key_that_is_revoked_while_a_poll_waits_gets_nothing(broker: Broker, clock: ManualClock) -> None:
    token = await broker.api_keys.create(SYSTEM, "billing", ["consumer"])
    talk = Peer(Felix(broker, clock=clock, required=True)).open()
    assert await talk.ask(Auth(tenant_id="t1", token=token)) == Ok()
    await waiting(broker, talk, poll(wait_ms=LONG_MS))
    await broker.api_keys.revoke(SYSTEM, "billing")
    await produce(broker, TOPIC, [b"secret"])
    answer = await talk.reply()
    assert isinstance(answer, Error)
    assert answer.message == "unauthorized: auth failed: the API key was revoked"
    assert group_of(broker).in_flight == 0


# -- shards ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["demo", "unknown"])
async def test_every_stream_has_one_shard(talk: Talk, stream: str) -> None:
    request = StreamShards(tenant_id="t1", namespace="default", stream=stream, request_id=4)
    assert await talk.ask(request) == StreamShardsView(shards=1, request_id=4)


# -- in bytes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.dense
async def test_a_group_in_bytes(talk: Talk, broker: Broker) -> None:
    await produce(broker, TOPIC, [b"hello"])
    scope = b'"tenant_id":"t1","namespace":"default","stream":"demo","shard":0,"group":"g"'
    for request, reply in (
        (
            b'{"type":"group_poll",%s,"max_records":32,"wait_ms":5000,"request_id":7}' % scope,
            b'{"type":"group_records","records":[{"offset":0,"payload":"aGVsbG8=","attempts":1}],"request_id":7}',
        ),
        (b'{"type":"group_nack",%s,"offset":0,"request_id":8}' % scope, b'{"type":"cache_ok","request_id":8}'),
        (b'{"type":"group_ack",%s,"offset":0,"request_id":9}' % scope, b'{"type":"cache_ok","request_id":9}'),
        (
            b'{"type":"stream_shards","tenant_id":"t1","namespace":"default","stream":"demo","request_id":10}',
            b'{"type":"stream_shards_view","shards":1,"request_id":10}',
        ),
    ):
        assert await talk.ask_raw(encode_frame(0, request)) == encode_frame(0, reply)


# -- partitions that are added -----------------------------------------------------------------------------------------------


async def test_a_group_fails_with_the_reason_when_its_stream_gets_partitions(peer: Peer, broker: Broker) -> None:
    talk = peer.open()
    first = await stored(broker, [b"one"])
    assert await talk.ask(poll()) == records((first, b"one", 1))
    await waiting(broker, talk, poll(2, wait_ms=LONG_MS))
    await broker.topics.add_partitions(ANONYMOUS, TOPIC, 2)
    text = "a group needs a stream with one partition, whose offsets tell records apart; this one has 2"
    answer = await talk.reply()
    assert isinstance(answer, Error)
    assert (answer.request_id, text in answer.message) == (2, True)
    for request in (poll(3), ack(first, 3), nack(first, 3)):
        refused = await talk.ask(request)
        assert isinstance(refused, Error)
        assert text in refused.message
