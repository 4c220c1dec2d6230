"""Checkpoints: segments that lean on the journal are flushed, and then the journal is deleted (see `commit.py`).

Late records. The record of a `LateBatch` tells where the rest of its append is stored, and in a compacted topic each replaces the one with
the same key before it. There it is written to the journal with the rest, so that the append is all or nothing, and is not written to its
partition: the commit has one file less to write, and most late records are replaced before they need be. They stay in memory, and go to
their partition in front of whatever is appended to it next, with each pass of maintenance, before a snapshot is made, and before the
engine is closed.

A checkpoint writes those that are left to the next journal before it deletes the last one, but not those of a partition that has failed,
of which nobody knows which is the last: these stay where they are, with their journal. In the journal each has the offset that the
partition would have given out next. After a crash a partition that ends after that offset has the record, because nothing is
appended to it without; to one that does not, a start appends it. So it does not matter how often, or from which journal, that is done.
"""

from __future__ import annotations

import errno
import os
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from penstock.log.embedded.disk import Disk, SpaceReserve, is_full, is_out_of_descriptors
from penstock.log.embedded.failures import flush_failed
from penstock.log.embedded.journal import Journal, JournalEntry, JournalRecord
from penstock.log.embedded.options import EngineOptions
from penstock.log.embedded.segment import SegmentWriter
from penstock.log.embedded.threads import Threads

if TYPE_CHECKING:
    from penstock.log.embedded.partition import EmbeddedPartition

log = structlog.get_logger(__name__)

SAVED_INDEX_BYTES_MIN: Final = 16 << 10
"""A checkpoint saves the index of a segment that has none yet, by which a start knows that the segment is missing or empty, or that has
grown by this much since. A start scans less than that as quickly as it reads an index, and where many topics are written in turn, each
record would cost a file. Maintenance saves the index of a segment that is left alone."""


class Checkpoints:
    """Used by the commit thread only, or while its queue is held; the flushing is done in a thread alongside it."""

    def __init__(
        self, disk: Disk, journal: Journal, reserve: SpaceReserve, options: EngineOptions, threads: Threads
    ) -> None:
        self._disk = disk
        self._journal = journal
        self._reserve = reserve
        self._journal_bytes = options.journal_bytes
        self._saved_bytes_min = min(SAVED_INDEX_BYTES_MIN, options.checkpoint_bytes)
        self._carried_to = 0
        """Where the late records end that the journal begins with."""
        self.unsynced: dict[EmbeddedPartition, int] = {}
        """Partitions whose journaled blocks are not yet synced in their own segments, and where the first of these begins."""
        self.late: dict[EmbeddedPartition, None] = {}
        """Partitions that have late records in the journal."""
        self._left_behind: set[EmbeddedPartition] = set()
        """Those of them that have failed, and whose late records are in journals that stay."""
        self._pool = threads.pool(1, "penstock-checkpoint")
        self._running: Future[None] | None = None
        self._covered: list[tuple[EmbeddedPartition, SegmentWriter, bytes, int]] = []
        """What the checkpoint under way syncs, with the index of that moment, empty if it is not worth saving, and how far it covers the
        segment."""

    @property
    def is_due(self) -> bool:
        return self._journal.end >= self._carried_to + self._journal_bytes

    @property
    def is_syncing(self) -> bool:
        return self._running is not None and not self._running.done()

    def begin(self, *, wait: bool) -> None:
        """Sync the segments that lean on the journal, then delete it."""
        self.finish()
        retired = self._journal.retire()
        if retired is None:
            return
        if not self._carry_late():
            log.error("journal_kept", path=str(retired), error="it has late records that the next one lacks")
            retired = None
        unsynced, self.unsynced = self.unsynced, {}
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
                worth_saving = not index.saved_covers or index.covers - index.saved_covers >= self._saved_bytes_min
                self._covered.append((partition, writer, index.encode() if worth_saving else b"", index.covers))
            except OSError as error:
                log.error("journal_kept", path=str(retired), partition=str(partition), error=str(error))
                retired = None
        self._running = self._pool.submit(sync_segments, self._disk, work, retired)
        if wait:
            self.finish()

    def begin_early(self) -> None:
        """Begin a checkpoint if there is a journal, however small. Once in a while, so that a start after a crash has little to replay."""
        if self._journal.end > self._carried_to:
            self.begin(wait=False)

    def abandon(self) -> Path | None:
        """Begin a new journal, and leave the present one where it is: only a restart can tell what it holds."""
        self._carried_to = 0
        return self._journal.retire()

    def _carry_late(self) -> bool:
        """Write late records to the new journal; False if the last one must stay for some of them."""
        self._carried_to = 0
        entries: list[JournalEntry] = []
        left_behind = set()
        for partition in self.late:
            if partition.failure is None:
                entries += [partition.late_entry(key, value) for key, value in partition.late.items()]
            else:
                # The last journal may have later ones of which nobody knows. Written again, these would replace them.
                left_behind.add(partition)
        all_carried = left_behind <= self._left_behind
        self._left_behind = left_behind
        if not entries:
            return all_carried
        record = JournalRecord(entries)
        try:
            self._make_room(record.size_bytes)
        except OSError:
            return False
        try:
            self._journal.write(record)
            self._journal.sync()
        except OSError:
            self.abandon()
            return False
        self._carried_to = self._journal.end
        return all_carried

    def _make_room(self, size_bytes: int) -> None:
        """Make sure of space in the new journal. On a full disk the reserve is used: to keep the last journal would take far more."""
        try:
            self._journal.reserve(size_bytes)
        except OSError as error:
            if not (is_full(error) and self._reserve.release()):
                raise
            self._journal.reserve(size_bytes)

    def finish_if_done(self) -> None:
        if self._running is not None and self._running.done():
            self.finish()

    def finish(self) -> None:
        """Wait for a checkpoint under way; what it synced need not be scanned after a crash."""
        if self._running is None:
            return
        self._running.result()
        self._running = None
        covered, self._covered = self._covered, []
        for partition, writer, encoded, covers in covered:
            # Sealed or settled meanwhile, it has a later index.
            index = writer.segment.index
            if (
                encoded
                and partition.failure is None
                and not partition.deleted
                and not index.sealed
                and index.saved_covers < covers
            ):
                save_index(writer, encoded, covers)

    def finish_of(self, partition: EmbeddedPartition) -> None:
        """Before a partition's segment is sealed, wait for a checkpoint that syncs it: the system tells an error of writing back to no
        opening of the file after the one that heard of it, and nothing is redone in a segment that another one follows."""
        if any(covered is partition for covered, *_ in self._covered):
            self.finish()

    def keep_late(self, partition: EmbeddedPartition, key: bytes, value: bytes) -> None:
        """The journal has this late record."""
        partition.late[key] = value
        self.late[partition] = None

    def forget_late(self, partition: EmbeddedPartition) -> None:
        """They are in the partition, and there for good."""
        partition.late.clear()
        self.late.pop(partition, None)

    def stop(self) -> None:
        """End the thread after the checkpoint under way."""
        self._pool.shutdown()


