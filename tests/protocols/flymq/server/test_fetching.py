"""FETCH and CONSUME from memory and from disk: bounds, retention, compaction, damage, filters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.limits import BrokerLimits
from penstock.errors import CorruptBlock, OffsetOutOfRange
from penstock.log.api import Appended, Batch, Partition, TopicConfig
from penstock.log.block import Block
from penstock.log.embedded.options import EngineOptions
from penstock.protocols.flymq.codec.record_layouts import Fetched, decode_consumed, decode_fetched
from penstock.protocols.flymq.operations.operation import decode_reply
from penstock.protocols.flymq.operations.records import FetchedRecords, FetchRecords
from penstock.protocols.flymq.server.fetching import Fetcher, PlainForm, WholeForm
from penstock.record_headers import encode_headers
from penstock.testing.clock import ManualClock
from penstock.workers import WorkerPool
from tests.engines import embedded, make_engine


@pytest.fixture(params=["memory", "disk"])
async def partition(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Partition]:
    """The same log, with and without its newest blocks in memory."""
    options = EngineOptions() if request.param == "memory" else EngineOptions(tail_bytes_max=1)
    engine = make_engine(tmp_path / "log", clock=clock, options=options)
    await engine.start()
    await engine.create_topic("t", TopicConfig())
    yield engine.partition("t", 0)
    await engine.close()


async def append(partition: Partition, *values: bytes | None, keys: list[bytes | None] | None = None) -> None:
    done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    partition.append(Batch(values, keys), done.set_result)  # type: ignore[arg-type]
    await done


async def fetch(fetcher: Fetcher, partition: Partition, offset: int, maximum: int, wanted: str | None = "") -> Fetched:
    read: list[int] = []
    form, worker = PlainForm(0x07, native=True), WorkerPool().worker()
    answer = fetcher.fetch(partition, offset, maximum, wanted, form, worker, read.append)
    fetched = decode_fetched((answer if isinstance(answer, bytes) else await answer)[8:], native=True)
    assert read == [len(fetched.offsets)]
    return fetched


async def read_all(fetcher: Fetcher, partition: Partition, maximum: int, wanted: str = "") -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    offset = 0
    await partition.follow()
    while offset < partition.committed_end:
        fetched = await fetch(fetcher, partition, offset, maximum, wanted)
        assert fetched.next_offset > offset, "every answer leads on"
        found += zip(fetched.offsets, fetched.values, strict=True)
        offset = fetched.next_offset
    return found


@pytest.fixture
def fetcher(clock: ManualClock) -> Fetcher:
    return Fetcher(BrokerLimits(), clock)


@pytest.mark.dense
@pytest.mark.parametrize("maximum", [1, 7, 64, 100, 10_000])
@pytest.mark.parametrize("uniform", [True, False])
async def test_any_maximum_reads_every_record_once(
    partition: Partition, fetcher: Fetcher, maximum: int, uniform: bool
) -> None:
    expected: list[bytes] = []
    for size in (1, 100, 3, 300):
        values = [b"%06d" % n if uniform else b"%d" % n for n in range(len(expected), len(expected) + size)]
        expected += values
        await append(partition, *values)
    assert await read_all(fetcher, partition, maximum) == list(enumerate(expected))


async def test_records_may_have_keys_or_no_value(partition: Partition, fetcher: Fetcher) -> None:
    await append(partition, b"a", None, b"", keys=[b"k", b"k2", None])
    await append(partition, b"d")
    assert await fetch(fetcher, partition, 0, 10) == Fetched(
        [0, 1, 2, 3], [b"k", b"k2", None, None], [b"a", b"", b"", b"d"], 4
    )


async def test_a_reply_stays_within_its_bytes(partition: Partition, clock: ManualClock) -> None:
    await append(partition, *[b"x" * 84] * 1000)
    await append(partition, *[b"y" * number for number in range(100)])
    fetcher = Fetcher(BrokerLimits(fetch_bytes_max=1000), clock)
    assert len((await fetch(fetcher, partition, 0, 500)).values) == 10
    assert len(await read_all(fetcher, partition, 500)) == 1100


async def test_a_record_larger_than_a_reply_still_arrives(partition: Partition, clock: ManualClock) -> None:
    await append(partition, b"small", b"L" * 50_000, b"small", b"M" * 50_000)
    fetcher = Fetcher(BrokerLimits(fetch_bytes_max=1000), clock)
    assert [len(value) for _, value in await read_all(fetcher, partition, 500)] == [5, 50_000, 5, 50_000]
    assert (await fetch(fetcher, partition, 1, 500)).offsets == [1]


async def test_a_reply_stays_within_its_records(partition: Partition, clock: ManualClock) -> None:
    await append(partition, *[b"x"] * 100)
    fetcher = Fetcher(BrokerLimits(fetch_records_max=30), clock)
    assert len((await fetch(fetcher, partition, 0, 1_000_000)).values) == 30


async def test_nothing_is_fetched_from_an_empty_partition(partition: Partition, fetcher: Fetcher) -> None:
    assert await fetch(fetcher, partition, 0, 10) == Fetched([], None, [], 0)
    assert await fetch(fetcher, partition, 0, 10, "x") == Fetched([], None, [], 0)


@pytest.mark.parametrize("wanted", [None, "c"], ids=["all", "filtered"])
async def test_a_reader_that_retention_passes_while_it_waits_for_the_disk_continues_with_what_is_left(
    partition: Partition, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch, wanted: str | None
) -> None:
    await append(partition, b"a", b"b", b"c")
    read = partition.read
    offsets = []

    async def passed(offset: int, max_bytes: int = 1 << 20) -> list[Block]:
        offsets.append(offset)
        if offset < 2:
            # Engines keep it as a value or compute it.
            kept_by = partition if "start_offset" in vars(partition) else type(partition)
            monkeypatch.setattr(kept_by, "start_offset", 2)
            raise OffsetOutOfRange(f"offset {offset} out of range")
        return await read(offset, max_bytes)

    monkeypatch.setattr(partition, "read_cached", lambda offset, max_bytes: None)
    monkeypatch.setattr(partition, "read", passed)
    read_records: list[int] = []
    form, worker = PlainForm(0x07, native=True), WorkerPool().worker()
    answer = fetcher.fetch(partition, 0, 10, wanted, form, worker, read_records.append)
    assert not isinstance(answer, bytes)
    monkeypatch.setattr(partition, "read_cached", type(partition).read_cached.__get__(partition))
    fetched = decode_fetched((await answer)[8:], native=True)
    assert (offsets, fetched.offsets[-1]) == ([0, 2], 2)


@pytest.mark.dense
async def test_a_reader_that_retention_has_passed_continues_with_what_is_left(
    tmp_path: Path, clock: ManualClock
) -> None:
    engine = make_engine(tmp_path / "log", clock=clock)
    await engine.start()
    await engine.create_topic("t", TopicConfig(segment_bytes=1 << 16))
    partition = engine.partition("t", 0)
    for _ in range(4):
        await append(partition, b"x" * 50_000)
    start = await partition.delete_before(2)
    assert start > 0
    fetcher = Fetcher(BrokerLimits(), clock)
    fetched = await fetch(fetcher, partition, 0, 1)
    assert fetched.offsets == [start]
    assert fetched.next_offset == start + 1
    await engine.close()


async def test_consume_gives_the_one_record(partition: Partition, fetcher: Fetcher) -> None:
    await append(partition, b"a", b"b", keys=[None, b"k"])
    answer = fetcher.consume(partition, 1, 0x02)
    reply = answer if isinstance(answer, bytes) else await answer
    assert decode_consumed(reply[8:]) == (b"k", b"b")


# --- filters ---


async def test_a_filter_skips_what_does_not_match_and_moves_on(partition: Partition, fetcher: Fetcher) -> None:
    await append(partition, *[b"odd" if n % 2 else b"even" for n in range(10)])
    await append(partition, b"odd", b"even", b"even")
    assert await fetch(fetcher, partition, 0, 100, "ODD") == Fetched([1, 3, 5, 7, 9, 10], None, [b"odd"] * 6, 13)
    assert await fetch(fetcher, partition, 0, 2, "odd") == Fetched([1, 3], None, [b"odd"] * 2, 4)
    assert await fetch(fetcher, partition, 0, 100, "nothing like it") == Fetched([], None, [], 13)


async def test_a_filtered_fetch_looks_at_so_many_records(partition: Partition, clock: ManualClock) -> None:
    await append(partition, *[b"%d" % n for n in range(100)])
    fetcher = Fetcher(BrokerLimits(fetch_scanned_max=30), clock)
    assert (await fetch(fetcher, partition, 0, 10, "nothing")).next_offset == 30
    assert await read_all(fetcher, partition, 10, "99") == [(99, b"99")]


async def test_a_filtered_fetch_takes_so_long(partition: Partition) -> None:
    class Running(ManualClock):
        def monotonic(self) -> float:
            self.advance(0.1)
            return super().monotonic()

    await append(partition, *[b"%d" % n for n in range(100)])
    fetcher = Fetcher(BrokerLimits(fetch_scan_s_max=0.5), Running())
    fetched = await fetch(fetcher, partition, 0, 10, "nothing")
    assert 1 <= fetched.next_offset < 10
    assert await read_all(fetcher, partition, 10, "99") == [(99, b"99")]


async def test_filtered_replies_stay_within_their_bytes(partition: Partition, clock: ManualClock) -> None:
    await append(partition, *[b"match" * 20] * 50)
    fetcher = Fetcher(BrokerLimits(fetch_bytes_max=1000), clock)
    assert len((await fetch(fetcher, partition, 0, 50, "match")).values) == 8
    assert len(await read_all(fetcher, partition, 50, "match")) == 50


# --- gaps and damage ---


@pytest.mark.embedded
async def test_offsets_that_compaction_removed_are_stepped_over(tmp_path: Path, clock: ManualClock) -> None:
    engine = make_engine(tmp_path / "log", clock=clock, options=EngineOptions(tail_bytes_max=1))
    await engine.start()
    await engine.create_topic("t", TopicConfig(cleanup="compact", segment_bytes=1 << 16))
    partition = engine.partition("t", 0)
    for number in range(40):
        await append(partition, *[b"%d" % number * 1000] * 3, keys=[b"same", b"key%d" % number, b"same"])
    await embedded(engine).maintain()
    fetcher = Fetcher(BrokerLimits(), clock)
    for maximum in (1, 10, 1000):
        found = await read_all(fetcher, partition, maximum)
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(set(offsets))
        assert len(offsets) < 120, "the log has gaps"
        assert {number * 3 + 1 for number in range(40)} <= set(offsets)
    found_offsets = {offset for offset, _ in await read_all(fetcher, partition, 1000)}
    missing = next(offset for offset in range(120) if offset not in found_offsets)
    with pytest.raises(OffsetOutOfRange, match="EOF: no record at offset"):
        await fetcher.consume(partition, missing, 0x02)  # type: ignore[misc]
    assert await fetch(fetcher, partition, missing, 1) == await fetch(fetcher, partition, missing + 1, 1)
    await engine.close()


@pytest.mark.embedded
async def test_what_stands_before_damage_is_served_and_then_the_damage_reported(
    tmp_path: Path, clock: ManualClock
) -> None:
    engine = make_engine(tmp_path / "log", clock=clock, options=EngineOptions(tail_bytes_max=1))
    await engine.start()
    await engine.create_topic("t", TopicConfig())
    partition = engine.partition("t", 0)
    for letter in (b"a", b"b", b"c"):
        await append(partition, letter * 500, letter * 500)
    [log] = list((tmp_path / "log" / "topics").rglob("*.log"))
    data = bytearray(log.read_bytes())
    data[data.index(b"bbb")] ^= 1
    log.write_bytes(data)
    fetcher = Fetcher(BrokerLimits(), clock)
    for wanted in ("", "aaa"):
        fetched = await fetch(fetcher, partition, 0, 100, wanted)
        assert (fetched.offsets, fetched.next_offset) == ([0, 1], 2)
        with pytest.raises(CorruptBlock):
            await fetch(fetcher, partition, 2, 100, wanted)
        assert (await fetch(fetcher, partition, 4, 100, wanted)).next_offset == 6
    await engine.close()


# -- whole records -----------------------------------------------------------------------------------------------------------


async def fetch_whole(
    fetcher: Fetcher, partition: Partition, offset: int, maximum: int, wanted: str = ""
) -> FetchedRecords:
    read: list[int] = []
    answer = fetcher.fetch(partition, offset, maximum, wanted, WholeForm(), WorkerPool().worker(), read.append)
    fetched = decode_reply(FetchRecords, (answer if isinstance(answer, bytes) else await answer)[8:])
    assert read == [len(fetched.offsets)]
    return fetched


async def append_whole(partition: Partition, *batches: Batch) -> list[Appended]:
    appended = []
    for batch in batches:
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        partition.append(batch, done.set_result)  # type: ignore[arg-type]
        appended.append(await done)
    return appended


async def test_whole_records_of_several_blocks_come_with_all_they_have(fetcher: Fetcher, partition: Partition) -> None:
    cell = encode_headers([("a", b"1"), ("a", None)])
    first, second, third = await append_whole(
        partition,
        Batch([b"plain", b""]),
        Batch([None, b"v"], [b"k", None]),
        Batch([b"w"], None, [cell]),
    )
    fetched = await fetch_whole(fetcher, partition, 0, 10)
    assert fetched.next_offset == 5
    assert fetched.offsets == [0, 1, 2, 3, 4]
    times = [first.timestamp_ms] * 2 + [second.timestamp_ms] * 2 + [third.timestamp_ms]
    assert fetched.timestamps_ms == times
    assert fetched.keys == [None, None, b"k", None, None]
    assert fetched.values == [b"plain", b"", None, b"v", b"w"]
    assert fetched.headers == [None, None, None, None, cell]
    assert await fetch_whole(fetcher, partition, 1, 1) == FetchedRecords(2, [1], times[:1], [], [b""], [])
    assert await fetch_whole(fetcher, partition, 5, 1) == FetchedRecords(5, [], [], [], [], [])


async def test_whole_records_are_bounded_by_their_bytes_headers_included(
    clock: ManualClock, partition: Partition
) -> None:
    cell = encode_headers([("a", bytes(100))])
    await append_whole(partition, Batch([b"v"] * 10, None, [cell] * 10))
    fetcher = Fetcher(BrokerLimits(fetch_bytes_max=300), clock)
    fetched = await fetch_whole(fetcher, partition, 0, 10)
    assert (fetched.offsets, fetched.next_offset) == ([0, 1], 2)
    assert (await fetch_whole(Fetcher(BrokerLimits(fetch_bytes_max=1), clock), partition, 2, 10)).offsets == [2]


async def test_whole_records_that_expired_or_do_not_match_are_left_out(
    clock: ManualClock, fetcher: Fetcher, partition: Partition
) -> None:
    cells = [encode_headers([("row", b"%d" % row)]) for row in range(4)]
    expiry = clock.now_ms() + 1000
    await append_whole(partition, Batch([b"red", b"red", b"blue", b"red"], None, cells, [0, expiry, 0, 0]))
    assert (await fetch_whole(fetcher, partition, 0, 10, "red")).headers == [cells[0], cells[1], cells[3]]
    clock.advance(2)
    assert (await fetch_whole(fetcher, partition, 0, 10, "red")).headers == [cells[0], cells[3]]
    assert (await fetch_whole(fetcher, partition, 0, 10)).offsets == [0, 2, 3]
