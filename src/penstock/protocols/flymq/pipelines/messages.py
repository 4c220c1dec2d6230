"""Requests about pipelines, and what they find out. Not in the contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec


class StageReport(msgspec.Struct, frozen=True):
    """What one stage of a run has done since the run began."""

    name: str
    state: str
    rows: int = 0
    rejects: int = 0
    lag: int = -1
    """Records that wait; -1 where that is not known yet."""
    batches: int = 0
    batch_ms: int = 0


@dataclass(slots=True)
class PipelineReport:
    pipeline: str
    run: str
    started_ms: int
    state: str
    message: str
    stages: Sequence[StageReport]


@dataclass(slots=True)
class PipelineList:
    pass


@dataclass(slots=True)
class PipelineStop:
    pipeline: str


PipelineBody = PipelineReport | PipelineList | PipelineStop


class PipelineDescription(msgspec.Struct, frozen=True):
    """The last report of a pipeline."""

    name: str
    owner: str
    run: str
    started_ms: int
    updated_ms: int
    state: str
    message: str
    stopping: bool
    """It was asked to stop, and has not said that it did."""
    alive: bool
    """It says that it runs, and said so lately."""
    stages: list[StageReport]
