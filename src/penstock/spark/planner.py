"""From ranges of offsets to tasks of about the same size in bytes.

The broker tells where blocks lie; a range is cut at blocks into pieces, and consecutive pieces are dealt out to tasks. A task costs
Spark tens of milliseconds however little it reads, so small ranges of several partitions share one, and a task has some megabytes at
least where there are as many. There are tasks for the processors of the machine that plans, or for all of the cluster where they are known
and more.

With the places the broker tells what it still holds, at that very moment: here is found out what of a range is gone already. What goes
later is for the task that reads it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from penstock.errors import InvalidRequest
from penstock.protocols.flymq.operations.blocks import NO_EPOCH, PartitionSpan, Plan, PlannedExtent, TopicSpans
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.holdings import TopicHoldings, end_in, holdings_in, lost, reachable
from penstock.spark.offsets import EARLIEST

TASK_BYTES_MIN: Final = 8 << 20
TASK_BYTES_MAX: Final = 256 << 20
TASKS_PER_CORE: Final = 2
TASKS_MAX: Final = 100_000
"""More would fill the driver's memory long before they are done."""
STEP_BYTES: Final = 1 << 20
"""How far apart the broker's marks are: pieces are about as large."""
PLANS_MAX: Final = 1000
"""How often the broker is asked again where one answer cannot hold all of a plan."""
_RECORD_BYTES_ASSUMED: Final = 100
"""Where the broker does not tell where blocks lie."""


class Range(NamedTuple):
    """Records of one partition that are to be read."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    """EARLIEST: the first there is."""
    end_offset: int
    epoch: int = NO_EPOCH
    """The log epoch that the offsets belong to."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Records of one partition, in one file, for one task."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    end_offset: int
    epoch: int
    """The partition's log epoch when this was planned."""
    path: str = ""
    """Of the file, from the log's directory; empty: ask the broker."""
    position: int = 0
    """Where a block lies in it, at or before the one that holds `offset`."""
    block_offset: int = 0
    """The first offset of that block: the file must have it there."""
    end_position: int = 0
    """How far the file may be read."""
    file_bytes: int = 0
    """How large the file must be; 0 if it still grows."""
    size_bytes: int = 0

    @property
    def rows(self) -> int:
        return self.end_offset - self.offset


class Files(NamedTuple):
    """Where the broker's files are, the proof that a reader is on the same machine, and the time by which records have expired."""

    directory: str = ""
    proof: str = ""
    token: str = ""
    now_ms: int = 0
    """The broker's clock, so that every attempt of every task sees the same records."""


class Bounds(NamedTuple):
    """What was asked of the number and size of tasks."""

    tasks_min: int | None = None
    task_records_max: int | None = None
    task_bytes_max: int | None = None
    parallelism: int | None = None
    """How many tasks run at once; None: as many as this machine has processors."""


Tasks = list[tuple[Slice, ...]]


