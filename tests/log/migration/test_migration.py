"""Migrations from one data directory to another, which need no Kafka: what they find, refuse and do again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import CorruptBlock, InvalidRequest, ShuttingDown, TopicExists
from penstock.log.api import PlacedBatch, TopicConfig
from penstock.log.embedded import EmbeddedEngine
from penstock.log.embedded.snapshot_reading import SnapshotReader
from penstock.log.migration.migration import Migration
from penstock.log.migration.source import EngineSource
from penstock.log.migration.state import StateFile, check_served
from penstock.testing.clock import ManualClock
from tests.log.records import append, read_values
from tests.log.storage import make_partition

TOMBSTONE_MS = 1_000


class Logs:
    """A source, a target and the migration between them."""

    def __init__(self, directory: Path, source: EmbeddedEngine, target: EmbeddedEngine) -> None:
        self.directory = directory
        self.source = source
        self.target = target
        self.clock = ManualClock()

    def migration(self) -> Migration:
        state = StateFile(self.directory, "embedded")
        return Migration(self.target, state, tombstone_ms=TOMBSTONE_MS, clock=self.clock)


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[Logs]:
    async with AsyncExitStack() as engines:
        opened = []
        for name in ("source", "target"):
            engine = EmbeddedEngine(tmp_path / name)
            await engine.start()
            engines.push_async_callback(engine.close)
            opened.append(engine)
        yield Logs(tmp_path, *opened)


async def test_passes_copy_what_was_added(logs: Logs) -> None:
    partition = await make_partition(logs.source)
    for values in ([b"1", b"2"], [b"3"], []):
        if values:
            await append(partition, values)
        result = await logs.migration().copy(EngineSource(logs.source))
        assert result.copied_records == len(values)
    assert await read_values(logs.target.partition("orders", 0)) == [b"1", b"2", b"3"]
    assert logs.target.topics() == logs.source.topics()


async def test_a_record_that_was_changed_on_the_way_is_found(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    await append(await make_partition(logs.source), [b"1", b"2", b"3"])
    importing = logs.target.importing()
    place = importing.place

    async def place_another(topic: str, index: int, records: PlacedBatch) -> None:
        await place(topic, index, PlacedBatch(records.offsets, records.timestamps, [b"1", b"X", b"3"]))

    monkeypatch.setattr(importing, "place", place_another)
    monkeypatch.setattr(logs.target, "importing", lambda: importing)
    with pytest.raises(CorruptBlock, match="the record at offset 1 has another value in the target"):
        await logs.migration().copy(EngineSource(logs.source))


async def test_a_record_that_somebody_else_wrote_to_the_target_is_found(logs: Logs) -> None:
    source = await make_partition(logs.source)
    await append(source, [b"1", b"2", b"3"])
    await logs.migration().copy(EngineSource(logs.source))
    await append(logs.target.partition("orders", 0), [b"foreign"])
    with pytest.raises(InvalidRequest, match="something else has written to the target"):
        await logs.migration().copy(EngineSource(logs.source))
    await append(source, [b"4", b"5"])
    with pytest.raises(CorruptBlock, match="the record at offset 3 has another"):
        await logs.migration().copy(EngineSource(logs.source))


async def test_a_topic_that_is_there_already_is_left_alone(logs: Logs) -> None:
    await make_partition(logs.source)
    theirs = await make_partition(logs.target)
    await append(theirs, [b"theirs"])
    with pytest.raises(TopicExists, match="the target has another topic 'orders' already"):
        await logs.migration().copy(EngineSource(logs.source))
    assert await read_values(theirs) == [b"theirs"]


async def test_topics_that_were_deleted_altered_or_grown_are_so_in_the_target(logs: Logs) -> None:
    for topic in ("gone", "again", "kept"):
        await append(await make_partition(logs.source, topic), [b"before"])
    await logs.migration().copy(EngineSource(logs.source))
    await logs.source.delete_topic("gone")
    await logs.source.delete_topic("again")
    await append(await make_partition(logs.source, "again"), [b"after"])
    kept = logs.source.topics()["kept"].config
    await logs.source.alter_topic("kept", replace(kept, partitions=2, retention_ms=1))
    await logs.migration().finish(EngineSource(logs.source))
    assert logs.target.topics() == logs.source.topics()
    assert await read_values(logs.target.partition("again", 0)) == [b"after"]
    assert await read_values(logs.target.partition("kept", 0)) == [b"before"]


async def test_a_compacted_topic_is_copied_again_once_tombstones_may_be_gone(logs: Logs) -> None:
    await append(await make_partition(logs.source, config=TopicConfig(cleanup="compact")), [b"1"], [b"k"])
    source = EngineSource(logs.source)
    assert (await logs.migration().copy(source)).copied_records == 1
    assert (await logs.migration().copy(source)).copied_records == 0
    logs.clock.advance(TOMBSTONE_MS / 1000)
    assert (await logs.migration().copy(source)).copied_records == 1


async def test_a_pass_that_was_cut_short_does_not_count_for_tombstones(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a key that was deleted since the pass before would be back in the target, if its tombstone is gone: a user, for example."""
    await append(await make_partition(logs.source, config=TopicConfig(cleanup="compact")), [b"1"], [b"k"])
    source = EngineSource(logs.source)
    assert (await logs.migration().copy(source)).copied_records == 1

    async def cut_short(*_: object) -> None:
        raise ShuttingDown("killed")

    logs.clock.advance(0.6 * TOMBSTONE_MS / 1000)
    with monkeypatch.context() as patched:
        patched.setattr(Migration, "_copy_partition", cut_short)
        with pytest.raises(ShuttingDown):
            await logs.migration().copy(source)
    logs.clock.advance(0.6 * TOMBSTONE_MS / 1000)
    assert (await logs.migration().copy(source)).copied_records == 1


