"""From ranges of offsets to tasks, without a broker where one is not needed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from penstock.errors import DataLoss, InvalidRequest
from penstock.spark import planner
from penstock.spark.offsets import EARLIEST
from penstock.spark.planner import TASK_BYTES_MAX, TASK_BYTES_MIN, Bounds, Range, Slice, Tasks, deal, plan_tasks
from penstock.testing import RunningBroker
from tests.spark.by_hand import maintain

MIB = 1 << 20
CORES = 4


def pieces(count: int, size_bytes: int, *, rows: int = 1000, partition: int = 0, path: str = "log") -> list[Slice]:
    return [
        Slice(
            "orders", "id", partition, at * rows, (at + 1) * rows, 0, path, at * size_bytes, at * rows,
            count * size_bytes, 0, size_bytes,
        )
        for at in range(count)
    ]  # fmt: skip


def rows_of(tasks: Tasks) -> list[tuple[int, int, int]]:
    return [(each.partition, each.offset, each.end_offset) for task in tasks for each in task]


def sizes(tasks: Tasks) -> list[int]:
    return [sum(each.size_bytes for each in task) for task in tasks]


def assert_covers(tasks: Tasks, whole: list[Slice]) -> None:
    """Every offset once, in order."""
    expected = [(piece.partition, offset) for piece in whole for offset in (piece.offset, piece.end_offset - 1)]
    found = rows_of(tasks)
    for partition, offset in expected:
        assert sum(p == partition and first <= offset < last for p, first, last in found) == 1
    assert sum(last - first for _, first, last in found) == sum(piece.rows for piece in whole)


def test_what_is_small_is_one_task_however_many_partitions_it_is_of() -> None:
    whole = [piece for partition in range(50) for piece in pieces(1, 1000, partition=partition)]
    tasks = deal(whole, Bounds(), CORES)
    assert len(tasks) == 1
    assert_covers(tasks, whole)


def test_what_is_large_is_shared_out_evenly() -> None:
    whole = pieces(100, MIB)
    tasks = deal(whole, Bounds(), CORES)
    assert len(tasks) == 8
    assert max(sizes(tasks)) - min(sizes(tasks)) <= 2 * MIB
    assert min(sizes(tasks)) >= TASK_BYTES_MIN
    assert_covers(tasks, whole)


def test_a_task_has_some_megabytes_where_there_are_as_many() -> None:
    tasks = deal(pieces(20, MIB), Bounds(), 64)
    assert len(tasks) == 3


def test_no_task_is_so_large_that_doing_it_again_hurts() -> None:
    tasks = deal(pieces(4096, MIB), Bounds(), 1)
    assert max(sizes(tasks)) <= TASK_BYTES_MAX + MIB
    assert len(tasks) == 16


def test_pieces_that_follow_one_another_in_a_file_are_read_as_one() -> None:
    [task] = deal(pieces(5, 1000), Bounds(), CORES)
    [only] = task
    assert (only.offset, only.end_offset, only.position, only.block_offset) == (0, 5000, 0, 0)
    assert (only.end_position, only.size_bytes) == (5000, 5000)


def test_pieces_of_different_files_stay_apart() -> None:
    first, second = pieces(2, 1000)
    other = replace(second, path="next")
    [task] = deal([first, other], Bounds(), CORES)
    assert [each.path for each in task] == ["log", "next"]


def test_as_many_tasks_as_were_asked_for_even_if_there_are_few_blocks() -> None:
    whole = pieces(3, 1000)
    tasks = deal(whole, Bounds(tasks_min=7), CORES)
    assert len(tasks) >= 7
    assert_covers(tasks, whole)
    assert len(deal(pieces(100, 1000), Bounds(tasks_min=10), CORES)) >= 10


def test_there_are_no_more_tasks_than_records() -> None:
    tasks = deal(pieces(1, 1000, rows=3), Bounds(tasks_min=10), CORES)
    assert rows_of(tasks) == [(0, 0, 1), (0, 1, 2), (0, 2, 3)]


def test_no_task_has_more_records_than_allowed() -> None:
    whole = pieces(5, 1000, rows=1000)
    tasks = deal(whole, Bounds(task_records_max=300), CORES)
    assert all(sum(each.rows for each in task) <= 300 for task in tasks)
    assert_covers(tasks, whole)


def test_no_task_has_more_bytes_than_allowed() -> None:
    whole = pieces(20, 1000)
    tasks = deal(whole, Bounds(task_bytes_max=3000), CORES)
    assert max(sizes(tasks)) <= 3000
    assert_covers(tasks, whole)
    assert len(deal(pieces(3, 1000), Bounds(task_bytes_max=400), CORES)) == 9


@pytest.mark.parametrize(
    ("bounds", "option"),
    [
        (Bounds(task_records_max=1), "maxRecordsPerPartition"),
        (Bounds(task_bytes_max=1), "maxBytesPerPartition"),
        (Bounds(tasks_min=1 << 60), "minPartitions"),
    ],
)
def test_more_tasks_than_a_driver_can_hold_are_refused_before_they_are_made(bounds: Bounds, option: str) -> None:
    whole = pieces(3, 1 << 40, rows=1 << 40)
    with pytest.raises(InvalidRequest, match=f"option {option} makes 3298534883328 tasks of this query"):
        deal(whole, bounds, CORES)


def test_nothing_to_read_is_no_task() -> None:
    assert deal([], Bounds(tasks_min=4), CORES) == []


# -- with a broker ------------------------------------------------------------------------------------------------------------


def test_tasks_are_for_all_processors_of_a_cluster_and_never_fewer_than_for_those_here(
    penstock_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "TASK_BYTES_MIN", 1)
    monkeypatch.setattr(planner, "cores", lambda: 2)
    client = penstock_broker.connect()
    client.create_topic("orders", 12)
    ranges = []
    for partition in range(12):
        client.send_many("orders", [b"x" * 1000] * 10, partition=partition)
        ranges.append(Range("orders", client.describe_topic("orders").config["id"], partition, 0, 10))
    counts = [len(plan_tasks(client, ranges, Bounds(parallelism=each), fail=True)[1]) for each in (None, 1, 3, 100)]
    assert counts == [4, 4, 6, 12]


def test_ranges_are_cut_at_blocks(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    client.create_topic("orders", 2, segment_bytes=1 << 20)
    for _ in range(60):
        client.send_many("orders", [b"x" * 1000] * 100, partition=0)
    client.send_many("orders", [b"x"] * 10, partition=1)
    topic_id = client.describe_topic("orders").config["id"]
    ranges = [
        Range("orders", topic_id, 0, 250, 5500),
        Range("orders", topic_id, 1, 3, 9),
        Range("orders", topic_id, 1, 5, 5),
    ]
    files, tasks = plan_tasks(client, ranges[:2], Bounds(task_bytes_max=1 << 20), fail=True)
    assert files.directory == str(penstock_broker.data_dir.resolve())
    slices = [each for task in tasks for each in task]
    assert len(tasks) >= 5
    assert len({each.path for each in slices}) >= 6
    assert rows_of(tasks)[0][1] == 250
    for before, after in pairwise(slices):
        if after.partition == before.partition:
            assert before.end_offset == after.offset
    assert rows_of(tasks)[-1] == (1, 3, 9)
    assert plan_tasks(client, ranges[2:], Bounds(), fail=True)[1] == []


def test_what_is_gone_when_it_is_planned_is_a_loss_or_left_out(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    client.send_many("orders", [b"x"] * 10)
    for topic, partition in (("orders", 0), ("missing", 0)):
        ranges = [Range(topic, "f" * 32, partition, 0, 10)]
        with pytest.raises(DataLoss, match=f"topic {topic} was deleted before all of it was read"):
            plan_tasks(client, ranges, Bounds(), fail=True)
        assert plan_tasks(client, ranges, Bounds(), fail=False)[1] == []


def test_what_retention_takes_before_it_is_planned_is_a_loss_or_left_out(penstock_broker: RunningBroker) -> None:
    """Where the range begins was looked up a moment ago: nobody but the planner can notice."""
    client = penstock_broker.connect()
    client.create_topic("orders", segment_bytes=1 << 16, retention_ms=60_000)
    for _ in range(40):
        client.send_many("orders", [b"x" * 1000] * 5)
    topic_id = client.describe_topic("orders").config["id"]
    penstock_broker.clock.advance(3600)
    client.send_many("orders", [b"x"] * 5)
    maintain(penstock_broker)
    start = client.describe_topic("orders").partitions[0].start_offset
    assert 0 < start < 205
    ranges = [Range("orders", topic_id, 0, 0, 205)]
    with pytest.raises(DataLoss, match=f"retention or truncation has removed offsets 0 to {start - 1} of orders-0"):
        plan_tasks(client, ranges, Bounds(), fail=True)
    [left] = plan_tasks(client, ranges, Bounds(), fail=False)[1]
    assert (left[0].offset, left[-1].end_offset) == (start, 205)
    [earliest] = plan_tasks(client, [Range("orders", topic_id, 0, EARLIEST, 205)], Bounds(), fail=True)[1]
    assert earliest == left
    assert plan_tasks(client, [Range("orders", topic_id, 0, 0, start)], Bounds(), fail=False)[1] == []
