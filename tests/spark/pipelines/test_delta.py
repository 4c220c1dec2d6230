"""Delta tables: a batch is appended once, despite other writers; what readers find in the log. No Spark is needed."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from penstock.errors import ConfigError, InvalidRequest
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.opening import open_table
from penstock.spark.pipelines.tables import delta as module
from penstock.spark.pipelines.tables.data_files import write_data_files
from penstock.spark.pipelines.tables.delta import KEPT_IN_LOG, DeltaLakeTable
from penstock.spark.pipelines.tables.delta_log import LOG, LOG_CHECKPOINT_COMMITS
from penstock.spark.pipelines.tables.delta_merge import merge_rows
from penstock.spark.pipelines.tables.table import COMMIT_ATTEMPTS_MAX, VACUUM_KEEP_S_MIN
from tests.spark.pipelines.rows_by_hand import accounts, ids_from, keys, rows_of

MiB = 1 << 20
DAY_S = VACUUM_KEEP_S_MIN


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "silver" / "my orders~2Feu")


def claimed(path: str, batch_id: int = 0, query: str = "query-1") -> DeltaLakeTable:
    table = DeltaLakeTable(None, path)
    table.claim(query, batch_id, "checkpoint")
    return table


def append(path: str, batch_id: int, rows: Any = None, query: str = "query-1") -> None:
    claimed(path, batch_id, query).append(ids_from(10 * batch_id) if rows is None else rows, batch_id, small=True)


def ids(path: str) -> list[Any]:
    return sorted(DeltaTable(path).to_pyarrow_table()["id"].to_pylist())


def data_files(path: str) -> set[str]:
    return {each.name for each in Path(path).glob("*.parquet")}


def interposed(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None], times: int = 1) -> None:
    """Let something happen between the comparison of the batch number and the commit."""
    left = [times]

    def commit_late(table: DeltaLakeTable, delta: Any, rows: Any, files: Any, batch_id: int) -> None:
        if left[0]:
            left[0] -= 1
            meanwhile()
        commit(table, delta, rows, files, batch_id)

    commit = DeltaLakeTable._commit
    monkeypatch.setattr(DeltaLakeTable, "_commit", commit_late)


def test_each_batch_is_appended_once_however_often_it_is_tried(path: str) -> None:
    for batch_id in (0, 0, 1, 0, 1, 2, 2):
        append(path, batch_id)
    assert ids(path) == list(range(30))
    assert DeltaTable(path).transaction_version("query-1") == 2


@pytest.mark.parametrize("batch_id", [0, 1])
def test_two_runs_that_commit_one_batch_at_once_append_it_once(
    path: str, batch_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for earlier in range(batch_id):
        append(path, earlier)
    table = claimed(path, batch_id)
    interposed(monkeypatch, lambda: append(path, batch_id))
    table.append(ids_from(10 * batch_id), batch_id, small=True)
    assert ids(path) == list(range(10 * (batch_id + 1)))


def test_a_batch_that_loses_the_race_to_an_older_one_is_committed_again_with_the_same_files(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(path, 0)
    written: list[int] = []

    def count_files(*given: Any, **settings: Any) -> Any:
        files = write_data_files(*given, **settings)
        written.append(len(files))
        return files

    table = claimed(path, 1)
    monkeypatch.setattr(module, "write_data_files", count_files)
    interposed(monkeypatch, lambda: append(path, 1))
    table.append(ids_from(20), 2, small=True)
    assert ids(path) == list(range(30))
    assert written == [1, 1], "one file for each batch"


def test_a_table_that_others_keep_changing_is_an_error_that_says_so(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    append(path, 0)
    numbers = iter(range(1, 1000))

    def other_batch() -> None:
        delta = DeltaTable(path)
        from deltalake.transaction import CommitProperties, Transaction

        properties = CommitProperties(app_transactions=[Transaction("query-1", next(numbers))])
        delta.create_write_transaction([], mode="append", schema=delta.schema(), commit_properties=properties)

    interposed(monkeypatch, other_batch, times=COMMIT_ATTEMPTS_MAX)
    with pytest.raises(ConfigError, match="was changed by another writer in each of 10 attempts"):
        claimed(path, 1).append(ids_from(10), 999, small=True)
    assert ids(path) == list(range(10))


def test_a_batch_without_rows_is_recorded(path: str) -> None:
    append(path, 0, ids_from(0, 0))
    append(path, 1, ids_from(0, 0))
    assert DeltaTable(path).transaction_version("query-1") == 1
    assert (ids(path), data_files(path)) == ([], set())


def test_a_table_and_a_checkpoint_that_do_not_belong_together_are_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="is gone, but its checkpoint"):
        claimed(path, 3)
    append(path, 0)
    with pytest.raises(ConfigError, match="was not written with checkpoint"):
        claimed(path, 0, "query-2")
    with pytest.raises(ConfigError, match="lacks batches 1 to 2 of its checkpoint"):
        claimed(path, 3)
    assert ids(path) == list(range(10))


def test_a_batch_with_another_column_widens_the_table(path: str) -> None:
    append(path, 0)
    append(path, 1, rows_of(id=pa.array([10], pa.int64()), note=["new"]))
    rows = DeltaTable(path).to_pyarrow_table().sort_by("id")
    assert rows["note"].to_pylist() == [None] * 10 + ["new"]
    with pytest.raises(InvalidRequest, match="makes column id string, and the table has it as bigint"):
        append(path, 2, rows_of(id=["x"]))


def test_the_log_has_bounds_of_columns_so_that_readers_skip_files(path: str) -> None:
    moment = datetime(2026, 1, 1, 1, 2, 3, 123456, tzinfo=UTC)
    append(
        path,
        0,
        rows_of(
            offset=pa.array([3, 1, 2], pa.int64()),
            price=[2.5, -1.0, None],
            broken=[1.0, float("nan"), 2.0],
            country=["FR", "DE", None],
            text=["short", "x" * 100, "y"],
            day=[date(2026, 1, 2), date(2026, 1, 1), None],
            timestamp=pa.array([moment] * 3, pa.timestamp("us", "UTC")),
            amount=[Decimal("1.10")] * 3,
            value=[b"x"] * 3,
            nothing=pa.array([None] * 3, pa.string()),
            nested=[{"a": 1}] * 3,
        ),
    )
    [found] = pa.table(DeltaTable(path).get_add_actions(flatten=True)).to_pylist()
    bounds = {
        name.removeprefix("min."): (found[name], found[name.replace("min.", "max.")])
        for name in found
        if name.startswith("min.")
    }
    known = {name: each for name, each in bounds.items() if each != (None, None)}
    assert known == {
        "offset": (1, 3),
        "price": (-1.0, 2.5),
        "country": ("DE", "FR"),
        "text": ("short", "y"),
        "day": (date(2026, 1, 1), date(2026, 1, 2)),
        "timestamp": (moment.replace(microsecond=123000), moment.replace(microsecond=124000)),
    }
    assert (found["null_count.country"], found["null_count.nothing"], found["num_records"]) == (1, 3, 3)
    assert found["size_bytes"] == Path(path, found["path"]).stat().st_size


def test_the_log_is_checkpointed_every_hundred_commits(path: str) -> None:
    table = claimed(path)
    for batch_id in range(LOG_CHECKPOINT_COMMITS + 1):
        table.append(ids_from(0, 0), batch_id, small=True)
    checkpoints = list(Path(path, "_delta_log").glob("*.checkpoint.parquet"))
    assert len(checkpoints) == 1
    assert DeltaTable(path).transaction_version("query-1") == LOG_CHECKPOINT_COMMITS
    # Commits that have expired are deleted with the next checkpoint, not by any commit in between.
    commits = sorted(Path(path, LOG).glob("*.json"))
    for file in (*commits, *checkpoints):
        os.utime(file, (0, 0))
    for batch_id in range(LOG_CHECKPOINT_COMMITS + 1, 2 * LOG_CHECKPOINT_COMMITS - 1):
        table.append(ids_from(0, 0), batch_id, small=True)
    assert all(commit.exists() for commit in commits)
    table.append(ids_from(0, 0), 2 * LOG_CHECKPOINT_COMMITS - 1, small=True)
    left = [each.name for each in commits if each.exists()]
    assert left == [each.name for each in commits[LOG_CHECKPOINT_COMMITS - 1 :]], "from the checkpoint on"


def test_what_a_table_consists_of_is_durable_when_a_call_returns(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut that takes one commit or the newest checkpoint makes the table unreadable, whatever else is on disk."""
    synced: set[str] = set()
    fsync = os.fsync

    def note_and_sync(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def missing() -> set[str]:
        log = {each.name for each in Path(path, LOG).iterdir() if each.is_file()}
        return {LOG, *log, *(Path(name).name for name in DeltaTable(path).file_uris())} - synced

    def fail_once(*given: Any) -> None:
        monkeypatch.setattr(module, "merge_rows", merge_rows)
        raise CommitFailedError("another was first")

    monkeypatch.setattr(os, "fsync", note_and_sync)
    monkeypatch.setattr(module, "LOG_CHECKPOINT_COMMITS", 5)
    table = claimed(path)
    table.append(accounts((1, "a"), (2, "b"), (6, "f")), 0, small=True)
    assert missing() == set()
    wider = rows_of(**{"Account No": [3], "owner": ["c"], "key": [b"3"], "note": ["x"]})
    table.append(wider, 1, small=True)
    assert missing() == set(), "the column is a commit of its own"
    widest = rows_of(**{"Account No": [4], "owner": ["d"], "key": [b"4"], "more": [1]})
    table.merge(widest, keys(1), ["Account No"], 2)
    assert missing() == set()
    monkeypatch.setattr(module, "merge_rows", fail_once)
    table.merge(accounts((7, "g")), keys(2), ["Account No"], 3)
    assert missing() == set(), "rows were deleted by an attempt that failed later"
    table.append(accounts((5, "e")), 4, small=True)
    table.compact(MiB)
    assert missing() == set()
    assert "_last_checkpoint" in synced
    synced.clear()
    table.append(accounts((5, "e")), 4, small=True)
    assert missing() == set(), "a batch that is found done may be the work of a run that was killed"


def test_compaction_runs_beside_a_writer(path: str) -> None:
    append(path, 0)
    ended = threading.Event()
    compactions: list[int] = []
    errors: list[Exception] = []

    def keep_compacting() -> None:
        while not ended.is_set():
            try:
                compactions.append(DeltaLakeTable(None, path).compact(MiB).files_after)
            except Exception as error:  # noqa: BLE001 - every error is one too many
                errors.append(error)

    thread = threading.Thread(target=keep_compacting)
    thread.start()
    table = claimed(path, 1)
    try:
        batch_id = 1
        while batch_id < 20 or (len(compactions) < 3 and not errors):
            table.append(ids_from(10 * batch_id), batch_id, small=True)
            batch_id += 1
    finally:
        ended.set()
        thread.join()
    assert errors == []
    assert ids(path) == list(range(10 * batch_id))
    assert DeltaTable(path).transaction_version("query-1") == batch_id - 1
    assert DeltaLakeTable(None, path).compact(MiB).files_after == 1
    assert ids(path) == list(range(10 * batch_id))


def test_vacuum_deletes_files_of_failed_attempts_and_never_those_of_a_batch_under_way(path: str) -> None:
    for batch_id in range(3):
        append(path, batch_id)
    table = DeltaLakeTable(None, path)
    assert table.compact(MiB) == (3, 1)
    failed, under_way = Path(path, "part-failed.parquet"), Path(path, "part-new.parquet")
    for file in (failed, under_way):
        file.write_bytes(b"rows")
    long_ago = time.time() - 2 * DAY_S
    os.utime(failed, (long_ago, long_ago))
    assert len(data_files(path)) == 6
    assert table.vacuum(DAY_S) == 1
    assert not failed.exists()
    assert under_way.exists()
    assert len(data_files(path)) == 5, "replaced files stay for readers that began before"
    assert ids(path) == list(range(30))


def test_replaced_files_are_in_the_log_for_as_long_as_they_are_kept(path: str) -> None:
    def kept() -> str | None:
        return DeltaTable(path).metadata().configuration.get(KEPT_IN_LOG)

    table = claimed(path)
    append(path, 0)
    for keep_s, named in ((DAY_S, "24 hours"), (30 * DAY_S, "720 hours"), (2 * DAY_S, "720 hours")):
        table.vacuum(keep_s)
        assert kept() == f"interval {named}"
    append(path, 1)
    assert (DeltaTable(path).version(), ids(path)) == (2, list(range(20)))
    other = f"{path}-of-before"
    write_deltalake(other, pa.table({"id": [1]}))
    DeltaLakeTable(None, other).vacuum(7 * DAY_S)
    assert DeltaTable(other).version() == 0, "a week is the library's default"
    DeltaLakeTable(None, other).vacuum(8 * DAY_S)
    assert DeltaTable(other).metadata().configuration[KEPT_IN_LOG] == "interval 192 hours"


@pytest.mark.parametrize(("given", "hours"), [({}, 24), ({"keep_ms": "24h"}, 24), ({"keep_ms": "10081m"}, 169)])
def test_a_table_names_replaced_files_from_the_first_for_as_long_as_the_pipeline_keeps_them(
    tmp_path: Path, given: dict[str, str], hours: int
) -> None:
    values = {"name": "p", "topics": ["orders"], "directory": str(tmp_path), "bronze": {}, **given}
    table = open_table(Pipeline.model_validate(values), "bronze", "orders")
    table.claim("query-1", 0, "checkpoint")
    table.append(ids_from(0), 0, small=True)
    assert DeltaTable(table.path).metadata().configuration[KEPT_IN_LOG] == f"interval {hours} hours"


def test_what_the_log_has_forgotten_is_kept_when_replaced_files_are_to_be_kept_longer(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.time()
    append(path, 0)
    append(path, 1)
    replaced = data_files(path)
    claimed(path).compact(MiB)
    failed = "part-failed.parquet"
    Path(path, failed).write_bytes(b"rows")
    for file in (*replaced, failed):
        os.utime(Path(path, file), (now_s - 9 * DAY_S, now_s - 9 * DAY_S))
    compaction = Path(path, LOG, f"{DeltaTable(path).version():020d}.json")
    actions = [json.loads(line) for line in compaction.read_text().splitlines()]
    for action in actions:
        if "remove" in action:
            action["remove"]["deletionTimestamp"] = int((now_s - 2 * DAY_S) * 1000)
    compaction.write_text("\n".join(json.dumps(action) for action in actions))
    DeltaTable(path).create_checkpoint()
    for _ in range(2):
        assert DeltaLakeTable(None, path).vacuum(7 * DAY_S) == 0
    assert {*replaced, failed} < data_files(path)
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: now_s + 6 * DAY_S + 60))
    assert DeltaLakeTable(None, path).vacuum(7 * DAY_S) == 3, "by now all that was replaced within a week is in the log"
    assert ids(path) == list(range(20))


@pytest.mark.parametrize("keep_s", [0, 60, DAY_S - 1])
def test_vacuum_with_less_than_a_day_is_refused(path: str, keep_s: float) -> None:
    append(path, 0)
    with pytest.raises(InvalidRequest, match="must be kept for at least 24 h"):
        DeltaLakeTable(None, path).vacuum(keep_s)


def test_rows_are_read_without_spark(path: str) -> None:
    append(path, 0)
    append(path, 1)
    table = DeltaLakeTable(None, path)
    assert table.batches().read_all().num_rows == 20
    assert len(table.file_sizes()) == 2


def test_other_writers_append_to_the_table_too(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    append(path, 0)
    theirs = pa.table({"id": pa.array([1000], pa.int64())})
    interposed(monkeypatch, lambda: write_deltalake(path, theirs, mode="append"))
    append(path, 1)
    assert ids(path) == [*range(20), 1000]


# --- partitions, keys, replacing every row ---
