"""The stages of a run: those that it begins with, and those of topics that appear under a pattern while it continues.

A topic that appears is taken up when everything its stages need is there: one whose schema is registered a moment after it was created
waits that moment. It is read from its beginning, whatever `starting` says: records that came before it was seen are new all the same.
The views of gold are those of the topics a run began with.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.broker.schemas.reference import Reference
from penstock.errors import ConfigError, PenstockError
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.pipelines.files import is_url
from penstock.spark.pipelines.gold import GoldStage, View
from penstock.spark.pipelines.identity import refuse_other_pipeline
from penstock.spark.pipelines.lock import DirectoryLock
from penstock.spark.pipelines.model import TOPICS_MAX, Pipeline, is_pattern, path_name
from penstock.spark.pipelines.opening import open_table
from penstock.spark.pipelines.schemas import Plans, check_versions, schema_of
from penstock.spark.pipelines.stages import House, Stage
from penstock.spark.pipelines.tables.table import Table
from penstock.spark.pipelines.topic_stage import TOPICS, TopicStage
from penstock.spark.pipelines.topics import chosen_topics, new_topics
from penstock.spark.pipelines.views import mentions, view_names


class Assembly:
    def __init__(self, house: House, kinds: Sequence[str] = ()) -> None:
        self._house = house
        self._kinds = kinds
        self._topics: list[str] = []
        self.waiting: dict[str, str] = {}
        """Why topics that have appeared are not read yet."""

    @property
    def may_grow(self) -> bool:
        """Whether a topic that appears can mean another stage."""
        return any(map(is_pattern, self._house.pipeline.topics)) and any(map(self._has, ("bronze", "silver")))

    def first_stages(self) -> list[Stage]:
        """Raises ConfigError or TopicNotFound if the pipeline cannot run as it is."""
        pipeline = self._house.pipeline
        self._topics = chosen_topics(pipeline, self._house.client.topics())
        check_kinds(pipeline, self._kinds)
        stages = [stage for topic in self._topics for stage in self._stages_of(topic)]
        if self._has("gold"):
            stages += self._gold_stages()
        if not stages:
            raise ConfigError(
                f"pipeline {pipeline.name} has no stage {' or '.join(self._kinds)}: add its section to the file"
            )
        return stages

    def stages_of_new_topics(self) -> list[Stage]:
        """Of topics that appeared since; raises nothing but what the broker does."""
        stages: list[Stage] = []
        self.waiting.clear()
        for topic in new_topics(self._house.pipeline, self._house.client.topics(), self._topics):
            if len(self._topics) >= TOPICS_MAX:
                self.waiting[topic] = f"a pipeline reads at most {TOPICS_MAX} topics: read it with another one"
                continue
            try:
                made = self._stages_of(topic)
            except PenstockError as error:
                self.waiting[topic] = str(error)
                continue
            for stage in made:
                stage.starting = "earliest"
            stages += made
            self._topics.append(topic)
        return stages

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _has(self, kind: str) -> bool:
        return has_stage(self._house.pipeline, kind, self._kinds)

    def _stages_of(self, topic: str) -> list[Stage]:
        if not self._has("bronze") and not self._has("silver"):
            return []
        self._refuse_old_checkpoints(topic)
        pipeline = self._house.pipeline
        bronze = self._table("bronze", topic) if self._has("bronze") else None
        silver = plans = rejects = None
        if self._has("silver"):
            silver = self._table("silver", topic)
            plans = self._plans(topic, pipeline.checkpoint(TOPICS, topic) + ".schema.json")
            if pipeline.silver is not None and pipeline.silver.rejects == "dead_letters":
                rejects = self._table("rejects", topic)
        return [TopicStage(self._house, topic, bronze, silver, rejects, plans)]

    def _refuse_old_checkpoints(self, topic: str) -> None:
        """Versions before this one read a topic once for each table, by two queries that could be anywhere in it."""
        for kind in ("bronze", "silver"):
            checkpoint = self._house.pipeline.checkpoint(kind, topic)
            if self._house.files.names(checkpoint):
                raise ConfigError(
                    f"{checkpoint} is the checkpoint of an earlier version of Penstock, which read each topic with two queries; now one "
                    "query writes bronze and silver, and cannot go on from it: give the pipeline another directory, where everything that "
                    "the topic still holds is read again, and keep the old tables for what it no longer holds"
                )

    def _gold_stages(self) -> list[Stage]:
        house = self._house
        stages: list[Stage] = []
        names = view_names(self._topics)
        for gold in house.pipeline.gold:
            pins = house.pipeline.checkpoint("gold", gold.name) + ".schemas"
            views = {
                name: View(topic, self._plans(topic, f"{pins}/{path_name(topic)}.json"))
                for name, topic in zip(names, self._topics, strict=True)
                if mentions(gold.sql, name)
            }
            table = self._table("gold", gold.name) if gold.table else None
            stages.append(GoldStage(house, gold, table, views, names))
        return stages

    def _table(self, stage: str, name: str) -> Table:
        return open_table(self._house.pipeline, stage, name, self._house.spark)

    def _plans(self, topic: str, pin: str) -> Plans | None:
        """Raises where the topic has no schema and must have one, or one that is not there."""
        client = self._house.client
        reference = reference_of(self._house.pipeline, client, topic)
        if reference is None:
            return None
        plans = Plans(client, topic, reference, self._house.files, pin, unmarked_of(self._house.pipeline, topic))
        plans.newest()
        return plans


def check_before_spark(pipeline: Pipeline, client: FlyMQClient, kinds: Sequence[str] = ()) -> None:
    """Raises what of a run's errors can be known before Spark, which takes its time, has started."""
    if not is_url(pipeline.notes):
        with DirectoryLock(Path(pipeline.notes)):
            pass
    check_kinds(pipeline, kinds)
    refuse_other_pipeline(pipeline, client)
    topics = chosen_topics(pipeline, client.topics())
    if has_stage(pipeline, "silver", kinds):
        for topic in topics:
            reference = reference_of(pipeline, client, topic)
            if reference is not None:
                check_versions(client, topic, reference, unmarked_of(pipeline, topic))


