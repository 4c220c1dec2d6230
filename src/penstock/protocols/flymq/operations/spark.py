"""What Spark jobs ask for: staged records that a commit publishes, and the reports of pipelines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, NamedTuple

from penstock.frame_bounds import REPLY_ITEMS_MAX
from penstock.protocols.flymq.operations.layout import (
    I32,
    I64,
    NOT_SENT,
    TAIL,
    U8,
    U32,
    U64,
    AtMost,
    Bool,
    Bytes,
    Label,
    Str,
)
from penstock.protocols.flymq.operations.limits import (
    STAGED_ATTEMPTS_MAX,
    STAGED_BLOCKS_MAX,
    STAGES_MAX,
    UNSTAGED_MAX,
)
from penstock.protocols.flymq.operations.operation import Operation, ReplyList

# --- staged records ---


@dataclass(frozen=True, slots=True)
class Run:
    """A run of an application: its number, the last epoch that was committed (-1: none), and the query that the application belongs to.
    Of the topic that was named, if it exists, also the id and the number of partitions."""

    number: Annotated[U64, Label("run")]
    epoch: I64
    query: Annotated[Str, TAIL] = ""
    """Empty if none was named."""
    topic_id: Annotated[Str, TAIL] = ""
    partitions: Annotated[U32, TAIL] = 0
    """0 if there is no such topic."""


class BeginRun(Operation[Run], opcode=0xD2):
    """Begin a run of an application, or find the one of this name. What older runs staged is dropped."""

    application: Str
    name: Annotated[Str, Label("run")]
    lasting: Bool
    """False: the application has one epoch, and is soon forgotten."""
    query: Annotated[Str, TAIL] = ""
    """The query that writes: replies to later queries of the application name the first one. Empty for none."""
    replaces: Annotated[Bool, TAIL] = False
    """From now on the application belongs to this query."""
    topic: Annotated[Str, TAIL] = ""
    """A topic to describe, which need not exist. Empty for none."""


class Stage(Operation[Bool], opcode=0xD3):
    """Store records that no reader sees until an epoch of their application is committed. Blocks are as in the format of the log."""

    application: Str
    run: U64
    epoch: U64
    attempt: Str
    sequence: U32
    topic: Str
    parts: Annotated[Sequence[tuple[I32, Bytes]], AtMost(STAGED_BLOCKS_MAX), Label("blocks")]
    """Partitions and blocks for them."""


class Winner(NamedTuple):
    """An attempt that is to be published, and how many STAGE requests it sent."""

    attempt: Str
    requests: U32


class Unstaged(NamedTuple):
    """Records for a topic that come with the commit of their epoch."""

    topic: Str
    topic_id: Str
    """As BEGIN_RUN returned it: a topic that was created again gets none of them."""
    parts: Annotated[Sequence[tuple[I32, Bytes]], AtMost(STAGED_BLOCKS_MAX), Label("blocks")]
    """Partitions and blocks for them."""


class StageCommit(Operation[U8], opcode=0xD4, long_lists=True):
    """Publish what the attempts staged and the records that come with this request, once and together. The reply: 0 was committed before,
    1 done now, 2 a commit of the application is decided and still being published, so ask again."""

    application: Str
    run: U64
    epoch: U64
    winners: Annotated[Sequence[Winner], AtMost(STAGED_ATTEMPTS_MAX), Label("attempts")]
    unstaged: Annotated[list[Unstaged], AtMost(UNSTAGED_MAX), TAIL] = field(default_factory=list)
    """Few records need not be staged."""


class StageAbort(Operation[Bool], opcode=0xD5):
    """Drop what was staged for an epoch. The reply is false if it is committed, and stays."""

    application: Str
    run: U64
    epoch: U64


# --- pipelines ---


@dataclass(frozen=True, slots=True)
class StageReport:
    """What one stage of a run has done since the run began."""

    name: Annotated[Str, Label("stage")]
    state: Str
    rows: U64 = 0
    rejects: U64 = 0
    lag: I64 = -1
    """Records that wait; -1 if that is not known yet."""
    batches: U64 = 0
    batch_ms: U64 = 0
    # These go in a list of their own, for peers that do not know them.
    dropped: Annotated[int, NOT_SENT] = 0
    """Rows that did not meet an expectation."""
    late: Annotated[int, NOT_SENT] = 0
    """Rows that came after their window was done."""
    future: Annotated[int, NOT_SENT] = 0
    """Rows that are dated too far ahead."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows of a stage that are in no table."""

    stage: Str
    dropped: U64
    late: U64
    future: U64


def left_out_of(stages: Iterable[StageReport]) -> list[LeftOut]:
    """Of the stages that leave rows out."""
    return [
        LeftOut(each.name, each.dropped, each.late, each.future)
        for each in stages
        if each.dropped or each.late or each.future
    ]


def with_left_out(stages: Iterable[StageReport], left_out: Iterable[LeftOut]) -> list[StageReport]:
    """Stages with what they leave out, as the list of it says."""
    known = {each.stage: each for each in left_out}
    return [
        replace(stage, dropped=found.dropped, late=found.late, future=found.future)
        if (found := known.get(stage.name)) is not None
        else stage
        for stage in stages
    ]


class PipelineReport(Operation[Bool], opcode=0xD8):
    """Report how a run is doing; the reply is whether it should stop."""

    pipeline: Str
    run: Str
    started_ms: I64
    state: Str
    message: Str
    stages: Annotated[Sequence[StageReport], AtMost(STAGES_MAX)]
    left_out: Annotated[list[LeftOut], AtMost(STAGES_MAX), TAIL] = field(default_factory=list)
    """Of the stages that leave rows out."""


@dataclass(frozen=True, slots=True)
class PipelineDescription:
    """The last report of a pipeline."""

    name: Annotated[Str, Label("pipeline")]
    owner: Str
    run: Str
    started_ms: I64
    updated_ms: I64
    state: Str
    message: Str
    stopping: Bool
    """It was asked to stop, and has not reported that it did."""
    alive: Bool
    """It reported recently that it runs."""
    stages: Annotated[list[StageReport], AtMost(STAGES_MAX)]


@dataclass(frozen=True, slots=True)
class PipelineListing:
    pipelines: ReplyList[PipelineDescription]
    left_out: Annotated[list[tuple[Str, LeftOut]], AtMost(REPLY_ITEMS_MAX), TAIL] = field(default_factory=list)
    """By pipeline, of the stages that leave rows out."""


class PipelineList(Operation[PipelineListing], opcode=0xD9):
    """The last report of every pipeline, by name."""


class PipelineStop(Operation[Bool], opcode=0xDA):
    """Ask the running run of a pipeline to stop; the reply is whether there is one."""

    pipeline: Str
