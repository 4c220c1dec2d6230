"""Idempotent producers on the real engine: what is sent again is stored once and answered as before."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.access.checks import ANONYMOUS, Principal
from penstock.broker.broker import Broker
from penstock.broker.idempotence.sequences import IN_FLIGHT_MAX
from penstock.broker.idempotence.stored import PRODUCERS_TOPIC, REASON_CHARACTERS_MAX, REASONS_MAX
from penstock.broker.limits import BrokerLimits
from penstock.errors import (
    AccessDenied,
    InvalidRequest,
    NoSpace,
    OutcomeUnknown,
    OutOfOrderSequence,
    RecordTooLarge,
    ServerError,
    TopicNotFound,
    UnknownProducer,
    ValidationFailed,
)
from penstock.log.api import Appended, BatchFor, Durability, LateBatch, OnAllAppended, TopicConfig
from penstock.names import NAME_BYTES_MAX
from penstock.testing.clock import ManualClock
from tests.broker.idempotence.sending import Client, client_of, places
from tests.broker.producing import read_values
from tests.broker.transaction_house import House

SCHEMA = '{"type": "object"}'


@pytest.fixture
async def orders(broker: Broker) -> Broker:
    await broker.topics.create(ANONYMOUS, "orders", TopicConfig(partitions=3))
    return broker


async def stored(broker: Broker, topic: str = "orders", partitions: int = 3) -> list[list[bytes | None]]:
    return [await read_values(broker.records.partition(ANONYMOUS, topic, index)) for index in range(partitions)]


@pytest.mark.dense
async def test_a_request_that_is_sent_again_is_stored_once_and_gets_the_same_answer(orders: Broker) -> None:
    client = await client_of(orders)
    request = client.request("orders", [b"a", b"b", b"c", b"d"], [None, b"k", None, b"k"])
    first = await client.send(orders, request)
    again = await client.send(orders, request)
    assert places(first, 4) == places(again, 4)
    assert first.places[0].timestamp_ms == again.places[0].timestamp_ms
    assert sorted(value for part in await stored(orders) for value in part if value) == [b"a", b"b", b"c", b"d"]
    for value, place in zip([b"a", b"b", b"c", b"d"], places(again, 4), strict=True):
        assert place is not None
        assert (await stored(orders))[place[0]][place[1]] == value
    assert orders.producers.stats.repeated == 1


async def test_a_request_that_comes_again_while_it_is_stored_waits_for_it(orders: Broker) -> None:
    client = await client_of(orders)
    request = client.request("orders", [b"a"])
    first, again = client.start(orders, request), client.start(orders, request)
    assert places(await first, 1) == places(await again, 1)
    assert sum(len(part) for part in await stored(orders)) == 1


async def test_requests_in_flight_are_stored_in_order(orders: Broker) -> None:
    client = await client_of(orders)
    requests = [client.request("orders", [b"%d" % number], [b"k"]) for number in range(IN_FLIGHT_MAX)]
    await asyncio.gather(*[client.start(orders, request) for request in requests])
    assert [part for part in await stored(orders) if part] == [[b"%d" % number for number in range(IN_FLIGHT_MAX)]]


async def test_numbers_out_of_order_and_other_records_under_a_number_are_refused(orders: Broker) -> None:
    client = await client_of(orders)
    first = client.request("orders", [b"a"])
    await client.send(orders, first)
    skipped, third = client.request("orders", [b"b"]), client.request("orders", [b"c"])
    third.sequence = 90
    with pytest.raises(OutOfOrderSequence, match="sequence 90 is out of order: the lowest without an answer is 0"):
        await Client(client.producer, unanswered={0: first, 90: third}).send(orders, third)
    third.sequence = 2
    client.unanswered[0].values = [b"a", b"more"]
    with pytest.raises(InvalidRequest, match="was 1 records for topic orders, and is now 2 for orders"):
        await client.send(orders, first)
    await client.send(orders, skipped)
    client.answered(first)
    client.answered(skipped)
    await client.send(orders, third)
    client.next = 4
    with pytest.raises(OutOfOrderSequence, match="sequence 0 is out of order"):
        await Client(client.producer, next=1, unanswered={0: first}).send(orders, first)
    assert sum(len(part) for part in await stored(orders)) == 3
    assert orders.producers.stats.refused == 2


async def test_a_producer_is_known_to_its_principal_only(orders: Broker) -> None:
    client = await client_of(orders, Principal("alice"))
    stranger = Client(client.producer, Principal("bob"))
    with pytest.raises(UnknownProducer, match="belongs to another principal"):
        await stranger.send(orders, stranger.request("orders", [b"a"]))
    nobody = Client(bytes(16))
    with pytest.raises(UnknownProducer, match=r"producer 0{32} is unknown"):
        await nobody.send(orders, nobody.request("orders", [b"a"]))
    await client.send(orders, client.request("orders", [b"a"]))


async def test_a_missing_topic_refuses_the_request_and_leaves_its_number_free(orders: Broker) -> None:
    client = await client_of(orders)
    request = client.request("missing", [b"a"])
    with pytest.raises(TopicNotFound):
        await client.send(orders, request)
    await orders.topics.create(ANONYMOUS, "missing", TopicConfig())
    await client.send(orders, request)
    assert await stored(orders, "missing", 1) == [[b"a"]]


async def test_records_that_are_refused_stay_refused_when_the_request_is_sent_again(
    clock: ManualClock, house: House
) -> None:
    async with house:
        await house.topic("orders", partitions=3)
        await house.broker.schemas.register(ANONYMOUS, "order", "json", SCHEMA)
        client = await client_of(house.broker)
        mixed = client.request("orders", [b"{}", b"no json", b'{"a": 1}'], schema="order")
        first = await client.send(house.broker, mixed)
        assert [(row, type(error)) for row, error in first.refused] == [(1, ValidationFailed)]
        for _ in range(2):
            again = await client.send(house.broker, mixed)
            assert places(again, 3) == places(first, 3)
            [(row, error)] = again.refused
            assert (row, type(error), str(error)) == (1, ValidationFailed, str(first.refused[0][1]))
            await house.restart()
        refused = client.request("orders", [b"no json"], schema="order")
        for _ in range(2):
            outcome = await client.send(house.broker, refused)
            assert (places(outcome, 1), [type(error) for _, error in outcome.refused]) == ([None], [ValidationFailed])
        await client.send(house.broker, client.request("orders", [b"{}"]))
        assert sum([len(await house.values("orders", index)) for index in range(3)]) == 3


async def test_of_many_reasons_the_first_are_kept(orders: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders._producer, "_limits", BrokerLimits(record_bytes_max=10))
    client = await client_of(orders)
    request = client.request("orders", [b"fits", *[b"x" * 11] * (REASONS_MAX + 1)])
    assert {type(error) for _, error in (await client.send(orders, request)).refused} == {RecordTooLarge}
    again = (await client.send(orders, request)).refused
    assert [type(error) for _, error in again] == [RecordTooLarge] * REASONS_MAX + [ServerError]
    assert max(len(str(error)) for _, error in again) <= REASON_CHARACTERS_MAX


@pytest.mark.parametrize("crash", [False, pytest.param(True, marks=pytest.mark.embedded)])
async def test_what_was_stored_before_a_restart_or_a_crash_is_not_stored_again(house: House, crash: bool) -> None:
    async with house:
        await house.topic("orders", partitions=3)
        await house.topic("single")
        client = await client_of(house.broker)
        spread = client.request("orders", [b"%d" % number for number in range(100)], [b"k%d" % n for n in range(100)])
        single = client.request("single", [b"a", b"b"])
        before = [await client.send(house.broker, spread), await client.send(house.broker, single)]
        await (house.crash() if crash else house.restart())
        after = [await client.send(house.broker, spread), await client.send(house.broker, single)]
        assert [places(written, count) for written, count in zip(before, (100, 2), strict=True)] == [
            places(written, count) for written, count in zip(after, (100, 2), strict=True)
        ]
        assert await house.values("single") == [b"a", b"b"]
        assert sum([len(await house.values("orders", index)) for index in range(3)]) == 100
        for request in (spread, single):
            client.answered(request)
        await client.send(house.broker, client.request("single", [b"c"]))
        assert await house.values("single") == [b"a", b"b", b"c"]


@pytest.mark.embedded
async def test_a_full_disk_refuses_the_request_and_its_number_is_used_again(house: House) -> None:
    async with house:
        await house.topic("orders")
        client = await client_of(house.broker)
        request = client.request("orders", [b"a"])
        house.disk.disk_full()
        with pytest.raises(NoSpace):
            await client.send(house.broker, request)
        house.disk.disk_full_off()
        await client.send(house.broker, request)
        assert await house.values("orders") == [b"a"]


@pytest.mark.embedded
async def test_a_request_whose_outcome_is_unknown_is_not_said_to_be_missing_when_it_is_sent_again(house: House) -> None:
    async with house:
        await house.topic("orders")
        client = await client_of(house.broker)
        request = client.request("orders", [b"a"])
        house.disk.fail_next_fsync()
        for _ in range(2):
            with pytest.raises(OutcomeUnknown):
                await client.send(house.broker, request)
        await house.restart()
        await client.send(house.broker, request)
        assert await house.values("orders") == [b"a"]


@pytest.mark.parametrize("durability", ["none", "interval:1000"])
async def test_without_fsync_what_is_sent_again_after_a_restart_is_refused_if_it_may_be_stored(
    house: House, durability: str
) -> None:
    async with house:
        await house.topic("orders", durability=Durability.parse(durability), partitions=2)
        client = await client_of(house.broker)
        request = client.request("orders", [b"a", b"b"])
        first = await client.send(house.broker, request)
        assert places(await client.send(house.broker, request), 2) == places(first, 2)
        await house.restart()
        with pytest.raises(OutcomeUnknown, match=f"durability {durability}"):
            await client.send(house.broker, request)
        client.answered(request)
        new = client.request("orders", [b"c"])
        await client.send(house.broker, new)
        await client.send(house.broker, new)
        never_came = client.request("orders", [b"d"])
        never_came.sent = True
        await client.send(house.broker, never_came)
        assert {*await house.values("orders"), *await house.values("orders", 1)} == {b"a", b"b", b"c", b"d"}


@pytest.mark.embedded
@pytest.mark.parametrize("failures", [(errno.ENOSPC, errno.EIO), (errno.EIO, errno.ENOSPC)])
async def test_what_one_partition_refuses_is_not_said_of_another_whose_outcome_is_unknown(
    house: House, failures: tuple[int, int]
) -> None:
    async with house:
        await house.topic("orders", durability=Durability.parse("none"), partitions=2)
        client = await client_of(house.broker)
        request = client.request("orders", [b"a", b"b"])
        for failure in failures:
            house.disk.fail_next_write(failure)
        for _ in range(2):
            with pytest.raises(OutcomeUnknown):
                await client.send(house.broker, request)


async def test_a_topic_that_was_deleted_and_made_again_does_not_get_the_records_again(orders: Broker) -> None:
    client = await client_of(orders)
    request = client.request("orders", [b"a"])
    first = await client.send(orders, request)
    await orders.topics.delete(ANONYMOUS, "orders")
    await orders.topics.create(ANONYMOUS, "orders", TopicConfig(partitions=3))
    assert places(await client.send(orders, request), 1) == places(first, 1)
    assert await stored(orders) == [[], [], []]


async def test_a_request_that_is_refused_before_it_is_numbered_does_not_hold_up_those_after_it(orders: Broker) -> None:
    client = await client_of(orders)
    refused, behind = client.request("__groups", [b"a"]), client.request("orders", [b"b"])
    with pytest.raises(AccessDenied):
        await client.send(orders, refused)
    await client.send(orders, behind)
    await client.send(orders, behind)
    assert sum(len(part) for part in await stored(orders)) == 1


# -- bounds ----------------------------------------------------------------------------------------------------------------


def limited(tmp_path: Path, clock: ManualClock, **limits: Any) -> House:
    return House(tmp_path / "data", clock, BrokerLimits(**limits))


async def test_the_producer_that_was_silent_for_longest_is_forgotten_first(tmp_path: Path, clock: ManualClock) -> None:
    async with limited(tmp_path, clock, producers_max=2) as house:
        await house.topic("orders")
        one, two = await client_of(house.broker), await client_of(house.broker)
        requests = [(client, client.request("orders", [b"x"])) for client in (two, one)]
        for client, request in requests:
            await client.send(house.broker, request)
        three = await client_of(house.broker)
        for _ in range(2):
            with pytest.raises(UnknownProducer):
                await two.send(house.broker, requests[0][1])
            await one.send(house.broker, requests[1][1])
            assert len(house.broker.producers) == 2
            await house.restart()
        await three.send(house.broker, three.request("orders", [b"y"]))
        assert await house.values("orders") == [b"x", b"x", b"y"]


async def test_who_registers_many_producers_loses_their_own(tmp_path: Path, clock: ManualClock) -> None:
    greedy = Principal("greedy", trusted=True)
    async with limited(tmp_path, clock, producers_max=4) as house:
        await house.topic("orders")
        modest = [await client_of(house.broker) for _ in range(2)]
        requests = [client.request("orders", [b"x"]) for client in modest]
        for _ in range(2):
            many = [await client_of(house.broker, greedy) for _ in range(10)]
            assert len(house.broker.producers) == 4
            for client, request in zip(modest, requests, strict=True):
                await client.send(house.broker, request)
            with pytest.raises(UnknownProducer):
                await many[0].send(house.broker, many[0].request("orders", [b"y"]))
            await many[-1].send(house.broker, many[-1].request("orders", [b"y"]))
            await house.restart()
        assert Counter(await house.values("orders")) == {b"x": 2, b"y": 2}


async def test_whose_answers_take_the_most_loses_their_own(tmp_path: Path, clock: ManualClock) -> None:
    greedy = Principal("greedy", trusted=True)
    async with limited(tmp_path, clock, producers_bytes_max=2500) as house:
        await house.topic("orders")
        modest = await client_of(house.broker)
        request = modest.request("orders", [b"x"])
        await modest.send(house.broker, request)
        for _ in range(3):
            client = await client_of(house.broker, greedy)
            for number in range(10):
                await client.send(house.broker, client.request("orders", [b"%d" % number]))
                assert house.broker.producers.size_bytes <= 2500
        assert house.broker.producers.stats.forgotten > 0
        await modest.send(house.broker, request)
        assert (await house.values("orders")).count(b"x") == 1


async def test_an_idle_producer_is_forgotten_in_time(tmp_path: Path, clock: ManualClock) -> None:
    async with limited(tmp_path, clock, producers_idle_ms=1000) as house:
        await house.topic("orders")
        client = await client_of(house.broker)
        request = client.request("orders", [b"x"])
        await client.send(house.broker, request)
        # With it the answer to the first is written to the table, too, and gets its time.
        await client_of(house.broker)
        clock.advance(1.0)
        await client.send(house.broker, request)
        clock.advance(1.001)
        with pytest.raises(UnknownProducer):
            await client.send(house.broker, request)
        await house.restart()
        assert len(house.broker.producers) == 0
        partition = house.engine.partition(PRODUCERS_TOPIC, 0)
        while None not in await read_values(partition):
            await asyncio.sleep(0)


async def test_requests_of_one_producer_have_idle_ones_forgotten_in_time(tmp_path: Path, clock: ManualClock) -> None:
    async with limited(tmp_path, clock, producers_idle_ms=1000) as house:
        await house.topic("orders")
        await client_of(house.broker)
        busy = await client_of(house.broker)
        for known_after in (2, 2, 2, 1):
            request = busy.request("orders", [b"x"])
            await busy.send(house.broker, request)
            busy.answered(request)
            assert len(house.broker.producers) == known_after
            clock.advance(0.5)
        await client_of(house.broker)
        for known_after in (2, 2, 1, 1):
            clock.advance(0.4)
            request = busy.request("orders", [b"x"])
            await busy.send(house.broker, request)
            busy.answered(request)
            assert len(house.broker.producers) == known_after


@pytest.mark.embedded
async def test_an_entry_is_not_larger_than_the_log_was_told(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, told, partitions = "t" * NAME_BYTES_MAX, list[LateBatch](), 40
    async with House(tmp_path / "data", clock) as house:
        await house.broker.topics.create(ANONYMOUS, topic, TopicConfig(partitions=partitions))
        client = await client_of(house.broker)
        client.next = 1 << 40
        append_atomic = house.engine.append_atomic

        def noting(parts: Sequence[BatchFor], done: OnAllAppended) -> None:
            told.extend(part.batch for part in parts if isinstance(part.batch, LateBatch))
            append_atomic(parts, done)

        monkeypatch.setattr(house.broker.producers, "append_atomic", noting)
        values = [b"%d" % number for number in range(partitions)]
        for request in (client.request(topic, values[:1]), client.request(topic, values)):
            written = await client.send(house.broker, request)
            places = {house.engine.partition(topic, place.partition): Appended(*place[1:]) for place in written.places}
            late = told.pop()
            assert len(late.key or b"") + len(late.make(places)) <= late.size_bytes


async def test_answers_take_bounded_memory(tmp_path: Path, clock: ManualClock) -> None:
    async with limited(tmp_path, clock, producers_bytes_max=2500) as house:
        await house.topic("orders")
        clients = [await client_of(house.broker) for _ in range(3)]
        for client in clients:
            for number in range(10):
                await client.send(house.broker, client.request("orders", [b"%d" % number]))
                assert house.broker.producers.size_bytes <= 2500
        assert 0 < len(house.broker.producers) < 3
        assert house.broker.producers.stats.forgotten == 3 - len(house.broker.producers)
        last, before_bytes = clients[-1], house.broker.producers.size_bytes
        last.unanswered.clear()
        await last.send(house.broker, last.request("orders", [b"end"]))
        assert house.broker.producers.size_bytes < before_bytes - 500


async def test_a_forgotten_producer_leaves_no_records_behind(tmp_path: Path, clock: ManualClock) -> None:
    async with limited(tmp_path, clock, producers_max=1) as house:
        await house.topic("orders")
        first = await client_of(house.broker)
        for number in range(5):
            await first.send(house.broker, first.request("orders", [b"%d" % number]))
        await client_of(house.broker)
        await house.restart()
        partition = house.engine.partition(PRODUCERS_TOPIC, 0)
        alive: dict[bytes | None, bytes | None] = {}
        for block in await partition.read(0):
            alive.update(zip(block.keys() or [], block.values(), strict=True))
        assert sum(value is not None for value in alive.values()) == 1
