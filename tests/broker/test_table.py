"""The table: what is committed is in memory and survives; what is not is nowhere; damage stops the start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
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
    NotWritten,
    PenstockError,
    ShuttingDown,
    TopicNotFound,
)
from penstock.log.api import Appended, Batch, BatchFor, Engine, TopicConfig
from penstock.log.embedded import EngineOptions
from penstock.testing.clock import ManualClock
from penstock.testing.shared_engine import SharedEngine
from penstock.testing.shared_log import SharedLog
from tests.broker.producing import read_values
from tests.engines import make_engine


class Setting(msgspec.Struct, frozen=True, array_like=True):
    text: str
    size: int = 0


SettingTable = Table[str, Setting]


def new_table(engine: Engine, entries_max: int = 1000, value_bytes_max: int = 1000) -> SettingTable:
    return Table(
        engine,
        "__settings",
        str,
        Setting,
        entries_max=entries_max,
        limit="limits.settings_max",
        value_bytes_max=value_bytes_max,
    )


async def loaded(engine: Engine) -> SettingTable:
    table = new_table(engine)
    await table.load()
    return table


async def append(engine: Engine, values: list[bytes | None], keys: list[bytes | None]) -> None:
    placed: asyncio.Future[Appended | PenstockError] = asyncio.get_running_loop().create_future()
    engine.partition("__settings", 0).append(Batch(values, keys), placed.set_result)
    assert isinstance(await placed, Appended)


async def test_an_entry_is_in_memory_once_it_is_committed_and_not_before(engine: Engine) -> None:
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


async def test_of_several_changes_in_flight_the_last_one_made_wins(engine: Engine) -> None:
    table = await loaded(engine)
    await asyncio.gather(*(table.put("a", Setting("x", n)) for n in range(100)))
    assert table.get("a") == Setting("x", 99)


@pytest.mark.embedded
async def test_changes_of_one_turn_share_their_commits(engine: Engine) -> None:
    table = await loaded(engine)
    commits = engine.stats.commits
    await asyncio.gather(*(table.put(str(n), Setting("x", n)) for n in range(500)))
    assert engine.stats.commits - commits <= 3
    assert len(table) == 500


async def test_a_table_is_what_it_was_after_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    engine = make_engine(tmp_path, clock=clock)
    await engine.start()
    table = await loaded(engine)
    await asyncio.gather(*(table.put(str(n % 300), Setting("x", n)) for n in range(1000)))
    await table.change([(str(n), None) for n in range(100)])
    entries = dict(table.items())
    await engine.close()

    engine = make_engine(tmp_path, clock=clock)
    await engine.start()
    seen: list[tuple[str, Setting | None]] = []
    reloaded: SettingTable = Table(
        engine,
        "__settings",
        str,
        Setting,
        entries_max=1000,
        limit="limits.settings_max",
        on_change=lambda key, value: seen.append((key, value)),
    )
    await reloaded.load()
    assert dict(reloaded.items()) == entries
    assert len(entries) == 200
    assert {key: value for key, value in dict(seen).items() if value is not None} == entries
    await reloaded.put("new", Setting("y"))
    assert reloaded.get("new") == Setting("y")
    await engine.close()


@pytest.mark.dense
async def test_what_does_not_fit_is_refused_before_anything_is_written(engine: Engine) -> None:
    table = new_table(engine, entries_max=2)
    await table.load()
    with pytest.raises(InvalidRequest, match="value of 1005 bytes does not fit table __settings: at most 1000"):
        await table.put("a", Setting("x" * 1000))
    with pytest.raises(InvalidRequest, match=f"at most {KEY_BYTES_MAX}"):
        await table.put("k" * KEY_BYTES_MAX, Setting("x"))
    first, second = table.put("a", Setting("x")), table.put("b", Setting("x"))
    with pytest.raises(LimitExceeded, match=r"full with 2 entries: delete some or raise limits\.settings_max"):
        await table.put("c", Setting("x"))
    await asyncio.gather(first, second)
    await table.put("a", Setting("y"))
    assert dict(table.items()) == {"a": Setting("y"), "b": Setting("x")}
    assert engine.partition("__settings", 0).committed_end == 3


async def test_a_waiter_that_gives_up_does_not_undo_the_change(engine: Engine) -> None:
    table = await loaded(engine)
    abandoned = table.put("a", Setting("x"))
    abandoned.cancel()
    await table.put("b", Setting("y"))
    assert table.get("a") == Setting("x")


async def test_closing_waits_for_what_is_in_flight_and_takes_no_more(engine: Engine) -> None:
    table = await loaded(engine)
    committing = table.put("a", Setting("x"))
    await table.close()
    assert committing.done()
    assert table.get("a") == Setting("x")
    with pytest.raises(ShuttingDown):
        await table.put("b", Setting("x"))


async def test_a_table_that_is_not_loaded_takes_no_changes(engine: Engine) -> None:
    with pytest.raises(ShuttingDown, match="not open"):
        await new_table(engine).put("a", Setting("x"))


async def test_a_failed_commit_reaches_the_caller_and_not_the_memory(engine: Engine) -> None:
    table = await loaded(engine)
    await engine.delete_topic("__settings")
    with pytest.raises(PenstockError, match="__settings"):
        await table.put("a", Setting("x"))
    assert table.get("a") is None


# -- together with other appends ------------------------------------------------------------------------------------------


async def together(
    engine: Engine, batches: list[BatchFor], changes: list[PreparedChange[str, Setting]]
) -> PenstockError | None:
    come_back: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()
    append_together(engine, batches, changes, come_back.set_result)
    return await come_back


async def test_a_prepared_change_shows_with_the_records_it_was_appended_with(engine: Engine) -> None:
    table = await loaded(engine)
    await engine.create_topic("orders", TopicConfig(partitions=2))
    orders = [engine.partition("orders", index) for index in range(2)]
    await table.put("b", Setting("old"))
    error = await together(
        engine,
        [BatchFor(partition, Batch([b"x", b"y"])) for partition in orders],
        [table.prepare([("a", Setting("one")), ("b", None)])],
    )
    assert error is None
    assert [await read_values(partition) for partition in orders] == [[b"x", b"y"]] * 2
    assert dict(table.items()) == {"a": Setting("one")}


async def test_changes_of_two_tables_need_no_records_beside_them(engine: Engine) -> None:
    table = await loaded(engine)
    other: SettingTable = Table(engine, "__others", str, Setting, entries_max=10, limit="limits.settings_max")
    await other.load()
    changes = [table.prepare([("a", Setting("x"))]), other.prepare([("b", Setting("y"))])]
    assert await together(engine, [], changes) is None
    assert (table.get("a"), other.get("b")) == (Setting("x"), Setting("y"))


async def test_a_change_made_after_a_larger_append_takes_effect_after_it(engine: Engine) -> None:
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


async def test_of_many_appends_over_tables_and_topics_each_shows_when_it_is_reported(engine: Engine) -> None:
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


async def test_an_append_that_is_refused_in_one_part_changes_no_table(engine: Engine) -> None:
    table = await loaded(engine)
    await engine.create_topic("orders", TopicConfig())
    orders = engine.partition("orders", 0)
    await engine.delete_topic("orders")
    refused = await together(engine, [BatchFor(orders, Batch([b"x"]))], [table.prepare([("a", Setting("x"))])])
    assert isinstance(refused, TopicNotFound)
    assert len(table) == 0
    await table.put("b", Setting("y"))
    await table.close()


async def test_a_prepared_change_that_is_not_appended_holds_nothing(engine: Engine) -> None:
    table = new_table(engine, entries_max=1)
    await table.load()
    table.prepare([("a", Setting("x"))])
    with pytest.raises(InvalidRequest, match="names each partition once"):
        await together(engine, [], [table.prepare([("a", Setting("x"))]), table.prepare([("a", Setting("y"))])])
    await table.put("b", Setting("y"))
    await table.close()


# -- a log that others write to, too ----------------------------------------------------------------------------------------


@pytest.fixture
async def nodes() -> AsyncIterator[list[SharedEngine]]:
    log = SharedLog()
    nodes = [SharedEngine(log, seed=seed) for seed in range(3)]
    for node in nodes:
        await node.start()
    yield nodes
    for node in nodes:
        await node.close()


async def equal(tables: list[SettingTable]) -> None:
    while any(dict(table.items()) != dict(tables[0].items()) for table in tables):
        await asyncio.sleep(0)


async def test_tables_of_several_nodes_show_all_changes_in_the_order_of_the_log(nodes: list[SharedEngine]) -> None:
    seen: list[list[tuple[str, int]]] = [[] for _ in nodes]
    tables: list[SettingTable] = []
    for node, heard in zip(nodes, seen, strict=True):

        def on_change(key: str, value: Setting | None, heard: list[tuple[str, int]] = heard) -> None:
            heard.append((key, -1 if value is None else value.size))

        table: SettingTable = Table(
            node, "__settings", str, Setting, entries_max=1000, limit="limits.settings_max", on_change=on_change
        )
        await table.load()
        tables.append(table)

    async def write(node: int, number: int) -> None:
        key, value = str(number % 7), Setting(f"node {node}", 1000 * node + number)
        await tables[node].put(key, value)
        assert (key, value.size) in seen[node], "a writer sees its own change"

    await asyncio.gather(*(write(node, number) for number in range(100) for node in range(3)))
    await equal(tables)
    while not len(seen[0]) == len(seen[1]) == len(seen[2]) == 300:
        await asyncio.sleep(0)
    assert seen[0] == seen[1] == seen[2]
    for table in tables:
        await table.close()


async def test_a_writer_never_reads_an_older_value_than_it_wrote(nodes: list[SharedEngine]) -> None:
    tables = [await loaded(node) for node in nodes]

    async def count_up(node: int) -> None:
        for number in range(60):
            await tables[node].put(f"node {node}", Setting("x", number))
            assert tables[node].get(f"node {node}") == Setting("x", number)
            await together(nodes[node], [], [tables[node].prepare([("shared", Setting("x", number))])])
            assert tables[node].get("shared") is not None

    await asyncio.gather(*map(count_up, range(3)))
    await equal(tables)
    for table in tables:
        await table.close()


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("atomic", [True, False])
async def test_a_change_whose_answer_was_lost_shows_or_is_refused_once_the_log_has_told(
    nodes: list[SharedEngine], stored: bool, atomic: bool
) -> None:
    table = await loaded(nodes[0])
    await table.put("a", Setting("old"))
    nodes[0].lose_answer(stored=stored)
    if atomic:
        error = await together(nodes[0], [], [table.prepare([("a", Setting("new"))])])
        assert (error is None) is stored
        assert error is None or isinstance(error, NotWritten)
    elif stored:
        await table.put("a", Setting("new"))
    else:
        with pytest.raises(NotWritten, match="the answer was lost"):
            await table.put("a", Setting("new"))
    assert table.get("a") == Setting("new" if stored else "old")
    await table.put("b", Setting("later"))
    await table.close()


async def test_a_record_that_a_table_cannot_read_holds_it_back_and_is_told(nodes: list[SharedEngine]) -> None:
    table = await loaded(nodes[0])
    background = table._background
    await append(nodes[0], [b"\xc1"], [msgspec.msgpack.encode("a")])
    while not background.failing:
        await asyncio.sleep(0)
    assert "start the release that wrote it" in background.failing["table_settings"]
    committing = table.put("b", Setting("behind it"))
    closing = asyncio.ensure_future(table.close())
    with pytest.raises(CorruptMetadata):
        await committing
    await closing


# -- what was written by other releases, and damage --------------------------------------------------------------------------


async def test_records_of_an_older_release_take_defaults_and_of_a_newer_one_lose_what_is_new(
    engine: Engine,
) -> None:
    await engine.create_topic("__settings", TopicConfig(cleanup="compact"))
    encode = msgspec.msgpack.encode
    await append(engine, [encode(["old"]), encode(["new", 7, "more"])], [encode("a"), encode("b")])
    table = await loaded(engine)
    assert dict(table.items()) == {"a": Setting("old", 0), "b": Setting("new", 7)}


@pytest.mark.dense
@pytest.mark.parametrize(
    ("key", "value"), [(b"\xc1", b"\x91\xa1x"), (b"\xa1a", b"\xc1"), (None, b"\x91\xa1x"), (b"\xa1a", b"")]
)
async def test_a_record_that_cannot_be_understood_stops_the_start(
    engine: Engine, key: bytes | None, value: bytes
) -> None:
    await engine.create_topic("__settings", TopicConfig(cleanup="compact"))
    await append(engine, [b"\x91\xa1x"], [b"\xa1z"])
    await append(engine, [value], [key])
    with pytest.raises(CorruptMetadata, match="__settings has a record at offset 1"):
        await new_table(engine).load()


@pytest.mark.embedded
async def test_a_damaged_block_stops_the_start_and_the_text_names_file_and_position(
    tmp_path: Path, clock: ManualClock
) -> None:
    engine = make_engine(tmp_path, clock=clock)
    await engine.start()
    table = await loaded(engine)
    for text in ("first", "the-second-one", "third"):
        await table.put(text, Setting(text))
    await engine.close()
    damaged = [path for path in tmp_path.rglob("*") if path.is_file() and b"the-second-one" in path.read_bytes()]
    assert len(damaged) == 1
    damaged[0].write_bytes(damaged[0].read_bytes().replace(b"the-second-one", b"the-sEcond-one"))

    engine = make_engine(tmp_path, clock=clock)
    await engine.start()
    with pytest.raises(CorruptBlock) as failure:
        await new_table(engine).load()
    assert "internal topic __settings cannot be loaded at offset 1" in failure.value.message
    assert damaged[0].name in failure.value.message
    assert "--set log.accept_gaps=true" in failure.value.message
    await engine.close()

    engine = make_engine(tmp_path, clock=clock, options=EngineOptions(accept_gaps=True))
    await engine.start()
    with capture_logs() as lines:
        table = await loaded(engine)
    assert dict(table.items()) == {"first": Setting("first"), "third": Setting("third")}
    [line] = [line for line in lines if line["event"] == "internal_topic_damaged"]
    assert (line["log_level"], line["offset"], line["resumes_at"]) == ("error", 1, 2)
    await table.put("fourth", Setting("fourth"))
    await engine.close()
    engine = make_engine(tmp_path, clock=clock, options=EngineOptions(accept_gaps=True))
    await engine.start()
    assert list(dict((await loaded(engine)).items())) == ["first", "third", "fourth"]
    await engine.close()


@pytest.mark.embedded
@pytest.mark.parametrize("spoilt", [b"first", b"third"], ids=["first block", "last block"])
async def test_a_damaged_block_at_either_end_is_left_out_if_gaps_are_accepted(
    tmp_path: Path, clock: ManualClock, spoilt: bytes
) -> None:
    engine = make_engine(tmp_path, clock=clock)
    await engine.start()
    table = await loaded(engine)
    for text in ("first", "second", "third"):
        await table.put(text, Setting(text))
    await engine.close()
    [damaged] = [path for path in tmp_path.rglob("*.log") if b"second" in path.read_bytes()]
    damaged.write_bytes(damaged.read_bytes().replace(spoilt, spoilt.upper()))
    engine = make_engine(tmp_path, clock=clock, options=EngineOptions(accept_gaps=True))
    await engine.start()
    left = {text for text in ("first", "second", "third") if text.encode() != spoilt}
    assert set(dict((await loaded(engine)).items())) == left
    await engine.close()
