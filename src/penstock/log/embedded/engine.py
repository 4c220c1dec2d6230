"""The embedded engine: a log in a directory, for one process.

    <data dir>/LOCK                 held while a broker runs; tells one run from another, for readers of the files
    <data dir>/clean-shutdown       there only between a clean stop and the next start, see clean_stop.py
    <data dir>/reserve              space given up when the disk is full
    <data dir>/journal/             see journal.py
    <data dir>/snapshots/           see snapshot.py
    <data dir>/topics/              see topicfiles.py

This module puts the parts together; each of them is described in its own.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from penstock.background import Background, Tasks
from penstock.clock import Clock, SystemClock
from penstock.errors import (
    DataDirectoryInUse,
    InvalidRequest,
    NotWritten,
    ShuttingDown,
    TopicExists,
    TopicNotFound,
)
from penstock.futures import shield
from penstock.log.api import (
    BatchFor,
    Engine,
    EngineStats,
    LogFiles,
    OnAllAppended,
    Snapshot,
    TopicConfig,
    TopicInfo,
    missing_partition,
)
from penstock.log.embedded.atomic import start_atomic
from penstock.log.embedded.clean_stop import CLEAN_STOP_FILE, Ends, encode_clean_stop, read_clean_stop
from penstock.log.embedded.commit import Committer
from penstock.log.embedded.disk import Disk, SpaceReserve, is_full, storage_error
from penstock.log.embedded.epochs import Epochs
from penstock.log.embedded.importing import EmbeddedImport
from penstock.log.embedded.journal import Journal, JournalEntry, journal_paths
from penstock.log.embedded.maintenance import Maintenance
from penstock.log.embedded.manifest import RESTORING_DIRECTORY, TOPICS_DIRECTORY
from penstock.log.embedded.options import EngineOptions
from penstock.log.embedded.partition import EmbeddedPartition
from penstock.log.embedded.recovery import PartitionRecovery, Redone, redo_journal
from penstock.log.embedded.snapshot import SNAPSHOTS_DIRECTORY, SegmentLink, Snapshots, TopicLinks
from penstock.log.embedded.syncs import SYNC_THREADS, Syncs
from penstock.log.embedded.threads import Threads
from penstock.log.embedded.topic_changes import OpenedParts, TopicChanges
from penstock.log.embedded.topicfiles import StoredTopic, TopicFiles
from penstock.log.failed_partitions import FailedPartitions
from penstock.log.salts import new_topic_salt
from penstock.log.tail import RecentReads, Tail, TailBudget
from penstock.log.watchers import Watchers

Opened = list[tuple[StoredTopic, OpenedParts]]

_T = TypeVar("_T")
log = structlog.get_logger(__name__)

_LOCK: Final = "LOCK"
_RESERVE: Final = "reserve"
_DAMAGED_SUFFIX: Final = ".damaged"


class EmbeddedEngine(Engine):
    def __init__(
        self,
        data_dir: Path,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        options: EngineOptions | None = None,
        background: Background | None = None,
        threads: Threads | None = None,
    ) -> None:
        self._background = background or Background()
        self._data_dir = data_dir
        self._clock = clock or SystemClock()
        self._disk = disk or Disk()
        self._options = options or EngineOptions()
        self._threads = threads or Threads()
        self.accept_gaps = self._options.accept_gaps
        self.stats = EngineStats()
        self.failed = FailedPartitions()
        self._files = TopicFiles(self._disk, data_dir / "topics")
        self._reserve = SpaceReserve(self._disk, data_dir / _RESERVE, self._options.reserve_bytes)
        self._snapshots = Snapshots(
            self._disk, self._clock, data_dir / SNAPSHOTS_DIRECTORY, self._options.snapshots_max
        )
        self._tails = TailBudget(self._options.tail_bytes_max)
        self._topics: dict[str, TopicInfo] = {}
        self._stored: dict[str, StoredTopic] = {}
        self._partitions: dict[str, list[EmbeddedPartition]] = {}
        self._topic_watchers: Watchers[[str]] = Watchers("topics")
        self._lock_fd = -1
        self._run_token = ""
        self._importing = False
        """Whether it is filled with another log: retention and compaction wait until that is served."""

    # -- start and stop --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changing = asyncio.Lock()
        self._changes = Tasks()
        """Topics being created, changed and deleted, which continues when nobody waits for it any more."""
        self._unsaved_epochs: list[str] = []
        """Topics that began an epoch with this start which could not be saved."""
        self._closing = False
        syncing = self._threads.pool(SYNC_THREADS, "penstock-sync")
        try:
            self._take_lock()
            syncs = Syncs(self._disk, syncing)
            await self._loop.run_in_executor(None, self._prepare, syncs)
            await self._open_all(syncs)
            self._note_run()
        except BaseException as error:
            self._release_lock()
            if isinstance(error, OSError):
                raise storage_error(error, f"opening the log in {self._data_dir}") from error
            raise
        finally:
            syncing.shutdown()

    def _prepare(self, syncs: Syncs) -> None:
        self._loaded = self._files.load_all()  # first: a log of another format is left as it is
        self._check_restored()
        journal_directory = self._data_dir / "journal"
        for directory in (journal_directory, self._data_dir / "topics"):
            self._disk.make_directory(directory)
        self._disk.sync_directory(self._data_dir)
        self._snapshots.remove_unheld()
        self._ends_at_stop = self._read_clean_stop()
        self._clean_stop = self._ends_at_stop is not None
        self._redone = Redone([], [])
        if not self._clean_stop:
            topics = {bytes.fromhex(topic.info.id): topic.info for topic in self._loaded}

            def partition_directory(topic_id: bytes, index: int) -> Path | None:
                info = topics.get(topic_id)
                return None if info is None else self._files.partition_directory(info, index)

            self._redone = redo_journal(self._disk, journal_directory, partition_directory, syncs)

    def _read_clean_stop(self) -> Ends | None:
        try:
            return read_clean_stop(self._data_dir)
        except ValueError as error:
            log.error("clean_shutdown_marker_damaged", error=str(error))
            return None

    def _check_restored(self) -> None:
        """Raise InvalidRequest if a restore to this directory has not finished (restore.py)."""
        restoring = self._data_dir / RESTORING_DIRECTORY
        if not restoring.exists():
            return
        if not (self._data_dir / TOPICS_DIRECTORY).exists():
            raise InvalidRequest(
                f"{self._data_dir} holds a restore that was interrupted: run penstock restore again to the same directory, or remove "
                f"{restoring} to start with an empty log"
            )
        self._disk.remove_tree(restoring)

    async def _open_all(self, syncs: Syncs) -> None:
        options = self._options
        recovery = PartitionRecovery(self._disk, self.stats, self._reserve, accept_gaps=options.accept_gaps)
        opened = await self._loop.run_in_executor(None, self._recover_all, recovery, syncs)
        journal_directory = self._data_dir / "journal"
        journals = journal_paths(journal_directory)
        next_journal = int(journals[-1].stem) + 1 if journals else 0
        await self._loop.run_in_executor(None, self._finish_recovery, [] if self._redone.late else journals)
        self._recovery = recovery
        self._readers = ThreadPoolExecutor(options.reader_threads, "penstock-read")
        journal = Journal(self._disk, journal_directory, next_journal)
        self._committer = Committer(self._disk, self._clock, journal, self._reserve, options, self.stats, self._threads)
        self._maintenance = Maintenance(self._disk, self._clock, self._committer, options)
        self._topic_changes = TopicChanges(self._files, self._committer, partial(self._open_partitions, recovery))
        for topic, parts in opened:
            self._add_topic(topic, parts)
        self._refuse_writes_in_unsaved_epochs()
        if self._redone.late and await self._write_late(self._redone.late):
            try:
                await self._loop.run_in_executor(None, self._remove_journals, journals)
            except OSError as error:
                log.warning("journal_not_removed", error=str(error))  # the next start applies it once more
        interval_s = options.maintenance_interval_s
        # A pass may have rewritten much before it fails, so it is not repeated sooner than it would be anyway.
        self._maintaining = self._background.loop(
            "log_maintenance", self._maintenance_step, first_s=interval_s, retry_s_max=interval_s
        )

    def _recover_all(self, recovery: PartitionRecovery, syncs: Syncs) -> Opened:
        opened = [(topic, self._open_partitions(recovery, topic, syncs=syncs)) for topic in self._loaded]
        syncs.finish()
        return opened if self._clean_stop else [(self._begin_epoch(topic, parts), parts) for topic, parts in opened]

    def _begin_epoch(self, topic: StoredTopic, parts: OpenedParts) -> StoredTopic:
        """After a crash a topic without `fsync` may have lost records that readers have seen: note where it ends now (epochs.py)."""
        if topic.info.config.durability.mode == "fsync":
            return topic
        ends = [writer.next_offset for _, writer in parts]
        topic = topic._replace(epochs=topic.epochs.begun(ends, self._clock.now_ms()))
        try:
            try:
                self._files.save(topic)
            except OSError as error:
                if not (is_full(error) and self._reserve.release()):
                    raise
                self._files.save(topic)
        except OSError as error:
            if not is_full(error):
                raise
            log.error("epoch_not_saved", topic=topic.info.name, error=str(error))
            self._unsaved_epochs.append(topic.info.name)
        return topic

    def _refuse_writes_in_unsaved_epochs(self) -> None:
        """Nothing may be written in an epoch that the next start does not know: readers could not tell its records from lost ones."""
        for name in self._unsaved_epochs:
            for partition in self._partitions[name]:
                partition.fail(f"there was no space to save the log epoch of topic {name}: free some, then restart")

    def _open_partitions(
        self, recovery: PartitionRecovery, topic: StoredTopic, first: int = 0, syncs: Syncs | None = None
    ) -> OpenedParts:
        """Open the partitions of a topic from an index on."""
        now_ms = self._clock.now_ms()
        info = topic.info
        ends = dict(enumerate((self._ends_at_stop or {}).get(info.id, ())))
        parts: OpenedParts = []
        for index in range(first, info.config.partitions):
            directory = self._files.partition_directory(info, index)
            end = max(ends.get(index, 0), topic.start(index))
            parts.append(recovery.open(info, directory, topic.salts(index), now_ms, end, syncs))
        return parts

    def _finish_recovery(self, journals: list[Path]) -> None:
        """Everything is synced in its own place now, so the journal has served; and from here on a crash is a crash."""
        self._remove_journals(journals)
        self._disk.unlink(self._data_dir / CLEAN_STOP_FILE)
        self._disk.sync_directory(self._data_dir)
        self._reserve.hold()

    def _remove_journals(self, journals: list[Path]) -> None:
        for path in journals:
            if path in self._redone.damaged:
                self._disk.rename(path, path.with_name(path.name + _DAMAGED_SUFFIX))
            else:
                self._disk.unlink(path)
        self._disk.sync_directory(self._data_dir / "journal")

    async def _write_late(self, found: Sequence[JournalEntry]) -> bool:
        """Append late records that a crash has left in the journal only; False if that fails. Then their partition refuses writes, and the
        journal stays for the next start."""
        ours = {(each.topic_id, each.index): each for parts in self._partitions.values() for each in parts}
        for entry in found:
            partition = ours.get((entry.topic_id, entry.partition))
            # One that lies before the end was written with what came next.
            if partition is not None and entry.position >= partition.committed_end:
                self._committer.checkpoints.keep_late(partition, *entry.late_record())
        unwritten = await self._committer.write_late()
        for partition in unwritten:
            partition.fail(f"late records of {partition} could not be written: free some space, then restart")
        return not unwritten

    async def close(self) -> None:
        if self._lock_fd < 0:
            return  # closed already, or never started
        self._closing = True
        await self._maintaining.cancel()
        await asyncio.gather(*self._changes, return_exceptions=True)
        partitions = [partition for parts in self._partitions.values() for partition in parts]
        for partition in partitions:
            partition.close(deleted=False)
        await self._committer.drained()
        await self._committer.write_late()
        clean = await self._committer.run(lambda: self._close_partitions(partitions))
        await self._loop.run_in_executor(None, self._stop_threads)
        for partition in partitions:
            for segment in partition.segments:
                segment.close()
        try:
            if clean:
                self._disk.write_file(self._data_dir / CLEAN_STOP_FILE, encode_clean_stop(self._ends()))
        except OSError as error:
            # Everything is synced; the next start only has to look.
            log.warning("clean_shutdown_marker_not_written", error=str(error))
        finally:
            self._release_lock()

    def _close_partitions(self, partitions: list[EmbeddedPartition]) -> bool:
        """In the commit thread: sync and index everything. False if something failed and the next start must look."""
        self._committer.checkpoints.begin(wait=True)
        clean = True
        for partition in partitions:
            self._committer.settle(partition)
            clean = clean and partition.failure is None
            self._committer.close(partition)
        return clean and not journal_paths(self._data_dir / "journal")

    def _ends(self) -> Ends:
        return {
            info.id: [partition.writer.next_offset for partition in self._partitions[name]]
            for name, info in self._topics.items()
        }

    def _stop_threads(self) -> None:
        self._maintenance.stop()
        self._committer.stop()
        self._readers.shutdown()

    def _take_lock(self) -> None:
        if not self._data_dir.is_dir():
            self._data_dir.mkdir(parents=True)
            self._disk.sync_directory(self._data_dir.parent)
        fd = os.open(self._data_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise DataDirectoryInUse(
                f"{self._data_dir} is in use by another broker, or by penstock verify or restore; stop it or choose another --data-dir"
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

    def watch_topics(self, callback: Callable[[str], None]) -> Callable[[], None]:
        return self._topic_watchers.add(callback)

    def partition(self, topic: str, index: int) -> EmbeddedPartition:
        parts = self._partitions.get(topic)
        if parts is None or not 0 <= index < len(parts):
            raise missing_partition(topic, index, parts)
        return parts[index]

    async def create_topic(self, name: str, config: TopicConfig) -> TopicInfo:
        return await self._to_its_end(self._create_topic(name, config))

    async def _create_topic(self, name: str, config: TopicConfig) -> TopicInfo:
        async with self._changing:
            self._check_open()
            if name in self._topics:
                raise TopicExists(f"topic already exists: {name}")
            info = TopicInfo(name, uuid.uuid4().hex, config, self._clock.now_ms())
            await self._create(info)
            return info

    async def _create(self, info: TopicInfo) -> None:
        topic = StoredTopic(info, new_topic_salt(), Epochs())
        try:
            parts = await self._loop.run_in_executor(None, self._create_files, topic)
        except OSError as error:
            raise storage_error(error, f"creating topic {info.name!r}") from error
        self._add_topic(topic, parts)

    def importing(self) -> EmbeddedImport:
        self._importing = True
        return EmbeddedImport(self, self._import_topic, self._begin_epoch_of)

    async def _import_topic(self, info: TopicInfo) -> None:
        async with self._changing:
            self._check_open()
            await self._create(info)

    async def _begin_epoch_of(self, name: str) -> None:
        async with self._changing:
            topic, parts = self._topic_to_change(name)
            epochs = topic.epochs.begun([partition.committed_end for partition in parts], self._clock.now_ms())
            begun = topic._replace(epochs=epochs)
            await self._loop.run_in_executor(None, self._files.save, begun)
            self._stored[name] = begun

    async def _to_its_end(self, change: Coroutine[Any, Any, _T]) -> _T:
        """Await a change that must not be left half done when its caller is cancelled."""
        return await shield(self._changes.run(change))

    def _check_open(self) -> None:
        if self._closing:
            raise ShuttingDown("the broker is stopping; send again when it is back")

    def _create_files(self, topic: StoredTopic) -> OpenedParts:
        try:
            self._files.create(topic)
            return self._open_partitions(self._recovery, topic)
        except OSError:
            # What was refused must not be there after a restart.
            self._files.discard(topic.info)
            raise

    def _add_topic(self, topic: StoredTopic, parts: OpenedParts) -> None:
        """Take up a topic that is new, or that has these partitions besides those it had."""
        info = topic.info
        known = self._partitions.get(info.name, [])
        self._partitions[info.name] = known + [
            EmbeddedPartition(
                info,
                index,
                topic.epochs,
                topic.start(index),
                writer.segment.path.parent,
                segments,
                writer,
                Tail(self._tails, self._options.tail_bytes_per_partition),
                RecentReads(self._tails, self._options.tail_bytes_per_partition),
                self._committer,
                self._readers,
                self.stats,
                self.failed,
            )
            for index, (segments, writer) in enumerate(parts, len(known))
        ]
        self._stored[info.name] = topic
        self._topics[info.name] = info
        self._topic_watchers.notify(info.name)

    async def alter_topic(self, name: str, config: TopicConfig) -> TopicInfo:
        return await self._to_its_end(self._alter_topic(name, config))

    async def _alter_topic(self, name: str, config: TopicConfig) -> TopicInfo:
        async with self._changing:
            topic, parts = self._topic_to_change(name)
            altered, added = await self._topic_changes.alter(topic, parts, config)
            self._add_topic(altered, added)
            return altered.info

    async def truncate_topic(self, name: str, before: Mapping[int, int]) -> None:
        await self._to_its_end(self._truncate_topic(name, before))

    async def _truncate_topic(self, name: str, before: Mapping[int, int]) -> None:
        async with self._changing:
            topic, parts = self._topic_to_change(name)
            self._stored[name] = await self._topic_changes.truncate(topic, parts, before)
        for index in before:
            await self._maintenance.reclaim(parts[index])

    def _topic_to_change(self, name: str) -> tuple[StoredTopic, Sequence[EmbeddedPartition]]:
        self._check_open()
        if name not in self._stored:
            raise TopicNotFound(f"topic not found: {name}")
        return self._stored[name], self._partitions[name]

    async def delete_topic(self, name: str) -> None:
        await self._to_its_end(self._delete_topic(name))

    async def _delete_topic(self, name: str) -> None:
        async with self._changing:
            self._check_open()
            info = self._topics.pop(name, None)
            if info is None:
                raise TopicNotFound(f"topic not found: {name}")
            parts, stored = self._partitions.pop(name), self._stored.pop(name)
            for partition in parts:
                partition.close(deleted=True)  # ends a rewrite of it under way, too
            for partition in parts:
                async with partition.replacing:
                    pass
            # Tasks of the commit thread run in order, so a commit under way is over by then, and no later one names these.
            await self._committer.run(lambda: None)
            try:
                remains = await self._loop.run_in_executor(None, self._files.hide, info)
            except OSError as error:
                for partition in parts:
                    partition.reopen()
                self._topics[name], self._partitions[name], self._stored[name] = info, parts, stored
                raise storage_error(error, f"deleting the files of topic {name!r}") from error
            for partition in parts:
                self._tails.drop(partition.tail)
                partition.recent.forget()
            await self._committer.run(lambda: self._close_deleted(parts))
            self._topic_watchers.notify(name)
        await self._loop.run_in_executor(None, self._files.remove_hidden, remains)

    def _close_deleted(self, parts: Sequence[EmbeddedPartition]) -> None:
        for partition in parts:
            self._committer.close(partition)

    # -- appending to several partitions -----------------------------------------------------------------------------------

    def append_atomic(self, parts: Sequence[BatchFor], done: OnAllAppended) -> None:
        start_atomic(self._loop, self._committer, parts, done)

    # -- snapshots -------------------------------------------------------------------------------------------------------

    async def snapshot(self) -> Snapshot:
        return await self._to_its_end(self._snapshot())

    async def _snapshot(self) -> Snapshot:
        async with self._changing:  # while the links are made, no topic may be deleted
            self._check_open()
            with self._committer.late_kept_out():
                for partition in await self._committer.write_late():
                    raise NotWritten(
                        f"there is no snapshot, because records that belong to it cannot be written to {partition}: "
                        + (partition.failure or "free some space, then try again")
                    )
                # A commit becomes readable in one turn of the loop, over all its partitions, before anyone is told of it. So what this
                # turn sees is everything that was acknowledged, and of an append to several partitions all or nothing.
                moment_ms = self._clock.now_ms()
                topics = [self._links_of(info) for info in self._topics.values()]
            try:
                return await self._loop.run_in_executor(None, self._snapshots.create, moment_ms, topics)
            except OSError as error:
                raise storage_error(error, "making a snapshot") from error

    async def release_snapshot(self, snapshot_id: str) -> None:
        async with self._changing:
            await self._loop.run_in_executor(None, self._snapshots.release, snapshot_id)

    def _links_of(self, info: TopicInfo) -> TopicLinks:
        partitions = self._partitions[info.name]
        return TopicLinks(
            info,
            self._files.directory(info),
            [partition.start_offset for partition in partitions],
            [partition.committed_end for partition in partitions],
            [[SegmentLink(segment, segment.end) for segment in partition.segments] for partition in partitions],
        )

    # -- maintenance -----------------------------------------------------------------------------------------------------

    async def maintain(self) -> None:
        """One pass of retention, merging and compaction over every partition.

        An error of one keeps no other from its turn; the first is raised after the pass.
        """
        failure: Exception | None = None
        for partition in [partition for parts in self._partitions.values() for partition in parts]:
            try:
                await self._maintenance.run(partition)
            except Exception as error:  # noqa: BLE001 - raised below
                failure = failure or error
        await self._committer.write_late()
        await self._committer.run(self._committer.checkpoints.begin_early)
        await self._loop.run_in_executor(None, self._reserve.hold)
        await self._loop.run_in_executor(None, self._snapshots.remove_unheld)
        self._disk.read_files.close_idle()
        if failure is not None:
            raise failure

    async def _maintenance_step(self) -> float:
        if not self._importing:
            await self.maintain()
        return self._options.maintenance_interval_s
