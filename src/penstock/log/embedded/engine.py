"""The embedded engine: a log in a directory, for one process.

    <data dir>/LOCK                 held while a broker runs; tells one run from another, for readers of the files
    <data dir>/clean-shutdown       there only between a clean stop and the next start
    <data dir>/reserve              space given up when the disk is full
    <data dir>/journal/             see journal.py
    <data dir>/topics/              see topicfiles.py

This module puts the parts together; each of them is described in its own.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog

from penstock.clock import Clock, SystemClock
from penstock.errors import (
    DataDirectoryInUse,
    InvalidRequest,
    PartitionNotFound,
    TopicExists,
    TopicNotFound,
)
from penstock.log.api import (
    BatchFor,
    Engine,
    EngineStats,
    LogFiles,
    OnAllAppended,
    Partition,
    TopicConfig,
    TopicInfo,
)
from penstock.log.embedded.commit import Committer
from penstock.log.embedded.crashpoints import Site
from penstock.log.embedded.disk import Disk, SpaceReserve, storage_error
from penstock.log.embedded.journal import Journal, journal_paths
from penstock.log.embedded.maintenance import Maintenance
from penstock.log.embedded.options import EngineOptions
from penstock.log.embedded.partition import AtomicAppend, EmbeddedPartition
from penstock.log.embedded.recovery import PartitionRecovery, redo_journal
from penstock.log.embedded.segment import LOG_SUFFIX, Segment, SegmentWriter
from penstock.log.embedded.tail import RecentReads, Tail, TailBudget
from penstock.log.embedded.topicfiles import TopicFiles

OpenedParts = list[tuple[list[Segment], SegmentWriter]]
"""The partitions of a topic as recovery hands them over."""

_log = structlog.get_logger(__name__)

_LOCK: Final = "LOCK"
_CLEAN: Final = "clean-shutdown"
_RESERVE: Final = "reserve"


class EmbeddedEngine(Engine):
    def __init__(
        self,
        data_dir: Path,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        options: EngineOptions | None = None,
    ) -> None:
        self._data_dir = data_dir
        self._clock = clock or SystemClock()
        self._disk = disk or Disk()
        self._options = options or EngineOptions()
        self.stats = EngineStats()
        self._files = TopicFiles(self._disk, data_dir / "topics")
        self._reserve = SpaceReserve(self._disk, data_dir / _RESERVE, self._options.reserve_bytes)
        self._tails = TailBudget(self._options.tail_bytes_max)
        self._topics: dict[str, TopicInfo] = {}
        self._partitions: dict[str, list[EmbeddedPartition]] = {}
        self._lock_fd = -1
        self._run_token = ""

    # -- start and stop --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changing = asyncio.Lock()
        self._maintaining = asyncio.Lock()
        opened: list[tuple[TopicInfo, OpenedParts]] = []
        try:
            self._take_lock()
            await self._loop.run_in_executor(None, self._prepare)
            await self._open_all(opened)
            self._note_run()
        except BaseException as error:
            for _, parts in opened:
                _close_writers(parts)
            self._release_lock()
            if isinstance(error, OSError):
                raise storage_error(error, f"opening the log in {self._data_dir}") from error
            raise

    def _prepare(self) -> None:
        journal_directory = self._data_dir / "journal"
        for directory in (journal_directory, self._data_dir / "topics"):
            directory.mkdir(exist_ok=True)
        self._disk.sync_directory(self._data_dir)
        self._clean_stop = (self._data_dir / _CLEAN).exists()
        self._loaded = self._files.load_all()
        if not self._clean_stop:
            directories = {bytes.fromhex(info.id): self._files.directory(info) for info in self._loaded}
            redo_journal(self._disk, journal_directory, _last_segment_finder(directories))

    async def _open_all(self, opened: list[tuple[TopicInfo, OpenedParts]]) -> None:
        options = self._options
        recovery = PartitionRecovery(self._disk, self.stats, clean=self._clean_stop, accept_gaps=options.accept_gaps)
        await self._loop.run_in_executor(None, self._recover_all, recovery, opened)
        journal_directory = self._data_dir / "journal"
        journals = journal_paths(journal_directory)
        next_journal = int(journals[-1].stem) + 1 if journals else 0
        await self._loop.run_in_executor(None, self._finish_recovery, journals)
        self._recovery = recovery
        self._readers = ThreadPoolExecutor(options.reader_threads, "penstock-read")
        journal = Journal(self._disk, journal_directory, next_journal)
        self._committer = Committer(self._disk, self._clock, journal, self._reserve, options, self.stats)
        self._maintenance = Maintenance(self._disk, self._clock, self._committer, options)
        for info, parts in opened:
            self._add_topic(info, parts)
        self._maintenance_task = asyncio.create_task(self._maintain_for_ever(), name="penstock-maintenance")

    def _recover_all(self, recovery: PartitionRecovery, opened: list[tuple[TopicInfo, OpenedParts]]) -> None:
        for info in self._loaded:
            parts = self._open_partitions(recovery, info)
            opened.append((info, parts))

    def _open_partitions(self, recovery: PartitionRecovery, info: TopicInfo) -> OpenedParts:
        now_ms = self._clock.now_ms()
        parts: OpenedParts = []
        try:
            for index in range(info.config.partitions):
                parts.append(recovery.open(info, self._files.partition_directory(info, index), now_ms))
        except BaseException:
            _close_writers(parts)
            raise
        return parts

    def _finish_recovery(self, journals: list[Path]) -> None:
        """Everything is synced in its own place now, so the journal has served; and from here on a crash is a crash."""
        for path in journals:
            self._disk.unlink(path)
        self._disk.unlink(self._data_dir / _CLEAN)
        self._disk.sync_directory(self._data_dir)
        self._reserve.hold()

    async def close(self) -> None:
        if self._lock_fd < 0:
            return  # closed already, or never started
        self._maintenance_task.cancel()
        await asyncio.gather(self._maintenance_task, return_exceptions=True)
        partitions = [partition for parts in self._partitions.values() for partition in parts]
        for partition in partitions:
            partition.close(deleted=False)
        await self._committer.drained()
        clean = await self._committer.run(lambda: self._close_partitions(partitions))
        await self._loop.run_in_executor(None, self._stop_threads)
        for partition in partitions:
            for segment in partition.segments:
                segment.close()
        try:
            if clean:
                self._disk.write_file(self._data_dir / _CLEAN, b"")
                self._disk.crash_point(Site.CLOSE_MARKED)
        except OSError as error:
            # Everything is synced; the next start only has to look.
            _log.warning("clean stop not marked", error=str(error))
        finally:
            self._release_lock()

    def _close_partitions(self, partitions: list[EmbeddedPartition]) -> bool:
        """In the commit thread: sync and index everything. False where something failed and the next start must look."""
        self._committer.checkpoint(wait=True)
        clean = True
        for partition in partitions:
            writer = partition.writer
            self._committer.forget(partition)
            try:
                if partition.failure is None:
                    writer.file.cut(writer.file.end)
                    writer.file.sync()
                    writer.save_index(writer.segment.index.encode())
            except OSError as error:
                partition.fail(f"closing {partition} failed: {error}")
            clean = clean and partition.failure is None
            writer.file.close()
        self._disk.crash_point(Site.CLOSE_SYNCED)
        return clean and not journal_paths(self._data_dir / "journal")

    def _stop_threads(self) -> None:
        self._maintenance.stop()
        self._committer.stop()
        self._readers.shutdown()

    def _take_lock(self) -> None:
        self._data_dir.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._data_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise DataDirectoryInUse(
                f"{self._data_dir} is in use by another broker; stop that one or choose another --data-dir"
            ) from None
        self._lock_fd = fd

    def _note_run(self) -> None:
        """Once the log is open: a start that is refused changes nothing."""
        token = uuid.uuid4().hex
        try:
            os.pwrite(self._lock_fd, token.encode(), 0)
            self._run_token = token
        except OSError:
            self._run_token = ""  # a full disk must not keep the log from opening; readers go through the broker then

    def _release_lock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    @property
    def files(self) -> LogFiles | None:
        return LogFiles(str(self._data_dir.resolve()), _LOCK, self._run_token) if self._run_token else None

    # -- topics ----------------------------------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, TopicInfo]:
        return self._topics

    def partition(self, topic: str, index: int) -> EmbeddedPartition:
        parts = self._partitions.get(topic)
        if parts is None:
            raise TopicNotFound(f"topic not found: {topic}")
        if not 0 <= index < len(parts):
            raise PartitionNotFound(
                f"partition {index} not found: topic {topic!r} has partitions 0 to {len(parts) - 1}"
            )
        return parts[index]

    async def create_topic(self, name: str, config: TopicConfig) -> TopicInfo:
        async with self._changing:
            if name in self._topics:
                raise TopicExists(f"topic already exists: {name}")
            info = TopicInfo(name, uuid.uuid4().hex, config, self._clock.now_ms())
            try:
                parts = await self._loop.run_in_executor(None, self._create_files, info)
            except OSError as error:
                raise storage_error(error, f"creating topic {name!r}") from error
            self._add_topic(info, parts)
            return info

    def _create_files(self, info: TopicInfo) -> OpenedParts:
        try:
            self._files.create(info)
            return self._open_partitions(self._recovery, info)
        except OSError:
            # What was refused must not be there after a restart.
            self._files.discard(info)
            raise

    def _add_topic(self, info: TopicInfo, parts: OpenedParts) -> None:
        self._partitions[info.name] = [
            EmbeddedPartition(
                info,
                index,
                self._files.partition_directory(info, index),
                segments,
                writer,
                Tail(self._tails, self._options.tail_bytes_per_partition),
                RecentReads(self._tails, self._options.tail_bytes_per_partition),
                self._committer,
                self._readers,
                self.stats,
            )
            for index, (segments, writer) in enumerate(parts)
        ]
        self._topics[info.name] = info

    async def delete_topic(self, name: str) -> None:
        async with self._changing, self._maintaining:
            info = self._topics.pop(name, None)
            if info is None:
                raise TopicNotFound(f"topic not found: {name}")
            parts = self._partitions.pop(name)
            for partition in parts:
                partition.close(deleted=True)
                self._tails.drop(partition.tail)
                partition.recent.forget()
            # Tasks of the commit thread run in order, so a commit under way is over by then, and no later one names these.
            await self._committer.run(lambda: self._close_deleted(parts))
            try:
                await self._loop.run_in_executor(None, self._files.remove, info)
            except OSError as error:
                raise storage_error(error, f"deleting the files of topic {name!r}") from error

    def _close_deleted(self, parts: Sequence[EmbeddedPartition]) -> None:
        for partition in parts:
            self._committer.forget(partition)
            partition.writer.file.close()

    # -- appending to several partitions -----------------------------------------------------------------------------------

    def append_atomic(self, parts: Sequence[BatchFor], done: OnAllAppended) -> None:
        if len({part.partition for part in parts}) != len(parts) or not parts:
            raise InvalidRequest("an atomic append names each partition once, and at least one")
        refusal = next((refusal for part in parts if (refusal := _ours(part.partition).refusal())), None)
        if refusal is not None:
            self._loop.call_soon(done, refusal)
            return
        whole = AtomicAppend(len(parts), done)
        self._committer.submit_atomic()
        for at, part in enumerate(parts):
            _ours(part.partition).append(part.batch, whole.done_for(at), whole)

    # -- maintenance -----------------------------------------------------------------------------------------------------

    async def maintain(self) -> None:
        """One pass of retention, merging and compaction over every partition."""
        for partition in [partition for parts in self._partitions.values() for partition in parts]:
            async with self._maintaining:
                if partition in self._partitions.get(partition.topic, ()):
                    await self._maintenance.run(partition)
        await self._loop.run_in_executor(None, self._reserve.hold)

    async def _maintain_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._options.maintenance_interval_s)
            try:
                await self.maintain()
            except Exception:  # noqa: BLE001 - housekeeping must not end because one pass met the unexpected
                _log.exception("maintenance pass failed")


def _close_writers(parts: OpenedParts) -> None:
    for _, writer in parts:
        writer.file.close()


def _ours(partition: Partition) -> EmbeddedPartition:
    assert isinstance(partition, EmbeddedPartition), "an atomic append stays within one engine"
    return partition


def _last_segment_finder(directories: Mapping[bytes, Path]) -> Callable[[bytes, int], Path | None]:
    """Looks up the last segment file of a partition by topic id; None where the topic is gone."""
    known: dict[tuple[bytes, int], Path | None] = {}

    def find(topic_id: bytes, index: int) -> Path | None:
        if (topic_id, index) not in known:
            directory = directories.get(topic_id)
            paths = sorted((directory / str(index)).glob(f"*{LOG_SUFFIX}")) if directory else []
            known[topic_id, index] = paths[-1] if paths else None
        return known[topic_id, index]

    return find
