"""What happens when the disk fails: an acknowledgement is never wrong, and what was refused is never there."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from penstock.errors import NotWritten, OutcomeUnknown
from penstock.log.api import Batch, BatchFor, Durability, TopicConfig
from penstock.log.appending import start_append
from penstock.log.embedded import EngineOptions
from penstock.log.embedded.journal import journal_paths
from penstock.testing.faults import FaultyDisk
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.faults import SuffixFaults, append_both, two_topics
from tests.log.embedded.storage import CountingDisk, crash_image, everything, settled
from tests.log.records import append, read_values, start_atomic_append

# -- flushes that fail ----------------------------------------------------------------------------------------------------


async def test_a_failed_flush_is_final_for_its_partition_and_no_other(
    open_engine: OpenEngine, disk: CountingDisk, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine(disk=disk)
    await two_topics(engine)
    partition = engine.partition("orders", 0)
    disk.fail_next_fsync()
    with pytest.raises(
        OutcomeUnknown, match=r"whether these records are on disk is unknown: flushing topic 'orders'.*restart"
    ):
        await append(partition, [b"unknown"])
    assert partition.failure is not None
    assert partition.committed_end == 1
    assert await read_values(partition) == [b"before"], "what is not known to be on disk is not shown"
    for _ in range(3):
        with pytest.raises(NotWritten, match=r"^nothing was written(?!.*unknown).*flushing topic 'orders'.*restart"):
            await append(partition, [b"refused"])
    assert engine.stats.commit_errors == 1
    assert (await append(engine.partition("other", 0), [b"sound"])).base_offset == 1
    image = crash_image(data_dir, tmp_path / "image")
    await engine.close()
    assert not (data_dir / "clean-shutdown").exists(), "the next start has to look"
    for path in (data_dir, image):
        recovered = await open_engine(path)
        again = recovered.partition("orders", 0)
        assert again.failure is None
        assert await read_values(again) in ([b"before"], [b"before", b"unknown"])
        assert (await append(again, [b"after"])).base_offset == again.committed_end - 1
        assert await read_values(recovered.partition("other", 0)) == [b"before", b"sound"]
        await recovered.close()


async def test_appends_that_wait_behind_a_failed_flush_fail_too(open_engine: OpenEngine, disk: CountingDisk) -> None:
    engine = await open_engine(disk=disk)
    await two_topics(engine)
    partition = engine.partition("orders", 0)
    first = start_append(partition, Batch([b"first"]))
    disk.fail_next_fsync()
    await asyncio.sleep(0)
    second = start_append(partition, Batch([b"second"]))
    atomic = start_atomic_append(
        engine, [BatchFor(engine.partition("other", 0), Batch([b"part"])), BatchFor(partition, Batch([b"part"]))]
    )
    results = await asyncio.gather(first, second, atomic, return_exceptions=True)
    assert [type(result) for result in results] == [OutcomeUnknown, NotWritten, NotWritten]
    assert await read_values(engine.partition("other", 0)) == [b"before"]
    assert engine.partition("other", 0).failure is None


async def test_a_failed_flush_of_the_journal_fails_every_partition_in_it_and_keeps_it(
    open_engine: OpenEngine, faults: SuffixFaults, data_dir: Path
) -> None:
    engine = await open_engine(disk=faults)
    await two_topics(engine)
    await engine.create_topic("third", TopicConfig(partitions=2))
    assert await append_both(engine, b"sound")
    faults.fail("flush", ".journal", errno.EIO)
    results = await append_both(engine, b"unknown")
    assert all(isinstance(result, OutcomeUnknown) for result in results)
    assert engine.partition("orders", 0).failure is not None
    assert engine.partition("other", 0).failure is not None
    assert (await append(engine.partition("third", 0), [b"x"])).base_offset == 0
    [kept] = journal_paths(data_dir / "journal")
    content = kept.read_bytes()
    await start_atomic_append(engine, [BatchFor(engine.partition("third", at), Batch([b"y"])) for at in (0, 1)])
    assert len(journal_paths(data_dir / "journal")) == 2, "what comes later goes to another file"
    await engine.close()
    assert kept.read_bytes() == content, "only a restart can tell what it holds"
    engine = await open_engine()
    for topic in ("orders", "other"):
        assert await read_values(engine.partition(topic, 0)) in (
            [b"before", b"sound"],
            [b"before", b"sound", b"unknown"],
        )
        await append(engine.partition(topic, 0), [b"after"])
    assert journal_paths(data_dir / "journal") == []


async def test_a_segment_that_cannot_be_flushed_at_a_checkpoint_keeps_its_journal(
    open_engine: OpenEngine, faults: SuffixFaults, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine(disk=faults, options=EngineOptions.model_construct(journal_bytes=1))
    await two_topics(engine)
    faults.fail("flush", ".log", errno.EIO)
    await append_both(engine, b"x")  # acknowledged by the journal; the checkpoint that follows fails
    await settled(engine)
    failed = [topic for topic in ("orders", "other") if engine.partition(topic, 0).failure is not None]
    assert len(failed) == 1
    assert len(journal_paths(data_dir / "journal")) == 1
    expected = await everything(engine)
    image = crash_image(data_dir, tmp_path / "image")
    for path in (image / "topics").glob(f"{failed[0]}.*/0/*.log"):
        path.write_bytes(path.read_bytes()[:82])  # the flush failed: what it should have put on disk is not there
    recovered = await open_engine(image)
    assert await everything(recovered) == expected


async def test_a_failed_flush_of_an_interval_topic_stops_its_writes(open_engine: OpenEngine) -> None:
    class FailsOnce(SuffixFaults):
        def __init__(self) -> None:
            super().__init__()
            self.tried = asyncio.Event()

        def fdatasync(self, fd: int) -> None:
            try:
                super().fdatasync(fd)
            except OSError:
                loop.call_soon_threadsafe(self.tried.set)
                raise

    loop = asyncio.get_running_loop()
    disk = FailsOnce()
    engine = await open_engine(disk=disk)
    await engine.create_topic("loose", TopicConfig(durability=Durability("interval", 10)))
    disk.fail("flush", ".log", errno.EIO)
    await append(engine.partition("loose", 0), [b"x"])
    await asyncio.wait_for(disk.tried.wait(), 10)
    while engine.partition("loose", 0).failure is None:  # it is noted a moment after the flush
        await asyncio.sleep(0)
    with pytest.raises(NotWritten):
        await append(engine.partition("loose", 0), [b"y"])


async def test_a_full_disk_reported_by_a_flush_is_a_failed_flush(open_engine: OpenEngine, faults: SuffixFaults) -> None:
    engine = await open_engine(disk=faults)
    await two_topics(engine)
    faults.fail("flush", ".log", errno.ENOSPC)
    with pytest.raises(OutcomeUnknown):
        await append(engine.partition("orders", 0), [b"x"])
    assert engine.partition("orders", 0).failure is not None


# -- writes that fail -----------------------------------------------------------------------------------------------------


async def test_a_write_error_stops_the_partition_and_leaves_nothing(
    open_engine: OpenEngine, disk: CountingDisk, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine(disk=disk)
    await two_topics(engine)
    disk.fail_next_write(errno.EIO)
    with pytest.raises(OutcomeUnknown):
        await append(engine.partition("orders", 0), [b"lost"])
    assert engine.partition("orders", 0).failure is not None
    recovered = await open_engine(crash_image(data_dir, tmp_path / "image"))
    assert await read_values(recovered.partition("orders", 0)) == [b"before"]
    assert recovered.stats.torn_tails == 0


async def test_a_write_error_after_the_journal_has_it_is_mended_by_a_restart(
    open_engine: OpenEngine, faults: SuffixFaults, data_dir: Path
) -> None:
    engine = await open_engine(disk=faults)
    await two_topics(engine)
    faults.fail("write", ".log", errno.EIO)
    results = await append_both(engine, b"x")
    assert sorted(isinstance(result, OutcomeUnknown) for result in results) == [False, True]
    failed = next(topic for topic in ("orders", "other") if engine.partition(topic, 0).failure is not None)
    assert await read_values(engine.partition(failed, 0)) == [b"before"]
    await engine.close()
    engine = await open_engine()
    for topic in ("orders", "other"):
        assert await read_values(engine.partition(topic, 0)) == [b"before", b"x"]


async def test_an_atomic_append_written_in_part_is_seen_by_nobody_until_a_restart(
    open_engine: OpenEngine, faults: SuffixFaults
) -> None:
    engine = await open_engine(disk=faults)
    await two_topics(engine)
    topics = [engine.partition(topic, 0) for topic in ("orders", "other")]
    faults.fail("write", ".log", errno.EIO)  # one of the two segments, after the journal has them both
    with pytest.raises(OutcomeUnknown, match="recorded in the journal"):
        await start_atomic_append(engine, [BatchFor(topic, Batch([b"both"])) for topic in topics])
    assert [await read_values(topic) for topic in topics] == [[b"before"]] * 2
    await engine.close()
    engine = await open_engine()
    for name in ("orders", "other"):
        assert await read_values(engine.partition(name, 0)) == [b"before", b"both"]


async def test_short_writes_are_completed(
    open_engine: OpenEngine, disk: CountingDisk, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine(disk=disk, options=EngineOptions.model_construct(journal_bytes=3000))
    disk.short_writes()
    await two_topics(engine)
    for number in range(20):
        await append_both(engine, b"%d" % number * 50)
        await append(engine.partition("orders", 0), [b"alone" * 100])
    expected = await everything(engine)
    await settled(engine)
    recovered = await open_engine(crash_image(data_dir, tmp_path / "image"))
    assert await everything(recovered) == expected
    await engine.close()
    engine = await open_engine()
    assert await everything(engine) == expected


def test_a_write_that_makes_no_progress_is_an_error(tmp_path: Path) -> None:
    class Stuck(FaultyDisk):
        def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
            return 0

    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        with pytest.raises(OSError, match="progress"):
            Stuck().write_all(fd, b"x", 0)
    finally:
        os.close(fd)
