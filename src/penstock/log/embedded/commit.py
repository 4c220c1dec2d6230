"""Group commit: appends gather while a flush runs, then go to disk together, in one thread off the event loop.

On the loop, `Committer.submit` queues an append and, when no commit is under way, starts one with everything that has gathered. In
the commit thread the group is laid out (blocks built, space reserved), written and flushed; back on the loop its appends are
answered, and what gathered meanwhile goes next. There is no timer: a lone append goes at once, a flood makes large groups.

How a group becomes durable depends on how many files must be flushed for it:
- one: its segment is written and synced;
- several, or an atomic append: everything goes to the journal, which is synced, and then to the segments (see `journal.py`).
Topics with `interval` or `none` durability are written without waiting for a flush. A small group for topics with `none`, which
waits for nothing at all, is written on the loop itself: handing it to another thread and back would take longer than the write.

Only the commit thread touches writers and the journal; the loop does for such a small group, while it holds `_turn` and the thread
waits. A failed flush is final for the partitions in it: whether their data is on disk is unknown, so they refuse writes until a
restart has looked (retrying could acknowledge what is not there).
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from penstock.clock import Clock
from penstock.errors import InvalidRequest, PenstockError, WriteFailed
from penstock.log.api import EngineStats
from penstock.log.embedded.crashpoints import Site
from penstock.log.embedded.disk import Disk, SpaceReserve, is_full, storage_error
from penstock.log.embedded.journal import Journal, JournalEntry, record_pieces
from penstock.log.embedded.layout import PartitionCommit
from penstock.log.embedded.options import EngineOptions
from penstock.log.embedded.segment import SegmentWriter

if TYPE_CHECKING:
    from penstock.log.embedded.partition import EmbeddedPartition

WRITTEN_ON_LOOP_BYTES_MAX: Final = 32 << 10
"""Of a group without durability. Encoding and copying this much to the system takes some 50 us; a larger group is worth the hand-over."""

_T = TypeVar("_T")
_log = structlog.get_logger(__name__)


class Committer:
    """Owns the commit thread. Methods are for the loop unless they say otherwise."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        journal: Journal,
        reserve: SpaceReserve,
        options: EngineOptions,
        stats: EngineStats,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._options = options
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._journal = journal
        self._reserve = reserve
        self._gathered: dict[EmbeddedPartition, None] = {}
        self._atomic = False
        self._under_way = False
        self._scheduled = False
        self._idle = asyncio.Event()
        self._idle.set()
        # Below: the commit thread's own, or whose turn it is.
        self._turn = threading.Lock()
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._unsynced: dict[EmbeddedPartition, None] = {}
        """Partitions whose journaled blocks are not yet synced in their own segments."""
        self._unflushed: dict[EmbeddedPartition, None] = {}
        """Partitions with blocks that neither a flush nor the journal covers, as `interval` and `none` allow."""
        self._interval_due: dict[EmbeddedPartition, float] = {}
        self._checkpointer = ThreadPoolExecutor(1, "penstock-checkpoint")
        self._checkpoint: Future[None] | None = None
        self._covered: list[tuple[EmbeddedPartition, SegmentWriter, bytes]] = []
        """What the checkpoint under way syncs, with the index of that moment."""
        self._thread = threading.Thread(target=self._run, name="penstock-commit", daemon=True)
        self._thread.start()

    # -- on the loop -----------------------------------------------------------------------------------------------------

    def submit(self, partition: EmbeddedPartition) -> None:
        """This partition has appends waiting."""
        self._gathered[partition] = None
        self._idle.clear()
        if not self._under_way and not self._scheduled:
            # At the end of this turn of the loop, so that everything the turn brings goes together.
            self._scheduled = True
            self._loop.call_soon(self._start_scheduled)

    def submit_atomic(self) -> None:
        """What is gathered now must be written all or nothing."""
        self._atomic = True

    def _start_scheduled(self) -> None:
        self._scheduled = False
        self._start_commit(may_write_here=True)

    def _start_commit(self, *, may_write_here: bool = False) -> None:
        for partition in self._gathered:
            partition.refuse_waiting()
        parts = [
            PartitionCommit(partition, appends) for partition in self._gathered if (appends := partition.take_waiting())
        ]
        self._gathered.clear()
        atomic, self._atomic = self._atomic, False
        if not parts:
            self._idle.set()
            return
        self._under_way = True
        if not (may_write_here and not atomic and self._write_here(parts)):
            self._tasks.put(lambda: self._commit(parts, atomic=atomic))

    def _write_here(self, parts: list[PartitionCommit]) -> bool:
        """Write a group that waits for no disk; False where it might, or where the commit thread is at work."""
        if sum([part.size_bytes for part in parts]) > WRITTEN_ON_LOOP_BYTES_MAX:
            return False
        if any(part.partition.config.durability.mode != "none" for part in parts):
            return False
        if not self._tasks.empty() or not self._turn.acquire(blocking=False):
            return False
        try:
            now_ms = self._clock.now_ms()
            if any(part.rolls(now_ms) for part in parts):
                return False
            seconds = self._write(parts, atomic=False)
        finally:
            self._turn.release()
        self._committed(parts, seconds)
        return True

    def _committed(self, parts: list[PartitionCommit], seconds: float) -> None:
        self._under_way = False
        stats = self._stats
        records = 0
        for part in parts:
            part.partition.apply(part)
            if part.error is None:
                records += part.next_offset - part.base_offset
                stats.appended_bytes += len(part.data)
            else:
                stats.commit_errors += 1
        stats.commits += 1
        stats.appended_records += records
        stats.commit_records.observe(records)
        stats.flush_seconds.observe(seconds)
        # The next group starts before these are answered: the disk works while the loop builds replies.
        if self._gathered:
            self._start_commit()
        else:
            self._idle.set()
        for part in parts:
            part.answer()
        for part in parts:
            if part.error is None:
                part.partition.notify()

    async def drained(self) -> None:
        """Wait until everything submitted is answered."""
        while self._gathered or self._under_way:
            self._idle.clear()
            await self._idle.wait()

    async def run(self, work: Callable[[], _T]) -> _T:
        """Run something in the commit thread, between commits."""
        future: asyncio.Future[_T] = self._loop.create_future()

        def task() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - handed to whoever awaits
                self._loop.call_soon_threadsafe(future.set_exception, error)
            else:
                self._loop.call_soon_threadsafe(future.set_result, result)

        self._tasks.put(task)
        return await asyncio.shield(future)

    def stop(self) -> None:
        """End the thread after what it was given; blocks until it has."""
        self._tasks.put(None)
        self._thread.join()
        self._checkpointer.shutdown()

    # -- in the commit thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=self._until_due())
            except Empty:
                with self._turn:
                    self._sync_due()
                continue
            if task is None:
                return
            try:
                with self._turn:
                    task()
                    if self._interval_due:
                        self._sync_due()
            except Exception:  # noqa: BLE001 - without this thread nothing would ever be answered again
                _log.exception("the commit thread met an unexpected error")

    def _commit(self, parts: list[PartitionCommit], *, atomic: bool) -> None:
        self._loop.call_soon_threadsafe(self._committed, parts, self._write(parts, atomic=atomic))
        if self._checkpoint is not None and self._checkpoint.done():
            self._finish_checkpoint()
        if self._journal.size_bytes >= self._options.journal_bytes:
            self.checkpoint(wait=False)

    def _write(self, parts: list[PartitionCommit], *, atomic: bool) -> float:
        """Write a group as its topics want it; returns the seconds that took."""
        started = time.perf_counter()
        try:
            self._write_group(parts, atomic=atomic)
        except Exception as error:  # noqa: BLE001 - a bug: the outcome is unknown, and saying so is the only safe answer
            _log.exception("a commit ended in an unexpected error")
            _fail(parts, WriteFailed(f"the commit ended in an unexpected error ({error}); restart the broker"))
            self._mark_failed(parts)
        return time.perf_counter() - started

    def _write_group(self, parts: list[PartitionCommit], *, atomic: bool) -> None:
        now_ms = self._clock.now_ms()
        for part in parts:
            self._lay_out(part, now_ms)
        if atomic and (failed := next((part for part in parts if part.error), None)):
            _fail(parts, failed.error)
        sound = [part for part in parts if part.error is None]
        flushed = [part for part in sound if atomic or part.partition.config.durability.mode == "fsync"]
        if len(flushed) > 1 or (flushed and atomic):
            self._write_journaled(flushed, atomic=atomic)
        elif flushed:
            self._write_direct(flushed[0])
        for part in sound:
            if part not in flushed:
                self._write_unflushed(part)

    def _lay_out(self, part: PartitionCommit, now_ms: int) -> None:
        target = self._options.block_bytes_target
        try:
            try:
                if not part.partition.internal and self._reserve.is_in_use():
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                part.lay_out(now_ms, target)
            except OSError as error:
                if not (part.partition.internal and is_full(error) and self._reserve.release()):
                    raise
                part.lay_out(now_ms, target)
        except OSError as error:
            part.error = storage_error(error, f"preparing a write to {part.partition}")
            self._mark_failed([part])
        except Exception as error:  # noqa: BLE001 - nothing is written yet, so records that make no block harm only themselves
            _log.exception("records make no block", partition=str(part.partition))
            part.error = InvalidRequest(f"the records cannot be stored in {part.partition}: {error}")
        if part.rolled:
            self.forget(part.partition)

    def _write_direct(self, part: PartitionCommit) -> None:
        writer = part.partition.writer
        writer.file.ease_flush(len(part.data))
        self._disk.crash_half_written(Site.APPEND_HALF_WRITTEN, writer.file.fd, [part.data], writer.file.end)
        if not self._write_segment(part):
            return
        self._disk.crash_point(Site.APPEND_WRITTEN)
        try:
            writer.file.sync()
        except OSError as error:
            part.error = _flush_failed(error, part.partition)
            self._mark_failed([part])
            return
        self._disk.crash_point(Site.APPEND_SYNCED)
        self.forget(part.partition)
        if writer.segment.index.covers - writer.saved_covers >= self._options.checkpoint_bytes:
            self._save_index(writer, writer.segment.index.encode())

    def _write_unflushed(self, part: PartitionCommit) -> None:
        durability = part.partition.config.durability
        if not self._write_segment(part):
            return
        self._unflushed[part.partition] = None
        if durability.mode == "interval":
            due = time.monotonic() + durability.interval_ms / 1000
            self._interval_due.setdefault(part.partition, due)

    def _write_segment(self, part: PartitionCommit) -> bool:
        file = part.partition.writer.file
        end = file.end
        try:
            part.write()
        except OSError as error:
            part.error = storage_error(error, f"writing to {part.partition}")
            try:
                file.cut(end)  # a record that was refused must not come back after a crash
            except OSError as worse:
                part.error = _flush_failed(worse, part.partition)
            self._mark_failed([part])
            return False
        return True

    def _write_journaled(self, parts: list[PartitionCommit], *, atomic: bool) -> None:
        for part in parts:
            # What the journal restores after a power cut must not stand behind something that was lost in it.
            if part.partition in self._unflushed and not self._flush(part.partition):
                _fail(parts, WriteFailed(part.partition.failure))
                return
        record = record_pieces(
            [
                JournalEntry(
                    part.partition.topic_id,
                    part.partition.index,
                    part.partition.writer.segment.base_offset,
                    part.partition.writer.file.end,
                    part.data,
                    part.checksum(),
                )
                for part in parts
            ]
        )
        try:
            full = self._write_journal(record, may_use_reserve=atomic)
            if full is not None and not atomic:
                # There is no room for a copy, but every part has the room it needs in its own segment.
                for part in parts:
                    self._write_direct(part)
                return
            if full is not None:
                _fail(parts, full)
                return
            self._journal.sync()
        except OSError as error:
            # The record may or may not be on disk. The file is left for the next start to look at, as it stands.
            self._abandon_journal()
            for part in parts:
                part.error = _flush_failed(error, part.partition)
            self._mark_failed(parts)
            return
        for part in parts:
            try:
                part.write()
            except OSError as error:
                self._abandon_journal()
                part.error = WriteFailed(
                    f"writing to {part.partition} failed after it was recorded in the journal: {error}; "
                    "restart the broker to recover it"
                )
                self._mark_failed([part])
            self._unsynced[part.partition] = None
            self._disk.crash_point(Site.JOURNAL_APPLIED_ONE)
        if atomic and (failed := next((part for part in parts if part.error), None)):
            # All or nothing holds for readers too: what was written stays out of sight until a restart puts the rest beside it.
            _fail(parts, failed.error)
            self._mark_failed(parts)
        self._disk.crash_point(Site.JOURNAL_APPLIED)

    def _write_journal(self, record: Sequence[bytes], *, may_use_reserve: bool) -> PenstockError | None:
        """Write a record, or return NoSpace having undone it; any other trouble is raised."""
        journal = self._journal
        end = journal.size_bytes
        try:
            journal.reserve(sum(map(len, record)))
            journal.write(record)
        except OSError as error:
            if not is_full(error):
                raise
            journal.undo(end)
            if may_use_reserve and self._reserve.release():
                return self._write_journal(record, may_use_reserve=False)
            return storage_error(error, "writing to the journal")
        return None

    def _abandon_journal(self) -> None:
        """Begin a new journal file and never delete the present one in this run: only a restart can tell what it holds."""
        path = self._journal.retire()
        _log.error("journal kept for the next start", path=str(path))

    def checkpoint(self, *, wait: bool) -> None:
        """Sync the segments that lean on the journal, then delete it. In the commit thread; the syncing is done beside it."""
        self._finish_checkpoint()
        retired = self._journal.retire()
        if retired is None:
            return
        unsynced, self._unsynced = self._unsynced, {}
        work = []
        for partition in unsynced:
            writer = partition.writer
            try:
                # Where the partition has failed, a sync of its segment proves nothing, so what the journal holds of it must stay.
                if partition.failure is not None:
                    raise OSError(errno.EIO, "the partition refuses writes")
                work.append((partition, os.dup(writer.file.fd)))
                self._covered.append((partition, writer, writer.segment.index.encode()))
            except OSError as error:
                _log.error("journal kept", path=str(retired), partition=str(partition), error=str(error))
                retired = None
        self._checkpoint = self._checkpointer.submit(self._sync_segments, work, retired)
        if wait:
            self._finish_checkpoint()

    def _finish_checkpoint(self) -> None:
        """Wait for a checkpoint under way; what it synced need not be scanned after a crash."""
        if self._checkpoint is None:
            return
        self._checkpoint.result()
        self._checkpoint = None
        covered, self._covered = self._covered, []
        for partition, writer, index in covered:
            # Sealed meanwhile, it has its last index; closed, its topic was deleted.
            if partition.failure is None and not writer.segment.index.sealed and not writer.file.closed:
                self._save_index(writer, index)

    def _sync_segments(self, work: list[tuple[EmbeddedPartition, int]], retired: Path | None) -> None:
        """In the checkpoint thread."""
        for partition, fd in work:
            try:
                self._disk.fdatasync(fd)
            except OSError as error:
                retired = None
                partition.fail(str(_flush_failed(error, partition)))
            finally:
                os.close(fd)
        self._disk.crash_point(Site.CHECKPOINT_SYNCED)
        # A partition that failed meanwhile may have taken the error that this sync should have seen.
        if retired is not None and all(partition.failure is None for partition, _ in work):
            try:
                self._disk.unlink(retired)
            except OSError as error:
                # The next start applies it once more, which is harmless.
                _log.warning("journal not removed", path=str(retired), error=str(error))
        self._disk.crash_point(Site.CHECKPOINT_DONE)

    def _save_index(self, writer: SegmentWriter, index: bytes) -> None:
        try:
            writer.save_index(index)
        except OSError as error:
            # Only the next start is slower for it.
            _log.warning("index not saved", segment=str(writer.segment.path), error=str(error))

    def _mark_failed(self, parts: Sequence[PartitionCommit]) -> None:
        for part in parts:
            if isinstance(part.error, WriteFailed):
                part.partition.fail(str(part.error))

    def forget(self, partition: EmbeddedPartition) -> None:
        """Everything the partition wrote is synced, or it is closed or deleted; in the commit thread."""
        self._unsynced.pop(partition, None)
        self._unflushed.pop(partition, None)
        self._interval_due.pop(partition, None)

    def _until_due(self) -> float | None:
        if not self._interval_due:
            return None
        return max(0.0, min(self._interval_due.values()) - time.monotonic())

    def _sync_due(self) -> None:
        now = time.monotonic()
        for partition in [partition for partition, due in self._interval_due.items() if due <= now]:
            self._flush(partition)

    def _flush(self, partition: EmbeddedPartition) -> bool:
        """Sync what `interval` and `none` left for later."""
        self._unflushed.pop(partition, None)
        self._interval_due.pop(partition, None)
        try:
            partition.writer.file.sync()
        except OSError as error:
            partition.fail(str(_flush_failed(error, partition)))
            return False
        return True


def _fail(parts: Sequence[PartitionCommit], error: PenstockError | None) -> None:
    for part in parts:
        part.error = part.error or error


def _flush_failed(error: OSError, partition: EmbeddedPartition) -> WriteFailed:
    return WriteFailed(
        f"flushing {partition} to disk failed: {error.strerror or error}; whether the last records are on disk is unknown; "
        "check the disk, then restart the broker"
    )