def check_kinds(pipeline: Pipeline, kinds: Sequence[str]) -> None:
    """Raises ConfigError if only one of two tables is wanted that are written together."""
    wanted = {"bronze", "silver"} & set(kinds)
    if len(wanted) == 1 and pipeline.bronze is not None and pipeline.silver is not None:
        raise ConfigError(
            f"the pipeline writes bronze and silver together, so {wanted.pop()} cannot run alone: name both (--stage bronze --stage "
            "silver), or take the other one out of the file for good"
        )


def has_stage(pipeline: Pipeline, kind: str, kinds: Sequence[str] = ()) -> bool:
    """Whether the file has stages of a kind, and they are wanted: those of `kinds` are, or all."""
    there = {"bronze": pipeline.bronze is not None, "silver": pipeline.silver is not None, "gold": bool(pipeline.gold)}
    return there[kind] and (not kinds or kind in kinds)


def unmarked_of(pipeline: Pipeline, topic: str) -> str:
    """What to do with records of a topic that do not say which version of its schema wrote them."""
    return "auto" if pipeline.silver is None else pipeline.silver.rules(topic).unmarked


def reference_of(pipeline: Pipeline, client: FlyMQClient, topic: str) -> Reference | None:
    """The schema of a topic, None if its records are passed on undecoded."""
    silver = pipeline.silver
    reference = schema_of(client, topic, silver.schemas if silver is not None else {})
    if reference is None and silver is not None and silver.without_schema == "error":
        raise ConfigError(
            f"topic {topic} has no schema: register one with penstock schema register {topic} FILE, name one under [silver] schemas, "
            'or pass its records on undecoded with without_schema = "pass"'
        )
    return reference
