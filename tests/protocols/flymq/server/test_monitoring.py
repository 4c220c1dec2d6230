"""What waits to become readable, asked over a session."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.schedule.schedule import Scheduled
from penstock.errors import PenstockError
from penstock.log.api import TopicConfig
from penstock.protocols.flymq.operations.monitoring import (
    DelayedList,
    DelayedPage,
    OpenTransaction,
    PendingRecord,
    TxnList,
)
from penstock.protocols.flymq.operations.operation import decode_reply, encode_request
from penstock.protocols.flymq.operations.topics import DescribedTopic, TopicList, TopicPage
from penstock.protocols.flymq.server import topics
from penstock.protocols.flymq.server.blocks import TOPICS_PER_TURN
from penstock.protocols.flymq.wire import frame
from penstock.testing.clock import START_MS
from tests.protocols.flymq.conversation import Conversation


async def scheduled(broker: Broker, topic: str, value: bytes | None, key: bytes | None = None) -> Scheduled:
    answer: asyncio.Future[Scheduled | PenstockError] = asyncio.get_running_loop().create_future()
    broker.schedule.add(ANONYMOUS, topic, 0, value, key, delay_ms=1_000, done=answer.set_result)
    result = await answer
    assert isinstance(result, Scheduled)
    return result


async def test_delayed_records_are_told_without_their_values(broker: Broker, talk: Conversation) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig())
    one, two = await scheduled(broker, "t", b"secret", b"k"), await scheduled(broker, "t", None)
    encoded = encode_request(DelayedList("t"))
    assert encoded == frame(0xDE, bytes.fromhex("0001 74 0000"))
    reply = await talk.ask(encoded)
    assert b"secret" not in reply.payload
    page = decode_reply(DelayedList, reply.payload)
    assert page.records == [
        PendingRecord(one.id, "t", 0, START_MS + 1_000, b"k", 6, 0),
        PendingRecord(two.id, "t", 0, START_MS + 1_000, None, -1, 0),
    ]
    rest = decode_reply(DelayedList, (await talk.ask(encode_request(DelayedList("t", page.after)))).payload)
    assert rest == DelayedPage([], "")


async def test_open_transactions_are_told(broker: Broker, talk: Conversation) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig())
    assert decode_reply(TxnList, (await talk.ask(encode_request(TxnList()))).payload) == []
    transaction = broker.transactions.begin(ANONYMOUS)
    broker.transactions.produce(ANONYMOUS, "t", transaction, 0, [b"v"], done=lambda added: None)
    encoded = encode_request(TxnList())
    assert encoded == frame(0xDF)
    [told] = decode_reply(TxnList, (await talk.ask(encoded)).payload)
    assert told == OpenTransaction(transaction, "anonymous", "open", 0, 60_000, 1, 129, ["t"], 1)


@pytest.mark.parametrize("at_once", [1, 256], ids=["encoded in a thread", "encoded at once"])
async def test_topics_are_described_a_page_at_a_time(
    broker: Broker, talk: Conversation, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(topics, "PAGE_PARTITIONS_MAX", 3)
    monkeypatch.setattr(topics, "TOPICS_PER_TURN", at_once)
    for name, partitions in (("a", 1), ("b", 5), ("c", 1)):
        await broker.topics.create(ANONYMOUS, name, TopicConfig(partitions=partitions))

    async def page(after: str) -> TopicPage:
        return decode_reply(TopicList, (await talk.ask(encode_request(TopicList(after)))).payload)

    def shown(described: list[DescribedTopic]) -> list[tuple[str, int]]:
        return [(each.topic, len(each.partitions)) for each in described]

    first = await page("")
    assert (shown(first.topics), first.more) == ([("a", 1), ("b", 5)], True)
    assert first.topics[0].config["durability"] == "fsync"
    last = await page("b")
    assert (shown(last.topics), last.more) == ([("c", 1)], False)
    assert await page("zzz") == TopicPage([], False)
    monkeypatch.setattr(topics, "PAGE_BYTES_MAX", len("a") + 1)
    assert (shown((await page("")).topics), (await page("")).more) == ([("a", 1)], True)


async def test_more_topics_than_one_turn_of_the_loop_describes_are_one_page(broker: Broker, talk: Conversation) -> None:
    names = [f"t{number:04}" for number in range(TOPICS_PER_TURN + 1)]
    for name in names:
        await broker.topics.create(ANONYMOUS, name, TopicConfig())
    page = decode_reply(TopicList, (await talk.ask(encode_request(TopicList("")))).payload)
    assert [each.topic for each in page.topics] == names
    assert not page.more
