"""The loop of a run: what ends it, and what is started again; with stages whose queries do what the test says."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest

from penstock.spark.pipelines.assembly import Assembly
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.running import LATE_STARTS_MAX, Outcome, Run
from penstock.spark.pipelines.upkeep import Upkeep

LATE = RuntimeError("org.apache.spark.SparkException: Python worker failed to connect back.")
_run_ids = itertools.count()


class Query:
    """Of Spark. It has ended by the time it is checked, with an error or without, unless it is to continue."""

    def __init__(
        self, error: Exception | None = None, *, goes_on: bool = False, messages: Sequence[str] = ("Stopped",)
    ) -> None:
        """`messages` are what its status says each time it is asked; the last one stays."""
        self.runId = str(next(_run_ids))
        self.isActive = goes_on
        self._error = error
        self._messages = list(messages)

    @property
    def status(self) -> dict[str, Any]:
        message = self._messages.pop(0) if len(self._messages) > 1 else self._messages[0]
        return {"isTriggerActive": False, "message": message}

    @property
    def has_come_up(self) -> bool:
        return len(self._messages) == 1

    def exception(self) -> Exception | None:
        return self._error

    def stop(self) -> None:
        self.isActive = False


class Stage:
    """Starts one query after the other."""

    group = "sales"
    tables: ClassVar = [("bronze", "orders")]

    def __init__(
        self,
        name: str,
        *queries: Query,
        on_start: Callable[[int], None] = lambda times: None,
        reads_tables: bool = False,
    ) -> None:
        self.name = name
        self.shown = [name]
        self.reads_tables = reads_tables
        self.session = MagicMock()
        self.failure: Exception | None = None
        self.outdated = False
        self.queries = list(queries)
        self.started = 0
        self._on_start = on_start

    def start(self) -> Query:
        self.outdated = False
        self.started += 1
        self._on_start(self.started)
        return self.queries[self.started - 1]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Runs the stages to their end."""

    def run_to_the_end(
        *stages: Stage,
        later: tuple[Stage, ...] = (),
        stop_when: Any = None,
        pause_s: float = 0.0,
        spark: Any = None,
        **settings: Any,
    ) -> Outcome:
        values = {"name": "sales", "topics": ["orders*"], "directory": str(tmp_path), "bronze": {}}
        client: Any = MagicMock()
        spark = spark or MagicMock()
        client.pipelines.report.return_value = False
        made = Run(Pipeline.model_validate(values), spark, client, **settings)
        waiting = list(later)

        def new_stages(assembly: Assembly) -> list[Any]:
            if stop_when is not None and stop_when():
                made.stop()
            return [waiting.pop(0)] if waiting else []

        monkeypatch.setattr(Assembly, "first_stages", lambda assembly: list(stages))
        monkeypatch.setattr(Assembly, "stages_of_new_topics", new_stages)
        monkeypatch.setattr("penstock.spark.pipelines.running.LOOK_EVERY_S", 0.001)
        monkeypatch.setattr("penstock.spark.pipelines.running.LAST_WORDS_S_MAX", 0.0)
        monkeypatch.setattr("penstock.spark.pipelines.running.LATE_START_PAUSE_S", pause_s)
        return made()

    return run_to_the_end


def test_a_run_ends_when_every_query_has(run: Callable[..., Outcome]) -> None:
    outcome = run(Stage("bronze/a", Query()), Stage("bronze/b", Query()), once=True)
    assert (outcome.state, [stage.state for stage in outcome.stages]) == ("finished", ["finished", "finished"])


@pytest.mark.parametrize(
    ("master", "expected"),
    [("local[2]", ["stage"]), ("spark://head:7077", ["task", "stage"]), ("yarn", ["task", "stage"])],
)
def test_on_a_cluster_a_task_has_run_before_batches_are_planned(
    run: Callable[..., Outcome], master: str, expected: list[str]
) -> None:
    done: list[str] = []
    spark = MagicMock()
    spark.conf.get.side_effect = {"spark.master": master}.get
    spark.range.return_value.count.side_effect = lambda: done.append("task")
    run(Stage("bronze/a", Query(), on_start=lambda times: done.append("stage")), once=True, spark=spark)
    assert done == expected
    spark.range.return_value.count.side_effect = RuntimeError("the cluster has gone")
    assert run(Stage("bronze/a", Query()), once=True, spark=spark).state == "finished", "it is for the queries to tell"


