"""Late records of compacted topics: kept in the journal until their partition is written to, and there after every end of a run."""

from __future__ import annotations

import asyncio
import errno
import itertools
import random
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidRequest, NoSpace, NotWritten, OutcomeUnknown, PenstockError
from penstock.log.api import Appended, Batch, BatchFor, Durability, LateBatch, TopicConfig
from penstock.log.appending import start_append
from penstock.log.embedded import EmbeddedEngine, EngineOptions, commit
from penstock.log.embedded.backup import back_up
from penstock.log.embedded.journal import journal_paths
from penstock.log.embedded.restore import restore
from penstock.log.embedded.verify import verify
from penstock.testing.clock import ManualClock
from penstock.testing.powercut import PowerCutDisk
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.faults import SuffixFaults
from tests.log.embedded.storage import CountingDisk, crash_image
from tests.log.records import append, read_all, read_values, start_atomic_append

SMALL_JOURNAL = EngineOptions.model_construct(journal_bytes=16 << 10, reserve_bytes=0)


async def opened(open_engine: OpenEngine, disk: CountingDisk | None = None) -> EmbeddedEngine:
    engine = await open_engine(disk=disk, options=SMALL_JOURNAL)
    await engine.create_topic("orders", TopicConfig(partitions=2))
    await engine.create_topic("table", TopicConfig(cleanup="compact"))
    return engine


def start(engine: EmbeddedEngine, key: bytes, value: bytes, *indexes: int) -> asyncio.Future[Sequence[Appended]]:
    """Append a value to partitions of `orders`, and to the table under a key where that is."""
    orders = [engine.partition("orders", index) for index in indexes or (0,)]
    late = LateBatch(
        key,
        lambda places: value + b"".join(b"@%d" % places[part].base_offset for part in orders),
        100 + len(value),
    )
    parts = [BatchFor(part, Batch([value])) for part in orders]
    return start_atomic_append(engine, [*parts, BatchFor(engine.partition("table", 0), late)])


async def table(engine: EmbeddedEngine) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in await read_all(engine.partition("table", 0))]


async def after_a_crash(
    open_engine: OpenEngine, data_dir: Path, image: Path
) -> tuple[list[tuple[bytes | None, bytes | None]], list[bytes | None]]:
    """The table and the records that a start finds; a check of the directory foresees where they end."""
    crash_image(data_dir, image)
    foreseen = {report.topic: report.ends for report in verify(image).topics}
    engine = await open_engine(image)
    found = await table(engine), await read_values(engine.partition("orders", 0))
    assert foreseen["table"] == [engine.partition("table", 0).committed_end]
    assert journal_paths(image / "journal") == []
    await engine.close()
    again = await open_engine(image)
    assert (await table(again), await read_values(again.partition("orders", 0))) == found
    await again.close()
    return found


async def checkpoint(engine: EmbeddedEngine) -> None:
    await engine._committer.run(lambda: engine._committer.checkpoints.begin(wait=True))


async def test_it_costs_one_flush_and_no_write_to_its_partition(open_engine: OpenEngine, disk: CountingDisk) -> None:
    engine = await opened(open_engine, disk)
    await start(engine, b"k", b"a")
    disk.flushes.clear()
    [place, nowhere] = await start(engine, b"k", b"b")
    assert disk.flushes == {"journal": 1}
    assert (place.base_offset, nowhere.base_offset) == (1, -1)
    assert engine.partition("table", 0).committed_end == 0


