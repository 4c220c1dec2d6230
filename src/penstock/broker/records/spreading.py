"""Runs that go to many partitions of a topic at once.

Splitting every run by itself would make a run of a hundred records a hundred appends. So runs gather until those before them are
committed and answered, and go to the partitions together: one sort, one append for each partition, whatever the number of runs. Each run
hears the partition and the offset of each of its records, as columns.

Records keep their order: of all that gathered, those for one partition are appended in the order they came.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.broker.records.keys import Partitions
from penstock.columns import UniformCells, are_uniform, joined
from penstock.errors import PenstockError
from penstock.log.api import Appended, Batch, Engine

ALL_ROWS: Final = slice(None)
Rows = slice | list[int]
Int64s = npt.NDArray[np.int64]

_Cell = TypeVar("_Cell")


class Placement(msgspec.Struct, frozen=True):
    """Where the records `values[rows]` of one call went, or why they did not."""

    partition: int
    rows: Rows
    result: Appended | PenstockError


class Scattered(NamedTuple):
    """Where the records of one call went, when they all arrived and may be anywhere: one entry a record."""

    partitions: Partitions
    offsets: Int64s
    timestamps_ms: Int64s

    def placements(self) -> list[Placement]:
        """Return the same by partition: the records of a call in one partition have consecutive offsets and one timestamp."""
        order = np.argsort(self.partitions, kind="stable")
        present, starts = np.unique(self.partitions[order], return_index=True)
        return [
            Placement(partition, rows.tolist(), Appended(int(self.offsets[rows[0]]), int(self.timestamps_ms[rows[0]])))
            for partition, rows in zip(present.tolist(), np.split(order, starts[1:]), strict=True)
        ]


OnPlaced = Callable[[list[Placement] | Scattered], None]


def errors_by_row(placed: list[Placement] | Scattered, count: int) -> dict[int, PenstockError]:
    """Return why rows of a call with `count` records were not appended; in order, empty if all were."""
    if isinstance(placed, Scattered):
        return {}
    errors: dict[int, PenstockError] = {}
    for each in placed:
        if isinstance(each.result, PenstockError):
            errors.update(dict.fromkeys(_numbers(each.rows, count), each.result))
    return dict(sorted(errors.items())) if len(placed) > 1 else errors


def offsets_by_unit(placed: list[Placement], units: Sequence[int]) -> list[int | PenstockError]:
    """Return the offset of the first record of each unit of a call to one partition, or why the unit was not appended."""
    if len(placed) == 1 and placed[0].rows == ALL_ROWS:
        result = placed[0].result
        if isinstance(result, PenstockError):
            return [result] * len(units)
        return list(itertools.accumulate(units[:-1], initial=result.base_offset))
    count = sum(units)
    by_row: dict[int, int | PenstockError] = {}
    for each in placed:
        result = each.result
        for place, row in enumerate(_numbers(each.rows, count)):
            by_row[row] = result if isinstance(result, PenstockError) else result.base_offset + place
    return [by_row[start] for start in itertools.accumulate(units[:-1], initial=0)]


def _numbers(rows: Rows, count: int) -> Sequence[int]:
    return range(count)[rows] if isinstance(rows, slice) else rows


class Run(NamedTuple):
    """The records of one call, and the partition of each."""

    batch: Batch
    partitions: Partitions
    done: OnPlaced


class Lane:
    """The runs of one topic. At most one group of them is on its way to the log."""

    __slots__ = ("_engine", "_on_idle", "_topic", "_waiting")

    def __init__(self, engine: Engine, topic: str, first: Run, on_idle: Callable[[str], object]) -> None:
        """Starts at the end of this turn of the loop, with all that it brings; calls `on_idle` with the topic when the last run is on
        disk."""
        self._engine = engine
        self._topic = topic
        self._on_idle = on_idle
        self._waiting = [first]
        asyncio.get_running_loop().call_soon(self._next)

    @property
    def gathering(self) -> bool:
        """Whether runs wait here: a later one must not overtake them."""
        return bool(self._waiting)

    def add(self, run: Run) -> None:
        self._waiting.append(run)

    def _next(self) -> None:
        if not self._waiting:
            self._on_idle(self._topic)
            return
        runs, self._waiting = self._waiting, []
        try:
            _Group(self._engine, self._topic, runs, self._next)
        except PenstockError as error:  # the topic was deleted while they waited
            self._next()
            _answer_all(runs, [[Placement(-1, ALL_ROWS, error)]] * len(runs))


class _Group:
    """Runs that go to the log together."""

    __slots__ = ("_bounds", "_counts", "_left", "_on_disk", "_order", "_partitions", "_present", "_results", "_runs")

    def __init__(self, engine: Engine, topic: str, runs: list[Run], on_disk: Callable[[], None]) -> None:
        """Raises what `engine.partition` does, and then nothing was appended."""
        self._runs = runs
        self._on_disk = on_disk
        self._partitions = runs[0].partitions if len(runs) == 1 else np.concatenate([run.partitions for run in runs])
        # Numbers of two bytes are sorted by counting them, not by comparing.
        self._order = np.argsort(self._partitions.astype(np.uint16), kind="stable")
        counts = np.bincount(self._partitions)
        self._present = np.flatnonzero(counts)
        self._counts = counts[self._present]
        self._bounds = np.concatenate(([0], np.cumsum(self._counts)))
        self._left = len(self._present)
        self._results: list[Appended | PenstockError] = [PenstockError("not answered")] * self._left
        handles = [engine.partition(topic, index) for index in self._present.tolist()]
        batches = _split([run.batch for run in runs], self._order, self._bounds.tolist())
        for part, (handle, batch) in enumerate(zip(handles, batches, strict=True)):
            handle.append(batch, partial(self._settled, part))

    def _settled(self, part: int, result: Appended | PenstockError) -> None:
        self._results[part] = result
        self._left -= 1
        if not self._left:
            # The next group starts in the next turn of the loop, after the answers and with what clients send on them. Started before
            # them, it would leave clients that pipeline in two halves that take turns, and each of its partitions costs the same
            # however few records it gets.
            asyncio.get_running_loop().call_soon(self._on_disk)
            _answer_all(self._runs, self._placed())

    def _placed(self) -> Sequence[list[Placement] | Scattered]:
        landed = [result for result in self._results if isinstance(result, Appended)]
        if len(landed) < len(self._results):
            return self._placements()
        bases = np.array([each.base_offset for each in landed], np.int64)
        timestamps = np.array([each.timestamp_ms for each in landed], np.int64)
        total = len(self._order)
        offsets, times_ms = np.empty(total, np.int64), np.empty(total, np.int64)
        offsets[self._order] = np.repeat(bases - self._bounds[:-1], self._counts) + np.arange(total)
        times_ms[self._order] = np.repeat(timestamps, self._counts)
        placed = []
        start = 0
        for run in self._runs:
            rows = slice(start, start + len(run.batch))
            placed.append(Scattered(self._partitions[rows], offsets[rows], times_ms[rows]))
            start = rows.stop
        return placed

    def _placements(self) -> list[list[Placement]]:
        """Run by run and part by part, for the case that some part failed."""
        placed: list[list[Placement]] = []
        start = 0
        for run in self._runs:
            placements = []
            for part, (partition, result) in enumerate(zip(self._present.tolist(), self._results, strict=True)):
                rows = self._order[self._bounds[part] : self._bounds[part + 1]]
                first, stop = np.searchsorted(rows, (start, start + len(run.batch))).tolist()
                if isinstance(result, Appended):
                    result = Appended(result.base_offset + first, result.timestamp_ms)
                if stop > first:
                    placements.append(Placement(partition, (rows[first:stop] - start).tolist(), result))
            placed.append(placements)
            start += len(run.batch)
        return placed


def _split(batches: list[Batch], order: Int64s, bounds: list[int]) -> list[Batch]:
    """The records of all batches in the order given, cut at the bounds."""
    values = _arranged_values(batches, order)
    keys = _arranged(batches, [batch.keys for batch in batches], None, order)
    headers = _arranged(batches, [batch.headers for batch in batches], None, order)
    expiries = _arranged(batches, [batch.expiries for batch in batches], 0, order)
    if isinstance(values, UniformCells) and keys is None and headers is None and expiries is None:
        return [Batch(cells) for cells in values.cut(bounds)]
    whole = Batch(values, keys, headers, expiries, size_bytes=sum([batch.size_bytes for batch in batches]))
    return [whole.rows(start, stop) for start, stop in itertools.pairwise(bounds)]


def _arranged_values(batches: list[Batch], order: Int64s) -> Sequence[bytes | None]:
    columns = [batch.values for batch in batches]
    if are_uniform(columns):
        cells = joined(columns)
        if cells.cell_bytes:
            rows = np.frombuffer(cells.data, f"V{cells.cell_bytes}").take(order)
            return UniformCells(cells.cell_bytes, cells.rows, rows.tobytes())
    values = _arranged(batches, columns, None, order)
    assert values is not None
    return values


def _arranged(
    batches: list[Batch], columns: Sequence[Sequence[_Cell] | None], absent: _Cell, order: Int64s
) -> list[_Cell] | None:
    """One column of all batches, in the order given; None if no batch has it."""
    if all(column is None for column in columns):
        return None
    joined: list[_Cell] = []
    for batch, column in zip(batches, columns, strict=True):
        joined += [absent] * len(batch) if column is None else column
    return [joined[row] for row in order.tolist()]


def _answer_all(runs: list[Run], placed: Sequence[list[Placement] | Scattered]) -> None:
    """Tell every run, also where the owner of one fails on its answer."""
    failure: Exception | None = None
    for run, where in zip(runs, placed, strict=True):
        try:
            run.done(where)
        except Exception as error:  # noqa: BLE001 - raised again below, where the log writes it down
            failure = error
    if failure is not None:
        raise failure
