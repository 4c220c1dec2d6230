"""Which pipeline a run belongs to, and what becomes of two that have one name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.pipelines import RUN_VARIABLE
from penstock.errors import ConfigError
from penstock.protocols.flymq.operations.spark import PipelineReport
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.pipelines.identity import new_run, refuse_other_pipeline
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.progress import Progress
from penstock.spark.pipelines.reporting import Reporter
from penstock.testing import RunningBroker


@pytest.fixture
def client() -> Iterator[FlyMQClient]:
    with RunningBroker() as broker:
        yield broker.connect()


def pipeline(directory: Path) -> Pipeline:
    return Pipeline.model_validate({"name": "sales", "topics": ["orders"], "directory": str(directory), "bronze": {}})


def report(client: FlyMQClient, run: str, started_ms: int = 1, state: str = "running") -> bool:
    return client.pipelines.report(PipelineReport("sales", run, started_ms, state, "", []))


def test_a_pipeline_of_another_directory_is_refused_while_one_of_the_name_runs(
    client: FlyMQClient, tmp_path: Path
) -> None:
    here, there = pipeline(tmp_path / "a"), pipeline(tmp_path / "b")
    run = new_run(here)
    assert run != new_run(here)
    assert new_run(here, {RUN_VARIABLE: "chosen"}) == f"{run.partition('.')[0]}.chosen"
    report(client, run)
    refuse_other_pipeline(here, client)
    with pytest.raises(ConfigError, match="another pipeline named sales is running, with another directory"):
        refuse_other_pipeline(there, client)
    report(client, run, state="stopped")
    refuse_other_pipeline(there, client)


@pytest.mark.parametrize(("newer", "replaced_by"), [("run-2", "run-2"), (None, None)])
def test_a_run_knows_whether_it_was_replaced_or_asked_to_stop(
    client: FlyMQClient, newer: str | None, replaced_by: str | None
) -> None:
    stops: list[str] = []
    reporter = Reporter(client, "sales", "run-1", 1, Progress([]), lambda: stops.append("asked"))
    report(client, "run-1")
    if newer is not None:
        report(client, newer, started_ms=2)
    else:
        client.pipelines.stop("sales")
    reporter.start()
    reporter.close()
    assert set(stops) == {"asked"}
    assert reporter.replaced_by == replaced_by
