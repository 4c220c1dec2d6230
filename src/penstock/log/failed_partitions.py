"""The partitions of an engine that refuse writes, noted when they fail: health checks and metrics need not look at every partition."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol


class FailedPartition(Protocol):
    """What of a partition is read here."""

    topic: str
    index: int

    @property
    def failure(self) -> str | None: ...
    @property
    def deleted(self) -> bool: ...


class FailedPartitions:
    """Holds no partition beyond the deletion of its topic."""

    def __init__(self) -> None:
        self._partitions: weakref.WeakSet[FailedPartition] = weakref.WeakSet()
        self._changing = threading.Lock()

    def add(self, partition: FailedPartition) -> None:
        """Note that a partition refuses writes from now on. Any thread may call this."""
        with self._changing:
            self._partitions.add(partition)

    def reasons(self) -> dict[tuple[str, int], str]:
        """Return why each of them refuses writes, by topic and partition."""
        if not self._partitions:
            return {}
        with self._changing:
            failed = list(self._partitions)
        return dict(sorted(((each.topic, each.index), each.failure or "") for each in failed if not each.deleted))
