"""The stages of a run, and those of topics that appear while it continues; without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.pipelines import assembly
from penstock.spark.pipelines.assembly import Assembly
from penstock.spark.pipelines.files import LocalFiles
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.stages import Gate, House
from penstock.testing import RunningBroker


@pytest.fixture
def client() -> Iterator[FlyMQClient]:
    with RunningBroker() as broker:
        client = broker.connect()
        for topic in ("orders", "orders-eu"):
            client.create_topic(topic, 1)
            client.schemas.register(topic, "{}")
        yield client


def assembled(client: FlyMQClient, directory: Path, *kinds: str, **settings: Any) -> Assembly:
    values = {
        "name": "sales",
        "directory": str(directory),
        "topics": ["orders*"],
        "bronze": {},
        "silver": {},
        **settings,
    }
    pipeline = Pipeline.model_validate(values)
    spark: Any = None
    return Assembly(House(spark, pipeline, client, LocalFiles(), {}, Gate(), once=False), kinds)


def names(stages: Any) -> list[str]:
    return [stage.name for stage in stages]


def test_a_run_begins_with_one_query_for_each_topic(client: FlyMQClient, tmp_path: Path) -> None:
    made = assembled(client, tmp_path)
    stages = made.first_stages()
    assert names(stages) == ["topics/orders", "topics/orders-eu"]
    assert stages[0].shown == ["bronze/orders", "silver/orders"]
    assert stages[0].tables == [("bronze", "orders"), ("silver", "orders"), ("rejects", "orders")]
    assert made.stages_of_new_topics() == []
    [only_silver, _] = assembled(client, tmp_path, "silver", bronze=None).first_stages()
    assert only_silver.shown == ["silver/orders"]
    with pytest.raises(ConfigError, match="has no stage gold: add its section"):
        assembled(client, tmp_path, "gold").first_stages()


def test_tables_that_are_written_together_cannot_run_alone(client: FlyMQClient, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="writes bronze and silver together, so silver cannot run alone: name both"):
        assembled(client, tmp_path, "silver").first_stages()
    assert len(assembled(client, tmp_path, "silver", "bronze").first_stages()) == 2


def test_checkpoints_of_two_queries_a_topic_are_refused_with_a_way_on(client: FlyMQClient, tmp_path: Path) -> None:
    old = tmp_path / "_checkpoints" / "silver" / "orders" / "offsets"
    old.mkdir(parents=True)
    with pytest.raises(
        ConfigError, match=r"silver/orders is the checkpoint of an earlier version .* another directory"
    ):
        assembled(client, tmp_path).first_stages()


def test_a_topic_that_appears_is_taken_up_once_and_from_its_beginning(client: FlyMQClient, tmp_path: Path) -> None:
    made = assembled(client, tmp_path, silver={"without_schema": "pass"}, starting="latest")
    assert {stage.starting for stage in made.first_stages()} == {"latest"}
    client.create_topic("orders-us", 1)
    client.create_topic("payments", 1)
    stages = made.stages_of_new_topics()
    assert names(stages) == ["topics/orders-us"]
    assert {stage.starting for stage in stages} == {"earliest"}
    assert made.stages_of_new_topics() == []


def test_a_topic_that_appears_waits_for_its_schema(client: FlyMQClient, tmp_path: Path) -> None:
    made = assembled(client, tmp_path)
    made.first_stages()
    client.create_topic("orders-us", 1)
    assert made.stages_of_new_topics() == []
    assert made.waiting["orders-us"].startswith("topic orders-us has no schema: register one")
    client.schemas.register("orders-us", "{}")
    assert names(made.stages_of_new_topics()) == ["topics/orders-us"]
    assert made.waiting == {}


def test_no_more_topics_are_taken_up_than_a_run_can_read(
    client: FlyMQClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "TOPICS_MAX", 2)
    made = assembled(client, tmp_path)
    made.first_stages()
    client.create_topic("orders-us", 1)
    assert made.stages_of_new_topics() == []
    assert made.waiting == {"orders-us": "a pipeline reads at most 2 topics: read it with another one"}


def test_only_patterns_and_stages_of_topics_make_it_worth_looking(client: FlyMQClient, tmp_path: Path) -> None:
    gold = {"gold": [{"name": "g", "sql": "SELECT 1"}]}
    assert assembled(client, tmp_path).may_grow
    assert assembled(client, tmp_path, "bronze", **gold).may_grow
    assert not assembled(client, tmp_path, "gold", **gold).may_grow
    assert not assembled(client, tmp_path, topics=["orders"]).may_grow