async def test_nothing_is_served_before_it_is_finished_and_nothing_is_moved_after(logs: Logs) -> None:
    await append(await make_partition(logs.source), [b"1"])
    check_served(logs.directory, "embedded")
    await logs.migration().copy(EngineSource(logs.source))
    with pytest.raises(InvalidRequest, match="has not finished"):
        check_served(logs.directory, "embedded")
    check_served(logs.directory, "kafka")
    await logs.migration().finish(EngineSource(logs.source))
    check_served(logs.directory, "embedded")
    with pytest.raises(InvalidRequest, match="was finished before"):
        logs.migration()


async def test_a_topic_that_appears_during_the_last_pass_does_not_end_it(logs: Logs) -> None:
    """As one that somebody else creates in Kafka."""
    await append(await make_partition(logs.source), [b"1"])
    source = EngineSource(logs.source)
    bounds = source.bounds

    async def bounds_while_others_create(topic: str, index: int) -> tuple[int, int]:
        if "late" not in logs.source.topics():
            await make_partition(logs.source, "late")
        return await bounds(topic, index)

    source.bounds = bounds_while_others_create  # type: ignore[method-assign]
    await logs.migration().finish(source)
    assert set(logs.target.topics()) == {"orders"}


async def test_a_snapshot_is_read_as_the_log_was(logs: Logs) -> None:
    partition = await make_partition(logs.source, config=TopicConfig(segment_bytes=1 << 12))
    for number in range(20):
        await append(partition, [b"%d-%d" % (number, row) * 20 for row in range(30)])
    snapshot = await logs.source.snapshot()
    before = await read_values(partition)
    await append(partition, [b"later"])
    result = await logs.migration().copy(SnapshotReader(Path(snapshot.directory)))
    assert result.copied_records == len(before)
    assert await read_values(logs.target.partition("orders", 0)) == before
    assert (await logs.migration().finish(EngineSource(logs.source))).copied_records == 1
