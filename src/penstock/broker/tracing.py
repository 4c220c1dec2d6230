"""Tracing hooks where records enter and leave the broker; `penstock.telemetry` implements them with OpenTelemetry.

A broker without tracing has None in its place: nothing is done for a record, and one comparison for each run of records or reply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from penstock.broker.records.spreading import Placement, Scattered
from penstock.errors import PenstockError
from penstock.log.api import Batch, Partition
from penstock.log.block import Block

_Result = TypeVar("_Result")

EndProduce = Callable[[PenstockError | None], None]
"""To be called once the records of a call are stored, with the first error if some are not."""


class Tracing(Protocol):
    def produce(self, topic: str, batch: Batch) -> tuple[Batch, EndProduce]:
        """Begin the span of a call that appends records; returns them as they are to be stored, with a trace context in their headers."""

    def deliver(
        self,
        topic: str,
        headers: Sequence[bytes | None],
        *,
        partition: int | None = None,
        group: str = "",
        started_ns: int | None = None,
    ) -> None:
        """Note that records with these header cells go to a reader. Without `started_ns`, that took no time worth a span's length."""

    def now_ns(self) -> int:
        """Return the wall-clock time of spans."""


class FetchTrace:
    """The records of one reply, to be reported when it is finished."""

    __slots__ = ("_group", "_headers", "_partition", "_started_ns", "_tracing")

    def __init__(self, tracing: Tracing, partition: Partition, group: str = "") -> None:
        self._tracing = tracing
        self._partition = partition
        self._group = group
        self._started_ns = tracing.now_ns()
        self._headers: list[tuple[int, bytes]] = []

    def add(self, block: Block, rows: Sequence[int]) -> None:
        """Add rows of a block that may go into the reply; `end` tells how far it went."""
        if rows:
            self._headers += headers_of(block, rows)

    def end(self, next_offset: int) -> None:
        """Report the records before an offset: those that fitted into the reply."""
        sent = [cell for offset, cell in self._headers if offset < next_offset]
        if sent:
            self._tracing.deliver(
                self._partition.topic,
                sent,
                partition=self._partition.index,
                group=self._group,
                started_ns=self._started_ns,
            )


def headers_of(block: Block, rows: Sequence[int]) -> list[tuple[int, bytes]]:
    """Return offset and header cell of those rows that have headers."""
    first, stop = rows[0], rows[-1] + 1
    cells = block.headers(first, stop)
    if cells is None:
        return []
    offsets = block.offsets(first, stop)
    return [(offsets[row - first], cell) for row in rows if (cell := cells[row - first])]


def ending(
    end: EndProduce, done: Callable[[_Result], None], error_of: Callable[[_Result], PenstockError | None]
) -> Callable[[_Result], None]:
    """Return a callback that ends a span, with what `error_of` finds in the result, and then calls `done`."""

    def ended(result: _Result) -> None:
        end(error_of(result))
        done(result)

    return ended


def error_of_placed(placed: list[Placement] | Scattered) -> PenstockError | None:
    """Return why the first of those records was not appended that were not."""
    if isinstance(placed, Scattered):
        return None
    return next((each.result for each in placed if isinstance(each.result, PenstockError)), None)
