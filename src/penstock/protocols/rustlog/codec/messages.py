"""RustLog messages, the same whichever dialect carries them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.protocols.rustlog.wire import LENGTH_BYTES, Dialect, Opcode

RECORD_BYTES_IN_MEMORY = 48
"""What a record takes in memory besides its payload; on the wire it may be as little as three bytes."""


@dataclass(slots=True)
class ProduceRun:
    """Consecutive PRODUCE frames of one dialect for one partition. `counts` has the number of records of each frame."""

    dialect: Dialect
    topic: str
    partition: int
    values: list[bytes]
    counts: list[int]
    request_bytes: int


@dataclass(frozen=True, slots=True)
class Fetch:
    topic: str
    partition: int
    offset: int
    max_bytes: int
    group: str
    """Empty for none."""


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    topic: str
    partition: int
    group: str
    offset: int


@dataclass(frozen=True, slots=True)
class OffsetFetch:
    topic: str
    partition: int
    group: str


@dataclass(frozen=True, slots=True)
class CreateTopic:
    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class ListTopics:
    pass


@dataclass(frozen=True, slots=True)
class DescribeTopic:
    topic: str


@dataclass(frozen=True, slots=True)
class DescribePartition:
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Metrics:
    pass


@dataclass(frozen=True, slots=True)
class Ping:
    pass


@dataclass(frozen=True, slots=True)
class BadRequest:
    """A request that cannot be understood; the words say why."""

    message: str


Body = (
    Fetch
    | OffsetCommit
    | OffsetFetch
    | CreateTopic
    | ListTopics
    | DescribeTopic
    | DescribePartition
    | Metrics
    | Ping
    | BadRequest
)


@dataclass(slots=True)
class Call:
    """Any request but a PRODUCE. `opcode` is that of the frame, also where nobody knows it; 0 for JSON that names no request."""

    dialect: Dialect
    opcode: int
    body: Body
    request_bytes: int


@dataclass(frozen=True, slots=True)
class MalformedFrame:
    """A length that no frame may have. It is answered, and nothing after it is read."""

    dialect: Dialect
    message: str
    request_bytes: int = LENGTH_BYTES


@dataclass(frozen=True, slots=True)
class Undecoded:
    """JSON that takes too long for the event loop, and is decoded elsewhere when its turn comes."""

    payload: bytes

    @property
    def request_bytes(self) -> int:
        return LENGTH_BYTES + len(self.payload)


Request = ProduceRun | Call | MalformedFrame | Undecoded

# --- replies ---


@dataclass(frozen=True, slots=True)
class PartitionState:
    index: int
    high_watermark: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class TopicState:
    topic: str
    partitions: Sequence[PartitionState]


@dataclass(frozen=True, slots=True)
class Failure:
    """An ERROR reply. JSON carries only the message."""

    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Produced:
    offsets: Sequence[int]


@dataclass(frozen=True, slots=True)
class Fetched:
    offsets: Sequence[int]
    values: Sequence[bytes]
    next_offset: int


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply as it came, to be decoded by the caller."""

    dialect: Dialect
    opcode: Opcode
    payload: bytes
