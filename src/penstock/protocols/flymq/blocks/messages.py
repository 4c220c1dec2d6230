"""Requests of readers that take whole blocks, and what they find out. Not in the contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

NO_EPOCH: Final = -1
"""In place of a partition's log epoch: the reader knows none."""


@dataclass(slots=True)
class FetchBlocks:
    topic: str
    topic_id: str
    """Empty: whatever topic has the name now."""
    partition: int
    offset: int
    max_bytes: int
    skip: int
    """Bytes of the first block that came with an earlier reply."""
    epoch: int
    """The log epoch that the offset belongs to, or NO_EPOCH."""


class PartitionSpan(NamedTuple):
    """The records of a partition that a reader is about to read; or, in a request that waits, those it knows of."""

    partition: int
    offset: int
    end_offset: int
    bytes_max: int = 0
    """How many bytes to plan for; 0 for no bound."""
    epoch: int = NO_EPOCH
    """The log epoch that the offsets belong to."""


@dataclass(slots=True)
class TopicSpans:
    topic: str
    spans: Sequence[PartitionSpan]


@dataclass(slots=True)
class ReadPlan:
    topics: Sequence[TopicSpans]
    step_bytes: int
    """How far apart marks shall be; 0: no extents are asked for."""
    wait_ms: int
    """How long to wait for a record behind one of the spans."""


BlocksBody = FetchBlocks | ReadPlan


class EncodedBlocks(NamedTuple):
    """Whole blocks as they are stored, with seals of 0, and what the partition holds."""

    start_offset: int
    end_offset: int
    data: bytes


class PlannedExtent(NamedTuple):
    """A stretch of a partition in one file."""

    path: str
    """From the log's directory; empty where the file cannot be read by others."""
    marks: Sequence[tuple[int, int]]
    """Offset and position of blocks, rising; reading begins at the first."""
    end: int
    next_offset: int
    file_bytes: int
    """The size of the file where it is finished, 0 where it still grows."""


class PlannedPartition(NamedTuple):
    partition: int
    start_offset: int
    end_offset: int
    epoch: int
    """The partition's log epoch."""
    cut: int | None
    """The lowest offset at which the log was cut after the epoch of the span, None if it was not."""
    extents: Sequence[PlannedExtent]


class PlannedTopic(NamedTuple):
    topic: str
    id: str
    """Empty where there is no such topic."""
    retained: bool
    """Whether retention takes records away. Where it does not, what is missing at the start was compacted away or has expired."""
    partitions: Sequence[PlannedPartition]


class Plan(NamedTuple):
    """What a broker holds of some topics, and where its files are for who is on the same machine."""

    directory: str
    proof: str
    token: str
    """The file `proof` in `directory` holds it, if this is the machine. All three are empty where files cannot be read by others."""
    topics: Sequence[PlannedTopic]
