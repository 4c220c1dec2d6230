"""Group commit: appends gather while a flush runs, then go to disk together, in one thread off the event loop.

On the loop, `Committer.submit` queues an append and, when no commit is under way, starts one with everything that has gathered. In
the commit thread the group is laid out (blocks built, space reserved), written and flushed; back on the loop its appends are
answered, and what gathered meanwhile goes next. There is no timer: a lone append goes at once, a flood makes large groups.

How a group becomes durable depends on how many files must be flushed for it:
- one: its segment is written and synced;
- several: everything goes to the journal, which is synced, and then to the segments (see `journal.py`).
An atomic append is flushed whatever the durability of its topics. If one of its parts cannot be written, the others are left out of the
commit; appends that were only gathered with it are not affected.

Topics with `interval` or `none` durability are written without waiting for a flush.

A small group is written on the loop itself if nothing is under way and somebody waits for it: handing it to another thread and back
would take longer than the write. That holds for topics with `none`, which wait for nothing at all, and for a few partitions with `fsync`
while the disk flushes quickly (`Disk.flushes_quickly`). After a slow flush groups go to the thread again, until flushes are quick there.
What takes longer than a write is left to the thread: a new segment, a new journal, a checkpoint.

Only the commit thread touches writers and the journal; the loop does for such a small group, while it holds the thread's queue and the
thread waits. A failed flush is final for the partitions in it: whether their data is on disk is unknown (OutcomeUnknown), so they refuse
writes until a restart has looked (retrying could acknowledge what is not there). What fails before anything was written is NotWritten.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from penstock.clock import Clock
from penstock.errors import NotWritten, OutcomeUnknown
from penstock.futures import shield
from penstock.log.api import EngineStats
from penstock.log.embedded.checkpoint import open_for_sync, save_index, sync_segments, synced
from penstock.log.embedded.disk import Disk, SpaceReserve, is_full, is_out_of_descriptors, storage_error
from penstock.log.embedded.failures import (
    flush_failed,
    recorded_only,
    refuse_unwritten,
    refused,
    write_failed,
    written_with,
)
from penstock.log.embedded.journal import Journal, JournalRecord
from penstock.log.embedded.layout import PartitionCommit
from penstock.log.embedded.options import EngineOptions
from penstock.log.embedded.segment import SegmentWriter
from penstock.log.embedded.threads import Threads
from penstock.log.embedded.write_files import WriteFiles

if TYPE_CHECKING:
    from penstock.log.embedded.partition import EmbeddedPartition

WRITTEN_ON_LOOP_BYTES_MAX: Final = 32 << 10
"""Of a group. Encoding and copying this much to the system takes some 50 us; a larger group is worth the hand-over."""
FLUSHED_ON_LOOP_PARTITIONS_MAX: Final = 4  # of a group: each takes some 50 us beside its bytes

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
        threads: Threads,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._options = options
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._journal = journal
        self._reserve = reserve
        self._gathered: dict[EmbeddedPartition, None] = {}
        self._under_way = False
        self._scheduled = False
        self._awaited = False
        """Whether somebody waits for an append that has gathered."""
        self._idle = asyncio.Event()
        self._idle.set()
        # Below: the commit thread's own, or whoever has acquired its queue.
        self._unsynced: dict[EmbeddedPartition, None] = {}
        """Partitions whose journaled blocks are not yet synced in their own segments."""
        self._unflushed: dict[EmbeddedPartition, None] = {}
        """Partitions with blocks that neither a flush nor the journal covers, as `interval` and `none` allow."""
        self._interval_due: dict[EmbeddedPartition, float] = {}
        self._checkpointer = threads.pool(1, "penstock-checkpoint")
        self._checkpoint: Future[None] | None = None
        self._covered: list[tuple[EmbeddedPartition, SegmentWriter, bytes, int]] = []
        """What the checkpoint under way syncs, with the index of that moment and how far it covers the segment."""
        self._files = WriteFiles(options.write_files_max, self._sync_own)
        self._tasks = threads.task_queue("penstock-commit", self._due_in_s, self._sync_due)

    # -- on the loop -----------------------------------------------------------------------------------------------------

    def submit(self, partition: EmbeddedPartition, relaxed: bool) -> None:
        """This partition has an append waiting, for which nobody waits if it is `relaxed`."""
        self._gathered[partition] = None
        if not relaxed:
            self._awaited = True
        self._idle.clear()
        if not self._under_way and not self._scheduled:
            # At the end of this turn of the loop, so that everything the turn brings goes together.
            self._scheduled = True
            self._loop.call_soon(self._start_commit)

    def _start_commit(self) -> None:
        may_write_here = self._scheduled and self._awaited
        self._scheduled = self._awaited = False
        for partition in self._gathered:
            partition.refuse_waiting()
        parts: list[PartitionCommit] = []
        for partition in self._gathered:
            appends = partition.take_waiting()
            if appends:
                parts.append(PartitionCommit(partition, appends))
        self._gathered.clear()
        if not parts:
            self._idle.set()
            return
        self._under_way = True
        if not (may_write_here and self._write_here(parts)):
            self._tasks.put(lambda: self._commit(parts))

    def _write_here(self, parts: list[PartitionCommit]) -> bool:
        """Write a group that need not wait for the disk for long; False where it might, or where the commit thread is at work."""
        size_bytes = flushed = 0
        for part in parts:
            size_bytes += part.size_bytes
            mode = part.partition.config.durability.mode
            if size_bytes > WRITTEN_ON_LOOP_BYTES_MAX or mode == "interval" or (part.atomic and mode == "none"):
                return False
            flushed += mode == "fsync"
        if flushed and (flushed > FLUSHED_ON_LOOP_PARTITIONS_MAX or not self._disk.flushes_quickly()):
            return False
        if not self._tasks.try_acquire():
            return False
        try:
            now_ms = self._clock.now_ms()
            if (flushed > 1 and not self._journal.end) or any(part.rolls(now_ms) for part in parts):
                return False
            if not self._files.has_room_for([part.partition for part in parts]):
                return False
            seconds = self._write(parts)
            if self._journal.end >= self._options.journal_bytes:
                self._tasks.put(self._checkpoint_if_due)
        finally:
            self._tasks.release()
        self._committed(parts, seconds)
        return True

    def _committed(self, parts: list[PartitionCommit], seconds: float) -> None:
        self._under_way = False
        stats = self._stats
        records = 0
        for part in parts:
            part.partition.apply(part)
            if part.written and part.error is None:
                records += part.next_offset - part.base_offset
                stats.appended_bytes += len(part.data)
            if part.error is not None or part.refused:
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
            if part.written and part.error is None:
                part.partition.watchers.notify()

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
        return await shield(future)

    def stop(self) -> None:
        """End the thread after what it was given; blocks until it has."""
        self._tasks.stop()
        self._checkpointer.shutdown()

    # -- in the commit thread --------------------------------------------------------------------------------------------

    def _commit(self, parts: list[PartitionCommit]) -> None:
        self._loop.call_soon_threadsafe(self._committed, parts, self._write(parts))
        self._checkpoint_if_due()

    def _checkpoint_if_due(self) -> None:
        if self._checkpoint is not None and self._checkpoint.done():
            self._finish_checkpoint()
        # Files that lean on the journal are synced before they are closed, and by a checkpoint they are beside the commits.
        if self._journal.end >= self._options.journal_bytes or len(self._unsynced) > self._files.files_max // 2:
            self.checkpoint(wait=False)

    def _write(self, parts: list[PartitionCommit]) -> float:
        """Write a group as its topics want it; returns the seconds that took."""
        started = time.perf_counter()
        try:
            self._write_group(parts)
        except Exception as error:  # noqa: BLE001 - a bug: the outcome is unknown, and saying so is the only safe answer
            _log.exception("commit_failed")
            for part in parts:
                self._fail(part, f"unexpected error in a commit ({error}); restart the broker")
        return time.perf_counter() - started

    def _write_group(self, parts: list[PartitionCommit]) -> None:
        now_ms = self._clock.now_ms()
        if len(parts) == 1 and not parts[0].atomic:
            [part] = parts
            self._lay_out(part, now_ms)
            if part.appends:
                if part.partition.config.durability.mode == "fsync":
                    self._write_direct(part)
                else:
                    self._write_unflushed(part)
            return
        # Those that tell where others are laid out come last.
        late = [part for part in parts if part.late]
        laid_out = [part for part in parts if not part.late] if late else parts
        while laid_out or late:
            for part in laid_out:
                self._lay_out(part, now_ms)
            for part in late:
                part.leave_out_refused()  # what has no place in a part that failed cannot tell of it
                self._lay_out(part, now_ms)
            self._refuse_failed(parts)
            # What one part refuses, others that are written together with it leave out; each round makes the group smaller.
            laid_out = [part for part in parts if part.atomic and part.leave_out_refused()]
            late = [part for part in parts if part.late] if laid_out else []
            laid_out = [part for part in laid_out if not part.late] if late else laid_out
        sound = [part for part in parts if part.appends]
        flushed = [part for part in sound if part.atomic or part.partition.config.durability.mode == "fsync"]
        if len(flushed) > 1:
            self._write_journaled(flushed)
        elif flushed:
            self._write_direct(flushed[0])
        for part in sound:
            if part not in flushed:
                self._write_unflushed(part)

    def _refuse_failed(self, parts: list[PartitionCommit]) -> None:
        """Making room for one part closes files of others, and syncing those may fail. What was laid out for them is not written: a
        flush of a file that is opened again does not tell of the failure."""
        for part in parts:
            if part.appends and part.partition.failure is not None:
                part.refuse(part.appends, refused(part.partition))

    def _lay_out(self, part: PartitionCommit, now_ms: int) -> None:
        """Prepare the blocks of a part and the space for them. What fails here was not written, and is refused."""
        while part.appends:
            try:
                self._prepare(part, now_ms)
                break
            except OSError as error:
                refuse_unwritten(part, error)
            except Exception as error:  # noqa: BLE001 - records that make no block harm only themselves
                _log.exception("block_encoding_failed", partition=str(part.partition))
                part.refuse_what_cannot_be_encoded(error)
        if part.rolled:
            self.forget(part.partition)

    def _prepare(self, part: PartitionCommit, now_ms: int) -> None:
        partition, target = part.partition, self._options.block_bytes_target
        if part.rolls(now_ms):
            self._finish_checkpoint_of(partition)
        if partition.failure is not None:
            raise OSError(errno.EIO, partition.failure)
        if self._reserve.given_up and not partition.internal and self._reserve.is_in_use():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if part.atomic and partition in self._unflushed and not self._flush(partition):
            # What the journal restores after a power cut must not stand behind something that was lost in it.
            raise OSError(errno.EIO, partition.failure)
        self._files.use(partition)
        try:
            part.lay_out(now_ms, target)
        except OSError as error:
            if not (partition.internal and is_full(error) and self._reserve.release()):
                raise
            part.lay_out(now_ms, target)

    def _write_direct(self, part: PartitionCommit) -> None:
        writer = part.partition.writer
        if part.partition.failure is None:
            writer.file.ease_flush(len(part.data))
        if not self._write_segment(part):
            return
        try:
            writer.file.sync()
        except OSError as error:
            self._fail(part, flush_failed(error, part.partition))
            return
        if part.partition.failure is not None:
            # The checkpoint has met an error that this flush was not told of: what leans on the journal must go on doing so.
            self._fail(part, part.partition.failure)
            return
        self.forget(part.partition)
        index = writer.segment.index
        if index.covers - index.saved_covers >= self._options.checkpoint_bytes:
            save_index(writer, index.encode(), index.covers)

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
        if part.partition.failure is not None:  # since it was laid out: another part of the commit has closed its file
            part.refuse(part.appends, refused(part.partition))
            return False
        try:
            self._files.use(part.partition)
        except OSError as error:
            refuse_unwritten(part, error)
            return False
        try:
            part.write()
        except OSError as error:
            try:
                file.cut(end)  # a record that was refused must not come back after a crash
            except OSError as worse:
                self._fail(part, flush_failed(worse, part.partition))
                return False
            if is_full(error):
                part.refuse(part.appends, storage_error(error, f"writing to {part.partition}"))
            else:
                self._fail(part, write_failed(error, part.partition))
            return False
        return True

    def _write_journaled(self, parts: list[PartitionCommit]) -> None:
        plain = [part for part in parts if not part.atomic]
        full = self._write_journal(parts, may_use_reserve=not plain)
        if full is not None and plain:
            # There is no room for a copy, but every part has the room it needs in its own segment.
            for part in plain:
                self._write_direct(part)
            parts = [part for part in parts if part.atomic]
            full = self._write_journal(parts, may_use_reserve=True) if parts else None
        if full is not None:
            for part in parts:
                part.refuse(part.appends, full)
        if full is not None or not parts or parts[0].error is not None:
            return
        starts = [part.partition.writer.file.end for part in parts]
        for part in parts:
            try:
                if not part.partition.writer.file.is_open:  # room for another part was made by closing it
                    self._files.use(part.partition)
                self._unsynced[part.partition] = None  # by now: to make room for another part, its file may be closed
                part.write_data()
            except OSError as error:
                may_be_undone = all(part.error is None for part in parts)
                if may_be_undone and (is_full(error) or is_out_of_descriptors(error)):
                    # Reserved space is not everywhere kept free: file systems that copy on write may run out of it here.
                    self._take_back(parts, starts, error)
                    return
                self._abandon_journal()
                self._fail(part, recorded_only(error, part.partition))
        for part in parts:
            if part.error is None:
                part.add_to_index()
        self._spread_failures(parts)

    def _take_back(self, parts: list[PartitionCommit], starts: list[int], full: OSError) -> None:
        """Remove a commit that the journal has and the segments have no space for, and refuse it."""
        try:
            for part, start in zip(parts, starts, strict=True):
                file = part.partition.writer.file
                if file.end != start or file.is_open:
                    self._files.use(part.partition)
                    file.cut(start)
                    file.sync()  # before the journal: without it, a part alone must not come back after a power cut
            self._journal.undo_last()
            self._journal.sync()
        except OSError:
            self._abandon_journal()
            for part in parts:
                self._fail(part, recorded_only(full, part.partition))
                self._unsynced[part.partition] = None
        else:
            for part in parts:
                part.refuse(part.appends, storage_error(full, f"writing to {part.partition}"))

    def _write_journal(self, parts: list[PartitionCommit], *, may_use_reserve: bool) -> NotWritten | None:
        """Record the parts in the journal and flush it. Returns the error if nothing was written; if that is unknown, all parts fail."""
        journal = self._journal
        record = JournalRecord([part.journal_entry() for part in parts])
        try:
            journal.reserve(record.size_bytes)
        except OSError as error:
            if is_full(error) and may_use_reserve and self._reserve.release():
                return self._write_journal(parts, may_use_reserve=False)
            return storage_error(error, "preparing a write to the journal")
        try:
            try:
                journal.write(record)
            except OSError as error:
                if not is_full(error):
                    raise
                journal.undo_last()
                if may_use_reserve and self._reserve.release():
                    return self._write_journal(parts, may_use_reserve=False)
                return storage_error(error, "writing to the journal")
            journal.sync()
        except OSError as error:
            # The record may or may not be on disk. The file is left for the next start to look at, as it stands.
            self._abandon_journal()
            for part in parts:
                self._fail(part, flush_failed(error, part.partition))
        return None

    def _spread_failures(self, parts: list[PartitionCommit]) -> None:
        """All or nothing holds for readers too: what was written of an atomic append stays out of sight until a restart puts the rest
        beside it."""
        failed = [part for part in parts if part.error is not None]
        while failed:
            reason = failed[0].partition.failure
            assert reason is not None
            failed = written_with(failed, parts)
            for part in failed:
                self._fail(part, reason)

    def _abandon_journal(self) -> None:
        """Begin a new journal file and never delete the present one in this run: only a restart can tell what it holds."""
        path = self._journal.retire()
        _log.error("journal_checkpoint_failed", path=str(path))

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
                # If the partition has failed, a sync of its segment proves nothing, so what the journal holds of it must stay.
                if partition.failure is not None:
                    raise OSError(errno.EIO, "the partition refuses writes")
                index = writer.segment.index
                fd = open_for_sync(self._disk, partition)
                if fd is not None:
                    work.append((partition, fd))
                self._covered.append((partition, writer, index.encode(), index.covers))
            except OSError as error:
                _log.error("journal_kept", path=str(retired), partition=str(partition), error=str(error))
                retired = None
        self._checkpoint = self._checkpointer.submit(sync_segments, self._disk, work, retired)
        if wait:
            self._finish_checkpoint()

    def retire_journal(self) -> None:
        """Begin a checkpoint if there is a journal, however small; in the commit thread. Once in a while, so that a start after a crash
        has little to replay."""
        if self._journal.end:
            self.checkpoint(wait=False)

    def _finish_checkpoint(self) -> None:
        """Wait for a checkpoint under way; what it synced need not be scanned after a crash."""
        if self._checkpoint is None:
            return
        self._checkpoint.result()
        self._checkpoint = None
        covered, self._covered = self._covered, []
        for partition, writer, encoded, covers in covered:
            # Sealed or settled meanwhile, it has a later index.
            index = writer.segment.index
            if partition.failure is None and not partition.deleted and not index.sealed and index.saved_covers < covers:
                save_index(writer, encoded, covers)

    def _finish_checkpoint_of(self, partition: EmbeddedPartition) -> None:
        """Before a partition's segment is sealed, wait for a checkpoint that syncs it: the system tells an error of writing back to no
        opening of the file after the one that heard of it, and nothing is redone in a segment that another one follows."""
        if any(covered is partition for covered, *_ in self._covered):
            self._finish_checkpoint()

    def _fail(self, part: PartitionCommit, reason: str) -> None:
        """Nobody knows whether the part is stored, so its partition refuses writes until a restart has looked."""
        part.error = part.error or OutcomeUnknown(f"whether these records are on disk is unknown: {reason}")
        part.partition.fail(reason)

    def forget(self, partition: EmbeddedPartition) -> None:
        """Everything the partition wrote is synced, or it is closed or deleted; in the commit thread."""
        self._unsynced.pop(partition, None)
        self._unflushed.pop(partition, None)
        self._interval_due.pop(partition, None)

    def _sync_own(self, partition: EmbeddedPartition) -> None:
        """Sync what neither a flush nor a checkpoint has synced yet in the partition's own segment."""
        if (partition in self._unsynced or partition in self._unflushed) and synced(partition):
            self.forget(partition)

    def settle(self, partition: EmbeddedPartition) -> None:
        """Sync a partition's last segment and save its index, so that a start finds nothing to look at, and close its file until the
        next write; in the commit thread."""
        if partition.failure is not None or partition.deleted:
            return
        writer = partition.writer
        if writer.is_settled:
            return
        try:
            self._files.use(partition)
        except OSError as error:
            if not is_out_of_descriptors(error):
                partition.fail(flush_failed(error, partition))
            return  # a later pass tries again
        try:
            writer.cut_and_sync()
        except OSError as error:
            partition.fail(flush_failed(error, partition))
            return
        self.forget(partition)
        save_index(writer, writer.segment.index.encode(), writer.segment.index.covers)
        writer.file.release()
        self._files.forget(partition)

    def roll(self, partition: EmbeddedPartition, now_ms: int) -> None:
        """Begin a new segment of a partition; in the commit thread. If that fails, the last one goes on as it was."""
        self._finish_checkpoint_of(partition)
        if partition.failure is not None:
            raise OSError(errno.EIO, partition.failure)
        self._files.use(partition)
        partition.writer = partition.writer.roll(now_ms)
        self.forget(partition)
        self._files.forget(partition)

    def close(self, partition: EmbeddedPartition) -> None:
        """Close a partition's file for good; in the commit thread."""
        self.forget(partition)
        self._files.forget(partition)
        partition.writer.file.close()

    def flush_unflushed(self, partitions: Iterable[EmbeddedPartition]) -> None:
        """Sync what these partitions have written without a flush; in the commit thread. Raises NotWritten if that fails."""
        for partition in partitions:
            if partition in self._unflushed and not self._flush(partition):
                raise NotWritten(f"nothing was changed, because the partition has failed: {partition.failure}")

    def _due_in_s(self) -> float | None:
        due_s = min(self._interval_due.values(), default=None)  # at once: the event loop may remove what is flushed
        return None if due_s is None else max(0.0, due_s - time.monotonic())

    def _sync_due(self) -> None:
        if not self._interval_due:
            return
        now = time.monotonic()
        for partition in [partition for partition, due in self._interval_due.items() if due <= now]:
            self._flush(partition)

    def _flush(self, partition: EmbeddedPartition) -> bool:
        """Sync what `interval` and `none` left for later."""
        self._unflushed.pop(partition, None)
        self._interval_due.pop(partition, None)
        return synced(partition)