def test_who_reads_tables_to_their_end_begins_when_they_are_written(run: Callable[..., Outcome]) -> None:
    started: list[str] = []
    gold = Stage("gold/g", Query(), on_start=lambda times: started.append("gold"), reads_tables=True)
    topic = Stage("bronze/a", Query(LATE), Query(), on_start=lambda times: started.append("topic"))
    assert run(gold, topic, once=True).state == "finished"
    assert started == ["topic", "topic", "gold"]
    failing = Stage("bronze/a", Query(RuntimeError("it broke")))
    assert run(Stage("gold/g", Query(), reads_tables=True), failing, once=True).state == "failed"


def test_a_stage_that_fails_ends_the_others(run: Callable[..., Outcome]) -> None:
    other = Stage("bronze/b", Query(goes_on=True))
    outcome = run(Stage("bronze/a", Query(RuntimeError("it broke"))), other)
    assert (outcome.state, outcome.message) == ("failed", "bronze/a: Spark: it broke")
    assert [stage.state for stage in outcome.stages] == ["failed", "stopped"]
    assert not other.queries[0].isActive


def test_a_query_whose_python_comes_up_late_is_started_again(run: Callable[..., Outcome]) -> None:
    stage = Stage("bronze/a", Query(LATE), Query(LATE), Query())
    assert run(stage, once=True).state == "finished"
    assert stage.started == 3


def test_a_query_whose_python_came_up_late_is_given_a_pause(run: Callable[..., Outcome]) -> None:
    late = Stage("bronze/a", Query(LATE), Query())
    other = Stage("bronze/b", Query(goes_on=True))
    looks = itertools.count()
    stopped = run(late, other, pause_s=3600, new_topics_every_s=0, stop_when=lambda: next(looks) == 20)
    assert late.started == 1, "it was looked at many times, and the pause was not over"
    assert stopped.state == "failed", "a run that stops meanwhile says what is the matter"


def test_queries_are_started_one_after_another(run: Callable[..., Outcome]) -> None:
    messages = ["Initializing StreamExecution", "Initializing sources", "Waiting for data to arrive"]
    first = Stage("bronze/a", Query(goes_on=True, messages=messages))
    came_up: list[bool] = []
    second = Stage("bronze/b", Query(goes_on=True), on_start=lambda times: came_up.append(first.queries[0].has_come_up))
    run(first, second, new_topics_every_s=0, stop_when=lambda: True)
    assert came_up == [True]


def test_tables_are_kept_up_beside_the_queries_and_problems_are_noted(
    run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(upkeep: Upkeep, table: tuple[str, str]) -> None:
        raise OSError(f"no disk for {'/'.join(table)}")

    monkeypatch.setattr(Upkeep, "_look_at", fails)
    monkeypatch.setattr("penstock.spark.pipelines.upkeep.LOOK_EVERY_S", 0.001)
    notes: list[str] = []
    stage = Stage("bronze/orders", Query(goes_on=True))
    outcome = run(stage, on_note=notes.append, new_topics_every_s=0, stop_when=lambda: notes)
    assert outcome.state == "stopped", "the run went on"
    assert notes == ["upkeep of bronze/orders failed: OSError: no disk for bronze/orders"]


def test_a_query_whose_python_never_comes_up_fails(run: Callable[..., Outcome]) -> None:
    stage = Stage("bronze/a", *(Query(LATE) for _ in range(LATE_STARTS_MAX + 1)))
    outcome = run(stage, once=True)
    assert outcome.state == "failed"
    assert outcome.message.startswith("bronze/a: a Python process did not come up within the ten seconds")
    assert stage.started == LATE_STARTS_MAX + 1


def test_a_query_that_is_outdated_is_replaced(run: Callable[..., Outcome]) -> None:
    def on_start(times: int) -> None:
        stage.outdated = times == 1

    stage = Stage("gold/a", Query(RuntimeError("Outdated")), Query(), on_start=on_start)
    assert run(stage, once=True).state == "finished"
    assert stage.started == 2


def test_stages_of_topics_that_appear_are_started(run: Callable[..., Outcome]) -> None:
    first, second = Stage("bronze/a", Query(goes_on=True)), Stage("bronze/b", Query(goes_on=True))
    outcome = run(first, later=(second,), stop_when=lambda: second.started == 1, new_topics_every_s=0)
    assert outcome.state == "stopped"
    assert [(stage.name, stage.state) for stage in outcome.stages] == [("bronze/a", "stopped"), ("bronze/b", "stopped")]
    assert not second.queries[0].isActive


def test_nobody_looks_for_topics_where_what_is_there_is_all_that_is_wanted(run: Callable[..., Outcome]) -> None:
    second = Stage("bronze/b", Query())
    assert run(Stage("bronze/a", Query()), later=(second,), once=True, new_topics_every_s=0).state == "finished"
    assert second.started == 0
