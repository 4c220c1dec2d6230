"""What a person and a program see of a running pipeline; without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from penstock.cli.pipeline import batch_time
from penstock.cli.pipeline_running import JsonDisplay, LineDisplay, print_outcome, progress_table, spark_session
from penstock.errors import ConfigError
from penstock.spark.pipelines.model import Pipeline, Spark
from penstock.spark.pipelines.progress import StageProgress
from penstock.spark.pipelines.running import Outcome

BATCH = StageProgress(
    "silver/orders",
    state="running",
    rows=1_234_567,
    rejects=3,
    lag=12_345,
    batches=7,
    batch_id=6,
    batch_ms=250,
    batch_rows=1000,
    rows_per_s=4000.0,
)
BEFORE = StageProgress("gold/revenue")
PIPELINE = Pipeline.model_validate({"name": "sales", "topics": ["orders"], "directory": "tables", "bronze": {}})


def shown(note: str = "") -> list[str]:
    console = Console(width=80, force_terminal=False)
    with console.capture() as captured:
        console.print(progress_table([BATCH, BEFORE], note))
    return [line.rstrip() for line in captured.get().splitlines() if line.strip()]


def test_the_table_of_a_terminal_fits_80_columns_and_leaves_out_what_is_not_known_yet() -> None:
    head, _, silver, gold = shown()
    assert head.split() == ["stage", "state", "rows", "rows/s", "lag", "last", "batch", "rejects"]
    assert silver.split() == ["silver/orders", "running", "1,234,567", "4,000", "12,345", "250", "ms", "3"]
    assert gold.split() == ["gold/revenue", "starting", "0", "0", "0"]
    assert "topic orders-us waits" in " ".join(shown("topic orders-us waits: it has no schema"))


def test_a_log_gets_a_line_for_each_batch_with_rows_and_what_else_there_is_to_know(
    capsys: pytest.CaptureFixture[str],
) -> None:
    display = LineDisplay()
    display.batch(BATCH)
    display.batch(BEFORE)
    display.note("topic orders-us waits: it has no schema")
    display.note("")
    assert capsys.readouterr().err.splitlines() == [
        "silver/orders: batch 6, 1000 rows in 250 ms, lag 12345, 3 rejects so far",
        "topic orders-us waits: it has no schema",
    ]


def test_a_program_gets_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    display = JsonDisplay()
    display.batch(BATCH)
    display.note("it waits")
    display.note("")
    display.ended(PIPELINE, Outcome("failed", [BATCH], "silver/orders: it broke"))
    lines: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.pop("time_ms") > 0 for line in lines] == [True] * 3
    batch, note, end = lines
    assert batch == {
        "event": "batch",
        "stage": "silver/orders",
        "batch": 6,
        "batch_rows": 1000,
        "batch_ms": 250,
        "rows": 1_234_567,
        "rejects": 3,
        "lag": 12_345,
    }
    assert note == {"event": "note", "message": "it waits"}
    assert (end["event"], end["message"]) == ("failed", "silver/orders: it broke")
    assert end["stages"] == [
        {"stage": "silver/orders", "state": "running", "rows": 1_234_567, "rejects": 3, "batches": 7}
    ]


def test_rows_that_no_table_has_are_told_to_people_and_programs(capsys: pytest.CaptureFixture[str]) -> None:
    left_out = replace(BATCH, dropped=2, late=3, future=4)
    JsonDisplay().batch(left_out)
    told = json.loads(capsys.readouterr().out)
    assert (told["dropped"], told["late"], told["future"]) == (2, 3, 4)
    print_outcome(PIPELINE, Outcome("finished", [left_out]))
    said = capsys.readouterr().err
    assert "silver/orders: 2 rows did not meet an expectation and were dropped" in said
    assert "silver/orders: 3 rows came after their window was done and were dropped (watermark_ms)" in said
    assert "silver/orders: 4 rows are dated too far ahead and were left out (future_ms)" in said


def test_times_are_as_exact_as_people_need_them() -> None:
    assert [batch_time(each) for each in (0, 250, 9999, 10_000, 73_803)] == [
        "0 ms",
        "250 ms",
        "9999 ms",
        "10.0 s",
        "73.8 s",
    ]


def test_the_end_of_a_run_that_failed_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    print_outcome(PIPELINE, Outcome("failed", [BATCH], "silver/orders: it broke"))
    said = capsys.readouterr()
    assert said.out.splitlines()[0].split() == ["stage", "state", "rows", "rejects", "batches"]
    assert said.err == "error: silver/orders: it broke (more with --verbose)\n"


@pytest.mark.parametrize("config", [{}, {"spark.remote": "sc://server"}])
def test_a_pipeline_is_not_run_by_a_spark_connect_server(
    config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not config:
        monkeypatch.setenv("SPARK_REMOTE", "sc://server/;token=s3cret")
    pipeline = PIPELINE.model_copy(update={"spark": Spark(config=config)})
    with (
        pytest.raises(ConfigError, match="unset it, or name a master") as refused,
        spark_session(pipeline, verbose=True),
    ):
        pass
    assert "s3cret" not in str(refused.value)
