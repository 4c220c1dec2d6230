"""The segment files that are open for writing: opened when they are first written to; a bounded number stays open.

A broker may have more partitions than a process may have files. So the file that was written longest ago is closed when there are too
many, and the next write opens it again. It is synced first, unless it is already: where nobody has a file open, the system may forget
that writing it back has failed. Files that nobody writes to for a while are closed by maintenance (`Committer.settle`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.log.embedded.disk import RELEASED, is_out_of_descriptors

if TYPE_CHECKING:
    from penstock.log.embedded.partition import EmbeddedPartition


class WriteFiles:
    """For one log. Used by the commit thread only, or while its queue is held."""

    def __init__(self, files_max: int, sync: Callable[[EmbeddedPartition], None]) -> None:
        """`sync` syncs what a partition has written and not synced yet."""
        self.files_max = files_max
        self._sync = sync
        self._open: dict[EmbeddedPartition, None] = {}
        """The one written longest ago first."""

    def has_room_for(self, files: int) -> bool:
        """Whether so many files can be opened without closing others."""
        return len(self._open) + files <= self.files_max

    def use(self, partition: EmbeddedPartition) -> None:
        """Open the file that a partition writes to, before a write, if it is not."""
        self._open.pop(partition, None)
        while len(self._open) >= self.files_max:
            self._close_oldest()
        file = partition.writer.file
        while file.fd == RELEASED:
            try:
                file.open()
            except OSError as error:
                if not (is_out_of_descriptors(error) and self._open):
                    raise
                self._close_oldest()
        self._open[partition] = None

    def forget(self, partition: EmbeddedPartition) -> None:
        """The partition's file is closed."""
        self._open.pop(partition, None)

    def _close_oldest(self) -> None:
        oldest = next(iter(self._open))
        self._sync(oldest)
        oldest.writer.file.release()
        del self._open[oldest]
