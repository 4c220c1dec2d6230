"""What happens when the disk is full: what is refused leaves no trace, and when space returns, everything continues."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from penstock.errors import NoSpace, OutcomeUnknown, PenstockError
from penstock.log.api import Batch, BatchFor, TopicConfig
from penstock.log.appending import start_append
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.embedded.disk import AppendFile, SpaceReserve
from tests.descriptors import open_files
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.faults import SuffixFaults, append_both, two_topics
from tests.log.embedded.storage import CountingDisk, crash_image, everything, settled
from tests.log.records import append, read_values, start_atomic_append


async def test_a_full_disk_refuses_leaves_no_trace_and_continues_when_space_returns(
    open_engine: OpenEngine, disk: CountingDisk, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine(disk=disk, options=EngineOptions(reserve_bytes=0))
    await two_topics(engine)
    partition = engine.partition("orders", 0)
    large = [bytes(1 << 20)]  # more than the space that is reserved ahead
    disk.disk_full()
    with pytest.raises(NoSpace) as refused:
        await append(partition, large)
    assert refused.value.retriable
    assert partition.failure is None
    assert all(isinstance(result, NoSpace) for result in await append_both(engine, large[0]))
    with pytest.raises(NoSpace):
        await start_atomic_append(
            engine, [BatchFor(engine.partition(topic, 0), Batch(large)) for topic in ("orders", "other")]
        )
    assert await read_values(partition) == [b"before"]
    recovered = await open_engine(crash_image(data_dir, tmp_path / "image"))
    assert await read_values(recovered.partition("orders", 0)) == [b"before"]
    assert recovered.stats.torn_tails == 0
    disk.disk_full_off()
    assert (await append(partition, large)).base_offset == 1
    assert (await append(partition, [b"next"])).base_offset == 2
    await engine.close()
    engine = await open_engine()
    assert await read_values(engine.partition("orders", 0)) == [b"before", *large, b"next"]


async def test_an_atomic_append_with_room_for_only_some_of_its_parts_writes_none(
    open_engine: OpenEngine, disk: CountingDisk, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine(disk=disk, options=EngineOptions(reserve_bytes=0))
    await two_topics(engine)
    disk.disk_full()
    small, large = Batch([b"fits into what is reserved"]), Batch([bytes(1 << 20)])
    with pytest.raises(NoSpace):
        await start_atomic_append(
            engine, [BatchFor(engine.partition("orders", 0), small), BatchFor(engine.partition("other", 0), large)]
        )
    disk.disk_full_off()
    for topic in ("orders", "other"):
        assert await read_values(engine.partition(topic, 0)) == [b"before"]
        assert engine.partition(topic, 0).failure is None
    recovered = await open_engine(crash_image(data_dir, tmp_path / "image"))
    assert await everything(recovered) == await everything(engine)


async def test_a_write_that_meets_a_full_disk_after_all_is_undone(
    open_engine: OpenEngine, faults: SuffixFaults, data_dir: Path, tmp_path: Path
) -> None:
    """As on file systems where reserving space promises nothing."""

    class Half(SuffixFaults):
        def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
            try:
                return super().pwrite(fd, data, position)
            except OSError:
                os.pwrite(fd, bytes(data)[: len(data) * 3 // 4], position)
                raise

    disk = Half()
    engine = await open_engine(disk=disk)
    await two_topics(engine)
    disk.fail("write", ".log", errno.ENOSPC)
    with pytest.raises(NoSpace):
        await append(engine.partition("orders", 0), [b"a", b"b" * 100])
    recovered = await open_engine(crash_image(data_dir, tmp_path / "image"))
    assert await read_values(recovered.partition("orders", 0)) == [b"before"]
    assert recovered.stats.torn_tails == 0
    assert (await append(engine.partition("orders", 0), [b"next"])).base_offset == 1
    assert await read_values(engine.partition("orders", 0)) == [b"before", b"next"]


@pytest.mark.parametrize(
    ("operation", "suffix"),
    [
        ("create", ".log"),
        ("write", ".tmp"),
        ("flush", ".tmp"),
        ("name", ""),
        ("truncate", ".log"),
        ("allocate", ".log"),
    ],
    ids=["the new file", "the index", "its flush", "the directory", "giving back space", "space in the new file"],
)
async def test_a_roll_that_meets_a_full_disk_can_be_tried_again(
    open_engine: OpenEngine, faults: SuffixFaults, data_dir: Path, tmp_path: Path, operation: str, suffix: str
) -> None:
    engine = await open_engine(disk=faults, options=EngineOptions(reserve_bytes=0))
    await engine.create_topic("orders", TopicConfig(segment_bytes=500))
    partition = engine.partition("orders", 0)
    await append(partition, [bytes(400)])
    open_before = open_files(data_dir)
    for _ in range(3):
        # Twice, because where space is short the engine tries once more for just what it needs.
        faults.fail(operation, suffix, errno.ENOSPC, times=2 if operation == "allocate" else 1)
        with pytest.raises(NoSpace):
            await append(partition, [bytes(400)])
        assert partition.failure is None
        assert partition.committed_end == 1
        recovered = await open_engine(crash_image(data_dir, tmp_path / "image"))
        assert await read_values(recovered.partition("orders", 0)) == [bytes(400)]
        await recovered.close()
        del recovered
    assert (open_files(data_dir) - open_before).total() <= 1, "nothing stays open behind a failed roll"
    assert (await append(partition, [b"small"])).base_offset == 1
    for number in range(2, 6):
        assert (await append(partition, [bytes(400)])).base_offset == number
    expected = await everything(engine)
    recovered = await open_engine(crash_image(data_dir, tmp_path / "image"))
    assert await everything(recovered) == expected
    await engine.close()
    engine = await open_engine()
    assert await everything(engine) == expected


@pytest.mark.parametrize("operation", ["create", "allocate", "write", "name"])
async def test_a_journal_that_has_no_room_is_done_without(
    open_engine: OpenEngine, faults: SuffixFaults, data_dir: Path, tmp_path: Path, operation: str
) -> None:
    engine = await open_engine(disk=faults, options=EngineOptions(reserve_bytes=0))
    await two_topics(engine)
    faults.fail(operation, "" if operation == "name" else ".journal", errno.ENOSPC, times=2)
    faults.flushes.clear()
    results = await append_both(engine, b"x")
    assert not any(isinstance(result, PenstockError) for result in results)
    assert faults.flushes["log"] == 2, "each segment is flushed for itself"
    recovered = await open_engine(crash_image(data_dir, tmp_path / "image"))
    assert await everything(recovered) == await everything(engine)
    faults.fail(operation, "" if operation == "name" else ".journal", errno.ENOSPC, times=2)
    with pytest.raises(NoSpace):
        await start_atomic_append(
            engine, [BatchFor(engine.partition(topic, 0), Batch([b"y"])) for topic in ("orders", "other")]
        )
    faults.fail(operation, "" if operation == "name" else ".journal", errno.ENOSPC, times=0)
    assert await read_values(engine.partition("orders", 0)) == [b"before", b"x"]
    await append_both(engine, b"z")
    recovered = await open_engine(crash_image(data_dir, tmp_path / "second"))
    assert await everything(recovered) == await everything(engine)


async def test_an_index_that_cannot_be_saved_costs_nothing_but_time(
    open_engine: OpenEngine, faults: SuffixFaults, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine(
        disk=faults, options=EngineOptions.model_construct(checkpoint_bytes=100, journal_bytes=1)
    )
    await two_topics(engine)
    faults.fail("write", ".tmp", errno.ENOSPC, times=1000)
    for number in range(10):
        await append(engine.partition("orders", 0), [b"%d" % number * 100])
        await append_both(engine, b"x")
    expected = await everything(engine)
    assert engine.partition("orders", 0).failure is None
    await settled(engine)
    recovered = await open_engine(crash_image(data_dir, tmp_path / "image"))
    assert await everything(recovered) == expected


async def test_closing_on_a_full_disk_loses_nothing(
    open_engine: OpenEngine, disk: CountingDisk, data_dir: Path
) -> None:
    engine = await open_engine(disk=disk)
    await two_topics(engine)
    expected = await everything(engine)
    disk.disk_full()
    await engine.close()
    assert not (data_dir / "clean-shutdown").exists()
    engine = await open_engine()
    assert await everything(engine) == expected


async def test_a_full_disk_does_not_keep_a_log_from_opening(
    open_engine: OpenEngine, disk: CountingDisk, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig(segment_bytes=500))
    for number in range(10):
        await append(engine.partition("orders", 0), [b"%d" % number * 50])
    expected = await everything(engine)
    image = crash_image(data_dir, tmp_path / "image")
    for path in image.rglob("*.index"):
        path.unlink()
    disk.disk_full()
    recovered = await open_engine(image, disk=disk)
    assert await everything(recovered) == expected
    disk.disk_full_off()


async def fill_up_behind_the_journal(engine: EmbeddedEngine, faults: SuffixFaults) -> None:
    """An atomic append whose second segment has no space, after the journal and the first segment have it."""
    faults.fail_second("write", ".log", errno.ENOSPC)
    topics = [engine.partition(topic, 0) for topic in ("orders", "other")]
    await start_atomic_append(engine, [BatchFor(topic, Batch([b"both"])) for topic in topics])


async def test_segments_without_space_for_what_the_journal_has_refuse_it(
    open_engine: OpenEngine, faults: SuffixFaults, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine(disk=faults)
    await two_topics(engine)
    await append_both(engine, b"first")
    expected = await everything(engine)
    with pytest.raises(NoSpace) as refused:
        await fill_up_behind_the_journal(engine, faults)
    assert refused.value.retriable
    assert await everything(engine) == expected
    assert await everything(await open_engine(crash_image(data_dir, tmp_path / "refused"))) == expected
    await append_both(engine, b"second")
    expected = await everything(engine)
    await settled(engine)
    recovered = await open_engine(crash_image(data_dir, tmp_path / "image"))
    assert await everything(recovered) == expected
    assert recovered.stats.torn_tails == 0


@pytest.mark.parametrize(
    ("operation", "suffix"), [("truncate", ".log"), ("flush", ".log"), ("truncate", ".journal"), ("flush", ".journal")]
)
async def test_what_cannot_be_taken_back_is_unknown_until_a_restart(
    open_engine: OpenEngine, faults: SuffixFaults, operation: str, suffix: str
) -> None:
    engine = await open_engine(disk=faults)
    await two_topics(engine)
    before = await everything(engine)
    if (operation, suffix) == ("flush", ".journal"):
        faults.fail_second(operation, suffix, errno.EIO)  # the first one makes the record durable
    else:
        faults.fail(operation, suffix, errno.EIO)
    with pytest.raises(OutcomeUnknown, match="recorded in the journal"):
        await fill_up_behind_the_journal(engine, faults)
    assert await everything(engine) == before
    assert all(engine.partition(topic, 0).failure is not None for topic in ("orders", "other"))
    await engine.close()
    engine = await open_engine()
    values = [await read_values(engine.partition(topic, 0)) for topic in ("orders", "other")]
    assert values in ([[b"before"]] * 2, [[b"before", b"both"]] * 2)


# -- space held back ------------------------------------------------------------------------------------------------------


class SmallDisk(CountingDisk):
    """Has so much room and no more. What is reserved or written counts; what is removed is free again."""

    def __init__(self, root: Path, room_bytes: int) -> None:
        super().__init__()
        self._root = root
        self.room_bytes = room_bytes

    def free_bytes(self, path: Path) -> int:
        used = sum(path.stat().st_blocks * 512 for path in self._root.rglob("*") if path.is_file())
        return max(self.room_bytes - used, 0)

    def allocate(self, fd: int, position: int, size_bytes: int) -> None:
        if self.free_bytes(self._root) < size_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().allocate(fd, position, size_bytes)


async def fill_up(engine: EmbeddedEngine, topic: str) -> int:
    """Append until there is no space; how many appends there was room for."""
    appends = 0
    while True:
        try:
            await append(engine.partition(topic, 0), [os.urandom(100_000)])
        except NoSpace:
            return appends
        appends += 1


async def test_internal_topics_continue_by_the_space_that_was_held_back(
    open_engine: OpenEngine, data_dir: Path
) -> None:
    disk = SmallDisk(data_dir, room_bytes=20 << 20)
    engine = await open_engine(disk=disk, options=EngineOptions(reserve_bytes=2 << 20))
    await engine.create_topic("orders", TopicConfig())
    await engine.create_topic("__groups", TopicConfig())
    assert await fill_up(engine, "orders") > 50
    commits = 0
    for _ in range(200):
        commits += (await append(engine.partition("__groups", 0), [bytes(2000)])).base_offset >= 0
        with pytest.raises(NoSpace):  # users of the disk do not take what was freed for the others
            await append(engine.partition("orders", 0), [os.urandom(100_000)])
    assert commits == 200
    disk.room_bytes += 20 << 20
    assert await fill_up(engine, "orders") > 50, "and go on when there is space again, without a restart"
    await append(engine.partition("__groups", 0), [bytes(2000)])


def test_the_reserve_is_taken_given_up_and_taken_again(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, room_bytes=64 << 20)
    reserve = SpaceReserve(disk, tmp_path / "reserve", 4 << 20)
    assert not reserve.release()
    reserve.hold()
    assert (tmp_path / "reserve").stat().st_size == 4 << 20
    reserve.hold()
    assert reserve.release()
    assert not (tmp_path / "reserve").exists()
    assert not reserve.release()
    reserve.hold()
    assert reserve.release()


def test_a_reserve_larger_than_the_disk_is_taken_again_too(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, room_bytes=64 << 20)
    reserve = SpaceReserve(disk, tmp_path / "reserve", 1 << 40)
    reserve.hold()
    disk.room_bytes = 8 << 20  # the rest is used up
    assert reserve.release()
    assert reserve.is_in_use(), "what is free is what was held back"
    disk.room_bytes = 32 << 20
    assert not reserve.is_in_use()
    assert (tmp_path / "reserve").stat().st_size == 4 << 20


def test_a_reserve_becomes_smaller_with_its_setting(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, room_bytes=64 << 20)
    path = tmp_path / "reserve"
    SpaceReserve(disk, path, 4 << 20).hold()
    SpaceReserve(disk, path, 1 << 20).hold()
    assert path.stat().st_size == 1 << 20
    SpaceReserve(disk, path, 0).hold()
    assert not path.exists()


def test_a_small_disk_gives_a_small_reserve(tmp_path: Path) -> None:
    reserve = SpaceReserve(SmallDisk(tmp_path, room_bytes=8 << 20), tmp_path / "reserve", 8 << 20)
    reserve.hold()
    assert (tmp_path / "reserve").stat().st_size == 1 << 20, "an eighth of what is free"
    full = SpaceReserve(SmallDisk(tmp_path, room_bytes=0), tmp_path / "none", 8 << 20)
    full.hold()
    assert not full.release()


def test_space_is_reserved_ahead_and_given_back(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, room_bytes=1 << 20)
    file = AppendFile(disk, tmp_path / "file", create=True, reserve_step_bytes=256 << 10)
    file.reserve(10)
    assert file.path.stat().st_size == 256 << 10
    file.write(b"0123456789")
    file.reserve(100)
    assert file.path.stat().st_size == 256 << 10
    file.reserve(700 << 10)
    with pytest.raises(OSError, match="space"):
        file.reserve(2 << 20)
    assert file.end == 10
    file.cut(file.end)
    assert file.path.read_bytes() == b"0123456789"
    file.close()
    with pytest.raises((OSError, ValueError), match="descriptor"):
        file.sync()


async def test_nothing_stays_open_after_closing(open_engine: OpenEngine, data_dir: Path) -> None:
    for _ in range(3):
        engine = await open_engine(options=EngineOptions.model_construct(tail_bytes_max=0, journal_bytes=1000))
        if not engine.topics():
            await engine.create_topic("orders", TopicConfig(segment_bytes=500, partitions=3))
        for number in range(10):
            await asyncio.gather(
                *(start_append(engine.partition("orders", index), Batch([b"%d" % number * 40])) for index in range(3))
            )
        await everything(engine)
        await engine.maintain()
        await everything(engine)
        assert open_files(data_dir)
        await engine.close()
        assert not open_files(data_dir)
