"""Group commit: appends gather while a flush runs, then go to disk together, in one thread off the event loop.

On the loop, `Committer.submit` queues an append and, when no commit is under way, starts one with everything that has gathered. In
the commit thread the group is laid out (blocks built, space reserved), written and flushed; back on the loop its appends are
answered, and what gathered meanwhile goes next. There is no timer: a lone append goes at once, a flood makes large groups.

How a group becomes durable depends on how many files must be flushed for it:
- one: its segment is written and synced;
- several: everything goes to the journal, which is synced, and then to the segments (see `journal.py`), but for late records, which
  stay in the journal for now (see `checkpoint.py`).
An atomic append is flushed whatever the durability of its topics. If one of its parts cannot be written, the others are left out of the
commit; appends that were only gathered with it are not affected.

Topics with `interval` or `none` durability are written without waiting for a flush.

A small group is written on the loop itself if nothing is under way and somebody waits for it: handing it to another thread and back
would take longer than the write. That holds for topics with `none`, which wait for nothing at all, and for a few partitions with `fsync`
while the disk flushes quickly (`Disk.flushes_quickly`). After a slow flush groups go to the thread again, until flushes are quick there.
What takes longer than a write is left to the thread: a new segment, a new journal, a checkpoint, a flush while a checkpoint is under way,
and one that takes with it what leans on the journal.

Only the commit thread touches writers and the journal; the loop does for such a small group, while it holds the thread's queue and the
thread waits. A failed flush is final for the partitions in it: whether their data is on disk is unknown (OutcomeUnknown), so they refuse
writes until a restart has looked (retrying could acknowledge what is not there). What fails before anything was written is NotWritten.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from penstock.clock import Clock
from penstock.errors import InvalidRequest, NotWritten
from penstock.futures import shield
from penstock.log.api import EngineStats, LateBatch
from penstock.log.embedded.atomic import AtomicAppend, LatePart
from penstock.log.embedded.checkpoint import Checkpoints, save_index, synced
from penstock.log.embedded.disk import Disk, SpaceReserve, is_full, is_out_of_descriptors, storage_error
from penstock.log.embedded.failures import fail, flush_failed, refuse_unwritten, refused, write_failed
from penstock.log.embedded.journal import Journal
from penstock.log.embedded.journaled import JournaledWrites
from penstock.log.embedded.layout import PartitionCommit
from penstock.log.embedded.options import EngineOptions
from penstock.log.embedded.threads import Threads
from penstock.log.embedded.write_files import WriteFiles

if TYPE_CHECKING:
    from penstock.log.embedded.partition import EmbeddedPartition

WRITTEN_ON_LOOP_BYTES_MAX: Final = 32 << 10
"""Per group. Encoding and copying this much to the system takes some 50 us; a larger group is worth the hand-over."""
WRITTEN_ON_LOOP_PARTITIONS_MAX: Final = 32
"""Per group. Each takes some 10 us besides its bytes, and far more if its file must be opened and space reserved in it."""
LATE_RECORDS_MAX: Final = 4096
"""Per partition, roughly, and in the journal only: each checkpoint writes them again."""
LATE_RECORD_BYTES_MAX: Final = 4 << 10
"""Per late record, so that they take 16 MiB at most; a larger one is worth a write to its partition."""
FLUSHED_ON_LOOP_PARTITIONS_MAX: Final = 4  # of a group: each takes some 50 us besides its bytes

_T = TypeVar("_T")
log = structlog.get_logger(__name__)


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
        self._late_gathered: dict[EmbeddedPartition, list[LatePart]] = {}
        """What has gathered and is to stay in the journal, by the partition that it belongs to, unless something else is appended there by
        the same commit."""
        self._late_kept_out = 0
        """How many want late records in their partitions, not only in the journal."""
        self._late_awaited: list[asyncio.Future[list[EmbeddedPartition]]] = []
        """Who waits until a commit that is still to be started has written them; gets the partitions that it could not write to."""
        self._late_being_written: list[asyncio.Future[list[EmbeddedPartition]]] = []
        """The same for the commit under way."""
        self._lacking_late: list[EmbeddedPartition] = []
        """The partitions that that one writes them to."""
        self._carries_late = False
        """Whether the commit under way writes late records of earlier ones to their partition."""
        self._idle = asyncio.Event()
        self._idle.set()
        # Below: owned by the commit thread, or by the holder of its queue.
        self.checkpoints = Checkpoints(disk, journal, reserve, options, threads)
        self._unflushed: dict[EmbeddedPartition, None] = {}
        """Partitions with blocks that neither a flush nor the journal covers, as `interval` and `none` allow."""
        self._interval_due: dict[EmbeddedPartition, float] = {}
        self._files = WriteFiles(options.write_files_max, self._sync_own)
        self._journaled = JournaledWrites(journal, reserve, self._files, self.checkpoints, self._write_part)
        self._tasks = threads.task_queue("penstock-commit", self._due_in_s, self._sync_due)

    # -- on the loop -----------------------------------------------------------------------------------------------------

    def submit(self, partition: EmbeddedPartition, relaxed: bool) -> None:
        """This partition is about to have an append waiting, for which nobody waits if it is `relaxed`."""
        if partition in self._late_gathered:
            partition.take_late(self._late_gathered.pop(partition))
        self._gathered[partition] = None
        if not relaxed:
            self._awaited = True
        if not (self._under_way or self._scheduled):
            self._schedule_commit()

    def _schedule_commit(self) -> None:
        """Commit at the end of this turn of the loop, so that everything the turn brings goes together."""
        self._scheduled = True
        self._loop.call_soon(self._start_commit)

    def _start_commit(self) -> None:
        may_write_here = self._scheduled and self._awaited
        self._scheduled = self._awaited = False
        if self._late_awaited:
            self._late_being_written, self._late_awaited = self._late_awaited, []
            self._lacking_late = list(self.checkpoints.late)
            for partition, gathered in self._late_gathered.items():
                partition.take_late(gathered)
            self._gathered.update(dict.fromkeys((*self._lacking_late, *self._late_gathered)))
            self._late_gathered.clear()
        refused = False
        for partition in self._gathered:
            if partition.deleted or partition.failure is not None:
                partition.refuse_waiting()
                refused = True
        parts: list[PartitionCommit] = []
        telling: list[PartitionCommit] = []
        for partition in self._gathered:
            if refused:
                partition.leave_out_refused()
            part = partition.take_part()
            if part is not None:
                (telling if part.late else parts).append(part)
                self._carries_late |= part.carries_late
        self._gathered.clear()
        parts += telling
        late: list[LatePart] = []
        for gathered in self._late_gathered.values():
            late += gathered
        self._late_gathered.clear()
        if refused:
            late = [each for each in late if each.whole.refusal is None]
        if not parts:
            self._idle.set()
            self._tell_late_written(parts)
            return
        self._under_way = True
        if not (may_write_here and self._write_on_loop(parts, late)):
            self._tasks.put(lambda: self._commit(parts, late))

    def _write_on_loop(self, parts: list[PartitionCommit], late: list[LatePart]) -> bool:
        """Write a group that need not wait for the disk for long; False if it might, or where the commit thread is at work."""
        if len(parts) > WRITTEN_ON_LOOP_PARTITIONS_MAX:
            return False
        size_bytes = flushed = closed = 0
        for part in parts:
            size_bytes += part.size_bytes
            mode = part.partition.config.durability.mode
            # What is flushed whatever its topic says is flushed with all that the topic has not flushed.
            if mode == "none" and (part.atomic or part.carries_late):
                return False
            if size_bytes > WRITTEN_ON_LOOP_BYTES_MAX or mode == "interval":
                return False
            flushed += mode == "fsync"
        if flushed and (flushed > FLUSHED_ON_LOOP_PARTITIONS_MAX or not self._disk.flushes_quickly()):
            return False
        if not self._tasks.try_acquire():
            return False
        try:
            now_ms, journaled = self._clock.now_ms(), bool(flushed > 1 or late)
            for part in parts:
                if part.rolls(now_ms):
                    return False
                file = part.partition.writer.file
                closed += file.fd < 0
                if journaled:
                    continue
                # A flush of the segment takes with it what leans on the journal.
                leaning_from = self.checkpoints.unsynced.get(part.partition, file.end)
                if file.end - leaning_from > WRITTEN_ON_LOOP_BYTES_MAX:
                    return False
            if flushed and self.checkpoints.is_syncing:
                return False  # the disk is busy with up to a whole journal
            if (journaled and not self._journal.end) or (closed and not self._files.has_room_for(closed)):
                return False
            seconds = self._write(parts, late, now_ms)
            if journaled and self.checkpoints.is_due:
                self._tasks.put(self._checkpoint_if_due)
        finally:
            self._tasks.release()
        self._committed(parts, seconds)
        return True

    def _committed(self, parts: list[PartitionCommit], seconds: float) -> None:
        self._under_way = self._carries_late = False
        stats = self._stats
        records = size_bytes = 0
        grown: list[EmbeddedPartition] = []
        for part in parts:
            if part.partition.apply(part):
                grown.append(part.partition)
                records += part.next_offset - part.base_offset
                size_bytes += part.end - part.start
            if part.error is not None or part.refused:
                stats.commit_errors += 1
        stats.commits += 1
        stats.appended_records += records
        stats.appended_bytes += size_bytes
        stats.commit_records.observe(records)
        stats.flush_seconds.observe(seconds)
        if self._late_being_written:
            self._tell_late_written(parts)
        # The next group starts before these are answered: the disk works while the loop builds replies.
        if self._gathered or self._late_awaited:
            self._start_commit()
        else:
            self._idle.set()
        for part in parts:
            part.answer()
        for partition in grown:
            partition.watchers.notify()

    def gather_late(self, whole: AtomicAppend, partition: EmbeddedPartition, batch: LateBatch) -> bool:
        """Have the next commit write a late part to the journal only, if that may be. In a compacted topic only the last record of a key
        counts, so most need never be written to their partition."""
        config = partition.config
        if (
            batch.key is None
            or config.cleanup != "compact"
            or config.durability.mode != "fsync"
            or batch.size_bytes > LATE_RECORD_BYTES_MAX
            or len(partition.late) >= LATE_RECORDS_MAX
            or self._late_kept_out
            # No offset would tell whether it came before or after what the same commit appends there.
            or partition in self._gathered
        ):
            return False
        self._late_gathered.setdefault(partition, []).append(LatePart(whole, partition, batch.key, batch))
        return True

    @contextmanager
    def late_kept_out(self) -> Iterator[None]:
        """Until this is left, late records go to their partitions at once."""
        self._late_kept_out += 1
        try:
            yield
        finally:
            self._late_kept_out -= 1

    async def write_late(self) -> list[EmbeddedPartition]:
        """Write late records to their partitions; those of a partition that cannot be written to stay in the journal. Return these."""
        if not (self.checkpoints.late or self._carries_late):
            return []
        written: asyncio.Future[list[EmbeddedPartition]] = self._loop.create_future()
        self._late_awaited.append(written)
        if not (self._under_way or self._scheduled):
            self._schedule_commit()
        return await shield(written)

    def _tell_late_written(self, parts: list[PartitionCommit]) -> None:
        written = {part.partition for part in parts if part.written and part.error is None}
        unwritten = [each for each in self._lacking_late if each not in written and not each.deleted]
        told, self._late_being_written, self._lacking_late = self._late_being_written, [], []
        for each in told:
            each.set_result(unwritten)

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
            except BaseException as error:  # noqa: BLE001 - handed to the awaiting caller
                self._loop.call_soon_threadsafe(future.set_exception, error)
            else:
                self._loop.call_soon_threadsafe(future.set_result, result)

        self._tasks.put(task)
        return await shield(future)

    def stop(self) -> None:
        """End the thread after what it was given; blocks until it has."""
        self._tasks.stop()
        self.checkpoints.stop()

    # -- in the commit thread --------------------------------------------------------------------------------------------

    def _commit(self, parts: list[PartitionCommit], late: list[LatePart]) -> None:
        self._loop.call_soon_threadsafe(self._committed, parts, self._write(parts, late, self._clock.now_ms()))
        self._checkpoint_if_due()

    def _checkpoint_if_due(self) -> None:
        self.checkpoints.finish_if_done()
        # Files that lean on the journal are synced before they are closed, and by a checkpoint they are alongside the commits.
        if self.checkpoints.is_due or len(self.checkpoints.unsynced) > self._files.files_max // 2:
            self.checkpoints.begin(wait=False)

    def _write(self, parts: list[PartitionCommit], late: list[LatePart], now_ms: int) -> float:
        """Write a group as its topics want it; returns the seconds that took. The records of `late` stay in the journal."""
        started = time.perf_counter()
        try:
            if len(parts) == 1 and not parts[0].atomic:
                self._lay_out(parts[0], now_ms)
                self._write_part(parts[0])
            else:
                self._write_together(parts, late, now_ms)
        except Exception as error:  # a bug: the outcome is unknown, and saying so is the only safe answer
            log.exception("commit_failed")
            for part in parts:
                fail(part, f"unexpected error in a commit ({error}); restart the broker")
        for each in late:
            if each.whole.failure is not None:
                # After anything else is written to its partition, a restart that finds it in the journal would not put it there.
                each.partition.fail(each.whole.failure)
        return time.perf_counter() - started

    def _write_together(self, parts: list[PartitionCommit], late: list[LatePart], now_ms: int) -> None:
        left = parts  # those that tell where others are laid out come last
        while left:
            for part in left:
                if part.late:
                    part.leave_out_refused()  # what has no place in a part that failed cannot tell of it
                self._lay_out(part, now_ms)
            refused = self._are_refused(parts)
            if self._made(late) and not refused:
                break
            # What one part refuses, others that are written together with it leave out; each round makes the group smaller.
            again = [part for part in parts if part.atomic and part.leave_out_refused()]
            left = [part for part in again if not part.late]
            if again:
                left += [part for part in parts if part.late]
            late = [each for each in late if each.whole.refusal is None]
        flushed: list[PartitionCommit] = []
        unflushed: list[PartitionCommit] = []
        for part in parts:
            if part.appends:
                (flushed if part.is_flushed else unflushed).append(part)
        if late or len(flushed) > 1:
            self._journaled.write(flushed, late)
        elif flushed:
            self._write_part(flushed[0])
        for part in unflushed:
            self._write_part(part)

    def _are_refused(self, parts: list[PartitionCommit]) -> bool:
        """Whether something that was laid out is not written.

        Making room for one part closes files of others, and syncing those may fail. What was laid out for them is not written: a flush of
        a file that is opened again does not tell of the failure."""
        any_refused = False
        for part in parts:
            if part.appends and part.partition.failure is not None:
                part.refuse(part.appends, refused(part.partition))
            any_refused |= bool(part.refused)
        return any_refused

    def _made(self, late: list[LatePart]) -> bool:
        """Make the records of late parts, once all other parts are laid out. False if one is refused."""
        made = True
        for each in late:
            whole, partition = each.whole, each.partition
            if whole.refusal is not None:
                continue
            if partition.failure is not None or partition.deleted:
                refusal = f"nothing was written, because {partition} takes no records any more"
                whole.refusal, made = NotWritten(refusal), False
                continue
            try:
                each.value = each.batch.make(whole.places)
            except Exception as error:  # it harms only itself
                log.exception("late_record_failed", partition=str(partition))
                whole.refusal, made = InvalidRequest(f"the records cannot be stored in {partition}: {error}"), False
        return made

    def _lay_out(self, part: PartitionCommit, now_ms: int) -> None:
        """Prepare the blocks of a part and the space for them. What fails here was not written, and is refused."""
        partition = part.partition
        # Asked only here: a change to `fsync` that runs in this thread holds for every commit behind it.
        part.is_flushed = part.atomic or part.carries_late or partition.config.durability.mode == "fsync"
        while part.appends:
            try:
                rolls = part.rolls(now_ms)
                if rolls:
                    self.checkpoints.finish_of(partition)
                if partition.failure is not None:
                    raise OSError(errno.EIO, partition.failure)
                if self._reserve.given_up and not partition.internal and self._reserve.is_in_use():
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if partition in self._unflushed and part.is_flushed and not self._flush(partition):
                    # What the journal restores after a power cut must not stand behind something that was lost in it.
                    raise OSError(errno.EIO, partition.failure)
                self._files.use(partition)
                part.lay_out(now_ms, self._options.block_bytes_target, rolls=rolls)
                break
            except OSError as error:
                if not (partition.internal and is_full(error) and self._reserve.release()):
                    refuse_unwritten(part, error)
            except Exception as error:  # records that make no block harm only themselves
                log.exception("block_encoding_failed", partition=str(partition))
                part.refuse_what_cannot_be_encoded(error)
        if part.rolled:
            self.forget(partition)

    def _write_part(self, part: PartitionCommit) -> None:
        """Write a part to its segment, and flush that unless its topic does without."""
        if not part.appends:
            return  # what it had was refused
        partition, is_flushed = part.partition, part.is_flushed
        writer = partition.writer
        file = writer.file
        if partition.failure is not None:  # since it was laid out: another part of the commit has closed its file
            part.refuse(part.appends, refused(partition))
            return
        if file.fd < 0:
            try:
                self._files.use(partition)
            except OSError as error:
                refuse_unwritten(part, error)
                return
        try:
            file.write(part.data, is_flushed=is_flushed)
        except OSError as error:
            self._write_failed(part, error)
            return
        part.add_to_index()
        if not is_flushed:
            self._unflushed[partition] = None
            durability = partition.config.durability
            if durability.mode == "interval":
                due = time.monotonic() + durability.interval_ms / 1000
                self._interval_due.setdefault(partition, due)
            return
        try:
            file.sync()
        except OSError as error:
            fail(part, flush_failed(error, partition))
            return
        if part.partition.failure is not None:
            # The checkpoint has met an error that this flush was not told of: what leans on the journal must continue doing so.
            fail(part, part.partition.failure)
            return
        self.forget(partition)
        if part.carries_late:
            self.checkpoints.forget_late(partition)
        index = writer.segment.index
        if index.covers - index.saved_covers >= self._options.checkpoint_bytes:
            save_index(writer, index.encode(), index.covers)

    def _write_failed(self, part: PartitionCommit, error: OSError) -> None:
        """Cut what a failed write has left in the segment."""
        partition = part.partition
        try:
            partition.writer.file.cut(part.start)  # a record that was refused must not come back after a crash
        except OSError as worse:
            fail(part, flush_failed(worse, partition))
            return
        if is_full(error):
            part.refuse(part.appends, storage_error(error, f"writing to {partition}"))
        else:
            fail(part, write_failed(error, partition))

    def forget(self, partition: EmbeddedPartition) -> None:
        """Everything the partition wrote is synced, or it is closed or deleted; in the commit thread."""
        self.checkpoints.unsynced.pop(partition, None)
        self._unflushed.pop(partition, None)
        self._interval_due.pop(partition, None)

    def _sync_own(self, partition: EmbeddedPartition) -> None:
        """Sync what neither a flush nor a checkpoint has synced yet in the partition's own segment."""
        if (partition in self.checkpoints.unsynced or partition in self._unflushed) and synced(partition):
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
        """Begin a new segment of a partition; in the commit thread. If that fails, the last one continues as it was."""
        self.checkpoints.finish_of(partition)
        if partition.failure is not None:
            raise OSError(errno.EIO, partition.failure)
        self._files.use(partition)
        partition.writer = partition.writer.roll(now_ms)
        self.forget(partition)
        self._files.forget(partition)

    def close(self, partition: EmbeddedPartition) -> None:
        """Close a partition's file for good; in the commit thread."""
        self.forget(partition)
        self.checkpoints.late.pop(partition, None)  # if its topic was deleted, nobody misses them
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
