"""A commit that goes through the journal: it is recorded there as a whole and flushed, and then written to its segments (see `journal.py`).

Late records are recorded only (see `checkpoint.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import structlog

from penstock.errors import NotWritten
from penstock.log.embedded.atomic import LatePart
from penstock.log.embedded.checkpoint import Checkpoints
from penstock.log.embedded.disk import SpaceReserve, is_full, is_out_of_descriptors, storage_error
from penstock.log.embedded.failures import fail, failed_with, flush_failed, recorded_only
from penstock.log.embedded.journal import Journal, JournalRecord
from penstock.log.embedded.layout import PartitionCommit
from penstock.log.embedded.write_files import WriteFiles

log = structlog.get_logger(__name__)
_is_atomic = attrgetter("atomic")


class JournaledWrites:
    """For one log. Used by the commit thread only, or while its queue is held."""

    def __init__(
        self,
        journal: Journal,
        reserve: SpaceReserve,
        files: WriteFiles,
        checkpoints: Checkpoints,
        write_direct: Callable[[PartitionCommit], None],
    ) -> None:
        """`write_direct` writes a part to its segment and flushes that."""
        self._journal = journal
        self._reserve = reserve
        self._files = files
        self._checkpoints = checkpoints
        self._write_direct = write_direct

    def write(self, parts: list[PartitionCommit], late: list[LatePart]) -> None:
        """Write laid-out parts, those that are atomic all or none, and record late ones with them."""
        full = self._record(parts, late)
        if full is not None and not all(map(_is_atomic, parts)):
            # There is no room for a copy, but every part has the room it needs in its own segment.
            for part in parts:
                if not part.atomic:
                    self._write_direct(part)
            parts = [part for part in parts if part.atomic]
            full = self._record(parts, late) if parts else None
        if full is not None:
            for part in parts:
                part.refuse(part.appends, full)
        if full is not None or not parts or parts[0].error is not None:
            return
        failed = False
        for part in parts:
            partition = part.partition
            file = partition.writer.file
            try:
                if file.fd < 0:  # room for another part was made by closing it
                    self._files.use(partition)
                # By now: to make room for another part, its file may be closed.
                self._checkpoints.unsynced.setdefault(partition, part.start)
                file.write(part.data)
            except OSError as error:
                if not failed and (is_full(error) or is_out_of_descriptors(error)):
                    # Reserved space is not everywhere kept free: file systems that copy on write may run out of it here.
                    self._take_back(parts, error)
                    return
                self._abandon()
                fail(part, recorded_only(error, part.partition))
                failed = True
        for part in parts:
            if part.error is None:
                part.add_to_index()
        if failed:
            _spread_failures(parts)
        for part in parts:
            if part.carries_late and part.error is None:
                self._checkpoints.forget_late(part.partition)
        for each in late:
            if each.whole.failure is None:
                self._checkpoints.keep_late(each.partition, each.key, each.value)

    def _take_back(self, parts: list[PartitionCommit], full: OSError) -> None:
        """Remove a commit that the journal has and the segments have no space for, and refuse it."""
        try:
            for part in parts:
                file = part.partition.writer.file
                if file.end != part.start or file.fd >= 0:
                    self._files.use(part.partition)
                    file.cut(part.start)
                    file.sync()  # before the journal: without it, a part alone must not come back after a power cut
            self._journal.undo_last()
            self._journal.sync()
        except OSError:
            self._abandon()
            for part in parts:
                fail(part, recorded_only(full, part.partition))
                self._checkpoints.unsynced.setdefault(part.partition, part.start)
        else:
            for part in parts:
                part.refuse(part.appends, storage_error(full, f"writing to {part.partition}"))

    def _record(self, parts: list[PartitionCommit], late: list[LatePart]) -> NotWritten | None:
        """Record the parts in the journal and flush it. Returns the error if nothing was written; if that is unknown, all parts fail."""
        journal = self._journal
        entries = [part.journal_entry() for part in parts]
        entries += [each.partition.late_entry(each.key, each.value) for each in late]
        record = JournalRecord(entries)
        try:
            journal.reserve(record.size_bytes)
        except OSError as error:
            if is_full(error) and self._reserve_released_for(parts):
                return self._record(parts, late)
            return storage_error(error, "preparing a write to the journal")
        try:
            try:
                journal.write(record)
            except OSError as error:
                if not is_full(error):
                    raise
                journal.undo_last()
                if self._reserve_released_for(parts):
                    return self._record(parts, late)
                return storage_error(error, "writing to the journal")
            journal.sync()
        except OSError as error:
            # The record may or may not be on disk. The file is left for the next start to look at, as it stands.
            self._abandon()
            for part in parts:
                fail(part, flush_failed(error, part.partition))
        return None

    def _reserve_released_for(self, parts: list[PartitionCommit]) -> bool:
        """Give up the reserve for what cannot be written part by part; False if there is none left."""
        return all(map(_is_atomic, parts)) and self._reserve.release()

    def _abandon(self) -> None:
        """Begin a new journal file and never delete the present one in this run: only a restart can tell what it holds."""
        path = self._checkpoints.abandon()
        log.error("journal_checkpoint_failed", path=str(path))


def _spread_failures(parts: list[PartitionCommit]) -> None:
    """All or nothing holds for readers too: what was written of an atomic append stays out of sight until a restart puts the rest next to
    it."""
    spreading = True
    while spreading:
        spreading = False
        for part in parts:
            if part.error is None and (reason := failed_with(part)) is not None:
                fail(part, reason)
                spreading = True
