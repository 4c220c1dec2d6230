"""The last hour of the broker in samples: what it has counted, disk space, the lag of groups and subscriptions, and what stages of
pipelines report, for plots.

A sample costs what a scrape of the metrics does, six times a minute. Everything is in memory, in arrays of numbers: at most 360 samples of
at most 3,000 series. A series ends with its group, subscription or stage, and a restart clears them. Long histories are Prometheus's part.
"""

from __future__ import annotations

import math
import shutil
from array import array
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import Final, Literal, NamedTuple, TypeVar

from penstock.admin.figures import LAGS_EXPORTED_MAX, Sources
from penstock.background import Loop
from penstock.broker.access.checks import SYSTEM
from penstock.broker.pipelines import Stage
from penstock.clock import Clock

SAMPLE_EVERY_S: Final = 10.0
FIRST_AFTER_S: Final = 1.0
SAMPLES_MAX: Final = 360
STAGES_SAMPLED_MAX: Final = 1_000
FILLING_S_MIN: Final = 60.0
"""The shortest history from which to predict when the disk is full."""

Kind = Literal["group", "subscription"]
_Number = TypeVar("_Number", int, float)


class SeriesKey(NamedTuple):
    kind: Kind
    topic: str
    name: str


class LagSeries:
    """The lag of one group or subscription in one topic; its last sample is of the last time."""

    __slots__ = ("records", "seconds")

    def __init__(self) -> None:
        self.records = array("q")
        self.seconds = array("d")
        """NaN where the age of the oldest record is not known."""

    def add(self, records: int, seconds: float | None) -> None:
        _push(self.records, records)
        _push(self.seconds, math.nan if seconds is None else seconds)


class StageKey(NamedTuple):
    pipeline: str
    stage: str


class StageSeries:
    """What one stage of a pipeline has reported; its last sample is of the last time."""

    __slots__ = ("batch_ms", "lag", "late", "rejects", "rows")

    def __init__(self) -> None:
        self.rows = array("q")
        self.rejects = array("q")
        self.lag = array("q")
        """LAG_UNKNOWN before the first batch."""
        self.batch_ms = array("q")
        self.late = array("q")
        """With those from the future: rows that a window leaves out."""

    def add(self, stage: Stage) -> None:
        _push(self.rows, stage.rows)
        _push(self.rejects, stage.rejects)
        _push(self.lag, stage.lag)
        _push(self.batch_ms, stage.batch_ms)
        _push(self.late, stage.late + stage.future)

    def late_in_the_hour(self) -> int:
        """Counts begin at 0 with each run."""
        return sum(now - before if now >= before else now for before, now in pairwise(self.late))


