"""One run of a pipeline, from start to stop.

Every topic and every gold table is a query with a checkpoint of its own, so a run can end anywhere and the next continues from there. A run
that is asked to stop (a signal, `penstock pipeline stop`) lets batches that have begun finish and begins no others. One stage that fails
ends the run, after the others have finished theirs. Topics that appear under a pattern meanwhile get stages of their own.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.errors import PenstockError
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.pipelines.assembly import Assembly
from penstock.spark.pipelines.failures import explain_failure, is_late_worker
from penstock.spark.pipelines.files import files_at, is_url
from penstock.spark.pipelines.identity import new_run, refuse_other_pipeline
from penstock.spark.pipelines.lock import DirectoryLock
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.progress import Progress, StageProgress
from penstock.spark.pipelines.reporting import Reporter
from penstock.spark.pipelines.stages import Gate, House, Stage
from penstock.spark.pipelines.upkeep import Upkeep
from penstock.spark.publishing import publish
from penstock.spark.sessions import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_EVERY_S: Final = 0.2
BATCH_END_S_MAX: Final = 120.0
"""How long a batch may take to finish after the run was asked to stop."""
LAST_WORDS_S_MAX: Final = 5.0
"""How long to wait for Spark to tell of the last batch."""

NEW_TOPICS_EVERY_S: Final = 5.0
"""How often to look for topics that appeared under a pattern."""

EXECUTORS_S_MAX: Final = 10.0
"""How long to wait for executors of a cluster before batches are planned for those that there are."""
START_S_MAX: Final = 30.0
"""How long to wait for a query to come up before the next is started."""
_STARTING: Final = "Initializing"
"""The status of a query begins with this until its Python process has answered."""
LATE_STARTS_MAX: Final = 3
"""How often a stage is started again whose Python processes did not come up within the time that Spark gives them."""
LATE_START_PAUSE_S: Final = 5.0

OnBatch = Callable[[StageProgress], None]
OnNote = Callable[[str], None]
"""What people should know of a run that continues all the same; empty when there is nothing any more."""


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
        on_note: OnNote = lambda note: None,
        new_topics_every_s: float = NEW_TOPICS_EVERY_S,
    ) -> None:
        self.pipeline = pipeline
        self.progress = Progress([])
        self._client = client
        self._on_batch = on_batch
        self._on_note = on_note
        self._note = ""
        self._new_topics_every_s = new_topics_every_s
        self._once = once
        self._gate = Gate()
        self._spark = spark
        files = files_at(pipeline.notes, spark)
        house = House(spark, pipeline, client, files, pipeline.broker_options(password), self._gate, once)
        self._assembly = Assembly(house, kinds)
        self._stop_asked = threading.Event()
        self._queries: dict[str, tuple[Stage, StreamingQuery]] = {}
        self._stages_by_run_id: dict[str, Stage] = {}
        self._terminated: set[str] = set()
        self._late_starts: Counter[str] = Counter()
        self._restart_s: dict[str, float] = {}
        """When stages are to be started again that a busy machine kept from coming up."""
        self.reporter: Reporter | None = None
        self._upkeep = Upkeep(pipeline, files, lambda: [each for stage, _ in self._known() for each in stage.tables])

    def stop(self) -> None:
        """Ask it to stop: batches that have begun are finished, no other is begun. From any thread, any number of times."""
        self._stop_asked.set()
        self._gate.close()

    def __call__(self) -> Outcome:
        """Run until everything is read (`once`), until it is asked to stop, or until a stage fails."""
        with ExitStack() as stack:
            if not is_url(self.pipeline.notes):
                stack.enter_context(DirectoryLock(Path(self.pipeline.notes)))
            stages = self._assembly.first_stages()
            self.progress = Progress([name for stage in stages for name in stage.shown])
            refuse_other_pipeline(self.pipeline, self._client)
            run, started_ms = new_run(self.pipeline), int(time.time() * 1000)
            self.reporter = Reporter(self._client, self.pipeline.name, run, started_ms, self.progress, self.stop)
            self.reporter.start()
            listener = _Listener(self)
            streams = {id(stage.session): stage.session.streams for stage in stages}.values()
            for each in streams:
                each.addListener(listener)
            self._upkeep.start()
            try:
                outcome = self._run(stages)
            except BaseException as error:
                self.reporter.say("failed", explain_failure(error))
                raise
            else:
                self.reporter.say(outcome.state, outcome.message or "; ".join(_left_out(outcome.stages)))
            finally:
                self._gate.close()
                self._end_queries()
                self._upkeep.close()
                for each in streams:
                    each.removeListener(listener)
                self.reporter.close()
        return outcome

    # -- running ----------------------------------------------------------------------------------------------------------

    def _run(self, stages: Sequence[Stage]) -> Outcome:
        assert self.reporter is not None
        self._await_executors()
        # Who reads what is there, and no more, must not begin before it is there.
        later = [stage for stage in stages if self._once and stage.reads_tables]
        self._start([stage for stage in stages if stage not in later])
        self.reporter.say("running")
        looked_s = time.monotonic()
        while not self._stop_asked.is_set():
            self._start_again()
            active = [stage for stage, query in self._queries.values() if self._is_active(stage, query)]
            if self._failed() is not None:
                break
            if not active:
                if not later:
                    break
                self._start(later)
                later = []
            if not self._once and time.monotonic() - looked_s >= self._new_topics_every_s:
                self._take_up_new_topics()
                looked_s = time.monotonic()
            self._update_note()
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
            for name in stage.shown:
                self.progress.state(name, "failed")
            self.progress.states("stopped")
            return Outcome("failed", self.progress.stages(), f"{stage.name}: {explain_failure(error)}", error)
        self.progress.states(state)
        newer = self.reporter.replaced_by
        if newer is not None:
            return Outcome(
                "failed",
                self.progress.stages(),
                f"a newer run of pipeline {self.pipeline.name} ({newer}) has taken the place of this one, which stopped: let one run at a "
                "time, and give each pipeline a name of its own",
            )
        return Outcome(state, self.progress.stages())

    def _await_executors(self) -> None:
        """A query is told once how many tasks run at once, and none do before executors have registered: let one run."""
        if is_local(self._spark.conf.get("spark.master", None) or "local"):
            return
        tried = threading.Thread(target=self._run_a_task, name="penstock-executors", daemon=True)
        tried.start()
        give_up_s = time.monotonic() + EXECUTORS_S_MAX
        while tried.is_alive() and time.monotonic() < give_up_s and not self._stop_asked.is_set():
            tried.join(LOOK_EVERY_S)

    def _run_a_task(self) -> None:
        with suppress(Exception):  # what is wrong with the cluster is for the queries to tell
            self._spark.range(1).count()

    def _start(self, stages: Sequence[Stage]) -> None:
        """Start queries one after another: Spark gives the Python process of each ten seconds, however many start at once."""
        for stage in stages:
            if self._stop_asked.is_set():
                return
            query = stage.start()
            self._queries[stage.name] = (stage, query)
            self._stages_by_run_id[str(query.runId)] = stage
            for name in stage.shown:
                self.progress.state(name, "running")
            self._await_start(query)

    def _await_start(self, query: StreamingQuery) -> None:
        give_up_s = time.monotonic() + START_S_MAX
        while query.isActive and str(query.status["message"]).startswith(_STARTING) and time.monotonic() < give_up_s:
            if self._stop_asked.wait(LOOK_EVERY_S / 4):
                return

    def _start_again(self) -> None:
        """Start queries that are to be replaced by another, and, after a pause, those that a busy machine kept from coming up."""
        for stage, query in self._known():
            if query.isActive or self._stop_asked.is_set():
                continue
            if self._is_late(stage, query):
                now_s = time.monotonic()
                if now_s >= self._restart_s.setdefault(stage.name, now_s + LATE_START_PAUSE_S):
                    del self._restart_s[stage.name]
                    self._late_starts[stage.name] += 1
                    stage.failure = None
                    self._start([stage])
            elif stage.outdated:
                self._start([stage])

    def _known(self) -> list[tuple[Stage, StreamingQuery]]:
        return list(self._queries.values())

    def _is_late(self, stage: Stage, query: StreamingQuery) -> bool:
        error = stage.failure or query.exception()
        return error is not None and is_late_worker(error) and self._late_starts[stage.name] < LATE_STARTS_MAX

    def _take_up_new_topics(self) -> None:
        if not self._assembly.may_grow:
            return
        try:
            stages = self._assembly.stages_of_new_topics()
        except PenstockError:
            return  # a broker that cannot be reached is for the stages that read from it to report
        self.progress.add([name for stage in stages for name in stage.shown])
        self._start(stages)

    def _update_note(self) -> None:
        assert self.reporter is not None
        waiting = [f"topic {topic} waits: {why}" for topic, why in self._assembly.waiting.items()]
        note = "; ".join(filter(None, [*waiting, *_left_out(self.progress.stages()), self._upkeep.note]))
        if note != self._note:
            self._note = note
            self.reporter.say("running", note)
            self._on_note(note)

    def _is_active(self, stage: Stage, query: StreamingQuery) -> bool:
        if query.isActive or stage.outdated or self._is_late(stage, query):
            return True
        if query.exception() is None:
            for name in stage.shown:
                self.progress.finished(name)
        return False

    def _failed(self) -> tuple[Stage, BaseException] | None:
        for stage, query in self._queries.values():
            error = query.exception()
            if self._is_late(stage, query) and not self._stop_asked.is_set():
                continue
            if stage.failure is not None:
                return stage, stage.failure if isinstance(stage.failure, PenstockError) or error is None else error
            if error is not None and not self._gate.ended(stage.name) and not stage.outdated:
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
        awaited = {str(query.runId) for _, query in self._queries.values()}
        while not awaited <= self._terminated and time.monotonic() < give_up_s:
            time.sleep(LOOK_EVERY_S / 4)

    def _publish(self) -> None:
        """How far each stage has read, as the offsets of its group. The source does so too, but a batch late."""
        progress = {each.name: each for each in self.progress.stages()}
        for stage, _ in self._known():
            positions = progress[stage.shown[0]].positions
            if positions:
                try:
                    publish(self._client, stage.group, positions)
                except PenstockError:
                    continue  # it is for people who watch, and says nothing that the checkpoint does not know

    # -- what Spark tells -------------------------------------------------------------------------------------------------

    def told_progress(self, run_id: str, said: dict[str, Any]) -> None:
        stage = self._stages_by_run_id.get(run_id)
        if stage is None:
            return
        for name in stage.shown:
            progress = self.progress.batch(name, said, stage.counts(name))
            if progress is not None:
                self._on_batch(progress)

    def told_idle(self, run_id: str) -> None:
        stage = self._stages_by_run_id.get(run_id)
        for name in () if stage is None else stage.shown:
            self.progress.idle(name)

    def told_end(self, run_id: str) -> None:
        self._terminated.add(run_id)


def _left_out(stages: Sequence[StageProgress]) -> Iterator[str]:
    """For each stage, how many rows no table has got and why."""
    for stage in stages:
        if stage.late:
            yield f"{stage.name}: {stage.late} rows came after their window was done and were dropped (watermark_ms)"
        if stage.future:
            yield f"{stage.name}: {stage.future} rows are dated too far ahead and were left out (future_ms)"


class _Listener(StreamingQueryListener):
    def __init__(self, run: Run) -> None:
        self._run = run

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self._run.told_progress(str(event.progress.runId), json.loads(event.progress.json))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        self._run.told_idle(str(event.runId))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self._run.told_end(str(event.runId))
