"""The table: what is committed is in memory and survives; what is not is nowhere; damage stops the start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from penstock.broker.table import KEY_BYTES_MAX, PreparedChange, Table, append_together
from penstock.errors import (
    CorruptBlock,
    CorruptMetadata,
    InvalidRequest,
    LimitExceeded,
    PenstockError,
    ShuttingDown,
    TopicNotFound,
)
from penstock.log.api import Appended, Batch, BatchFor, TopicConfig
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.testing.clock import ManualClock


class Setting(msgspec.Struct, frozen=True, array_like=True):
    text: str
    size: int = 0


SettingTable = Table[str, Setting]


def new_table(engine: EmbeddedEngine, entries_max: int = 1000, value_bytes_max: int = 1000) -> SettingTable:
    return Table(engine, "__settings", str, Setting, entries_max=entries_max, value_bytes_max=value_bytes_max)


async def loaded(engine: EmbeddedEngine) -> SettingTable:
    table = new_table(engine)
    await table.load()
    return table


async def append(engine: EmbeddedEngine, values: list[bytes | None], keys: list[bytes | None]) -> None:
    placed: asyncio.Future[Appended | PenstockError] = asyncio.get_running_loop().create_future()
    engine.partition("__settings", 0).append(Batch(values, keys), placed.set_result)
    assert isinstance(await placed, Appended)


async def test_an_entry_is_in_memory_once_it_is_committed_and_not_before(engine: EmbeddedEngine) -> None:
    table = await loaded(engine)
    committing = table.put("a", Setting("one"))
    assert table.get("a") is None
    await committing
    assert table.get("a") == Setting("one")
    deleting = table.delete("a")
    assert table.get("a") == Setting("one")
    await deleting
    assert table.get("a") is None
    assert len(table) == 0


async def test_of_several_changes_in_flight_the_last_one_made_wins(engine: EmbeddedEngine) -> None:
    table = await loaded(engine)
    await asyncio.gather(*(table.put("a", Setting("x", n)) for n in range(100)))
    assert table.get("a") == Setting("x", 99)


async def test_changes_of_one_turn_share_their_commits(engine: EmbeddedEngine) -> None:
    table = await loaded(engine)
    commits = engine.stats.commits
    await asyncio.gather(*(table.put(str(n), Setting("x", n)) for n in range(500)))
    assert engine.stats.commits - commits <= 3
    assert len(table) == 500


async def test_a_table_is_what_it_was_after_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    engine = EmbeddedEngine(tmp_path, clock=clock)
    await engine.start()
    table = await loaded(engine)
    await asyncio.gather(*(table.put(str(n % 300), Setting("x", n)) for n in range(1000)))
    await table.change([(str(n), None) for n in range(100)])
    entries = dict(table.items())
    await engine.close()

    engine = EmbeddedEngine(tmp_path, clock=clock)
    await engine.start()
    seen: list[tuple[str, Setting | None]] = []
    reloaded: SettingTable = Table(
        engine, "__settings", str, Setting, entries_max=1000, on_change=lambda key, value: seen.append((key, value))
    )
    await reloaded.load()
    assert dict(reloaded.items()) == entries
    assert len(entries) == 200
    assert {key: value for key, value in dict(seen).items() if value is not None} == entries
    await reloaded.put("new", Setting("y"))
    assert reloaded.get("new") == Setting("y")
    await engine.close()


async def test_what_does_not_fit_is_refused_before_anything_is_written(engine: EmbeddedEngine) -> None:
    table = new_table(engine, entries_max=2)
    await table.load()
    with pytest.raises(InvalidRequest, match="value of 1005 bytes does not fit table __settings: at most 1000"):
        await table.put("a", Setting("x" * 1000))
    with pytest.raises(InvalidRequest, match=f"at most {KEY_BYTES_MAX}"):
        await table.put("k" * KEY_BYTES_MAX, Setting("x"))
    first, second = table.put("a", Setting("x")), table.put("b", Setting("x"))
    with pytest.raises(LimitExceeded, match="full with 2 entries"):
        await table.put("c", Setting("x"))
    await asyncio.gather(first, second)
    await table.put("a", Setting("y"))
    assert dict(table.items()) == {"a": Setting("y"), "b": Setting("x")}
    assert engine.partition("__settings", 0).committed_end == 3


async def test_a_waiter_that_gives_up_does_not_undo_the_change(engine: EmbeddedEngine) -> None:
    table = await loaded(engine)
    abandoned = table.put("a", Setting("x"))
    abandoned.cancel()
    await table.put("b", Setting("y"))
    assert table.get("a") == Setting("x")


async def test_closing_waits_for_what_is_in_flight_and_takes_no_more(engine: EmbeddedEngine) -> None:
    table = await loaded(engine)
    committing = table.put("a", Setting("x"))
    await table.close()
    assert committing.done()
    assert table.get("a") == Setting("x")
    with pytest.raises(ShuttingDown):
        await table.put("b", Setting("x"))


async def test_a_table_that_is_not_loaded_takes_no_changes(engine: EmbeddedEngine) -> None:
    with pytest.raises(ShuttingDown, match="not open"):
        await new_table(engine).put("a", Setting("x"))


async def test_a_failed_commit_reaches_the_caller_and_not_the_memory(engine: EmbeddedEngine) -> None:
    table = await loaded(engine)
    await engine.delete_topic("__settings")
    with pytest.raises(PenstockError, match="__settings"):
        await table.put("a", Setting("x"))
    assert table.get("a") is None


# -- together with other appends ------------------------------------------------------------------------------------------


async def together(
    engine: EmbeddedEngine, batches: list[BatchFor], changes: list[PreparedChange[str, Setting]]
) -> list[Appended] | PenstockError:
    come_back: asyncio.Future[list[Appended] | PenstockError] = asyncio.get_running_loop().create_future()
    append_together(
        engine,
        batches,
        changes,
        lambda result: come_back.set_result(result if isinstance(result, PenstockError) else [*result]),
    )
    return await come_back


async def test_a_prepared_change_shows_with_the_records_it_was_appended_with(engine: EmbeddedEngine) -> None:
    table = await loaded(engine)
    await engine.create_topic("orders", TopicConfig(partitions=2))
    orders = [engine.partition("orders", index) for index in range(2)]
    await table.put("b", Setting("old"))
    placed = await together(
        engine,
        [BatchFor(partition, Batch([b"x", b"y"])) for partition in orders],
        [table.prepare([("a", Setting("one")), ("b", None)])],
    )
    assert isinstance(placed, list)
    assert [place.base_offset for place in placed] == [0, 0]
    assert [partition.committed_end for partition in orders] == [2, 2]
    assert dict(table.items()) == {"a": Setting("one")}


async def test_changes_of_two_tables_need_no_records_beside_them(engine: EmbeddedEngine) -> None:
    table = await loaded(engine)
    other: SettingTable = Table(engine, "__others", str, Setting, entries_max=10)
    await other.load()
    assert (
        await together(engine, [], [table.prepare([("a", Setting("x"))]), other.prepare([("b", Setting("y"))])]) == []
    )
    assert (table.get("a"), other.get("b")) == (Setting("x"), Setting("y"))


async def test_a_change_made_after_a_larger_append_takes_effect_after_it(engine: EmbeddedEngine) -> None:
    # In one commit the table's partition is answered before the append over both partitions is complete.
    table = await loaded(engine)
    await engine.create_topic("orders", TopicConfig())
    waiting = [table.put("a", Setting("first"))]
    larger = asyncio.ensure_future(
        together(
            engine,
            [BatchFor(engine.partition("orders", 0), Batch([b"x"]))],
            [table.prepare([("a", Setting("second"))])],
        )
    )
    await asyncio.sleep(0)
    waiting.append(table.put("a", Setting("third")))
    await asyncio.gather(larger, *waiting)
    assert table.get("a") == Setting("third")


async def test_of_many_appends_over_tables_and_topics_each_shows_when_it_is_reported(engine: EmbeddedEngine) -> None:
    table = await loaded(engine)
    await engine.create_topic("orders", TopicConfig(partitions=20))

    async def one(number: int) -> None:
        partition = engine.partition("orders", number % 20)
        await together(
            engine, [BatchFor(partition, Batch([b"x"]))], [table.prepare([(str(number), Setting("x", number))])]
        )
        assert table.get(str(number)) == Setting("x", number)

    await asyncio.gather(*map(one, range(200)))
    assert len(table) == 200


async def test_an_append_that_is_refused_in_one_part_changes_no_table(engine: EmbeddedEngine) -> None:
    table = await loaded(engine)
    await engine.create_topic("orders", TopicConfig())
    orders = engine.partition("orders", 0)
    await engine.delete_topic("orders")
    refused = await together(engine, [BatchFor(orders, Batch([b"x"]))], [table.prepare([("a", Setting("x"))])])
    assert isinstance(refused, TopicNotFound)
    assert len(table) == 0
    await table.put("b", Setting("y"))
    await table.close()


async def test_a_prepared_change_that_is_not_appended_holds_nothing(engine: EmbeddedEngine) -> None:
    table = new_table(engine, entries_max=1)
    await table.load()
    table.prepare([("a", Setting("x"))])
    with pytest.raises(InvalidRequest, match="names each partition once"):
        await together(engine, [], [table.prepare([("a", Setting("x"))]), table.prepare([("a", Setting("y"))])])
    await table.put("b", Setting("y"))
    await table.close()


# -- what was written by other releases, and damage --------------------------------------------------------------------------


async def test_records_of_an_older_release_take_defaults_and_of_a_newer_one_lose_what_is_new(
    engine: EmbeddedEngine,
) -> None:
    await engine.create_topic("__settings", TopicConfig(cleanup="compact"))
    encode = msgspec.msgpack.encode
    await append(engine, [encode(["old"]), encode(["new", 7, "more"])], [encode("a"), encode("b")])
    table = await loaded(engine)
    assert dict(table.items()) == {"a": Setting("old", 0), "b": Setting("new", 7)}


@pytest.mark.parametrize(
    ("key", "value"), [(b"\xc1", b"\x91\xa1x"), (b"\xa1a", b"\xc1"), (None, b"\x91\xa1x"), (b"\xa1a", b"")]
)
async def test_a_record_that_cannot_be_understood_stops_the_start(
    engine: EmbeddedEngine, key: bytes | None, value: bytes
) -> None:
    await engine.create_topic("__settings", TopicConfig(cleanup="compact"))
    await append(engine, [b"\x91\xa1x"], [b"\xa1z"])
    await append(engine, [value], [key])
    with pytest.raises(CorruptMetadata, match="__settings has a record at offset 1"):
        await new_table(engine).load()


async def test_a_damaged_block_stops_the_start_and_the_text_names_file_and_position(
    tmp_path: Path, clock: ManualClock
) -> None:
    engine = EmbeddedEngine(tmp_path, clock=clock)
    await engine.start()
    table = await loaded(engine)
    for text in ("first", "the-second-one", "third"):
        await table.put(text, Setting(text))
    await engine.close()
    damaged = [path for path in tmp_path.rglob("*") if path.is_file() and b"the-second-one" in path.read_bytes()]
    assert len(damaged) == 1
    damaged[0].write_bytes(damaged[0].read_bytes().replace(b"the-second-one", b"the-sEcond-one"))

    engine = EmbeddedEngine(tmp_path, clock=clock)
    await engine.start()
    with pytest.raises(CorruptBlock) as failure:
        await new_table(engine).load()
    assert "internal topic __settings cannot be loaded at offset 1" in failure.value.message
    assert damaged[0].name in failure.value.message
    assert "--set log.accept_gaps=true" in failure.value.message
    await engine.close()

    engine = EmbeddedEngine(tmp_path, clock=clock, options=EngineOptions(accept_gaps=True))
    await engine.start()
    with capture_logs() as lines:
        table = await loaded(engine)
    assert dict(table.items()) == {"first": Setting("first"), "third": Setting("third")}
    [line] = [line for line in lines if line["event"] == "damaged part of an internal topic left out"]
    assert (line["log_level"], line["offset"], line["resumes_at"]) == ("error", 1, 2)
    await table.put("fourth", Setting("fourth"))
    await engine.close()
    engine = EmbeddedEngine(tmp_path, clock=clock, options=EngineOptions(accept_gaps=True))
    await engine.start()
    assert list(dict((await loaded(engine)).items())) == ["first", "third", "fourth"]
    await engine.close()


@pytest.mark.parametrize("spoilt", [b"first", b"third"], ids=["first block", "last block"])
async def test_a_damaged_block_at_either_end_is_left_out_if_gaps_are_accepted(
    tmp_path: Path, clock: ManualClock, spoilt: bytes
) -> None:
    engine = EmbeddedEngine(tmp_path, clock=clock)
    await engine.start()
    table = await loaded(engine)
    for text in ("first", "second", "third"):
        await table.put(text, Setting(text))
    await engine.close()
    [damaged] = [path for path in tmp_path.rglob("*.log") if b"second" in path.read_bytes()]
    damaged.write_bytes(damaged.read_bytes().replace(spoilt, spoilt.upper()))
    engine = EmbeddedEngine(tmp_path, clock=clock, options=EngineOptions(accept_gaps=True))
    await engine.start()
    left = {text for text in ("first", "second", "third") if text.encode() != spoilt}
    assert set(dict((await loaded(engine)).items())) == left
    await engine.close()
