from __future__ import annotations

from pathlib import Path

import pytest

from bench.cases.tables import small_file_rows, table_rows
from bench.small_files import SmallFilesJob, SmallFilesResult, run
from bench.tables import DELTA, DELTA_BY_DRIVER, ICEBERG, PARQUET, TablesResult, Written
from penstock.spark.pipelines.upkeep import SMALL_FILES_MAX

TRIGGERS = 120


def test_each_format_is_held_against_files_that_are_no_table() -> None:
    written = Written(seconds=2.0, files=40, size_bytes=21_600_000, compaction_s=1.3, files_after=1)
    plain = Written(seconds=4.0, files=40, size_bytes=29_100_000)
    result = TablesResult(rounds={DELTA: [written], DELTA_BY_DRIVER: [written], ICEBERG: [written], PARQUET: [plain]})
    rows = table_rows(result, 1_000)
    assert [(row.value, row.against_value, row.ratio) for row in rows] == [(500.0, 250.0, 2.0)] * 3
    assert all("exactly once" in row.setting and "at least once" in row.against for row in rows)
    assert {row.note for row in rows} == {"40 files, 21.6 MB; compacted to 1 in 1.3 s"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, SmallFilesResult]:
    """Two minutes of triggers, with upkeep and without."""

    def made(upkeep: bool, directory: Path) -> SmallFilesResult:
        return run(SmallFilesJob(directory=str(directory), triggers=TRIGGERS, rows=3, upkeep=upkeep))

    return {upkeep: made(upkeep, tmp_path_factory.mktemp("small")) for upkeep in (True, False)}


def test_small_files_stay_few_where_they_are_looked_after(results: dict[bool, SmallFilesResult]) -> None:
    kept, left = results[True], results[False]
    assert left.files == [60, 120]
    assert max(kept.files) < 2 * SMALL_FILES_MAX, "a minute of triggers on top of what is left alone"
    assert (kept.compactions, left.compactions) == (2, 0)
    assert kept.files_on_disk > TRIGGERS, "replaced files stay for readers"


def test_growth_is_held_against_a_table_that_nobody_looks_after(results: dict[bool, SmallFilesResult]) -> None:
    files, commits, reading = small_file_rows(results[True], results[False], TRIGGERS)
    assert (files.value, files.against_value) == (61.0, 120.0)
    assert {commits.unit, reading.unit} == {"ms"}
    assert "2 compactions" in files.note