def plan_tasks(client: FlyMQClient, ranges: Sequence[Range], bounds: Bounds, *, fail: bool) -> tuple[Files, Tasks]:
    """Ask the broker where the ranges lie, and deal them out. Raises DataLoss if some of them are gone and `fail` is set."""
    left = [each for each in ranges if each.offset < each.end_offset]
    step_bytes = STEP_BYTES
    if bounds.task_bytes_max is not None:
        step_bytes = max(min(step_bytes, bounds.task_bytes_max // 2), 1)
    files = Files()
    slices: list[Slice] = []
    for _ in range(PLANS_MAX):
        if not left:
            break
        plan = client.blocks.plan(_spans(left), step_bytes=step_bytes)
        files = Files(plan.directory, plan.proof, plan.token, files.now_ms or plan.now_ms)
        left = _still_there(plan, left, fail=fail)
        found = _pieces(plan, left)
        if not found:
            break
        slices += found
        left = _behind(left, found)
    # What the broker has not told about (a topic that is gone by now, say) is for the task to find out.
    for each in left:
        slices.append(Slice(*each, size_bytes=(each.end_offset - each.offset) * _RECORD_BYTES_ASSUMED))
    slices.sort(key=lambda each: (each.topic, each.partition, each.offset))
    return files, deal(slices, bounds, max(cores(), bounds.parallelism or 0))


def cores() -> int:
    return len(os.sched_getaffinity(0))


def _spans(ranges: Sequence[Range]) -> list[TopicSpans]:
    topics: dict[str, list[PartitionSpan]] = {}
    for each in ranges:
        span = PartitionSpan(each.partition, max(each.offset, 0), each.end_offset, epoch=each.epoch)
        topics.setdefault(each.topic, []).append(span)
    return [TopicSpans(topic, spans) for topic, spans in topics.items()]


def _still_there(plan: Plan, ranges: Sequence[Range], *, fail: bool) -> list[Range]:
    """The ranges without what the broker does not hold any more."""
    holdings = holdings_in(plan)
    there: list[Range] = []
    for each in ranges:
        held = holdings.get(each.topic)
        if held is None or held.id != each.topic_id or each.partition not in held.starts:
            lost(f"topic {each.topic} was deleted before all of it was read", fail=fail)
            continue
        end_offset = end_in(held, each.topic, each.partition, each.end_offset, fail=fail)
        if each.offset < end_offset:
            offset = _first_offset(each, held, fail=fail)
            if offset < end_offset:
                there.append(each._replace(offset=offset, end_offset=end_offset, epoch=held.epochs[each.partition]))
    return there


def _first_offset(each: Range, held: TopicHoldings, *, fail: bool) -> int:
    if each.offset == EARLIEST:
        return held.starts[each.partition]
    return reachable(each.topic, each.partition, each.offset, held, fail=fail)


def _pieces(plan: Plan, ranges: Sequence[Range]) -> list[Slice]:
    """The pieces that the answer tells of."""
    extents = {(topic.topic, each.partition): each.extents for topic in plan.topics for each in topic.partitions}
    pieces: list[Slice] = []
    for each in ranges:
        offset = each.offset
        for extent in extents.get((each.topic, each.partition), ()):
            pieces += _cut(each, extent, offset)
            offset = max(offset, min(extent.next_offset, each.end_offset))
    return pieces


def _behind(ranges: Sequence[Range], pieces: Sequence[Slice]) -> list[Range]:
    """What is left of the ranges behind some pieces."""
    reached = {(piece.topic, piece.partition): piece.end_offset for piece in pieces}
    behind = [each._replace(offset=reached.get((each.topic, each.partition), each.offset)) for each in ranges]
    return [each for each in behind if each.offset < each.end_offset]


def _cut(each: Range, extent: PlannedExtent, offset: int) -> Iterator[Slice]:
    behind = [*extent.marks[1:], (extent.next_offset, extent.end)]
    for (block_offset, position), (next_offset, next_position) in zip(extent.marks, behind, strict=True):
        end_offset = min(next_offset, each.end_offset)
        if end_offset > offset:
            yield Slice(
                *each[:3],
                offset,
                end_offset,
                each.epoch,
                extent.path,
                position,
                block_offset,
                extent.end,
                extent.file_bytes,
                next_position - position,
            )
            offset = end_offset


# -- dealing out ------------------------------------------------------------------------------------------------------------


def deal(pieces: Sequence[Slice], bounds: Bounds, core_count: int) -> Tasks:
    """Consecutive pieces to tasks, so that each has about the same number of bytes."""
    if bounds.task_records_max is not None:
        rows_max = bounds.task_records_max
        pieces = _split_all(pieces, lambda piece: -(-piece.rows // rows_max), "maxRecordsPerPartition")
    if bounds.task_bytes_max is not None:
        bytes_max = bounds.task_bytes_max
        pieces = _split_all(pieces, lambda piece: -(-piece.size_bytes // bytes_max), "maxBytesPerPartition")
    if bounds.tasks_min is not None and len(pieces) < bounds.tasks_min:
        parts = -(-bounds.tasks_min // max(len(pieces), 1))
        pieces = _split_all(pieces, lambda _: parts, "minPartitions")
    total_bytes = sum(piece.size_bytes for piece in pieces)
    task_bytes = min(max(total_bytes // (core_count * TASKS_PER_CORE), TASK_BYTES_MIN), TASK_BYTES_MAX)
    if bounds.task_bytes_max is not None:
        task_bytes = min(task_bytes, bounds.task_bytes_max)
    count = max(-(-total_bytes // task_bytes), 1, bounds.tasks_min or 1)
    tasks: Tasks = []
    task: list[Slice] = []
    dealt_bytes = rows = task_so_far = 0
    for at, piece in enumerate(pieces):
        too_many_rows = bounds.task_records_max is not None and rows + piece.rows > bounds.task_records_max
        too_many_bytes = bounds.task_bytes_max is not None and task_so_far + piece.size_bytes > bounds.task_bytes_max
        # As many pieces as tasks that are still to come: one for each.
        scarce = bounds.tasks_min is not None and len(pieces) - at <= bounds.tasks_min - len(tasks) - 1
        if task and (
            too_many_rows or too_many_bytes or scarce or dealt_bytes * count >= total_bytes * (len(tasks) + 1)
        ):
            tasks.append(_joined(task))
            task, rows, task_so_far = [], 0, 0
        task.append(piece)
        rows += piece.rows
        task_so_far += piece.size_bytes
        dealt_bytes += piece.size_bytes
    if task:
        tasks.append(_joined(task))
    return tasks


def _split_all(pieces: Sequence[Slice], parts: Callable[[Slice], int], option: str) -> list[Slice]:
    """Each piece in this many parts, if it has as many records."""
    counts = [min(parts(piece), piece.rows) for piece in pieces]
    if sum(counts) > TASKS_MAX:
        raise InvalidRequest(
            f"option {option} makes {sum(counts)} tasks of this query, more than {TASKS_MAX}: choose it for fewer, larger ones"
        )
    return [part for piece, count in zip(pieces, counts, strict=True) for part in _split(piece, count)]


def _split(piece: Slice, parts: int) -> list[Slice]:
    """A piece by offsets; each part begins reading at the same block."""
    cuts = [piece.offset + piece.rows * part // parts for part in range(parts + 1)]
    return [
        replace(piece, offset=cuts[part], end_offset=cuts[part + 1], size_bytes=max(piece.size_bytes // parts, 1))
        for part in range(parts)
    ]


def _joined(pieces: Sequence[Slice]) -> tuple[Slice, ...]:
    """Pieces that follow one another in one file, as one."""
    joined: list[Slice] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if (
            last is not None
            and (last.topic_id, last.partition, last.path) == (piece.topic_id, piece.partition, piece.path)
            and last.end_offset == piece.offset
            and piece.path
        ):
            end_position = max(last.end_position, piece.end_position)
            size_bytes = last.size_bytes + piece.size_bytes
            joined[-1] = replace(last, end_offset=piece.end_offset, end_position=end_position, size_bytes=size_bytes)
        else:
            joined.append(piece)
    return tuple(joined)
