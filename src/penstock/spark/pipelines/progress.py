"""How the stages of a run are doing, out of what Spark says after each batch."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from penstock.errors import InvalidRequest
from penstock.protocols.flymq.operations.spark import StageReport
from penstock.spark.delta_format import RECORDS, VERSION
from penstock.spark.offsets import Positions, StreamOffset, is_start

FUTURE: Final = "future"
"""The metric, observed by the query, of rows that were left out because they claim to come from the future."""


class Counts(NamedTuple):
    """What became of records that are not in the table, since the run began."""

    rejects: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class StageProgress:
    name: str
    state: str = "starting"
    rows: int = 0
    """Since the run began, like the rejects and the batches."""
    rejects: int = 0
    dropped: int = 0
    """By expectations."""
    late: int = 0
    """Rows that came after their window was done, which Spark drops."""
    future: int = 0
    """Rows that were left out because their time lies too far ahead."""
    lag: int = -1
    batches: int = 0
    batch_id: int = -1
    batch_ms: int = 0
    batch_rows: int = 0
    rows_per_s: float = 0.0
    positions: Positions = field(default_factory=dict)
    """How far it has read."""

    def report(self) -> StageReport:
        return StageReport(
            self.name,
            self.state,
            self.rows,
            self.rejects,
            self.lag,
            self.batches,
            self.batch_ms,
            self.dropped,
            self.late,
            self.future,
        )


class Progress:
    """The stages of one run. Spark tells from a thread of its own."""

    def __init__(self, names: list[str]) -> None:
        self._lock = threading.Lock()
        self._stages = {name: StageProgress(name) for name in names}

    def add(self, names: list[str]) -> None:
        """Stages that the run did not begin with."""
        with self._lock:
            self._stages |= {name: StageProgress(name) for name in names}

    def stages(self) -> list[StageProgress]:
        with self._lock:
            return list(self._stages.values())

    def state(self, name: str, state: str) -> None:
        with self._lock:
            self._stages[name] = replace(self._stages[name], state=state)

    def finished(self, name: str) -> None:
        """It has read all there was to read; where it has told of no batch, that was nothing."""
        with self._lock:
            before = self._stages[name]
            self._stages[name] = replace(before, state="finished", lag=max(before.lag, 0))

    def idle(self, name: str) -> None:
        """There is nothing that the stage has not read."""
        with self._lock:
            self._stages[name] = replace(self._stages[name], lag=0, rows_per_s=0.0)

    def states(self, state: str) -> None:
        """For all stages that have not ended."""
        with self._lock:
            for name, stage in self._stages.items():
                if stage.state in ("starting", "running", "stopping"):
                    self._stages[name] = replace(stage, state=state)

    def batch(self, name: str, said: Mapping[str, Any], counts: Counts) -> StageProgress | None:
        """Spark has told of a batch; None if there was none."""
        durations = said.get("durationMs") or {}
        with self._lock:
            before = self._stages[name]
            ends = _positions(said, "endOffset")
            # A batch that is done again tells where it ends, and nobody has looked yet where the log does.
            lag = _lag(said, before.lag)
            if "addBatch" not in durations:
                self._stages[name] = replace(before, lag=lag, rows_per_s=0.0)
                return None
            rows = int(said.get("numInputRows") or 0)
            batch_ms = int(durations.get("triggerExecution") or 0)
            stage = replace(
                before,
                rows=before.rows + rows,
                rejects=counts.rejects,
                dropped=counts.dropped,
                late=before.late + _late(said),
                future=before.future + _from_the_future(said),
                lag=lag,
                batches=before.batches + 1,
                batch_id=int(said.get("batchId", -1)),
                batch_ms=batch_ms,
                batch_rows=rows,
                rows_per_s=rows * 1000 / batch_ms if batch_ms else 0.0,
                positions={**before.positions, **ends},
            )
            self._stages[name] = stage
            return stage


def _late(said: Mapping[str, Any]) -> int:
    """How many rows of a batch came too late, over all of its stateful operators."""
    return sum(int(each.get("numRowsDroppedByWatermark") or 0) for each in said.get("stateOperators") or ())


def _from_the_future(said: Mapping[str, Any]) -> int:
    observed = said.get("observedMetrics") or {}
    return sum(int((metrics or {}).get(FUTURE) or 0) for metrics in observed.values())


def _lag(said: Mapping[str, Any], otherwise: int) -> int:
    """How many records wait, over all sources: offsets of topics, and rows of tables."""
    ends, latest = _positions(said, "endOffset"), _positions(said, "latestOffset")
    lags = [_records_between(ends, latest)] if ends and latest else []
    for source in said.get("sources") or ():
        read, there = (_rows_up_to(_offset(source, which)) for which in ("endOffset", "latestOffset"))
        if read is not None and there is not None:
            lags.append(max(0, there - read))
    return sum(lags) if lags else otherwise


def _positions(said: Mapping[str, Any], which: str) -> Positions:
    """Over all sources of a query."""
    found: dict[str, Mapping[int, int]] = {}
    for source in said.get("sources") or ():
        offset = _offset(source, which)
        if offset is None or is_start(offset):
            continue
        try:
            found |= StreamOffset.decode(offset).positions
        except InvalidRequest:
            continue
    return found


def _offset(source: Mapping[str, Any], which: str) -> Mapping[str, Any] | None:
    offset = source.get(which)
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    return offset if isinstance(offset, Mapping) else None


def _rows_up_to(offset: Mapping[str, Any] | None) -> int | None:
    """Of a table, from its first row; None if the offset is none of a table."""
    if offset is None or not isinstance(offset.get(VERSION), int):
        return None
    return int(offset.get(RECORDS) or 0)


def _records_between(ends: Positions, latest: Positions) -> int:
    return sum(
        max(0, end - ends.get(topic, {}).get(partition, 0))
        for topic, numbers in latest.items()
        for partition, end in numbers.items()
    )
