"""The client against a broker that answers, keeps silent or hangs up as the test says."""

from __future__ import annotations

import asyncio
import struct
from random import Random

import pytest

from penstock.clients.options import ClientOptions
from penstock.clients.records import RecordMetadata
from penstock.clients.retry import NO_RETRY, RetryPolicy
from penstock.errors import (
    AuthenticationFailed,
    BatchFailed,
    ConnectionLost,
    InvalidRequest,
    InvalidTopicName,
    NoSpace,
    ProtocolViolation,
    RecordTooLarge,
    RequestTimeout,
    TopicNotFound,
    Unreachable,
)
from penstock.protocols.flymq.client import AsyncFlyMQClient
from penstock.protocols.flymq.operations.access import Auth
from penstock.protocols.flymq.operations.records import Produce
from penstock.protocols.flymq.operations.topics import Commit, ListTopics, Metadata
from penstock.protocols.flymq.wire import AUTH_RESPONSE, HEADER, frame
from penstock.testing.clock import ManualClock
from tests.protocols.flymq.scripted import Answer, Peer, ScriptedBroker, connected, error, no_sleep, produced, scripted


def in_order() -> Answer:
    """Acknowledge each PRODUCE with the next offset."""
    offsets = iter(range(1_000_000))
    return lambda peer, opcode, payload: produced(next(offsets))


def names(*topics: str) -> bytes:
    listed = b"".join(struct.pack(">H", len(topic)) + topic.encode() for topic in topics)
    return frame(ListTopics.opcode, struct.pack(">I", len(topics)) + listed)


def never(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
    return None


# -- producing -------------------------------------------------------------------------------------------------------------


async def test_send_tells_where_the_record_is() -> None:
    async with scripted(lambda *_: produced(42, partition=3)) as broker, connected(broker) as client:
        assert await client.send("t", b"value", key=b"key", partition=3) == RecordMetadata("t", 3, 42, 99)
        assert broker.requests == [(Produce.opcode, b"\0\x01t" + b"\0\0\0\x03key" + b"\0\0\0\x05value" + b"\0\0\0\x03")]


async def test_concurrent_sends_leave_in_one_write_and_each_gets_its_own_answer() -> None:
    async with scripted(in_order()) as broker, connected(broker) as client:
        metadata = await asyncio.gather(*(client.send("t", b"%d" % number) for number in range(50)))
        assert [each.offset for each in metadata] == list(range(50))
        assert broker.reads == 1


async def test_send_many_returns_metadata_in_the_order_of_the_records() -> None:
    async with scripted(in_order()) as broker, connected(broker) as client:
        metadata = await client.send_many("t", [b"value %d" % number for number in range(5000)])
        assert [each.offset for each in metadata] == list(range(5000))
        assert [payload[11:-4] for _, payload in broker.requests] == [b"value %d" % number for number in range(5000)]


async def test_send_many_takes_pairs_of_key_and_value_and_nothing_at_all() -> None:
    async with scripted(in_order()) as broker, connected(broker) as client:
        await client.send_many("t", [(b"k", b"a"), (None, b"b")])
        assert [payload for _, payload in broker.requests] == [
            b"\0\x01t" + b"\0\0\0\x01k" + b"\0\0\0\x01a" + b"\xff\xff\xff\xff",
            b"\0\x01t" + b"\0\0\0\0" + b"\0\0\0\x01b" + b"\xff\xff\xff\xff",
        ]
        assert await client.send_many("t", []) == []


async def test_a_batch_of_large_records_is_sent_in_pieces() -> None:
    async with scripted(in_order()) as broker, connected(broker) as client:
        metadata = await client.send_many("t", [bytes(200_000)] * 20)
        assert [each.offset for each in metadata] == list(range(20))


async def test_records_refused_within_a_batch_are_told_apart() -> None:
    def refuse_odd(peer: Peer, opcode: int, payload: bytes) -> bytes:
        number = len(broker.requests) - 1
        return error("no space left on the disk") if number % 2 else produced(number)

    async with scripted(refuse_odd) as broker, connected(broker) as client:
        with pytest.raises(BatchFailed, match="2 of 5 records were not acknowledged") as caught:
            await client.send_many("t", [b"a", b"b", b"c", b"d", b"e"])
        results = caught.value.results
        assert [getattr(result, "offset", None) for result in results] == [0, None, 2, None, 4]
        assert all(isinstance(result, NoSpace) for result in results[1::2])
        assert caught.value.retriable


async def test_a_batch_that_fails_as_a_whole_raises_its_own_reason() -> None:
    async with scripted(lambda *_: error("topic not found: t")) as broker, connected(broker) as client:
        with pytest.raises(TopicNotFound):
            await client.send_many("t", [b"a", b"b"])
        with pytest.raises(TopicNotFound) as caught:
            await client.send("t", b"a")
        assert not caught.value.retriable


async def test_bad_records_and_topics_are_refused_before_anything_is_sent() -> None:
    async with scripted(never) as broker, connected(broker) as client:
        with pytest.raises(RecordTooLarge):
            await client.send("t", bytes(32 << 20))
        with pytest.raises(RecordTooLarge):
            await client.send_many("t", [b"small", bytes(32 << 20)])
        for topic in ("", "t" * 250):
            with pytest.raises(InvalidTopicName):
                await client.send(topic, b"a")
        with pytest.raises(InvalidRequest, match="bytes, not str"):
            await client.send("t", "text")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="bytes, not int, str"):
            await client.send_many("t", [("key", 1)])  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="partition -2"):
            await client.send("t", b"a", partition=-2)
        with pytest.raises(InvalidRequest, match="offset -1"):
            await client.fetch("t", 0, -1)
        assert broker.requests == []