async def test_the_last_of_each_key_is_there_after_a_crash(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    engine = await opened(open_engine)
    for number in range(7):
        await start(engine, b"%d" % (number % 2), b"v%d" % number)
    rows, values = await after_a_crash(open_engine, data_dir, tmp_path / "image")
    assert rows == [(b"0", b"v6@6"), (b"1", b"v5@5")]
    assert values == [b"v%d" % number for number in range(7)]


async def test_it_is_there_after_a_clean_stop(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await opened(open_engine)
    await start(engine, b"k", b"a")
    await engine.close()
    assert journal_paths(data_dir / "journal") == []
    engine = await open_engine()
    assert await table(engine) == [(b"k", b"a@0")]


async def test_it_comes_before_what_is_appended_next_and_is_written_once(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    engine = await opened(open_engine)
    await start(engine, b"k", b"a")
    placed = await append(engine.partition("table", 0), [b"next"], [b"n"])
    assert placed.base_offset == 1
    expected = [(b"k", b"a@0"), (b"n", b"next")]
    assert await table(engine) == expected
    rows, _ = await after_a_crash(open_engine, data_dir, tmp_path / "image")
    assert rows == expected, "the journal still has it, and it is not appended again"
    await start(engine, b"k", b"b")
    rows, _ = await after_a_crash(open_engine, data_dir, tmp_path / "later")
    assert rows == [*expected, (b"k", b"b@1")]


async def test_it_goes_to_its_partition_at_once_if_that_is_written_by_the_same_commit(open_engine: OpenEngine) -> None:
    engine = await opened(open_engine)
    await start(engine, b"k", b"a")
    partition = engine.partition("table", 0)
    plain: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    partition.append(Batch([b"plain"], [b"p"]), plain.set_result)
    [_, placed] = await start(engine, b"k", b"b")
    await plain
    assert await table(engine) == [(b"k", b"a@0"), (b"p", b"plain"), (b"k", b"b@1")]
    assert placed.base_offset == 2


@pytest.mark.parametrize("written", [False, True], ids=["in the journal", "in their partition"])
async def test_those_of_one_commit_keep_their_order(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, written: bool
) -> None:
    engine = await opened(open_engine)
    await start(engine, b"opens the journal", b"first", 1)
    parts = ((1,), (0,), (1, 0), (0,), (1,), (0,))
    started: list[asyncio.Future[Any]] = [start(engine, b"k", b"%d" % at, *part) for at, part in enumerate(parts)]
    if written:
        started.append(start_append(engine.partition("table", 0), Batch([b"plain"], [b"p"])))
    await asyncio.gather(*started)
    assert (engine.partition("table", 0).committed_end > 0) == written
    rows, _ = await after_a_crash(open_engine, data_dir, tmp_path / "image")
    assert dict(rows)[b"k"] == b"5@3"


async def test_checkpoints_take_it_from_journal_to_journal(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    engine = await opened(open_engine)
    await start(engine, b"early", b"x")
    for number in range(200):
        await start(engine, b"k", b"%d" % number)
    journals = journal_paths(data_dir / "journal")
    assert int(journals[-1].stem) > 1, "some journals were full"
    assert len(journals) <= 2, "and are deleted"
    assert engine.partition("table", 0).committed_end == 0
    rows, _ = await after_a_crash(open_engine, data_dir, tmp_path / "image")
    assert sorted(rows) == [(b"early", b"x@0"), (b"k", b"199@200")]


async def test_a_journal_is_kept_if_its_late_records_cannot_be_written_to_the_next(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, faults: SuffixFaults
) -> None:
    engine = await opened(open_engine, faults)
    await start(engine, b"k", b"a")
    [kept] = journal_paths(data_dir / "journal")
    for operation, times in (("allocate", 2), ("flush", 1)):
        faults.fail(operation, ".journal", errno.ENOSPC, times)
        await checkpoint(engine)
        assert kept in journal_paths(data_dir / "journal")
        await start(engine, b"other", b"b")
    rows, _ = await after_a_crash(open_engine, data_dir, tmp_path / "image")
    assert sorted(rows) == [(b"k", b"a@0"), (b"other", b"b@2")]


async def test_a_full_disk_keeps_no_journal_for_late_records_while_there_is_a_reserve(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, faults: SuffixFaults
) -> None:
    engine = await open_engine(disk=faults, options=EngineOptions(reserve_bytes=1 << 16))
    await engine.create_topic("orders", TopicConfig())
    await engine.create_topic("table", TopicConfig(cleanup="compact"))
    await start(engine, b"k", b"a")
    [before] = journal_paths(data_dir / "journal")
    faults.fail("allocate", ".journal", errno.ENOSPC, times=2)
    await checkpoint(engine)
    assert before not in journal_paths(data_dir / "journal")
    rows, _ = await after_a_crash(open_engine, data_dir, tmp_path / "image")
    assert rows == [(b"k", b"a@0")]


async def test_maintenance_writes_it_so_that_the_journal_can_go(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await opened(open_engine)
    await start(engine, b"k", b"a")
    await engine.maintain()
    assert await table(engine) == [(b"k", b"a@0")]
    await engine._committer.run(engine._committer.checkpoints.finish)
    assert journal_paths(data_dir / "journal") == []


async def test_a_snapshot_has_it(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = await opened(open_engine)
    await start(engine, b"k", b"a")
    underway = [start(engine, b"%d" % number, b"b") for number in range(3)]
    snapshot = await engine.snapshot()
    await asyncio.gather(*underway, start(engine, b"k", b"later"))
    backup = back_up(Path(snapshot.directory), snapshot.id, tmp_path / "backups")
    assert restore(backup, tmp_path / "restored").findings == []
    restored = await open_engine(tmp_path / "restored")
    values = await read_values(restored.partition("orders", 0))
    rows = dict(await table(restored))
    assert rows[b"k"] == b"a@0"
    assert len(rows) == len(values), "what the backup holds, its table tells of"


async def test_a_snapshot_waits_for_a_commit_that_has_written_it_and_is_not_told_of(
    open_engine: OpenEngine, tmp_path: Path
) -> None:
    engine = await opened(open_engine)
    await start(engine, b"k", b"a")
    engine.partition("table", 0).append(Batch([b"next"], [b"n"]), lambda _: None, relaxed=True)
    await asyncio.sleep(0)  # the commit is given to its thread
    while engine._committer.checkpoints.late:
        pass  # the loop hears of nothing before the snapshot has begun
    snapshot = await engine._snapshot()
    restore(back_up(Path(snapshot.directory), snapshot.id, tmp_path / "backups"), tmp_path / "restored")
    assert (b"k", b"a@0") in await table(await open_engine(tmp_path / "restored"))


async def test_there_are_so_many_in_the_journal_only(open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "LATE_RECORDS_MAX", 5)
    engine = await opened(open_engine)
    for number in range(20):
        await start(engine, b"%d" % number, b"v")
        assert len(engine.partition("table", 0).late) <= 5
    await engine.maintain()
    assert [value for _, value in await table(engine)] == [b"v@%d" % number for number in range(20)]


async def test_a_topic_that_is_not_compacted_or_not_flushed_has_it_at_once(open_engine: OpenEngine) -> None:
    engine = await opened(open_engine)
    await engine.alter_topic("table", TopicConfig(cleanup="compact", durability=Durability("none")))
    await start(engine, b"k", b"a")
    assert await table(engine) == [(b"k", b"a@0")]
    await engine.alter_topic("table", TopicConfig())
    await start(engine, b"k", b"b")
    assert await table(engine) == [(b"k", b"a@0"), (b"k", b"b@1")]


async def test_it_is_written_for_good_if_its_topic_is_not_flushed_any_more(open_engine: OpenEngine) -> None:
    engine = await opened(open_engine)
    await start(engine, b"k", b"a")
    await engine.alter_topic("table", TopicConfig(cleanup="compact", durability=Durability("none")))
    for number in range(2):
        await append(engine.partition("table", 0), [b"%d" % number], [b"n"])
    assert await table(engine) == [(b"k", b"a@0"), (b"n", b"0"), (b"n", b"1")]


# -- what cannot be written -------------------------------------------------------------------------------------------------


async def outcome(appending: asyncio.Future[Sequence[Appended]]) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        await appending
    return caught.value


async def test_what_has_no_place_in_its_partition_refuses_the_append(open_engine: OpenEngine) -> None:
    engine = await opened(open_engine)
    await start(engine, b"opens the journal", b"first")
    orders, keyed = engine.partition("orders", 0), engine.partition("table", 0)

    def start_wrong(late: LateBatch) -> asyncio.Future[Sequence[Appended]]:
        return start_atomic_append(engine, [BatchFor(orders, Batch([b"wrong"])), BatchFor(keyed, late)])

    wrong = start_wrong(LateBatch(b"k", lambda places: b"%d" % places[keyed].base_offset, 10))
    sound = start(engine, b"k", b"sound")
    assert type(await outcome(wrong)) is InvalidRequest
    assert (await sound)[0].base_offset == 1
    assert await read_values(orders) == [b"first", b"sound"]
    with pytest.raises(InvalidRequest, match="at least one batch"):
        engine.append_atomic([BatchFor(keyed, LateBatch(b"k", lambda _: b"v", 10))], lambda _: None)


async def test_an_append_whose_table_is_deleted_or_has_failed_is_not_written(open_engine: OpenEngine) -> None:
    engine = await opened(open_engine)
    await start(engine, b"k", b"a")
    engine.partition("table", 0).fail("a test")
    assert type(await outcome(start(engine, b"k", b"b"))) is NotWritten
    await engine.delete_topic("table")
    await engine.create_topic("table", TopicConfig(cleanup="compact"))
    waiting = start(engine, b"k", b"c")
    engine.partition("table", 0).fail("a test, while it waits")
    assert type(await outcome(waiting)) is NotWritten
    assert await read_values(engine.partition("orders", 0)) == [b"a"]


async def test_without_space_for_the_journal_nothing_is_written(open_engine: OpenEngine, faults: SuffixFaults) -> None:
    engine = await opened(open_engine, faults)
    await start(engine, b"k", b"a")
    faults.fail("write", ".journal", errno.ENOSPC)
    assert type(await outcome(start(engine, b"k", b"b"))) is NoSpace
    await start(engine, b"other", b"c")
    await engine.maintain()
    assert await table(engine) == [(b"k", b"a@0"), (b"other", b"c@1")]


@pytest.mark.parametrize(("operation", "suffix"), [("flush", ".journal"), ("write", ".log")])
async def test_its_partition_takes_nothing_after_an_append_whose_outcome_is_unknown(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, faults: SuffixFaults, operation: str, suffix: str
) -> None:
    """What was appended to it would lie behind the offset in the journal, and hide that the late record is still to be written."""
    engine = await opened(open_engine, faults)
    await start(engine, b"k", b"a")
    faults.fail(operation, suffix, errno.EIO)
    assert type(await outcome(start(engine, b"k", b"b"))) is OutcomeUnknown
    with pytest.raises(NotWritten):
        await append(engine.partition("table", 0), [b"next"], [b"n"])
    rows, values = await after_a_crash(open_engine, data_dir, tmp_path / "image")
    assert (rows, values) == ([(b"k", b"b@1")], [b"a", b"b"])


async def test_a_start_without_space_for_it_refuses_writes_to_its_partition(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, faults: SuffixFaults
) -> None:
    engine = await opened(open_engine)
    await start(engine, b"k", b"a")
    image = crash_image(data_dir, tmp_path / "image")
    faults.fail("allocate", ".log", errno.ENOSPC, times=100)
    full = await open_engine(image, disk=faults, options=SMALL_JOURNAL)
    assert await table(full) == []
    assert full.partition("table", 0).failure is not None
    assert await read_values(full.partition("orders", 0)) == [b"a"]
    assert type(await outcome(start(full, b"k", b"b"))) is NotWritten
    await full.close()
    again = await open_engine(image)
    assert await table(again) == [(b"k", b"a@0")]


async def test_a_power_cut_at_any_operation_of_a_start_or_a_stop_loses_none(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    engine = await opened(open_engine)
    for number in range(4):
        await start(engine, b"%d" % (number % 3), b"v%d" % number)
    crashed = crash_image(data_dir, tmp_path / "crashed")
    for cut_at in itertools.count(1):
        disk = PowerCutDisk(crash_image(crashed, tmp_path / "source"), cut_at)
        options = EngineOptions.model_construct(
            reserve_bytes=0, block_bytes_target=10
        )  # so that each is a block of its own
        opening = EmbeddedEngine(tmp_path / "source", disk=disk, options=options)
        with suppress(PenstockError, OSError, AttributeError):  # it may have come as far as nothing that can be closed
            try:
                await opening.start()
                await start(opening, b"0", b"v4")
            finally:
                await opening.close()
        if not disk.is_off:
            break
        image = tmp_path / "image"
        disk.image(image, random.Random(cut_at), (0.1, 0.5, 0.9)[cut_at % 3])
        recovered = await open_engine(image)
        rows, values = await table(recovered), await read_values(recovered.partition("orders", 0))
        await recovered.close()
        assert values[:4] == [b"v0", b"v1", b"v2", b"v3"]
        last = b"v4@4" if len(values) > 4 else b"v3@3"
        assert dict(rows) == {b"0": last, b"1": b"v1@1", b"2": b"v2@2"}
        shutil.rmtree(image)
    assert cut_at > 20


# -- what is left of late records after a failure --------------------------------------------------------------------------


async def test_a_part_without_space_is_what_the_append_is_refused_for(
    open_engine: OpenEngine, clock: ManualClock, faults: SuffixFaults
) -> None:
    engine = await opened(open_engine, faults)
    await engine.alter_topic("orders", TopicConfig(partitions=2, segment_ms=60_000))
    await start(engine, b"k", b"a", 0, 1)
    clock.advance(60)
    faults.fail_second("create", ".log", errno.ENOSPC)  # a new segment, before its part is laid out
    assert type(await outcome(start(engine, b"k", b"b", 0, 1))) is NoSpace
    await start(engine, b"k", b"c", 0, 1)
    assert await read_values(engine.partition("orders", 0)) == [b"a", b"c"]


@pytest.mark.parametrize(("operation", "suffix"), [("flush", ".journal"), ("write", ".log")])
async def test_a_checkpoint_puts_none_behind_one_whose_outcome_is_unknown(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, faults: SuffixFaults, operation: str, suffix: str
) -> None:
    engine = await opened(open_engine, faults)
    await engine.create_topic("other", TopicConfig(partitions=2))
    await start(engine, b"k", b"a")
    faults.fail(operation, suffix, errno.EIO)
    assert type(await outcome(start(engine, b"k", b"b"))) is OutcomeUnknown
    for _ in range(2):
        others = [BatchFor(engine.partition("other", index), Batch([b"v"])) for index in (0, 1)]
        await start_atomic_append(engine, others)
        await checkpoint(engine)
    journals = journal_paths(data_dir / "journal")
    rows, values = await after_a_crash(open_engine, data_dir, tmp_path / "image")
    assert (rows, values) == ([(b"k", b"b@1")], [b"a", b"b"])
    assert len(journals) <= 2, "those that hold nothing of its partition are deleted"


async def test_one_that_was_deleted_does_not_come_back_if_that_may_be_unknown(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, faults: SuffixFaults
) -> None:
    engine = await opened(open_engine, faults)
    await start(engine, b"k", b"a")
    faults.fail("flush", ".log", errno.EIO)
    with pytest.raises(OutcomeUnknown):
        await append(engine.partition("table", 0), [None], [b"k"])
    await checkpoint(engine)
    rows, _ = await after_a_crash(open_engine, data_dir, tmp_path / "image")
    assert rows == [(b"k", b"a@0"), (b"k", None)]


async def test_a_checkpoint_during_a_delete_that_fails_loses_none(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    class CheckpointThenFail(CountingDisk):
        def rename(self, old: Path, new: Path) -> None:
            if old.is_dir():
                asyncio.run_coroutine_threadsafe(checkpoint(engine), engine._loop).result()
                asyncio.run_coroutine_threadsafe(engine._committer.write_late(), engine._loop).result()
                raise OSError(errno.EIO, "a test")
            super().rename(old, new)

    engine = await opened(open_engine, CheckpointThenFail())
    await start(engine, b"k", b"a")
    with pytest.raises(NotWritten, match="table"):
        await engine.delete_topic("table")
    rows, _ = await after_a_crash(open_engine, data_dir, tmp_path / "image")
    assert rows == [(b"k", b"a@0")]
    await engine.maintain()
    assert await table(engine) == rows


async def test_there_is_no_snapshot_without_it(open_engine: OpenEngine, tmp_path: Path, faults: SuffixFaults) -> None:
    """It would hold records without the answer that keeps them from being stored again."""
    engine = await opened(open_engine, faults)
    await start(engine, b"k", b"a")
    faults.fail("allocate", ".log", errno.ENOSPC, times=2)
    with pytest.raises(NotWritten, match="table"):
        await engine.snapshot()
    snapshot = await engine.snapshot()
    backup = back_up(Path(snapshot.directory), snapshot.id, tmp_path / "backups")
    restore(backup, tmp_path / "restored")
    assert await table(await open_engine(tmp_path / "restored")) == [(b"k", b"a@0")]


async def test_it_keeps_its_place_among_appends_to_its_partition(open_engine: OpenEngine) -> None:
    engine = await opened(open_engine)
    partition = engine.partition("table", 0)
    await asyncio.gather(
        start(engine, b"k", b"a"),
        start(engine, b"k", b"b", 1),
        start_append(partition, Batch([None], [b"k"])),
        start(engine, b"k", b"c", 1),
    )
    assert [value for _, value in await table(engine)] == [b"a@0", b"b@0", None, b"c@1"]


async def test_a_large_one_goes_to_its_partition_at_once(open_engine: OpenEngine) -> None:
    engine = await opened(open_engine)
    await start(engine, b"k", b"v" * 5000)
    assert [len(value or b"") for _, value in await table(engine)] == [5002]
