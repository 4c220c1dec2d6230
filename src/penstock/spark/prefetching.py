"""Rows of a small micro-batch, which the driver reads and sends to Spark with the plan.

A task in Python costs Spark tens of milliseconds, however little it reads. The process that plans a stream has a connection to the broker
open and reads a small batch in a millisecond. Spark knows rows that come with a plan from its own wrapper of simple readers: it asks a
reader for them (`getCache`) right after the plan, if the reader is an instance of that class. So `Prefetching` says that it is one exactly
as long as it has rows, and any other batch, and everything else that Spark asks, is that of a reader whose tasks read. Where Spark has no
such class, all batches are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.errors import PenstockError
from penstock.spark.source import SliceTask

try:
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as _Wrapper
except ImportError:  # it is not part of Spark's public interface
    _Wrapper = None  # type: ignore[assignment, misc]

LOG_BYTES_MAX: Final = 1 << 20
"""Of the log, that the driver reads for a batch."""
ROW_BYTES_MAX: Final = 8 << 20
"""Of the rows that come of it: compressed blocks may hold much more than they take in the log."""


class Prefetching:
    """A stream reader that may have the rows of the batch that it planned last."""

    _rows: list[pa.RecordBatch] | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What `isinstance` asks for."""
        return type(self) if self._rows is None or _Wrapper is None else _Wrapper

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it is without rows."""
        return object.__new__, (type(self),), {**self.__dict__, "_rows": None}

    def prefetch(
        self, tasks: Sequence[InputPartition], read: Callable[[InputPartition], Iterator[pa.RecordBatch]]
    ) -> None:
        """Read the rows of a plan as its task would, if they are few."""
        self._rows = None
        if _Wrapper is None or len(tasks) != 1:
            return
        task = tasks[0]
        if isinstance(task, SliceTask) and sum(each.size_bytes for each in task.slices) <= LOG_BYTES_MAX:
            try:
                self._rows = _within_bytes(read(task))
            except PenstockError:
                pass  # the task reads then, and it is the one to say what is wrong

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch] | None:  # noqa: N802 - Spark's name
        """Return the rows of the batch that was planned last, once."""
        rows, self._rows = self._rows, None
        return None if rows is None else iter(rows)


def _within_bytes(batches: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch] | None:
    found: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        size_bytes += batch.nbytes
        if size_bytes > ROW_BYTES_MAX:
            return None
        found.append(batch)
    return found
