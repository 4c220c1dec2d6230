"""One run of a pipeline, from start to stop.

Every stage is a query with a checkpoint of its own, so a run can end anywhere and the next goes on from there. A run that is asked to stop
(a signal, `penstock pipeline stop`) lets batches that have begun finish and begins no others. One stage that fails ends the run, after the
others have finished theirs.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.broker.deadletters import SUFFIX
from penstock.errors import ConfigError, PenstockError, TopicNotFound
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.pipelines.failures import explain_failure
from penstock.spark.pipelines.files import Files, HadoopFiles, LocalFiles
from penstock.spark.pipelines.lock import DirectoryLock
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.opening import open_table
from penstock.spark.pipelines.progress import Progress, StageProgress
from penstock.spark.pipelines.reporting import Reporter
from penstock.spark.pipelines.schemas import Plans, schema_of
from penstock.spark.pipelines.stages import BronzeStage, Gate, GoldStage, House, SilverStage, Stage
from penstock.spark.pipelines.views import view_names
from penstock.spark.publishing import publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_EVERY_S: Final = 0.2
BATCH_END_S_MAX: Final = 120.0
"""How long a batch may take to finish after the run was asked to stop."""
LAST_WORDS_S_MAX: Final = 5.0
"""How long to wait for Spark to tell of the last batch."""

OnBatch = Callable[[StageProgress], None]


@dataclass(frozen=True)
class Outcome:
    state: Literal["finished", "stopped", "failed"]
    stages: list[StageProgress]
    message: str = ""
    """Why it failed."""
    error: BaseException | None = None


class Run:
    def __init__(
        self,
        pipeline: Pipeline,
        spark: SparkSession,
        client: FlyMQClient,
        *,
        password: str | None = None,
        once: bool = False,
        kinds: Sequence[str] = (),
        on_batch: OnBatch = lambda stage: None,
    ) -> None:
        self.pipeline = pipeline
        self.progress = Progress([])
        self._spark = spark
        self._client = client
        self._on_batch = on_batch
        self._once = once
        self._kinds = kinds
        self._options = pipeline.broker_options(password)
        self._gate = Gate()
        self._stop_asked = threading.Event()
        self._queries: dict[str, tuple[Stage, StreamingQuery]] = {}
        self._stages_by_run_id: dict[str, Stage] = {}
        self._terminated: set[str] = set()
        self.reporter: Reporter | None = None

    def stop(self) -> None:
        """Ask it to stop: batches that have begun are finished, no other is begun. From any thread, any number of times."""
        self._stop_asked.set()
        self._gate.close()

    def __call__(self) -> Outcome:
        """Run until everything is read (`once`), until it is asked to stop, or until a stage fails."""
        with ExitStack() as stack:
            if not self.pipeline.is_remote:
                stack.enter_context(DirectoryLock(Path(self.pipeline.directory.removeprefix("file://"))))
            stages = self._stages()
            self.progress = Progress([stage.name for stage in stages])
            run, started_ms = uuid.uuid4().hex, int(time.time() * 1000)
            self.reporter = Reporter(self._client, self.pipeline.name, run, started_ms, self.progress, self.stop)
            self.reporter.start()
            listener = _Listener(self)
            streams = {id(stage.session): stage.session.streams for stage in stages}.values()
            for each in streams:
                each.addListener(listener)
            try:
                outcome = self._run(stages)
            except BaseException as error:
                self.reporter.say("failed", explain_failure(error))
                raise
            else:
                self.reporter.say(outcome.state, outcome.message)
            finally:
                self._gate.close()
                self._end_queries()
                for each in streams:
                    each.removeListener(listener)
                self.reporter.close()
        return outcome

    # -- putting together -------------------------------------------------------------------------------------------------

    def _stages(self) -> list[Stage]:
        pipeline = self.pipeline
        files: Files = HadoopFiles(self._spark) if pipeline.is_remote else LocalFiles()
        house = House(self._spark, pipeline, self._client, files, self._options, self._gate, self._once)
        topics = self._topics()
        stages: list[Stage] = []
        if pipeline.bronze is not None and self._wanted("bronze"):
            stages += [BronzeStage(house, topic, open_table(house, "bronze", topic)) for topic in topics]
        plans: dict[str, Plans | None] = {}
        if (pipeline.silver is not None and self._wanted("silver")) or (pipeline.gold and self._wanted("gold")):
            plans = {topic: self._plans(house, topic) for topic in topics}
        if pipeline.silver is not None and self._wanted("silver"):
            stages += [SilverStage(house, topic, open_table(house, "silver", topic), plans[topic]) for topic in topics]
        if self._wanted("gold"):
            views = {
                view: (topic, None if (found := plans.get(topic)) is None else found.newest())
                for view, topic in zip(view_names(topics), topics, strict=True)
            }
            stages += [
                GoldStage(house, gold, open_table(house, "gold", gold.name) if gold.table else None, views)
                for gold in pipeline.gold
            ]
        if not stages:
            raise ConfigError(
                f"pipeline {pipeline.name} has no stage {' or '.join(self._kinds)}: add its section to the file"
            )
        return stages

    def _wanted(self, kind: str) -> bool:
        return not self._kinds or kind in self._kinds

    def _topics(self) -> list[str]:
        """The topics there are that the file names. Those that only a pattern names are no dead letters and no results of ours."""
        existing = self._client.topics()
        results = {gold.topic for gold in self.pipeline.gold}
        chosen: list[str] = []
        for name in self.pipeline.topics:
            if name in existing:
                found = [name]
            else:
                found = [
                    each
                    for each in existing
                    if fnmatchcase(each, name) and not each.endswith(SUFFIX) and each not in results
                ]
            if not found:
                raise TopicNotFound(f"topic not found: {name}; create it with: penstock topic create {name}")
            chosen += [each for each in found if each not in chosen]
        return chosen

    def _plans(self, house: House, topic: str) -> Plans | None:
        silver = self.pipeline.silver
        reference = schema_of(self._client, topic, silver.schemas if silver is not None else {})
        if reference is not None:
            plans = Plans(
                self._client, topic, reference, house.files, self.pipeline.checkpoint("silver", topic) + ".schema.json"
            )
            plans.newest()
            return plans
        if silver is not None and silver.without_schema == "error":
            raise ConfigError(
                f"topic {topic} has no schema: register one with penstock schema register {topic} FILE, name one under [silver] schemas, "
                'or pass its records on undecoded with without_schema = "pass"'
            )
        return None

    # -- running ----------------------------------------------------------------------------------------------------------

    def _run(self, stages: Sequence[Stage]) -> Outcome:
        assert self.reporter is not None
        for stage in stages:
            if self._stop_asked.is_set():
                break
            query = stage.start()
            self._queries[stage.name] = (stage, query)
            self._stages_by_run_id[str(query.runId)] = stage
            self.progress.state(stage.name, "running")
        self.reporter.say("running")
        while not self._stop_asked.is_set():
            active = [stage for stage, query in self._queries.values() if self._is_active(stage, query)]
            if not active or any(stage.failure is not None for stage, _ in self._queries.values()):
                break
            if any(query.exception() is not None for _, query in self._queries.values()):
                break
            self._stop_asked.wait(LOOK_EVERY_S)
        failed = self._failed()
        state: Literal["finished", "stopped", "failed"] = "stopped" if self._stop_asked.is_set() else "finished"
        if failed is None and state == "stopped":
            self.reporter.say("stopping")
            self.progress.states("stopping")
        self._end_queries()
        failed = failed or self._failed()
        self._await_last_words()
        self._publish()
        if failed is not None:
            stage, error = failed
            self.progress.state(stage.name, "failed")
            self.progress.states("stopped")
            return Outcome("failed", self.progress.stages(), f"{stage.name}: {explain_failure(error)}", error)
        self.progress.states(state)
        return Outcome(state, self.progress.stages())

    def _is_active(self, stage: Stage, query: StreamingQuery) -> bool:
        if query.isActive:
            return True
        if query.exception() is None:
            self.progress.state(stage.name, "finished")
        return False

    def _failed(self) -> tuple[Stage, BaseException] | None:
        for stage, query in self._queries.values():
            error = query.exception()
            if stage.failure is not None:
                return stage, stage.failure if isinstance(stage.failure, PenstockError) or error is None else error
            if error is not None and not self._gate.ended(stage.name):
                return stage, error
        return None

    def _end_queries(self) -> None:
        """Let batches that have begun finish, then end every query."""
        self._gate.close()
        give_up_s = time.monotonic() + BATCH_END_S_MAX
        waiting = [(stage, query) for stage, query in self._queries.values() if query.isActive]
        while waiting and time.monotonic() < give_up_s:
            waiting = [(stage, query) for stage, query in waiting if not self._at_rest(stage, query)]
            if waiting:
                time.sleep(LOOK_EVERY_S / 4)
        for _, query in self._queries.values():
            if query.isActive:
                query.stop()

    def _at_rest(self, stage: Stage, query: StreamingQuery) -> bool:
        return not query.isActive or not query.status["isTriggerActive"]

    def _await_last_words(self) -> None:
        """Spark tells of batches and of the end of queries a little later, on a thread of its own."""
        give_up_s = time.monotonic() + LAST_WORDS_S_MAX
        while len(self._terminated) < len(self._queries) and time.monotonic() < give_up_s:
            time.sleep(LOOK_EVERY_S / 4)

    def _publish(self) -> None:
        """How far each stage has read, as the offsets of its group. The source does so too, but a batch late."""
        for progress in self.progress.stages():
            if progress.positions and progress.name in self._queries:
                try:
                    publish(self._client, self._queries[progress.name][0].group, progress.positions)
                except PenstockError:
                    continue  # it is for people who watch, and says nothing that the checkpoint does not know

    # -- what Spark tells -------------------------------------------------------------------------------------------------

    def told_progress(self, run_id: str, said: dict[str, Any]) -> None:
        stage = self._stages_by_run_id.get(run_id)
        if stage is not None:
            progress = self.progress.batch(stage.name, said, stage.rejects)
            if progress is not None:
                self._on_batch(progress)

    def told_end(self, run_id: str) -> None:
        self._terminated.add(run_id)


class _Listener(StreamingQueryListener):
    def __init__(self, run: Run) -> None:
        self._run = run

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self._run.told_progress(str(event.progress.runId), json.loads(event.progress.json))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self._run.told_end(str(event.runId))