class History:
    """Takes a sample every ten seconds, from `start` to `stop`."""

    def __init__(self, sources: Sources, clock: Clock) -> None:
        self.times_ms = array("q")
        self.appended_records = array("q")
        self.appended_bytes = array("q")
        self.received_bytes = array("q")
        self.sent_bytes = array("q")
        self.received_records = array("q")
        self.sent_records = array("q")
        self.disk_free_bytes = array("q")
        """-1 if the log is not in files."""
        self.on_sampled: Callable[[int], None] = lambda now_ms: None
        """Called after each sample with its time."""
        self._lags: dict[SeriesKey, LagSeries] = {}
        self._stages: dict[StageKey, StageSeries] = {}
        self._sources = sources
        self._clock = clock
        self._loop: Loop | None = None

    def start(self) -> None:
        self._loop = self._sources.broker.background.loop("history", self._step, first_s=FIRST_AFTER_S)

    async def stop(self) -> None:
        if self._loop is not None:
            await self._loop.cancel()
            self._loop = None

    async def _step(self) -> float:
        await self.sample()
        return SAMPLE_EVERY_S

    async def sample(self) -> None:
        """Take one sample now."""
        lags = await self._current_lags()
        engine = self._sources.engine
        _push(self.times_ms, self._clock.now_ms())
        _push(self.appended_records, engine.stats.appended_records)
        _push(self.appended_bytes, engine.stats.appended_bytes)
        listeners = [each.stats for each in self._sources.listeners.values()]
        _push(self.received_bytes, sum(each.bytes_in for each in listeners))
        _push(self.sent_bytes, sum(each.bytes_out for each in listeners))
        sessions = self._sources.sessions.values()
        _push(self.received_records, sum(each.received_records for each in sessions))
        _push(self.sent_records, sum(each.sent_records for each in sessions))
        files = engine.files
        _push(self.disk_free_bytes, -1 if files is None else shutil.disk_usage(files.directory).free)
        self._lags = {key: self._lags.get(key) or LagSeries() for key in lags}
        for key, (records, seconds) in lags.items():
            self._lags[key].add(records, seconds)
        stages = self._current_stages()
        self._stages = {place: self._stages.get(place) or StageSeries() for place in stages}
        for place, stage in stages.items():
            self._stages[place].add(stage)
        self.on_sampled(self.times_ms[-1])

    async def _current_lags(self) -> dict[SeriesKey, tuple[int, float | None]]:
        broker = self._sources.broker
        lags: dict[SeriesKey, tuple[int, float | None]] = {}
        for each in (await broker.groups.lags(SYSTEM, LAGS_EXPORTED_MAX)).lags:
            key = SeriesKey("group", each.topic, each.group)
            records, seconds = lags.get(key, (0, 0.0))
            oldest_s = None if seconds is None or each.seconds is None else max(seconds, each.seconds)
            lags[key] = records + each.records, oldest_s
        for status in await broker.subscription_admin.first_statuses(SYSTEM, LAGS_EXPORTED_MAX):
            lags[SeriesKey("subscription", status.topic, status.name)] = status.lag, status.seconds
        return lags

    def _current_stages(self) -> dict[StageKey, Stage]:
        reported = (
            (StageKey(pipeline.name, stage.name), stage)
            for pipeline in self._sources.broker.pipelines.infos()
            for stage in pipeline.stages
        )
        return dict(islice(reported, STAGES_SAMPLED_MAX))

    def stages_of(self, pipeline: str) -> Iterator[tuple[str, array[int], StageSeries]]:
        """Yield the name, the times and the samples of each stage of a pipeline."""
        for key, series in self._stages.items():
            if key.pipeline == pipeline:
                yield key.stage, self.times_ms[-len(series.rows) :], series

    def late_rows(self) -> Iterator[tuple[StageKey, int]]:
        """Yield how many rows each stage has left out in the last hour because of their time."""
        return ((key, series.late_in_the_hour()) for key, series in self._stages.items())

    def lags(self, kind: Kind) -> Iterator[tuple[SeriesKey, LagSeries]]:
        """Yield the lag of every group or subscription in each topic, as it was in the last sample and before."""
        return ((key, series) for key, series in self._lags.items() if key.kind == kind)

    def lags_of(self, kind: Kind, name: str, topic: str | None = None) -> Iterator[tuple[str, array[int], LagSeries]]:
        """Yield the topic, the times and the lag of a group or subscription, for each topic that it reads or for one."""
        for key, series in sorted(self._lags.items()):
            if (key.kind, key.name) == (kind, name) and topic in (None, key.topic):
                yield key.topic, self.times_ms[-len(series.records) :], series

    def disk_full_in_s(self) -> float | None:
        """Return when the disk will be full at the pace of this history, None if it does not fill or nobody can tell yet."""
        if len(self.times_ms) < 2 or self.disk_free_bytes[-1] < 0:
            return None
        elapsed_s = (self.times_ms[-1] - self.times_ms[0]) / 1000
        used_bytes = self.disk_free_bytes[0] - self.disk_free_bytes[-1]
        if elapsed_s < FILLING_S_MIN or used_bytes <= 0:
            return None
        return self.disk_free_bytes[-1] * elapsed_s / used_bytes


def _push(samples: array[_Number], value: _Number) -> None:
    samples.append(value)
    if len(samples) > SAMPLES_MAX:
        del samples[0]
