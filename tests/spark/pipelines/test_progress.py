"""How stages are doing, out of the JSON that Spark gives after each batch."""

from __future__ import annotations

import json
from typing import Any

from penstock.spark.pipelines.progress import Counts, Progress


def said(**changes: Any) -> dict[str, Any]:
    ends = json.dumps({"orders": {"0": 10, "1": 5}, "__ids__": {"orders": "x"}})
    latest = json.dumps({"orders": {"0": 12, "1": 5, "2": 3}})
    return {
        "batchId": 4,
        "numInputRows": 15,
        "durationMs": {"addBatch": 400, "triggerExecution": 500},
        "sources": [{"endOffset": ends, "latestOffset": latest}],
        **changes,
    }


def test_batches_add_up_and_the_lag_is_what_waits_in_the_log() -> None:
    progress = Progress(["bronze/orders"])
    progress.batch("bronze/orders", said(), Counts())
    stage = progress.batch("bronze/orders", said(batchId=5, numInputRows=5), Counts(rejects=2))
    assert stage is not None
    assert (stage.rows, stage.batches, stage.batch_id, stage.batch_ms, stage.rejects) == (20, 2, 5, 500, 2)
    assert (stage.lag, stage.rows_per_s) == (2 + 3, 10.0)
    assert stage.positions == {"orders": {0: 10, 1: 5}}
    assert progress.stages() == [stage]
    assert stage.report().rows == 20


def test_a_look_without_a_batch_changes_the_lag_and_nothing_else() -> None:
    progress = Progress(["bronze/orders"])
    assert progress.batch("bronze/orders", said(durationMs={"triggerExecution": 1}), Counts()) is None
    [stage] = progress.stages()
    assert (stage.rows, stage.batches, stage.lag) == (0, 0, 5)


def test_without_a_look_at_the_log_the_lag_is_what_it_was() -> None:
    progress = Progress(["s"])
    again = said(sources=[{"endOffset": json.dumps({"orders": {"0": 10}}), "latestOffset": None}])
    stage = progress.batch("s", again, Counts())
    assert stage is not None
    assert stage.lag == -1
    progress.batch("s", said(), Counts())
    stage = progress.batch("s", again, Counts())
    assert stage is not None
    assert stage.lag == 5


def test_the_lag_of_a_table_is_in_records_and_adds_up_over_the_views_of_a_query() -> None:
    progress = Progress(["gold/revenue"])
    sources = [
        {"endOffset": '{"version": 3, "records": 500}', "latestOffset": '{"version": 9, "records": 1400}'},
        {"endOffset": '{"version": 7}', "latestOffset": {"version": 8, "records": 20}},
        *said()["sources"],
    ]
    progress.batch("gold/revenue", said(sources=sources), Counts())
    assert progress.stages()[0].lag == 900 + 20 + 5
    progress.batch("gold/revenue", said(sources=[{**sources[0], "latestOffset": None}]), Counts())
    assert progress.stages()[0].lag == 925, "nobody has looked"


def test_offsets_that_are_none_of_ours_are_passed_over() -> None:
    progress = Progress(["s"])
    sources = [
        {"endOffset": "7"},
        {"endOffset": None},
        {"endOffset": "not json"},
        {"endOffset": '{"__start__":"options"}'},
    ]
    stage = progress.batch("s", said(sources=sources), Counts())
    assert stage is not None
    assert (stage.lag, stage.positions) == (-1, {})


def test_stages_that_have_ended_keep_their_state() -> None:
    progress = Progress(["a", "b"])
    progress.state("a", "failed")
    progress.states("stopped")
    assert [stage.state for stage in progress.stages()] == ["failed", "stopped"]


def test_a_stage_that_has_nothing_to_read_is_behind_by_nothing() -> None:
    progress = Progress(["a", "b", "c"])
    progress.batch("a", said(), Counts())
    progress.idle("a")
    progress.finished("b")
    assert [(stage.lag, stage.rows_per_s, stage.state) for stage in progress.stages()] == [
        (0, 0.0, "starting"),
        (0, 0.0, "finished"),
        (-1, 0.0, "starting"),
    ]
    progress.batch("b", said(), Counts())
    assert progress.stages()[1].lag == 5, "what Spark tells late counts"


def test_rows_that_no_table_gets_are_counted_over_batches() -> None:
    progress = Progress(["gold/revenue"])
    batch = said(
        stateOperators=[{"numRowsDroppedByWatermark": 2}, {"numRowsDroppedByWatermark": 1}],
        observedMetrics={"orders": {"future": 4}, "payments": {"future": None}},
    )
    progress.batch("gold/revenue", batch, Counts(dropped=5))
    stage = progress.batch("gold/revenue", batch, Counts(dropped=7))
    assert stage is not None
    assert (stage.late, stage.future, stage.dropped) == (6, 8, 7)
    report = stage.report()
    assert (report.late, report.future, report.dropped) == (6, 8, 7)
