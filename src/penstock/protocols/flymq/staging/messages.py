"""What FlyMQ says about staged records. None of it is in the contract: these requests are Penstock's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Winner(NamedTuple):
    """An attempt that is to be published, and how many STAGE requests it sent."""

    attempt: str
    requests: int


class Run(NamedTuple):
    """A run of an application: its number, and the last epoch that was committed, -1 for none."""

    number: int
    epoch: int


@dataclass(slots=True)
class Stage:
    application: str
    run: int
    epoch: int
    attempt: str
    sequence: int
    topic: str
    parts: Sequence[tuple[int, bytes]]
    """Partitions and blocks for them."""


@dataclass(slots=True)
class StageCommit:
    application: str
    run: int
    epoch: int
    winners: list[Winner]


@dataclass(slots=True)
class StageAbort:
    application: str
    run: int
    epoch: int


@dataclass(slots=True)
class BeginRun:
    application: str
    name: str
    lasting: bool


StagingBody = Stage | StageCommit | StageAbort | BeginRun
