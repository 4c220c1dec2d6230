"""The idempotent producer of the client: against a broker that hangs up as the test says, and against a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.clients.options import ClientOptions
from penstock.clients.records import RecordMetadata
from penstock.clients.retry import NO_RETRY, RetryPolicy
from penstock.errors import (
    BatchFailed,
    ConnectionLost,
    InvalidRequest,
    NoSpace,
    OutOfOrderSequence,
    ProtocolViolation,
    RequestTimeout,
    UnknownProducer,
    Unreachable,
    ValidationFailed,
)
from penstock.protocols.flymq.client import AsyncFlyMQClient
from penstock.protocols.flymq.client.once import OnceExchange
from penstock.protocols.flymq.client.producing import Outgoing
from penstock.protocols.flymq.operations.operation import decode_request, encode_reply
from penstock.protocols.flymq.operations.records import (
    Produce,
    ProduceOnce,
    RecordFailure,
    RegisteredProducer,
    RegisterProducer,
    StoredOnce,
)
from penstock.testing.broker import RunningBroker
from tests.protocols.flymq.scripted import Answer, Peer, ScriptedBroker, connected, error, produced, scripted

QUICK = ClientOptions(retry=RetryPolicy(attempts_max=3, delay_s_first=0.001, delay_s_max=0.001))


def broker_of(answer: Callable[[Peer, ProduceOnce], bytes | None]) -> Answer:
    """Register producers 1, 2 and so on, and leave their requests to `answer`."""
    ids = iter(range(1, 100))

    def script(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
        if opcode == RegisterProducer.opcode:
            return encode_reply(RegisterProducer, RegisteredProducer(next(ids).to_bytes(16, "big"), 16))
        request = decode_request(opcode, payload)
        assert isinstance(request, ProduceOnce)
        return answer(peer, request)

    return script


def stored(request: ProduceOnce) -> bytes:
    return encode_reply(ProduceOnce, StoredOnce([], [(0, 10 * request.sequence, 99)], []))


def numbers(broker: ScriptedBroker) -> list[tuple[int, int, int, bool]]:
    """Producer, sequence, floor and whether it was sent before, of each request."""
    requests = [decode_request(opcode, payload) for opcode, payload in broker.requests if opcode == ProduceOnce.opcode]
    return [
        (int.from_bytes(each.producer, "big"), each.sequence, each.floor, each.resent)
        for each in requests
        if isinstance(each, ProduceOnce)
    ]


async def test_requests_are_numbered_in_order_under_an_id_that_is_asked_for_once() -> None:
    async with scripted(broker_of(lambda _, request: stored(request))) as broker:
        async with connected(broker, idempotent=True) as client:
            assert await client.send("t", b"a") == RecordMetadata("t", 0, 0, 99)
            assert await client.send_many("t", [b"b", b"c"]) == [RecordMetadata("t", 0, 10 + n, 99) for n in range(2)]
            assert await client.send("t", None, key=b"k", headers={"h": b"1"}, ttl_s=5) == RecordMetadata(
                "t", 0, 20, 99
            )
        assert numbers(broker) == [(1, 0, 0, False), (1, 1, 1, False), (1, 2, 2, False)]
        assert [opcode for opcode, _ in broker.requests].count(RegisterProducer.opcode) == 1


async def test_single_sends_of_one_moment_go_in_one_request() -> None:
    async with scripted(broker_of(lambda _, request: stored(request))) as broker:
        async with connected(broker, idempotent=True) as client:
            metadata = await asyncio.gather(*(client.send("t", b"%d" % number) for number in range(50)))
        assert [each.offset for each in metadata] == list(range(50))
        assert numbers(broker) == [(1, 0, 0, False)]


async def test_a_send_after_one_that_went_alone_does_not_wait_for_others() -> None:
    sizes: list[int] = []

    def counted(_: Peer, request: ProduceOnce) -> bytes:
        sizes.append(len(request.values))
        return stored(request)

    async with scripted(broker_of(counted)) as broker, connected(broker, idempotent=True) as client:
        await client.send("t", b"alone")
        for _ in range(2):
            await asyncio.gather(*(client.send("t", b"together") for _ in range(50)))
        assert sizes == [1, 1, 49, 50], "only the first of them, because others came in its turn"
        assert numbers(broker) == [(1, 0, 0, False), (1, 1, 1, False), (1, 2, 1, False), (1, 3, 3, False)]


async def test_a_caller_goes_on_before_the_room_in_the_connection_is_counted_again() -> None:
    exchange = OnceExchange(Outgoing("orders", [b"x"], None, None, -1), 0, 1, timeout_s=1.0)
    finished: list[bool] = []
    exchange.on_end = lambda ended, error: finished.append(ended.finished.done())
    exchange.succeed()
    assert (finished, exchange.finished.done()) == ([False], True)


async def test_what_was_in_flight_when_the_connection_was_lost_is_sent_again_in_order() -> None:
    def hang_up_once(peer: Peer, request: ProduceOnce) -> bytes | None:
        if peer.number == 0 and request.sequence == 2:
            peer.transport.abort()
        return stored(request) if peer.number else None

    async with scripted(broker_of(hang_up_once)) as broker, connected(broker, QUICK, idempotent=True) as client:
        metadata = await client.send_many("t", [b"x"] * 3000)
        assert [each.offset for each in metadata[::1024]] == [0, 10, 20]
        assert numbers(broker) == [(1, n, 0, False) for n in range(3)] + [(1, n, 0, True) for n in range(3)]


async def test_a_new_request_does_not_overtake_one_that_is_sent_again() -> None:
    def silent_first(peer: Peer, request: ProduceOnce) -> bytes | None:
        return stored(request) if peer.number else None

    async with scripted(broker_of(silent_first)) as broker, connected(broker, QUICK, idempotent=True) as client:
        first = asyncio.create_task(client.send("t", b"first"))
        await broker.requests_arrived(2)
        broker.peers[0].transport.abort()
        await asyncio.gather(first, client.send("t", b"second"))
        arrived = [(sequence, resent) for _, sequence, _, resent in numbers(broker)]
        assert arrived[:2] == [(0, False), (0, True)]
        # Whether the second counts as sent before depends on whether it was written to the connection that was lost.
        assert [sequence for sequence, _ in arrived] == [0, 0, 1]


async def test_a_connection_that_is_lost_again_and_again_is_told_in_the_end() -> None:
    def hang_up(peer: Peer, request: ProduceOnce) -> bytes | None:
        peer.transport.abort()
        return None

    async with scripted(broker_of(hang_up)) as broker, connected(broker, QUICK, idempotent=True) as client:
        with pytest.raises(ConnectionLost, match="may have been carried out"):
            await client.send("t", b"a")
        assert len(numbers(broker)) == 4
        with pytest.raises(ConnectionLost):
            await client.send_many("t", [b"a"] * 50_000)


async def test_without_a_broker_what_was_sent_is_in_doubt_and_what_was_not_is_unreachable() -> None:
    async with scripted(broker_of(lambda *_: None)) as broker:
        async with connected(broker, ClientOptions(retry=NO_RETRY), idempotent=True) as client:
            sent = asyncio.create_task(client.send("t", b"a"))
            await broker.requests_arrived(2)
            await broker.stop()
            with pytest.raises(ConnectionLost, match="may have been carried out"):
                await sent
            with pytest.raises(Unreachable):
                await client.send("t", b"b")


async def test_an_answer_that_is_late_is_told_and_the_next_request_leaves_its_number_out() -> None:
    options = ClientOptions(request_timeout_s=0.2)

    def slow(peer: Peer, request: ProduceOnce) -> bytes | None:
        return stored(request) if peer.number else None

    async with scripted(broker_of(slow)) as broker, connected(broker, options, idempotent=True) as client:
        with pytest.raises(RequestTimeout):
            await client.send("t", b"a")
        await client.send("t", b"b")
        assert numbers(broker) == [(1, 0, 0, False), (1, 1, 1, False)]


async def test_a_send_that_is_cancelled_is_not_sent_again() -> None:
    def silent_first(peer: Peer, request: ProduceOnce) -> bytes | None:
        return stored(request) if peer.number else None

    async with scripted(broker_of(silent_first)) as broker, connected(broker, QUICK, idempotent=True) as client:
        sending = asyncio.create_task(client.send_many("t", [b"a"]))
        await broker.requests_arrived(2)
        sending.cancel()
        await asyncio.wait([sending])
        broker.peers[0].transport.abort()
        await client.send("t", b"b")
        assert [sequence for _, sequence, _, _ in numbers(broker)].count(0) == 1
        assert numbers(broker)[-1][1:3] == (1, 1)


async def test_a_forgotten_producer_is_registered_again_for_what_was_sent_once() -> None:
    def forgotten(peer: Peer, request: ProduceOnce) -> bytes | None:
        return error("producer is unknown") if request.producer[-1] == 1 and request.sequence else stored(request)

    async with scripted(broker_of(forgotten)) as broker, connected(broker, QUICK, idempotent=True) as client:
        await client.send("t", b"a")
        metadata = await client.send_many("t", [b"x"] * 2000)
        assert [each.offset for each in metadata[::1024]] == [0, 10]
        assert numbers(broker)[-2:] == [(2, 0, 0, False), (2, 1, 0, False)]


async def test_requests_of_a_forgotten_producer_keep_their_order_however_slowly_they_are_answered() -> None:
    register = iter(range(1, 3))
    withheld: list[bytes] = []

    def forgotten(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
        if opcode == RegisterProducer.opcode:
            registered = RegisteredProducer(next(register).to_bytes(16, "big"), 16)
            return b"".join([*withheld, encode_reply(RegisterProducer, registered)])
        request = decode_request(opcode, payload)
        assert isinstance(request, ProduceOnce)
        if request.producer[-1] == 2:
            return stored(request)
        if request.sequence == 0:
            return error("producer is unknown")
        withheld.append(error("producer is unknown"))
        return None

    async with scripted(forgotten) as broker, connected(broker, QUICK, idempotent=True) as client:
        await client.send_many("t", [b"%d" % (number // 1024) for number in range(4 * 1024)])
        requests = [decode_request(opcode, payload) for opcode, payload in broker.requests]
        assert [
            (each.producer[-1], each.sequence, each.values[0]) for each in requests if isinstance(each, ProduceOnce)
        ] == [(producer, number, b"%d" % number) for producer in (1, 2) for number in range(4)]


@pytest.mark.parametrize("refusal", ["access denied: no", "shutting down: try again"])
async def test_a_refusal_before_numbers_are_checked_is_no_news_of_what_was_sent_before(refusal: str) -> None:
    def revoked(peer: Peer, request: ProduceOnce) -> bytes | None:
        if peer.number == 0:
            peer.transport.abort()
            return None
        return error(refusal)

    async with scripted(broker_of(revoked)) as broker, connected(broker, QUICK, idempotent=True) as client:
        with pytest.raises(ConnectionLost, match="may have been carried out"):
            await client.send("t", b"a")
        assert numbers(broker) == [(1, 0, 0, False), (1, 0, 0, True)]


async def test_a_forgotten_producer_is_told_for_what_may_have_been_stored() -> None:
    def forgotten(peer: Peer, request: ProduceOnce) -> bytes | None:
        if peer.number == 0:
            peer.transport.abort()
            return None
        return error("producer is unknown") if request.producer[-1] == 1 else stored(request)

    async with scripted(broker_of(forgotten)) as broker, connected(broker, QUICK, idempotent=True) as client:
        with pytest.raises(UnknownProducer):
            await client.send("t", b"a")
        await client.send("t", b"b")
        assert numbers(broker) == [(1, 0, 0, False), (1, 0, 0, True), (2, 0, 0, False)]


async def test_a_broker_that_forgets_every_producer_is_not_asked_forever() -> None:
    async with scripted(broker_of(lambda *_: error("producer is unknown"))) as broker:
        async with connected(broker, QUICK, idempotent=True) as client:
            with pytest.raises(UnknownProducer):
                await client.send("t", b"a")
            assert len(numbers(broker)) == 4


@pytest.mark.parametrize("refusal", ["unknown opcode: 202", "access denied: no"])
async def test_a_server_without_idempotent_producers_gets_plain_requests(refusal: str) -> None:
    offsets = iter(range(100))

    def plain(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
        return produced(next(offsets)) if opcode == Produce.opcode else error(refusal)

    async with scripted(plain) as broker, connected(broker, idempotent=True) as client:
        both = await asyncio.gather(client.send("t", b"a"), client.send_many("t", [b"b", b"c"]))
        assert [both[0].offset, *(each.offset for each in both[1])] in ([0, 1, 2], [2, 0, 1])
        await client.send("t", b"d")
        assert [opcode for opcode, _ in broker.requests].count(RegisterProducer.opcode) == 1


async def test_errors_are_told_of_the_records_they_concern() -> None:
    answers = iter([error("no space left"), error("sequence 1 is out of order"), b""])

    def answer(peer: Peer, request: ProduceOnce) -> bytes | None:
        refused = next(answers, b"")
        if refused:
            return refused
        return encode_reply(
            ProduceOnce, StoredOnce([1, 0xFFFF, 1], [(1, 5, 99)], [RecordFailure(1, "schema validation failed")])
        )

    async with scripted(broker_of(answer)) as broker, connected(broker, idempotent=True) as client:
        with pytest.raises(NoSpace):
            await client.send_many("t", [b"a"])
        with pytest.raises(OutOfOrderSequence):
            await client.send("t", b"b")
        with pytest.raises(BatchFailed) as failed:
            await client.send_many("t", [b"c", b"d", b"e"])
        first, second, third = failed.value.results
        assert (first, third) == (RecordMetadata("t", 1, 5, 99), RecordMetadata("t", 1, 6, 99))
        assert isinstance(second, ValidationFailed)


@pytest.mark.parametrize(
    "reply", [StoredOnce([0, 0], [(0, 0, 0)], []), StoredOnce([7], [(0, 0, 0)], []), StoredOnce([], [], [])]
)
async def test_an_answer_that_does_not_tell_where_the_records_are_is_refused(reply: StoredOnce) -> None:
    async with scripted(broker_of(lambda *_: encode_reply(ProduceOnce, reply))) as broker:
        async with connected(broker, QUICK, idempotent=True) as client:
            with pytest.raises(ProtocolViolation, match="does not tell where"):
                await client.send("t", b"a")


async def test_the_address_turns_it_off() -> None:
    async with scripted(lambda *_: produced(7)) as broker:
        async with connected(broker, url=f"{broker.url}?idempotent=false", idempotent=True) as client:
            assert (await client.send("t", b"a")).offset == 7
    with pytest.raises(InvalidRequest, match="write idempotent=true or idempotent=false"):
        AsyncFlyMQClient("flymq://127.0.0.1:1?idempotent=maybe")


async def test_many_headers_are_sent_in_requests_that_the_broker_takes() -> None:
    with RunningBroker() as broker:
        async with AsyncFlyMQClient(broker.url) as client:
            headers = [(f"h{number}", b"") for number in range(1000)]
            await client.send_many("t", [(None, b"%d" % number, headers) for number in range(12)])
            await asyncio.gather(*(client.send("t", b"x", headers=headers) for _ in range(12)))
            assert (await client.describe_topic("t")).partitions[0].next_offset == 24