def open_for_sync(disk: Disk, partition: EmbeddedPartition) -> int | None:
    """Return a descriptor of the last segment for a flush in another thread. If there is none left, the segment is flushed here and
    now and None is returned: it must not be closed before it is synced, nor every such journal stay."""
    file = partition.writer.file
    try:
        if partition.deleted:
            # Its directory may be renamed already. It is synced all the same: if the delete fails, the topic stays.
            return os.dup(file.open())
        # Opened again, not duplicated: the system reports an error of writing back to each opening of a file once, and what this
        # thread's own flushes meet from here on must not be hidden from the checkpoint's.
        return disk.open_append(file.path, create=False)
    except OSError as error:
        if not (is_out_of_descriptors(error) and file.fd >= 0):
            raise
    try:
        file.sync()
    except OSError as error:
        partition.fail(flush_failed(error, partition))
        raise
    return None


def sync_segments(disk: Disk, work: list[tuple[EmbeddedPartition, int]], retired: Path | None) -> None:
    """Flush segments and delete the journal that covers them, unless a flush fails. In the checkpoint thread."""
    for partition, fd in work:
        try:
            disk.fdatasync(fd)
        except OSError as error:
            retired = None
            partition.fail(flush_failed(error, partition))
        finally:
            os.close(fd)
    if retired is not None and all(partition.failure is None for partition, _ in work):
        try:
            disk.unlink(retired)
        except OSError as error:
            # The next start applies it once more, which is harmless.
            log.warning("journal_not_removed", path=str(retired), error=str(error))


def synced(partition: EmbeddedPartition) -> bool:
    """Sync a partition's last segment. A sync of what has failed before proves nothing, so that is not synced."""
    if partition.failure is not None:
        return False
    try:
        partition.writer.file.sync()
    except OSError as error:
        partition.fail(flush_failed(error, partition))
        return False
    return True


def save_index(writer: SegmentWriter, encoded: bytes, covers: int) -> None:
    try:
        writer.save_index(encoded, covers)
    except OSError as error:
        # Only the next start is slower for it.
        log.warning("index_not_saved", segment=str(writer.segment.path), error=str(error))
