"""A commit that goes through the journal: it is recorded there as a whole and flushed, and then written to its segments (see `journal.py`).

Late records are recorded only (see `checkpoint.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

import structlog

from penstock.errors import NotWritten
from penstock.log.embedded.atomic import AtomicAppend, LateRecord
from penstock.log.embedded.checkpoint import Checkpoints
from penstock.log.embedded.disk import SpaceReserve, is_full, is_out_of_descriptors, storage_error
from penstock.log.embedded.failures import fail, flush_failed, recorded_only, written_with
from penstock.log.embedded.journal import Journal, JournalRecord
from penstock.log.embedded.layout import PartitionCommit
from penstock.log.embedded.write_files import WriteFiles

_log = structlog.get_logger(__name__)


class JournaledWrites:
    """Of one log. Used by the commit thread only, or while its queue is held."""

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

    def write(self, parts: list[PartitionCommit]) -> None:
        """Write laid-out parts, those that are atomic all or none."""
        plain = [part for part in parts if not part.atomic]
        late = _late_records(parts)
        full = self._record(parts, late, may_use_reserve=not plain)
        if full is not None and plain:
            # There is no room for a copy, but every part has the room it needs in its own segment.
            for part in plain:
                self._write_direct(part)
            parts = [part for part in parts if part.atomic]
            full = self._record(parts, late, may_use_reserve=True) if parts else None
        if full is not None:
            for part in parts:
                part.refuse(part.appends, full)
        if full is not None or not parts or parts[0].error is not None:
            return
        starts = [part.partition.writer.file.end for part in parts]
        failed: list[PartitionCommit] = []
        for part in parts:
            try:
                if not part.partition.writer.file.is_open:  # room for another part was made by closing it
                    self._files.use(part.partition)
                # By now: to make room for another part, its file may be closed.
                self._checkpoints.unsynced[part.partition] = None
                part.write_data()
            except OSError as error:
                if not failed and (is_full(error) or is_out_of_descriptors(error)):
                    # Reserved space is not everywhere kept free: file systems that copy on write may run out of it here.
                    self._take_back(parts, starts, error)
                    return
                self._abandon()
                fail(part, recorded_only(error, part.partition))
                failed.append(part)
        for part in parts:
            if part.error is None:
                part.add_to_index()
        if failed:
            self._spread_failures(failed, parts)
            parts = [part for part in parts if part.error is None]
            late = _late_records(parts)
        for part in parts:
            if part.carries_late:
                self._checkpoints.forget_late(part.partition)
        if late:
            self._checkpoints.keep_late(late)

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
            self._abandon()
            for part in parts:
                fail(part, recorded_only(full, part.partition))
                self._checkpoints.unsynced[part.partition] = None
        else:
            for part in parts:
                part.refuse(part.appends, storage_error(full, f"writing to {part.partition}"))

    def _record(
        self, parts: list[PartitionCommit], late: list[LateRecord], *, may_use_reserve: bool
    ) -> NotWritten | None:
        """Record the parts in the journal and flush it. Returns the error if nothing was written; if that is unknown, all parts fail."""
        journal = self._journal
        entries = [part.journal_entry() for part in parts]
        entries += [each.journal_entry() for each in late]
        record = JournalRecord(entries)
        try:
            journal.reserve(record.size_bytes)
        except OSError as error:
            if is_full(error) and may_use_reserve and self._reserve.release():
                return self._record(parts, late, may_use_reserve=False)
            return storage_error(error, "preparing a write to the journal")
        try:
            try:
                journal.write(record)
            except OSError as error:
                if not is_full(error):
                    raise
                journal.undo_last()
                if may_use_reserve and self._reserve.release():
                    return self._record(parts, late, may_use_reserve=False)
                return storage_error(error, "writing to the journal")
            journal.sync()
        except OSError as error:
            # The record may or may not be on disk. The file is left for the next start to look at, as it stands.
            self._abandon()
            for part in parts:
                fail(part, flush_failed(error, part.partition))
        return None

    def _spread_failures(self, failed: list[PartitionCommit], parts: list[PartitionCommit]) -> None:
        """All or nothing holds for readers too: what was written of an atomic append stays out of sight until a restart puts the rest
        beside it."""
        while failed:
            reason = failed[0].partition.failure
            assert reason is not None
            failed = written_with(failed, parts)
            for part in failed:
                fail(part, reason)

    def _abandon(self) -> None:
        """Begin a new journal file and never delete the present one in this run: only a restart can tell what it holds."""
        path = self._checkpoints.abandon()
        _log.error("journal_checkpoint_failed", path=str(path))


def _late_records(parts: Sequence[PartitionCommit]) -> list[LateRecord]:
    """Return the late records that go with parts, in the order in which they were appended."""
    wholes: list[AtomicAppend] = []
    for part in parts:
        wholes += part.telling
    if not wholes:
        return []
    if len(wholes) == 1:
        return wholes[0].late_records
    wholes.sort(key=attrgetter("number"))
    return [record for whole in wholes for record in whole.late_records]
