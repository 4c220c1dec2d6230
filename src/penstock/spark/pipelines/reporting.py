"""Telling the broker how a run is doing, every few seconds, from a thread of its own; the answer may be to stop.

A broker that cannot be reached does not end a run by this: the run reads from it, and will find out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from penstock.broker.pipelines import MESSAGE_BYTES_MAX, STAGES_MAX
from penstock.errors import PenstockError
from penstock.protocols.flymq.operations.spark import PipelineReport
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.pipelines.progress import Progress

REPORT_EVERY_S: Final = 2.0
LAST_REPORT_S_MAX: Final = 5.0


class Reporter:
    def __init__(
        self,
        client: FlyMQClient,
        pipeline: str,
        run: str,
        started_ms: int,
        progress: Progress,
        stop: Callable[[], None],
    ) -> None:
        self._client = client
        self._pipeline = pipeline
        self._run = run
        self._started_ms = started_ms
        self._progress = progress
        self._stop = stop
        self._state = "starting"
        self._message = ""
        self._ended = threading.Event()
        self._now = threading.Event()
        self.replaced_by: str | None = None
        """The run of the same pipeline that has taken its place."""
        self.problem: str | None = None
        """Why the last report was not taken."""
        self._thread = threading.Thread(target=self._report_for_ever, name="penstock-report", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def say(self, state: str, message: str = "") -> None:
        """From now on, and at once."""
        self._state, self._message = state, message.encode()[:MESSAGE_BYTES_MAX].decode(errors="ignore")
        self._now.set()

    def close(self) -> None:
        """Say the last word and end."""
        self._ended.set()
        self._now.set()
        self._thread.join(LAST_REPORT_S_MAX)

    def _report_for_ever(self) -> None:
        while True:
            ending = self._ended.is_set()
            self._now.clear()
            self._report()
            if ending:
                return
            self._now.wait(REPORT_EVERY_S)

    def _report(self) -> None:
        stages = [stage.report() for stage in self._progress.stages()[:STAGES_MAX]]
        report = PipelineReport(self._pipeline, self._run, self._started_ms, self._state, self._message, stages)
        try:
            asked_to_stop = self._client.pipelines.report(report)
        except PenstockError as error:
            self.problem = str(error)
            return
        self.problem = None
        if asked_to_stop:
            self.replaced_by = self._newer_run()
            self._stop()

    def _newer_run(self) -> str | None:
        """The run that is the reason to stop; None if somebody has asked for it."""
        try:
            [last] = [each for each in self._client.pipelines.list() if each.name == self._pipeline]
        except (PenstockError, ValueError):
            return None
        return last.run if last.run != self._run else None