# -- lost connections ------------------------------------------------------------------------------------------------------


async def test_a_produce_in_flight_when_the_connection_is_lost_is_unknown_and_not_sent_again() -> None:
    def hang_up(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
        peer.transport.abort()
        return None

    async with scripted(hang_up) as broker, connected(broker) as client:
        with pytest.raises(ConnectionLost, match="may have been carried out") as caught:
            await client.send("t", b"a")
        assert caught.value.retriable
        assert len(broker.requests) == 1


async def test_a_read_in_flight_when_the_connection_is_lost_is_sent_again() -> None:
    def hang_up_first(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
        if peer.number == 0:
            peer.transport.abort()
            return None
        return names("a", "b")

    async with scripted(hang_up_first) as broker, connected(broker) as client:
        assert await client.topics() == ["a", "b"]
        assert len(broker.peers) == 2


async def test_a_commit_that_was_sent_and_cannot_be_sent_again_may_have_been_carried_out() -> None:
    """Unreachable would say that it was not."""

    def end(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
        broker.server.close()
        peer.transport.abort()
        return None

    async with scripted(end) as broker, connected(broker, ClientOptions(retry=NO_RETRY)) as client:
        with pytest.raises(ConnectionLost, match="may have been carried out"):
            await client.commit("t", "g", 0, 7)


async def test_a_read_is_not_repeated_forever() -> None:
    def hang_up(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
        peer.transport.abort()
        return None

    async with scripted(hang_up) as broker, connected(broker) as client:
        with pytest.raises(ConnectionLost):
            await client.topics()
        assert len(broker.peers) == 4


async def test_a_request_that_was_never_written_goes_to_the_next_connection() -> None:
    def second_only(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
        return produced(7) if peer.number == 1 else None

    async with scripted(second_only) as broker, connected(broker) as client:
        broker.peers[0].transport.pause_reading()
        large = asyncio.create_task(client.send("t", bytes(20 << 20)))
        while client._requests._pipeline is None or not client._requests._pipeline._paused:
            await asyncio.sleep(0)
        small = asyncio.create_task(client.send_many("t", [b"small"]))
        await asyncio.sleep(0)
        broker.peers[0].transport.abort()
        with pytest.raises(ConnectionLost):
            await large
        assert [each.offset for each in await small] == [7]


async def test_nothing_behind_a_lost_part_of_a_batch_is_sent_again() -> None:
    """Otherwise the rest would stand in the log before the part that is tried again."""

    def hang_up_midway(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
        if len(broker.requests) == 2000:
            peer.transport.abort()
        return produced(len(broker.requests) - 1) if len(broker.requests) <= 1500 else None

    async with scripted(hang_up_midway) as broker, connected(broker) as client:
        with pytest.raises(BatchFailed) as caught:
            await client.send_many("t", [b"%d" % number for number in range(5000)])
        results = caught.value.results
        stored = [result.offset for result in results if isinstance(result, RecordMetadata)]
        assert stored == list(range(len(stored)))
        assert len(stored) <= 1500
        assert all(isinstance(result, ConnectionLost) for result in results[len(stored) :])
        assert len(results) == 5000
        assert caught.value.retriable
        assert len(broker.peers) == 1


async def test_an_answer_that_is_late_gives_the_connection_up() -> None:
    def silent_first(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
        return names("a") if peer.number == 1 else None

    options = ClientOptions(request_timeout_s=0.05)
    async with scripted(silent_first) as broker, connected(broker, options) as client:
        late, behind, read = await asyncio.gather(
            client.send("t", b"a"), client.send("t", b"b"), client.topics(), return_exceptions=True
        )
        assert isinstance(late, RequestTimeout)
        assert late.retriable
        assert isinstance(behind, ConnectionLost)
        assert read == ["a"]


async def test_a_broker_that_is_gone_is_tried_with_growing_delays_until_the_bound() -> None:
    delays: list[float] = []
    clock = ManualClock()

    async def sleep(seconds: float) -> None:
        delays.append(seconds)
        clock.advance(seconds)

    retry = RetryPolicy(attempts_max=5, delay_s_first=0.1, delay_s_max=0.4)
    async with scripted(in_order()) as broker:
        client = AsyncFlyMQClient(
            broker.url, options=ClientOptions(retry=retry), clock=clock, random=Random(1), sleep=sleep
        )
        await broker.stop()
        with pytest.raises(Unreachable, match=r"nothing listens there; is the broker running\? \(5 attempts"):
            await client.send("t", b"a")
        assert [0.05 <= delays[0] <= 0.1, 0.1 <= delays[1] <= 0.2, 0.2 <= delays[2] <= 0.4] == [True] * 3
        assert len(delays) == 4
        with pytest.raises(Unreachable):
            await client.send_many("t", [b"a", b"b"])
        await client.close()


async def test_time_is_a_bound_on_connecting_too() -> None:
    clock = ManualClock()

    async def sleep(seconds: float) -> None:
        clock.advance(60)

    async with scripted(in_order()) as broker:
        client = AsyncFlyMQClient(broker.url, clock=clock, sleep=sleep)
        await broker.stop()
        with pytest.raises(Unreachable, match="2 attempts in 60"):
            await client.topics()


async def test_a_connection_that_is_closed_as_soon_as_it_is_made_is_made_again() -> None:
    async with scripted(in_order()) as broker:
        broker.refusals = 2
        client = AsyncFlyMQClient(broker.url, idempotent=False, random=Random(1), sleep=no_sleep)
        assert (await client.send("t", b"a")).offset == 0
        assert len(broker.peers) == 3
        await client.close()


async def test_opening_tries_once() -> None:
    async with scripted(in_order()) as broker:
        await broker.stop()
        with pytest.raises(Unreachable, match=r"is the broker running\?$"):
            await AsyncFlyMQClient(broker.url).open()


async def test_requests_that_wait_for_a_connection_share_it() -> None:
    async with scripted(in_order()) as broker:
        client = AsyncFlyMQClient(broker.url, idempotent=False)
        await asyncio.gather(*(client.send("t", b"a") for _ in range(10)))
        assert len(broker.peers) == 1
        await client.close()


async def test_a_broker_that_accepts_and_says_nothing_to_a_login_is_given_up() -> None:
    options = ClientOptions(connect_timeout_s=0.05, retry=NO_RETRY)
    async with scripted(never) as broker:
        client = AsyncFlyMQClient(f"flymq://ann:secret@127.0.0.1:{broker.port}", options=options)
        with pytest.raises(Unreachable, match=r"no answer within 0\.05 s"):
            await client.open()


# -- what the broker sends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", frame(Commit.opcode, b"\x01"), HEADER.pack(0xAF, 1, 1, 1, (32 << 20) + 1)],
    ids=["another protocol", "another opcode", "an oversize frame"],
)
async def test_an_answer_that_is_none_ends_the_connection(reply: bytes) -> None:
    async with scripted(lambda *_: reply) as broker, connected(broker) as client:
        with pytest.raises(ProtocolViolation, match="sent an invalid reply"):
            await client.send("t", b"a")
        with pytest.raises(ProtocolViolation, match="sent an invalid reply"):
            await client.topics()


async def test_a_frame_nobody_asked_for_ends_the_connection() -> None:
    async with scripted(lambda *_: names() + names("again")) as broker, connected(broker) as client:
        assert await client.topics() == []
        pipeline = client._requests._pipeline
        assert pipeline is None or pipeline.lost is not None


async def test_a_reply_in_single_bytes_is_put_together() -> None:
    async def drip(peer: Peer) -> None:
        for byte in names("a", "b"):
            peer.transport.write(bytes((byte,)))
            await asyncio.sleep(0)

    tasks = set()

    def answer(peer: Peer, opcode: int, payload: bytes) -> None:
        tasks.add(asyncio.create_task(drip(peer)))

    async with scripted(answer) as broker, connected(broker) as client:
        assert await client.topics() == ["a", "b"]


async def test_the_answer_to_a_cancelled_request_is_dropped_and_the_next_one_finds_its_owner() -> None:
    held: list[Peer] = []

    def hold_first(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
        if len(broker.requests) == 1:
            held.append(peer)
            return None
        return names("first") + names("second")

    async with scripted(hold_first) as broker, connected(broker) as client:
        first = asyncio.create_task(client.topics())
        await broker.requests_arrived(1)
        first.cancel()
        assert await client.topics() == ["second"]


# -- bounds, login, closing ------------------------------------------------------------------------------------------------


async def test_requests_beyond_the_window_wait_until_earlier_ones_are_answered() -> None:
    async with scripted(never) as broker, connected(broker, ClientOptions(in_flight_requests_max=2)) as client:
        sends = [asyncio.create_task(client.send("t", b"a")) for _ in range(3)]
        await broker.requests_arrived(2)
        assert await settled_requests(broker) == 2
        broker.peers[0].transport.write(produced(0))
        await broker.requests_arrived(3)
        broker.peers[0].transport.write(produced(1) + produced(2))
        assert [each.offset for each in await asyncio.gather(*sends)] == [0, 1, 2]


async def settled_requests(broker: ScriptedBroker) -> int:
    for _ in range(20):
        await asyncio.sleep(0)
    return len(broker.requests)


async def test_a_login_comes_first_on_every_connection() -> None:
    def answer(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
        if opcode == Auth.opcode:
            return frame(AUTH_RESPONSE, b"\x01" + b"\0\0" + b"\0\x03ann" + b"\0\0\0\0")
        if peer.number == 0:
            peer.transport.abort()
        return names()

    async with scripted(answer) as broker:
        async with connected(broker, url=f"flymq://ann:secret@127.0.0.1:{broker.port}") as client:
            await client.topics()
        login = (Auth.opcode, b"\0\x03ann\0\x06secret")
        assert broker.requests == [login, (ListTopics.opcode, b"")] * 2


@pytest.mark.parametrize("reply", [frame(AUTH_RESPONSE, b"\0" + bytes(8)), error("invalid username or password")])
async def test_a_login_that_is_refused_is_told_at_once(reply: bytes) -> None:
    async with scripted(lambda *_: reply) as broker:
        client = AsyncFlyMQClient(f"flymq://ann:wrong@127.0.0.1:{broker.port}", sleep=no_sleep)
        with pytest.raises(AuthenticationFailed):
            await client.topics()
        assert len(broker.peers) == 1


async def test_closing_waits_for_answers_and_then_refuses_requests() -> None:
    async with scripted(never) as broker, connected(broker) as client:
        send = asyncio.create_task(client.send("t", b"a"))
        await broker.requests_arrived(1)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        assert not closing.done()
        broker.peers[0].transport.write(produced(5))
        await closing
        assert (await send).offset == 5
        with pytest.raises(InvalidRequest, match="closed"):
            await client.send("t", b"b")


async def test_closing_while_connecting_ends_the_wait() -> None:
    reached = asyncio.Event()

    async def sleep(seconds: float) -> None:
        reached.set()
        await asyncio.Event().wait()

    async with scripted(never) as broker:
        await broker.stop()
        client = AsyncFlyMQClient(broker.url, idempotent=False, sleep=sleep)
        asking = asyncio.create_task(client.topics())
        await reached.wait()
        await client.close()
        with pytest.raises(InvalidRequest, match="closed while it was connecting"):
            await asking


def test_an_address_of_another_protocol_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not a FlyMQ address"):
        AsyncFlyMQClient("kafka://127.0.0.1:9092")


def test_every_option_has_a_bound_of_its_own() -> None:
    with pytest.raises(InvalidRequest, match="request_timeout_s is 0"):
        ClientOptions(request_timeout_s=0)


async def test_a_server_without_a_list_of_topics_is_asked_for_each() -> None:
    def answer(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
        if opcode == ListTopics.opcode:
            return names("a", "b")
        if opcode == Metadata.opcode:
            return frame(opcode, payload + b"\0\0\0\0")
        return error(f"unknown opcode: {opcode}")

    async with scripted(answer) as broker, connected(broker) as client:
        assert [each.name for each in await client.describe_topics()] == ["a", "b"]
