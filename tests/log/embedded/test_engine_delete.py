"""Deleting a topic: waits for no housekeeping, is done or not done, and does not depend on who waits for it."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.errors import NotWritten, ShuttingDown, TopicNotFound
from penstock.log.api import Batch, BatchFor, TopicConfig
from penstock.log.appending import start_append
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.embedded.commit import Committer
from penstock.log.embedded.journal import journal_paths
from penstock.testing.powercut import PowerCutDisk
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import CountingDisk, everything
from tests.log.records import append, read_values, start_atomic_append

MANY_BLOCKS = TopicConfig(segment_bytes=8000)


class HeldDraft(CountingDisk):
    """Holds a rewrite at its first write, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.held = threading.Event()
        self.go_on = threading.Event()
        self.holding = True

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        if self.holding and Path(f"/proc/self/fd/{fd}").readlink().suffix == ".cleaned":
            self.held.set()
            self.go_on.wait(20)
        return super().pwrite(fd, data, position)


async def rewriting(engine: EmbeddedEngine, disk: HeldDraft) -> asyncio.Task[None]:
    """A pass of maintenance that is in the middle of a rewrite of topic `big`."""
    await engine.create_topic("big", MANY_BLOCKS)
    for _ in range(40):
        await append(engine.partition("big", 0), [b"v" * 500])
    task = asyncio.create_task(engine.maintain())
    await asyncio.get_running_loop().run_in_executor(None, disk.held.wait, 20)
    assert disk.held.is_set()
    return task


async def test_topics_are_created_and_deleted_while_another_is_rewritten(open_engine: OpenEngine) -> None:
    disk = HeldDraft()
    engine = await open_engine(disk=disk, options=EngineOptions.model_construct(block_bytes_target=2000))
    await engine.create_topic("other", TopicConfig())
    task = await rewriting(engine, disk)
    await engine.delete_topic("other")
    await engine.create_topic("new", TopicConfig())
    assert set(engine.topics()) == {"big", "new"}
    assert not task.done(), "the rewrite is still held"
    disk.go_on.set()
    await task
    assert len(await read_values(engine.partition("big", 0))) == 40


async def test_a_rewrite_of_a_topic_that_is_deleted_ends_early(open_engine: OpenEngine, data_dir: Path) -> None:
    disk = HeldDraft()
    engine = await open_engine(disk=disk, options=EngineOptions.model_construct(block_bytes_target=1))
    task = await rewriting(engine, disk)
    drafts = list(data_dir.rglob("*.cleaned"))
    assert len(drafts) == 1
    written = []
    pwrite = disk.pwrite

    def counting(fd: int, data: bytes | memoryview, position: int) -> int:
        if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".cleaned":
            written.append(len(data))
        return pwrite(fd, data, position)

    disk.pwrite = counting  # type: ignore[method-assign]
    deleting = asyncio.create_task(engine.delete_topic("big"))
    while "big" in engine.topics():
        await asyncio.sleep(0)
    with capture_logs() as lines:
        disk.go_on.set()
        await asyncio.gather(deleting, task)
    assert len(written) <= 1, "it stops at the next block"
    assert lines == []
    assert list((data_dir / "topics").iterdir()) == []
    assert "big" not in engine.topics()


async def test_a_delete_whose_rename_fails_leaves_the_topic_as_it_was(open_engine: OpenEngine, data_dir: Path) -> None:
    class NoRename(CountingDisk):
        failing = False

        def rename(self, old: Path, new: Path) -> None:
            if self.failing and new.suffix == ".deleted":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().rename(old, new)

    disk = NoRename()
    engine = await open_engine(disk=disk)
    info = await engine.create_topic("orders", TopicConfig())
    partition = engine.partition("orders", 0)
    await append(partition, [b"first"])
    disk.failing = True
    with pytest.raises(NotWritten, match="orders"):
        await engine.delete_topic("orders")
    disk.failing = False
    assert engine.topics()["orders"] == info
    assert (await append(partition, [b"second"])).base_offset == 1
    assert await read_values(partition) == [b"first", b"second"]
    await engine.close()
    engine = await open_engine()
    assert await read_values(engine.partition("orders", 0)) == [b"first", b"second"]
    await engine.delete_topic("orders")
    await engine.create_topic("orders", TopicConfig())
    await engine.close()
    engine = await open_engine()
    assert await read_values(engine.partition("orders", 0)) == []


