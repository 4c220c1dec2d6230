"""Reading several topics, and the newest records."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

import penstock
from penstock.errors import InvalidRequest, TopicNotFound
from penstock.protocols.flymq.client import AsyncFlyMQClient
from penstock.testing import RunningBroker


@pytest.fixture
async def client(penstock_broker: RunningBroker) -> AsyncIterator[AsyncFlyMQClient]:
    async with await penstock.connect_async(penstock_broker.url) as client:
        yield client


async def values(client: AsyncFlyMQClient, *topics: str, **how: object) -> list[bytes | None]:
    return [record.value async for record in client.records(topics, **how)]  # type: ignore[arg-type]


async def test_several_topics_are_read_together_and_followed_together(client: AsyncFlyMQClient) -> None:
    await client.create_topic("b", 2)
    await client.send_many("a", [b"1", b"2"])
    await client.send_many("b", [b"3", b"4"])
    assert sorted(value or b"" for value in await values(client, "a", "b")) == [b"1", b"2", b"3", b"4"]
    await client.create_topic("c")
    await client.create_topic("d", 2)
    found = []
    async with aclosing(client.records(["c", "d"], follow=True)) as live:
        for topic in ("d", "c", "d"):
            await client.send(topic, b"live")
            found.append((await anext(live)).topic)
    assert found == ["d", "c", "d"]
    with pytest.raises(TopicNotFound):
        await values(client, "a", "nope")


async def test_a_group_reads_several_topics(client: AsyncFlyMQClient) -> None:
    await client.send_many("a", [b"1", b"2"])
    await client.send("b", b"3")
    assert await values(client, "a", "b", group="g") == [b"1", b"2", b"3"]
    assert (await client.committed("a", "g", 0), await client.committed("b", "g", 0)) == (2, 1)


async def test_the_newest_records_are_those_of_all_partitions_by_time(
    penstock_broker: RunningBroker, client: AsyncFlyMQClient
) -> None:
    await client.create_topic("orders", 3)
    for number, partition in enumerate([2, 0, 1, 1, 1, 0]):
        penstock_broker.clock.advance(1)
        await client.send("orders", b"%d" % number, partition=partition)
    assert await values(client, "orders", last=4) == [b"2", b"3", b"4", b"5"]
    assert await values(client, "orders", last=100) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert await values(client, "orders", last=4, limit=2) == [b"2", b"3"]
    assert await values(client, "orders", last=2, partition=1) == [b"3", b"4"]
    live = client.records("orders", last=1, follow=True, limit=2)
    assert (await anext(live)).value == b"5"
    await client.send("orders", b"new", partition=2)
    assert [record.value async for record in live] == [b"new"]


async def test_the_newest_records_are_looked_for_further_back_if_others_lie_between(client: AsyncFlyMQClient) -> None:
    await client.send_many("orders", [b"red" if number % 100 == 0 else b"blue" for number in range(1000)])
    found = [record.offset async for record in client.records("orders", last=3, filter="red")]
    assert found == [700, 800, 900]


async def test_the_newest_records_begin_where_retention_left_off(client: AsyncFlyMQClient) -> None:
    assert [record async for record in client.records([], last=3)] == []
    for how in ({"start": 3}, {"group": "g"}):
        with pytest.raises(InvalidRequest, match="last says where to start"):
            await values(client, "orders", last=1, **how)
    for last in (0, 100_001):
        with pytest.raises(InvalidRequest, match=f"last is {last}: use 1 to 100000"):
            await values(client, "orders", last=last)
