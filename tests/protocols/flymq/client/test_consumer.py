"""Consumers of one group against a real broker: sharing, hand-over, committing, and losing what they had."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.clock import SystemClock
from penstock.errors import ConsumerFenced, InstanceFenced, InvalidRequest, TopicNotFound
from penstock.protocols.flymq.client.client import AsyncFlyMQClient
from penstock.protocols.flymq.client.consumer import AsyncConsumer, TopicPartition
from penstock.protocols.flymq.operations.groups import GroupHeartbeat
from penstock.testing import RunningBroker
from penstock.testing.clock import ManualClock

GROUP = "billing"


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with RunningBroker(topics=[{"name": "orders", "partitions": 4}]) as broker:
        client = broker.connect()
        for partition in range(4):
            client.send_many("orders", [b"%d-%d" % (partition, number) for number in range(5)], partition=partition)
        yield broker


@asynccontextmanager
async def consumers(broker: RunningBroker, count: int, **options: Any) -> AsyncIterator[list[AsyncConsumer]]:
    """Consumers, each with a connection of its own."""
    clients = [AsyncFlyMQClient(f"flymq://{broker.address}") for _ in range(count)]
    made = [client.consumer(["orders"], group=GROUP, **options) for client in clients]
    try:
        yield made
    finally:
        for consumer in made:
            await consumer.close()
        for client in clients:
            await client.close()


async def poll_until(done: Callable[[], bool], *made: AsyncConsumer) -> list[bytes | None]:
    """Poll all consumers until something is so; returns the values they got."""
    values: list[bytes | None] = []
    while not done():
        for consumer in made:
            values += [record.value for record in await consumer.poll(timeout_s=0.01)]
    return values


async def read(count: int, *made: AsyncConsumer) -> list[bytes | None]:
    """Poll all consumers until they have that many records."""
    values: list[bytes | None] = []
    while len(values) < count:
        for consumer in made:
            values += [record.value for record in await consumer.poll(timeout_s=0.01)]
    return values


def all_values() -> list[bytes]:
    return sorted(b"%d-%d" % (partition, number) for partition in range(4) for number in range(5))


def shared_evenly(*made: AsyncConsumer) -> Callable[[], bool]:
    def check() -> bool:
        held = [partition for consumer in made for partition in consumer.assignment]
        return len(held) == len(set(held)) == 4 and max(len(each.assignment) for each in made) == 4 // len(made)

    return check


def committed(broker: RunningBroker) -> dict[int, int]:
    client = broker.connect()
    try:
        return client.describe_group(GROUP, "orders")[0].offsets
    finally:
        client.close()


async def test_a_consumer_reads_every_partition_and_commits_what_it_processed(broker: RunningBroker) -> None:
    async with consumers(broker, 1) as [consumer]:
        got: list[bytes] = []
        async for record in consumer:
            got.append(record.value or b"")
            if len(got) == 20:
                break
        assert sorted(got) == all_values()
    assert committed(broker) == dict.fromkeys(range(4), 5)


async def test_two_consumers_share_and_no_record_is_read_twice(broker: RunningBroker) -> None:
    async with consumers(broker, 2) as [a, b]:
        values = await poll_until(shared_evenly(a), a)
        values += await poll_until(shared_evenly(a, b), a, b)
        more = [b"more-%d" % number for number in range(40)]
        broker.connect().send_many("orders", more)
        values += await read(60 - len(values), a, b)
        assert sorted(filter(None, values)) == sorted([*all_values(), *more])
        assert a.generation == b.generation == 2


async def test_a_consumer_that_closes_hands_its_partitions_over_with_its_offsets(broker: RunningBroker) -> None:
    async with consumers(broker, 2, auto_commit=True) as [a, b]:
        values = await poll_until(shared_evenly(a, b), a, b)
        values += await read(20 - len(values), a, b)
        await a.close()
        assert await poll_until(shared_evenly(b), b) == []
        assert sorted(filter(None, values)) == all_values()
        with pytest.raises(InvalidRequest, match="closed"):
            await a.poll()


async def test_callbacks_are_told_what_is_taken_up_given_up_and_lost(broker: RunningBroker) -> None:
    told: list[tuple[str, list[int]]] = []

    def note(what: str) -> Callable[[Sequence[TopicPartition]], None]:
        return lambda partitions: told.append((what, [each.partition for each in partitions]))

    async def note_later(partitions: Sequence[TopicPartition]) -> None:
        told.append(("revoked", [each.partition for each in partitions]))

    async with consumers(broker, 1, on_assigned=note("assigned"), on_revoked=note_later, on_lost=note("lost")) as [a]:
        await poll_until(shared_evenly(a), a)
        assert told == [("assigned", [0, 1, 2, 3])]
        async with consumers(broker, 1) as [b]:
            await poll_until(shared_evenly(a, b), a, b)
            assert told[1][0] == "revoked"
            assert len(told[1][1]) == 2
        await poll_until(shared_evenly(a), a)
        assert told[2] == ("assigned", told[1][1])
        member = a.member_id
        assert isinstance(broker.clock, ManualClock)
        broker.clock.advance(31)
        await poll_until(lambda: len(told) == 5, a)
        assert told[3:] == [("lost", [0, 1, 2, 3]), ("assigned", [0, 1, 2, 3])]
        assert a.member_id != member
    assert told[5:] == [("revoked", [0, 1, 2, 3])]


async def test_partitions_that_come_back_while_they_are_given_up_are_read_on_from_the_committed_offset(
    broker: RunningBroker,
) -> None:
    async def let_them_come_back(partitions: Sequence[TopicPartition]) -> None:
        await b.close()
        while a.generation < 3:
            await asyncio.sleep(0)

    async with consumers(broker, 1) as [b], consumers(broker, 1, on_revoked=let_them_come_back) as [a]:
        assert sorted(filter(None, await read(20, a))) == all_values()
        assert a.generation == 1
        await poll_until(lambda: b.generation == 2, b)
        assert await poll_until(lambda: a.generation == 3, a) == []
        assert await poll_until(shared_evenly(a), a) == []
        broker.connect().send("orders", b"after", partition=3)
        assert await read(1, a) == [b"after"]


async def test_partitions_that_were_lost_while_a_heartbeat_was_on_its_way_are_read_on_from_the_committed_offset(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    answered, go_on = asyncio.Event(), asyncio.Event()
    lost: list[Sequence[TopicPartition]] = []
    async with (
        AsyncFlyMQClient(f"flymq://{broker.address}", clock=clock) as client,
        client.consumer(["orders"], group=GROUP, session_timeout_s=10, on_lost=lost.append) as a,
    ):
        assert sorted(filter(None, await read(20, a))) == all_values()
        await a.poll(timeout_s=0)
        await a.commit()
        ask = client._channel.ask

        async def ask_and_wait(request: Any) -> Any:
            answer = await ask(request)
            if isinstance(request, GroupHeartbeat):
                answered.set()
                await go_on.wait()
            return answer

        monkeypatch.setattr(client._channel, "ask", ask_and_wait)
        await answered.wait()
        clock.advance(11)
        assert await a.poll(timeout_s=0) == []
        assert a.assignment == []
        go_on.set()
        while len(a.assignment) < 4:
            assert await a.poll(timeout_s=0) == []
        assert len(lost) == 1
        broker.connect().send("orders", b"after", partition=3)
        assert await read(1, a) == [b"after"]


async def test_without_auto_commit_only_commit_moves_the_group(broker: RunningBroker) -> None:
    async with consumers(broker, 1, auto_commit=False) as [a]:
        records = await a.poll(7, timeout_s=30)
        await a.commit()
        read = {each: sum(record.partition == each for record in records) for each in range(4)}
        assert committed(broker) == {each: count for each, count in read.items() if count}
        await a.commit({TopicPartition("orders", 3): 2})
        await a.poll()
    assert committed(broker)[3] == 2
    assert sum(committed(broker).values()) == 9 - read[3] if read[3] else 9


async def test_what_an_exception_interrupts_is_read_again(broker: RunningBroker) -> None:
    interrupted: list[bytes] = []

    async def fail() -> None:
        async with consumers(broker, 1) as [a], a:
            while not interrupted:
                interrupted.extend(record.value or b"" for record in await a.poll())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with consumers(broker, 1) as [b]:
        assert set(interrupted) <= set(await read(20, b))


async def test_a_batch_that_was_left_half_way_is_committed_half_way(broker: RunningBroker) -> None:
    async with consumers(broker, 1) as [a]:
        count = 0
        async for _ in a:
            count += 1
            if count == 8:
                break
    assert sum(committed(broker).values()) == 8


async def test_a_fenced_consumer_cannot_commit(broker: RunningBroker) -> None:
    async with consumers(broker, 1, auto_commit=False) as [a]:
        await a.poll(20, timeout_s=30)
        member = a.member_id
        assert isinstance(broker.clock, ManualClock)
        broker.clock.advance(31)
        with pytest.raises(ConsumerFenced):
            await a.commit()
        await poll_until(lambda: a.member_id != member and len(a.assignment) == 4, a)
    assert broker.connect().monitoring.groups(GROUP)[0].partitions[0].committed == -1


async def test_a_static_consumer_keeps_its_partitions_over_a_restart(broker: RunningBroker) -> None:
    told: list[Sequence[TopicPartition]] = []
    async with consumers(broker, 1, on_revoked=told.append) as [other]:
        async with consumers(broker, 1, instance_id="worker-1") as [first]:
            await poll_until(shared_evenly(first, other), first, other)
            held = first.assignment
        told.clear()
        async with consumers(broker, 1, instance_id="worker-1") as [again]:
            await poll_until(shared_evenly(again, other), again, other)
            assert again.assignment == held
            assert told == []
            async with consumers(broker, 1, instance_id="worker-1") as [third]:
                await poll_until(shared_evenly(third, other), third, other)
                with pytest.raises(InstanceFenced, match="worker-1"):
                    await poll_until(lambda: False, again)


async def test_latest_begins_at_the_end_and_stays_there_over_a_restart(broker: RunningBroker) -> None:
    async with consumers(broker, 1, start="latest") as [a]:
        assert await poll_until(shared_evenly(a), a) == []
    broker.connect().send("orders", b"between", partition=2)
    async with consumers(broker, 1, start="latest") as [a]:
        [record] = await a.poll(timeout_s=30)
        assert (record.partition, record.value) == (2, b"between")


async def test_a_consumer_outlives_a_broker_that_is_killed(broker: RunningBroker) -> None:
    lost: list[Sequence[TopicPartition]] = []
    async with consumers(broker, 2, on_lost=lost.append) as [a, b]:
        values = await poll_until(shared_evenly(a, b), a, b)
        values += await read(20 - len(values), a, b)
        held = a.assignment, b.assignment
        members = a.member_id, b.member_id
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(broker.connect().send, "orders", b"after", None, 1)
        assert b"after" in await read(1, a, b)
        assert (a.assignment, b.assignment) == held
        assert (a.member_id, b.member_id) == members
        assert lost == []


async def test_a_consumer_that_does_not_poll_leaves_its_partitions_to_others(broker: RunningBroker) -> None:
    clock = ManualClock()
    client = AsyncFlyMQClient(f"flymq://{broker.address}", clock=clock)
    lost: list[Sequence[TopicPartition]] = []
    a = client.consumer(["orders"], group=GROUP, session_timeout_s=600, poll_interval_s_max=60, on_lost=lost.append)
    while len(a.assignment) < 4:
        await a.poll(1, timeout_s=0)
    clock.advance(61)
    async with consumers(broker, 1) as [b]:
        await poll_until(shared_evenly(b), b)
    assert lost == []
    while len(a.assignment) < 4:
        await a.poll(1, timeout_s=0)
    assert len(lost[0]) == 4
    await a.close()
    await client.close()


async def test_what_cannot_be_is_refused_with_a_reason(broker: RunningBroker) -> None:
    client = AsyncFlyMQClient(f"flymq://{broker.address}", clock=SystemClock())
    with pytest.raises(InvalidRequest, match="topics must be a list"):
        client.consumer("orders", group=GROUP)
    with pytest.raises(InvalidRequest, match="topics must be a list"):
        client.consumer([], group=GROUP)
    consumer = client.consumer(["orders"], group=GROUP)
    with pytest.raises(InvalidRequest, match="max_records is 0"):
        await consumer.poll(0)
    await consumer.close()
    missing = client.consumer(["missing"], group=GROUP)
    with pytest.raises(TopicNotFound):
        await missing.poll(timeout_s=30)
    await missing.close()
    await client.close()


async def test_an_instance_id_of_none_makes_a_dynamic_member(broker: RunningBroker) -> None:
    async with consumers(broker, 2, instance_id=None) as made:
        await poll_until(shared_evenly(*made), *made)


async def test_a_heartbeat_that_cannot_be_sent_fails_the_poll(broker: RunningBroker) -> None:
    async with AsyncFlyMQClient(f"flymq://{broker.address}") as client:
        consumer = client.consumer(["orders"], group=7)  # type: ignore[arg-type]
        with pytest.raises(AttributeError):
            await poll_until(lambda: False, consumer)


def test_a_sync_consumer_reads_and_its_callbacks_may_use_it(broker: RunningBroker) -> None:
    client = broker.connect()
    told: list[str] = []

    def give_up(partitions: Sequence[TopicPartition]) -> None:
        consumer.commit()
        told.append(",".join(str(each.partition) for each in partitions))

    with client.consumer(["orders"], group=GROUP, auto_commit=False, on_revoked=give_up) as consumer:
        got = []
        for record in consumer:
            got.append(record.value or b"")
            if len(got) == 20:
                break
        assert sorted(got) == all_values()
        assert [each.partition for each in consumer.assignment] == [0, 1, 2, 3]
    assert told == ["0,1,2,3"]
    assert client.describe_group(GROUP, "orders")[0].offsets == dict.fromkeys(range(4), 5)
    assert consumer.closed


async def test_partitions_that_always_have_records_keep_no_other_waiting() -> None:
    with RunningBroker(topics=[{"name": "many", "partitions": 20}]) as broker:
        async with AsyncFlyMQClient(f"flymq://{broker.address}") as client:
            consumer = client.consumer(["many"], group=GROUP)
            seen: set[int] = set()
            for _ in range(5):
                await asyncio.gather(*(client.send("many", b"one more", partition=each) for each in range(20)))
                seen |= {record.partition for record in await consumer.poll()}
            assert seen == set(range(20))
            await consumer.close()
