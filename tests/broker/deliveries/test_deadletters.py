"""Dead letters: put aside with their story, listed, replayed once, purged."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.broker.access.audit import AuditQuery
from penstock.broker.access.checks import ANONYMOUS, Principal
from penstock.broker.broker import Broker
from penstock.broker.deliveries import deadletters
from penstock.broker.deliveries.deadletter_entries import HEADER_PREFIX, REASON_BYTES_MAX, DeadLetter, FailedRecord
from penstock.broker.deliveries.deadletters import DEADLETTERS_TOPIC, dead_letter_topic
from penstock.broker.limits import BrokerLimits
from penstock.broker.table import Table
from penstock.errors import EntryNotFound, ShuttingDown, TopicNotFound, ValidationFailed
from penstock.log.api import Engine, TopicConfig
from penstock.record_headers import decode_headers, encode_headers
from penstock.testing.clock import START_MS, ManualClock
from penstock.workers import Check
from tests.broker.producing import dead_letter, produce, read_values
from tests.engines import make_engine
from tests.open_access import OpenAccess

WHO = ANONYMOUS
OWN_HEADERS = encode_headers([("trace", b"abc"), ("empty", None)])


@asynccontextmanager
async def running(data_dir: Path) -> AsyncIterator[Broker]:
    clock = ManualClock()
    engine = make_engine(data_dir, clock=clock)
    await engine.start()
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess())
    await broker.start()
    yield broker
    await broker.close()
    await engine.close()


def failed(value: bytes = b"v", **story: object) -> FailedRecord:
    told: dict[str, object] = {
        "topic": "orders",
        "partition": 0,
        "offset": 7,
        "value": value,
        "key": b"k",
        "headers": OWN_HEADERS,
        "reason": "boom",
        "attempts": 5,
        "first_failed_ms": START_MS - 900,
        "failed_ms": START_MS,
        **story,
    }
    return FailedRecord(**told)  # type: ignore[arg-type]


async def values_of(broker: Broker, topic: str, partition: int = 0) -> list[bytes | None]:
    return await read_values(broker.records.partition(WHO, topic, partition))


async def listed(broker: Broker, count_max: int = 100) -> list[bytes | None]:
    return [letter.value for letter in await broker.dead_letters.letters(WHO, "orders", count_max)]


# -- putting aside and listing -----------------------------------------------------------------------------------------------


@pytest.mark.dense
async def test_a_dead_letter_is_the_record_with_its_story_in_headers(broker: Broker) -> None:
    await dead_letter(broker, [failed()])
    [block] = await broker.records.partition(WHO, "orders.dlq", 0).read(0)
    assert (block.keys(), block.values()) == ([b"k"], [b"v"])
    [cell] = block.headers() or []
    assert decode_headers(cell or b"") == [
        ("trace", b"abc"),
        ("empty", None),
        ("penstock-dlq-reason", b"boom"),
        ("penstock-dlq-topic", b"orders"),
        ("penstock-dlq-partition", b"0"),
        ("penstock-dlq-offset", b"7"),
        ("penstock-dlq-attempts", b"5"),
        ("penstock-dlq-first-failed-ms", b"%d" % (START_MS - 900)),
        ("penstock-dlq-failed-ms", b"%d" % START_MS),
    ]
    assert await broker.dead_letters.letters(WHO, "orders", 10) == [
        DeadLetter("0-0", 0, 0, b"v", b"k", OWN_HEADERS, "boom", 5, 0, 7, START_MS - 900, START_MS)
    ]


async def test_letters_are_put_aside_together_with_what_marks_them_done(engine: Engine, broker: Broker) -> None:
    table = Table(engine, "__done", str, int, entries_max=10, limit="limits.settings_max")
    await table.load()
    await dead_letter(broker, [failed(b"1"), failed(b"2", topic="other")], [table.prepare([("x", 1)])])
    assert table.get("x") == 1
    assert await listed(broker) == [b"1"]
    assert await values_of(broker, "other.dlq") == [b"2"]
    await table.close()


async def test_a_long_reason_is_cut_and_text_of_any_kind_is_kept(broker: Broker) -> None:
    await dead_letter(broker, [failed(reason="ü" * 1000), failed(reason="\ud800 half")])
    long, odd = await broker.dead_letters.letters(WHO, "orders", 10)
    assert long.reason == "ü" * (REASON_BYTES_MAX // 2)
    assert odd.reason == "? half"


async def test_no_more_letters_are_listed_than_asked_for(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    await dead_letter(broker, [failed(b"%d" % number * 10) for number in range(5)])
    assert len(await listed(broker, 3)) == 3
    monkeypatch.setattr(deadletters, "LETTERS_BYTES_MAX", 1)
    assert len(await listed(broker)) == 1


async def test_a_topic_without_dead_letters_has_none(broker: Broker) -> None:
    assert await broker.dead_letters.letters(WHO, "orders", 10) == []
    await broker.dead_letters.purge(WHO, "orders")
    assert await broker.dead_letters.replay_all(WHO, "orders") == 0
    with pytest.raises(TopicNotFound, match=r"topic not found: orders\.dlq"):
        await broker.dead_letters.replay(WHO, "orders", "0-0")
    assert broker.topics.names(WHO) == []


def json_entry(**members: object) -> bytes:
    return json.dumps(
        {
            "id": "m-1",
            "original_topic": "orders",
            "original_offset": 3,
            "payload": base64.b64encode(b"hi").decode(),
            "reason": "max_retries",
            "error_message": "boom",
            "retry_count": 2,
            "first_failed_at": "2023-11-14T22:13:20Z",
            "last_failed_at": "2023-11-14T22:13:21.5Z",
            "headers": {"h": "1"},
            **members,
        }
    ).encode()


@pytest.mark.dense
async def test_what_deployed_clients_write_themselves_is_understood(broker: Broker) -> None:
    await broker.topics.ensure(WHO, "orders.dlq")
    await produce(broker, "orders.dlq", [json_entry()], [b"key"])
    headers = encode_headers([("h", b"1")])
    assert await broker.dead_letters.letters(WHO, "orders", 10) == [
        DeadLetter("m-1", 0, 0, b"hi", b"key", headers, "boom", 2, None, 3, START_MS, START_MS + 1500)
    ]
    await broker.topics.ensure(WHO, "orders")
    await broker.dead_letters.replay(WHO, "orders", "m-1")
    assert await values_of(broker, "orders") == [b"hi"]
    assert await listed(broker) == []


@pytest.mark.dense
@pytest.mark.parametrize(
    "value",
    [
        b"plain text",
        b"",
        b"{",
        b"[1]",
        b'{"id": 3, "payload": "aGk="}',
        b'{"id": "x", "payload": "not base64!"}',
        b'{"payload": "aGk="}',
        b'{"id": "x"}',
        b"[" * 100_000,
        b"{" + b'"a":{' * 50_000,
    ],
)
async def test_anything_else_is_a_letter_without_a_story(broker: Broker, value: bytes) -> None:
    await broker.topics.ensure(WHO, "orders.dlq")
    await produce(broker, "orders.dlq", [value])
    assert await broker.dead_letters.letters(WHO, "orders", 10) == [DeadLetter("0-0", 0, 0, value, None, None)]


@pytest.mark.dense
async def test_odd_members_of_an_entry_do_no_harm(broker: Broker) -> None:
    await broker.topics.ensure(WHO, "orders.dlq")
    entries = [
        json_entry(id="", retry_count=-1, error_message="", first_failed_at="yesterday", last_failed_at=None),
        json_entry(retry_count=1 << 40, headers=None),
    ]
    await produce(broker, "orders.dlq", entries)
    first, second = await broker.dead_letters.letters(WHO, "orders", 10)
    assert (first.id, first.attempts, first.reason, first.first_failed_ms) == ("0-0", 0, "max_retries", None)
    assert (second.attempts, second.headers) == (0xFFFFFFFF, None)


@pytest.mark.parametrize(
    "members",
    [
        {"error_message": "x" * 70_000},
        {"error_message": "", "reason": "ü" * 70_000},
        {"id": "i" * 70_000},
        {"original_offset": 1 << 70},
        {"original_offset": -(1 << 70)},
        {"retry_count": 1 << 70},
        {"first_failed_at": 1 << 70, "last_failed_at": -(1 << 70)},
        {"first_failed_at": "0001-01-01T00:00:00Z", "last_failed_at": "9999-12-31T23:59:59-23:59"},
        {"headers": {"h" * 70_000: "1"}},
    ],
    ids=lambda members: next(iter(members)),
)
async def test_a_letter_with_claims_out_of_bounds_is_listed_within_them(
    broker: Broker, members: dict[str, object]
) -> None:
    await broker.topics.ensure(WHO, "orders.dlq")
    await produce(broker, "orders.dlq", [json_entry(**members), b"sound"])
    forged, sound = await broker.dead_letters.letters(WHO, "orders", 10)
    assert_in_bounds(forged)
    assert sound.value == b"sound"
    await broker.topics.ensure(WHO, "orders")
    await broker.dead_letters.replay(WHO, "orders", forged.id)
    assert await listed(broker) == [b"sound"]


@pytest.mark.parametrize("claimed", ["9" * 18, "9" * 70_000, "-1", ""])
async def test_headers_of_a_letter_that_a_client_forged_are_kept_within_bounds(broker: Broker, claimed: str) -> None:
    names = ("reason", "partition", "offset", "attempts", "first-failed-ms", "failed-ms")
    forged = encode_headers([(HEADER_PREFIX + name, claimed.encode()) for name in names])
    await broker.topics.ensure(WHO, "orders.dlq")
    placed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    broker.records.produce(WHO, "orders.dlq", 0, [b"v"], None, [forged], done=placed.set_result)
    await placed
    [letter] = await broker.dead_letters.letters(WHO, "orders", 10)
    assert_in_bounds(letter)


def assert_in_bounds(letter: DeadLetter) -> None:
    """As every protocol can encode it."""
    assert 1 <= len(letter.id.encode()) <= 249
    assert len(letter.reason.encode()) <= REASON_BYTES_MAX
    assert 0 <= letter.attempts < 1 << 32
    assert letter.origin_partition is None or 0 <= letter.origin_partition < 1 << 31
    for number in (letter.origin_offset, letter.first_failed_ms, letter.failed_ms):
        assert number is None or 0 <= number < 1 << 63


@pytest.mark.dense
async def test_a_letter_that_claims_the_id_of_another_is_not_taken_for_it(broker: Broker) -> None:
    await broker.topics.ensure(WHO, "orders")
    await dead_letter(broker, [failed(b"real")])
    await produce(broker, "orders.dlq", [json_entry(id="0-0")])
    assert [letter.id for letter in await broker.dead_letters.letters(WHO, "orders", 10)] == ["0-0", "0-1"]
    await broker.dead_letters.replay(WHO, "orders", "0-0")
    with pytest.raises(EntryNotFound):
        await broker.dead_letters.replay(WHO, "orders", "0-0")
    assert await values_of(broker, "orders") == [b"real"]


async def test_an_expired_letter_is_not_listed(broker: Broker, clock: ManualClock) -> None:
    await broker.topics.ensure(WHO, "orders.dlq")
    placed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    values, expiries = [b"short", b"long"], [START_MS + 10, 0]
    broker.records.produce(WHO, "orders.dlq", 0, values, expiries=expiries, done=placed.set_result)
    await placed
    clock.advance(1)
    assert await listed(broker) == [b"long"]
    with pytest.raises(EntryNotFound):
        await broker.dead_letters.replay_at(WHO, "orders", 0)


# -- replaying ---------------------------------------------------------------------------------------------------------------


@pytest.mark.dense
async def test_a_replay_writes_the_record_as_it_was_where_it_was(broker: Broker) -> None:
    await broker.topics.create(WHO, "orders", TopicConfig(partitions=3))
    await dead_letter(broker, [failed(partition=2), failed(partition=1)])
    letter = await broker.dead_letters.replay(WHO, "orders", "0-0")
    assert letter.reason == "boom"
    [block] = await broker.records.partition(WHO, "orders", 2).read(0)
    assert (block.keys(), block.values(), block.headers()) == ([b"k"], [b"v"], [OWN_HEADERS])
    assert [each.id for each in await broker.dead_letters.letters(WHO, "orders", 10)] == ["0-1"]
    assert broker.dead_letters.stats.replayed == 1


@pytest.mark.dense
async def test_a_letter_from_a_partition_that_is_no_more_goes_by_its_key(broker: Broker) -> None:
    await broker.topics.ensure(WHO, "orders")
    await dead_letter(broker, [failed(partition=9)])
    await broker.dead_letters.replay_at(WHO, "orders", 0)
    assert await values_of(broker, "orders") == [b"v"]


@pytest.mark.dense
async def test_a_letter_is_replayed_once(broker: Broker) -> None:
    await broker.topics.ensure(WHO, "orders")
    await dead_letter(broker, [failed()])
    results = await asyncio.gather(
        broker.dead_letters.replay(WHO, "orders", "0-0"),
        broker.dead_letters.replay_at(WHO, "orders", 0),
        broker.dead_letters.replay_all(WHO, "orders"),
        broker.dead_letters.replay(WHO, "orders", "0-0"),
        return_exceptions=True,
    )
    assert await values_of(broker, "orders") == [b"v"]
    assert [type(result) for result in results] == [DeadLetter, EntryNotFound, int, EntryNotFound]
    assert results[2] == 0


@pytest.mark.dense
async def test_a_replay_is_remembered_across_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.ensure(WHO, "orders")
        await dead_letter(broker, [failed(b"1"), failed(b"2")])
        await broker.dead_letters.replay(WHO, "orders", "0-0")
    async with running(tmp_path) as broker:
        assert await listed(broker) == [b"2"]
        with pytest.raises(EntryNotFound, match="message not found"):
            await broker.dead_letters.replay(WHO, "orders", "0-0")
        assert await values_of(broker, "orders") == [b"1"]


async def test_all_letters_are_replayed_in_batches_or_only_counted(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadletters, "REPLAY_LETTERS_MAX", 7)
    monkeypatch.setattr(deadletters, "LETTERS_PER_MARK", 16)
    monkeypatch.setattr(deadletters, "_ALL_MARKED", b"\xff\xff")
    await broker.topics.ensure(WHO, "orders")
    values = [b"%d" % number for number in range(100)]
    for first in range(0, 100, 10):
        await dead_letter(broker, [failed(value) for value in values[first : first + 10]])
    assert await broker.dead_letters.replay_all(WHO, "orders", dry_run=True) == 100
    assert await values_of(broker, "orders") == []
    assert (
        await broker.dead_letters.replay_all(WHO, "orders", lambda letter, _: (letter.value or b"")[-1:] == b"5") == 10
    )
    assert await values_of(broker, "orders") == [value for value in values if value[-1:] == b"5"]
    assert await broker.dead_letters.replay_all(WHO, "orders") == 90
    assert sorted(await values_of(broker, "orders"), key=lambda value: int(value or 0)) == values
    assert await listed(broker) == []
    await dead_letter(broker, [failed(b"new")])
    assert await listed(broker) == [b"new"]


@pytest.mark.parametrize("letter_id", ["", "0-1", "1-0", "m-9", "0-99999999999999999999", "-1-0"])
@pytest.mark.dense
async def test_an_id_that_is_not_listed_is_not_found(broker: Broker, letter_id: str) -> None:
    await broker.topics.ensure(WHO, "orders")
    await dead_letter(broker, [failed()])
    with pytest.raises(EntryNotFound, match="message not found"):
        await broker.dead_letters.replay(WHO, "orders", letter_id)
    assert await listed(broker) == [b"v"]


@pytest.mark.dense
async def test_letters_outlive_their_topic_and_wait_for_it(broker: Broker) -> None:
    await dead_letter(broker, [failed()])
    with pytest.raises(TopicNotFound, match="topic not found: orders"):
        await broker.dead_letters.replay(WHO, "orders", "0-0")
    await broker.topics.ensure(WHO, "orders")
    await broker.dead_letters.replay(WHO, "orders", "0-0")
    assert await values_of(broker, "orders") == [b"v"]


async def test_a_letter_that_names_another_topic_is_replayed_to_its_own(broker: Broker) -> None:
    await broker.topics.ensure(WHO, "orders")
    await broker.topics.ensure(WHO, "orders.dlq")
    await broker.topics.ensure(WHO, "secret")
    await produce(broker, "orders.dlq", [json_entry(original_topic="secret")])
    await broker.dead_letters.replay(WHO, "orders", "m-1")
    assert await values_of(broker, "secret") == []
    assert await values_of(broker, "orders") == [b"hi"]


@pytest.mark.dense
async def test_a_replay_must_follow_the_schema_of_the_topic(broker: Broker) -> None:
    await broker.topics.ensure(WHO, "orders")
    await dead_letter(broker, [failed(b"[]"), failed(b"{}")])
    await broker.schemas.register(WHO, "s", "json", '{"type": "object"}')
    await broker.schemas.bind(WHO, "orders", "s")
    with pytest.raises(ValidationFailed):
        await broker.dead_letters.replay(WHO, "orders", "0-0")
    await broker.dead_letters.replay(WHO, "orders", "0-1")
    assert await values_of(broker, "orders") == [b"{}"]
    assert await listed(broker) == [b"[]"]


async def test_a_letter_that_the_topic_refuses_keeps_no_other_from_being_replayed(broker: Broker) -> None:
    await broker.topics.ensure(WHO, "orders")
    await dead_letter(broker, [failed(b"{}"), failed(b"[]"), failed(b'{"a": 1}')])
    await broker.schemas.register(WHO, "s", "json", '{"type": "object"}')
    await broker.schemas.bind(WHO, "orders", "s")
    assert await broker.dead_letters.replay_all(WHO, "orders") == 2
    assert await values_of(broker, "orders") == [b"{}", b'{"a": 1}']
    assert await listed(broker) == [b"[]"]
    with pytest.raises(ValidationFailed):
        await broker.dead_letters.replay_all(WHO, "orders")


# -- purging -----------------------------------------------------------------------------------------------------------------


@pytest.mark.dense
async def test_a_purge_deletes_letters_and_marks(engine: Engine, broker: Broker) -> None:
    await broker.topics.ensure(WHO, "orders")
    await dead_letter(broker, [failed(b"1"), failed(b"2")])
    await broker.dead_letters.replay(WHO, "orders", "0-0")
    await broker.dead_letters.purge(WHO, "orders")
    assert not broker.topics.exists("orders.dlq")
    assert await listed(broker) == []
    await dead_letter(broker, [failed(b"3")])
    assert await listed(broker) == [b"3"]


async def test_a_purge_is_audited_as_a_deed_of_who_did_it(broker: Broker) -> None:
    await broker.topics.ensure(WHO, "orders")
    await dead_letter(broker, [failed(b"1")])
    await broker.dead_letters.purge(Principal("ann", trusted=True, address="192.0.2.1:5000"), "orders")
    [event] = (await broker.audit.query(WHO, AuditQuery(types=["topic.delete"]))).events
    assert (event.user, event.client_ip, event.resource) == ("ann", "192.0.2.1", "orders.dlq")


@pytest.mark.dense
async def test_marks_of_a_topic_deleted_by_hand_end_with_the_next_start(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.ensure(WHO, "orders")
        await dead_letter(broker, [failed()])
        await broker.dead_letters.replay(WHO, "orders", "0-0")
        await broker.topics.delete(WHO, "orders.dlq")
        await dead_letter(broker, [failed(b"new")])
        assert await listed(broker) == [b"new"]
    async with running(tmp_path) as broker:
        [block, *_] = await broker._engine.partition(DEADLETTERS_TOPIC, 0).read(1)
        assert block.values() == [None]
        assert await listed(broker) == [b"new"]


# -- names -------------------------------------------------------------------------------------------------------------------


def test_names_that_would_be_too_long_are_cut_and_stay_different() -> None:
    assert dead_letter_topic("orders") == "orders.dlq"
    assert len(dead_letter_topic("x" * 245)) == 249
    first, second = dead_letter_topic("ü" * 124), dead_letter_topic("ü" * 123 + "x")
    assert first != second
    for name in (first, second):
        assert name.endswith(".dlq")
        assert len(name.encode()) <= 249


async def test_a_filter_that_does_not_end_is_ended_by_a_stop(engine: Engine, clock: ManualClock) -> None:
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess())
    await broker.start()
    await broker.topics.ensure(WHO, "orders")
    await dead_letter(broker, [failed(b"a"), failed(b"b")])
    started = asyncio.Event()
    loop, threads = asyncio.get_running_loop(), []

    def endless(letter: DeadLetter, check: Check) -> bool:
        threads.append(threading.current_thread().name)
        loop.call_soon_threadsafe(started.set)
        while True:
            check()

    replay = asyncio.ensure_future(broker.dead_letters.replay_all(WHO, "orders", endless))
    await started.wait()
    await broker.close()
    with pytest.raises(ShuttingDown):
        await replay
    assert len(threads) == 1
    assert threads[0].startswith("penstock-worker"), "not one of the threads that everything else shares"


async def test_a_filter_is_ended_by_a_stop_between_two_letters(engine: Engine, clock: ManualClock) -> None:
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess())
    await broker.start()
    await broker.topics.ensure(WHO, "orders")
    await dead_letter(broker, [failed(b"%d" % number) for number in range(10)])
    started, stopped = asyncio.Event(), threading.Event()
    loop, asked = asyncio.get_running_loop(), []

    def wanted(letter: DeadLetter, check: Check) -> bool:
        asked.append(letter)
        loop.call_soon_threadsafe(started.set)
        assert stopped.wait(10)
        return True

    replay = asyncio.ensure_future(broker.dead_letters.replay_all(WHO, "orders", wanted))
    await started.wait()
    broker.workers.close()
    stopped.set()
    with pytest.raises(ShuttingDown):
        await replay
    assert len(asked) == 1
    await broker.close()
    assert [block.values() for block in await engine.partition("orders", 0).read(0)] == [], "nothing was replayed"
