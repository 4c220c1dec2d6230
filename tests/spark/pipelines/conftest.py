"""A pipeline over topics of its own, on the session and the broker that all tests share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.opening import open_table
from penstock.spark.pipelines.tables.table import Table
from penstock.testing import BrokerProcess
from tests.spark.pipelines.table_formats import FORMATS, Made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipelines.progress import StageProgress
    from penstock.spark.pipelines.running import Outcome, Run

ORDER = {
    "type": "object",
    "required": ["id", "country", "amount"],
    "properties": {
        "id": {"type": "integer"},
        "country": {"type": "string"},
        "amount": {"type": "number"},
        "at": {"type": "string", "format": "date-time"},
    },
}


def order(number: int, **more: Any) -> bytes:
    """An order of every minute of an hour, in one of two countries."""
    at = f"2026-01-01T{number // 60:02d}:{number % 60:02d}:00Z"
    document = {"id": number, "country": ("DE", "FR")[number % 2], "amount": number, "at": at, **more}
    return json.dumps(document).encode()


@dataclass
class Bench:
    """One pipeline and its topic."""

    spark: SparkSession
    client: FlyMQClient
    topic: str
    pipeline: Pipeline
    batches: list[StageProgress] = field(default_factory=list)

    def run(self, **settings: Any) -> Run:
        from penstock.spark.pipelines.running import Run

        return Run(self.pipeline, self.spark, self.client, **{"on_batch": self.batches.append, **settings})

    def run_once(self) -> Outcome:
        outcome = self.run(once=True)()
        assert outcome.state == "finished", outcome.message
        return outcome

    def table(self, stage: str, name: str | None = None) -> Table:
        return open_table(self.pipeline, stage, name or self.topic, self.spark)

    def rows(self, stage: str, name: str | None = None) -> pa.Table:
        """A table as another reader than Spark sees it."""
        return self.table(stage, name).batches().read_all()

    def places(self) -> set[tuple[int, int]]:
        """Partition and offset of each record in bronze."""
        rows = self.rows("bronze")
        return set(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))

    def ids(self) -> list[int]:
        return sorted(self.rows("silver")["id"].to_pylist())

    def forget_last_commit(self, stage: str, name: str | None = None) -> int:
        """Take back that the last batch was done, as a crash right before would have left it: the next run does it again."""
        commits = Path(self.pipeline.checkpoint(stage, name or self.topic)) / "commits"
        last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
        (commits / str(last)).unlink()
        return last


@pytest.fixture(params=FORMATS)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    """A table of each format."""
    return Made(tmp_path, request.param)


@pytest.fixture(autouse=True)
def _planner_of_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own for Iceberg is another package, whose absence is a warning."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


@pytest.fixture
def bench(
    spark: SparkSession, broker: BrokerProcess, client: FlyMQClient, fresh_topic: Callable[..., str], tmp_path: Path
) -> Iterator[Callable[..., Bench]]:
    """Makes pipelines: `bench(format="delta", bronze={}, silver={})`, on a topic with two partitions and a schema."""

    def make(*, schema: dict[str, Any] | None = ORDER, **settings: Any) -> Bench:
        topic = fresh_topic("orders")
        client.create_topic(topic, 2)
        if schema is not None:
            client.schemas.register(topic, json.dumps(schema))
        values = {
            "name": f"pipeline-of-{topic}",
            "bootstrap": broker.address,
            "topics": [topic],
            "directory": str(tmp_path / topic),
            "trigger_ms": 0,
            **settings,
        }
        return Bench(spark, client, topic, Pipeline.model_validate(values))

    yield make
    assert not spark.streams.active, "a query was left running"
