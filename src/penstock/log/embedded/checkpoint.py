"""Steps of a checkpoint: segments that lean on the journal are flushed, and then the journal is deleted (see `commit.py`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from penstock.log.embedded.disk import Disk, is_out_of_descriptors
from penstock.log.embedded.failures import flush_failed
from penstock.log.embedded.segment import SegmentWriter

if TYPE_CHECKING:
    from penstock.log.embedded.partition import EmbeddedPartition

_log = structlog.get_logger(__name__)


def open_for_sync(disk: Disk, partition: EmbeddedPartition) -> int | None:
    """Return a descriptor of the last segment for a flush beside the commit thread. If there is none left, the segment is flushed here and
    now and None is returned: it must not be closed before it is synced, nor every such journal stay."""
    file = partition.writer.file
    try:
        if partition.deleted:
            # Its directory may be renamed already. It is synced all the same: if the delete fails, the topic stays.
            return os.dup(file.fd)
        # Opened again, not duplicated: the system reports an error of writing back to each opening of a file once, and what this
        # thread's own flushes meet from here on must not be hidden from the checkpoint's.
        return disk.open_append(file.path, create=False)
    except OSError as error:
        if not (is_out_of_descriptors(error) and file.is_open):
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
            _log.warning("journal_not_removed", path=str(retired), error=str(error))


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
        _log.warning("index_not_saved", segment=str(writer.segment.path), error=str(error))
