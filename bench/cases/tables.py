"""Tables of pipelines: a million rows by format, and what becomes of many small files."""

from __future__ import annotations

import statistics

from bench.processes import run_program
from bench.rounds import Plan, Row, compared
from bench.small_files import SmallFilesJob, SmallFilesResult
from bench.tables import DELTA, DELTA_BY_DRIVER, ICEBERG, PARQUET, TablesJob, TablesResult

ROWS = 1_000_000
ROWS_QUICK = 100_000
BATCH_ROWS = 50_000
TRIGGERS = 3_600
TRIGGERS_QUICK = 300
TRIGGER_ROWS = 100


def measure(plan: Plan) -> list[Row]:
    rows = plan.volume(ROWS, ROWS_QUICK)
    directory = plan.directory / "tables"
    directory.mkdir()
    plan.say(f"tables: {plan.rounds} rounds of {rows:,} rows into tables of each format, with Spark")
    job = TablesJob(directory=str(directory), rows=rows, batch_rows=BATCH_ROWS, rounds=plan.rounds)
    return table_rows(run_program("bench.tables", job, TablesResult), rows)


def table_rows(result: TablesResult, rows: int) -> list[Row]:
    def rates(side: str) -> list[float]:
        return [rows / each.seconds for each in result.rounds[side]]

    made = []
    for side in (DELTA, DELTA_BY_DRIVER, ICEBERG):
        rounds = result.rounds[side]
        last = rounds[-1]
        compaction_s = statistics.median(each.compaction_s for each in rounds)
        made.append(
            compared(
                "spark tables",
                f"{rows:,} rows of 9 columns in batches of {BATCH_ROWS:,}, exactly once, {side}",
                "rows/s",
                rates(side),
                "Spark's own Parquet writer, no table, at least once",
                rates(PARQUET),
                note=f"{last.files} files, {last.size_bytes / 1e6:.1f} MB; compacted to {last.files_after} in {compaction_s:.1f} s",
            )
        )
    return made


def measure_small_files(plan: Plan) -> list[Row]:
    triggers = plan.volume(TRIGGERS, TRIGGERS_QUICK)
    plan.say(f"small-files: {triggers:,} batches of {TRIGGER_ROWS} rows, with upkeep and without")
    results = {}
    for upkeep in (True, False):
        directory = plan.directory / f"small-files-{upkeep}"
        directory.mkdir()
        job = SmallFilesJob(directory=str(directory), triggers=triggers, rows=TRIGGER_ROWS, upkeep=upkeep)
        results[upkeep] = run_program("bench.small_files", job, SmallFilesResult)
    return small_file_rows(results[True], results[False], triggers)


def small_file_rows(kept: SmallFilesResult, left: SmallFilesResult, triggers: int) -> list[Row]:
    size = f"{triggers:,} triggers of {TRIGGER_ROWS} rows, a table of Delta"
    without = "without upkeep"
    return [
        compared(
            "small files",
            f"{size}, most data files at a time",
            "files",
            [float(max(kept.files))],
            without,
            [float(max(left.files))],
            note=f"{kept.compactions} compactions took {kept.upkeep_s:.1f} s together; until a vacuum after keep_ms there are "
            f"{kept.files_on_disk:,} files on disk, {kept.size_bytes / 1e6:.0f} MB; without upkeep {left.size_bytes / 1e6:.0f} MB",
        ),
        compared(
            "small files",
            f"{size}, the last hundred commits, median",
            "ms",
            kept.last_ms,
            without,
            left.last_ms,
            note=f"less is better; the first hundred: {statistics.median(kept.first_ms):.1f} ms",
        ),
        compared(
            "small files",
            f"{size}, all of it read afterwards",
            "ms",
            kept.read_ms,
            without,
            left.read_ms,
            note="less is better",
        ),
    ]