async def test_a_checkpoint_during_a_delete_that_fails_takes_nothing_from_the_topic(
    open_engine: OpenEngine, tmp_path: Path
) -> None:
    """What the journal held of it must be synced before the journal goes: the topic is still there."""

    class CheckpointThenFail(PowerCutDisk):
        committer: Committer | None = None

        def rename(self, old: Path, new: Path) -> None:
            committer = self.committer
            if committer is not None and old.is_dir():
                asyncio.run_coroutine_threadsafe(
                    committer.run(lambda: committer.checkpoints.begin(wait=True)), engine._loop
                ).result()
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().rename(old, new)

    source = tmp_path / "source"
    source.mkdir()
    disk = CheckpointThenFail(source, None)
    engine = await open_engine(source, disk=disk)
    await engine.create_topic("orders", TopicConfig(partitions=2))
    for number in range(5):
        parts = [BatchFor(engine.partition("orders", index), Batch([b"%d" % number])) for index in (0, 1)]
        await start_atomic_append(engine, parts)
    before = await everything(engine)
    disk.committer = engine._committer
    with pytest.raises(NotWritten, match="orders"):
        await engine.delete_topic("orders")
    assert journal_paths(source / "journal") == []
    disk.sync_directory(source / "journal")  # it is gone for good, and the segments keep only what was synced
    disk.cut()
    await engine.close()
    disk.image(tmp_path / "image", random.Random(1), 1.0)
    assert await everything(await open_engine(tmp_path / "image")) == before


async def test_a_delete_that_may_not_last_is_taken_back(open_engine: OpenEngine, data_dir: Path) -> None:
    class NoFlush(CountingDisk):
        failing = False

        def sync_directory(self, path: Path) -> None:
            if self.failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().sync_directory(path)

    disk = NoFlush()
    engine = await open_engine(disk=disk)
    await engine.create_topic("orders", TopicConfig())
    disk.failing = True
    with pytest.raises(NotWritten, match="orders"):
        await engine.delete_topic("orders")
    disk.failing = False
    assert (await append(engine.partition("orders", 0), [b"x"])).base_offset == 0
    await engine.close()
    engine = await open_engine()
    assert await read_values(engine.partition("orders", 0)) == [b"x"]


async def test_files_that_cannot_be_removed_keep_no_topic_from_being_deleted(
    open_engine: OpenEngine, data_dir: Path
) -> None:
    class Sticky(CountingDisk):
        def remove_tree(self, path: Path) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    engine = await open_engine(disk=Sticky())
    await engine.create_topic("orders", TopicConfig())
    with capture_logs() as lines:
        await engine.delete_topic("orders")
    assert [line["event"] for line in lines] == ["deleted_topic_not_removed"]
    assert "orders" not in engine.topics()
    await engine.close()
    assert len(list((data_dir / "topics").iterdir())) == 1
    await open_engine()
    assert list((data_dir / "topics").iterdir()) == [], "the next start does it"


async def test_a_delete_continues_when_nobody_waits_for_it_any_more(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    waiting = start_append(engine.partition("orders", 0), Batch([b"x"]))
    task = asyncio.create_task(engine.delete_topic("orders"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(TopicNotFound):
        await engine.delete_topic("orders")  # waits for the first one
    await asyncio.gather(waiting, return_exceptions=True)
    await engine.create_topic("orders", TopicConfig())
    assert (await append(engine.partition("orders", 0), [b"new"])).base_offset == 0


async def test_an_engine_that_closes_waits_for_a_delete_and_takes_no_more(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    for name in ("first", "second"):
        await engine.create_topic(name, TopicConfig())
    deleting = asyncio.create_task(engine.delete_topic("first"))
    await asyncio.sleep(0)
    deleting.cancel()  # nobody waits for it
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    late = [
        asyncio.create_task(engine.delete_topic("second")),
        asyncio.create_task(engine.create_topic("third", TopicConfig())),
    ]
    await closing
    results = await asyncio.gather(*late, return_exceptions=True)
    assert [type(result) for result in results] == [ShuttingDown, ShuttingDown]
    engine = await open_engine()
    assert list(engine.topics()) == ["second"]


async def test_a_topic_that_refuses_appends_because_it_is_deleted_is_gone_from_the_list(
    open_engine: OpenEngine,
) -> None:
    """A watcher that hears that a topic is gone and looks again must not find it."""
    disk = HeldDraft()
    engine = await open_engine(disk=disk, options=EngineOptions.model_construct(block_bytes_target=1))
    task = await rewriting(engine, disk)
    partition = engine.partition("big", 0)
    deleting = asyncio.create_task(engine.delete_topic("big"))  # waits until the rewrite has noticed
    while not partition.deleted:
        await asyncio.sleep(0)
    with pytest.raises(TopicNotFound):
        await append(partition, [b"x"])
    assert "big" not in engine.topics()
    assert not deleting.done()
    disk.go_on.set()
    await asyncio.gather(deleting, task)
