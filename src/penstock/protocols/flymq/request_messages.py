"""What FlyMQ requests say. `request_decoding` makes them from payloads, `codec` from whole reads; layouts are in `wire`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.protocols.flymq.access.messages import AccessBody
from penstock.protocols.flymq.blocks.messages import BlocksBody
from penstock.protocols.flymq.keys.messages import KeyBody
from penstock.protocols.flymq.lifetime.messages import LifetimeBody
from penstock.protocols.flymq.pipelines.messages import PipelineBody
from penstock.protocols.flymq.schemas.messages import SchemaBody
from penstock.protocols.flymq.snapshots.messages import SnapshotBody
from penstock.protocols.flymq.staging.messages import StagingBody
from penstock.protocols.flymq.transactions.messages import TransactionBody


@dataclass(slots=True)
class ProduceRun:
    """Consecutive PRODUCE frames with one topic; one reply each. `keys` is None where no record has one."""

    topic: str
    partition: int
    """The partition field of the first frame, and of all others unless `partitions` is there."""
    keys: list[bytes | None] | None
    values: list[bytes]
    request_bytes: int
    partitions: list[int] | None = None
    """The partition field of each frame, where they differ."""

    def records(self) -> Iterator[ProduceRun]:
        """Each record as a run of its own; the size of the requests is not known by record."""
        for row, value in enumerate(self.values):
            key = None if self.keys is None else self.keys[row]
            partition = self.partition if self.partitions is None else self.partitions[row]
            yield ProduceRun(self.topic, partition, None if key is None else [key], [value], 0)


@dataclass(slots=True)
class Consume:
    topic: str
    partition: int
    offset: int


@dataclass(slots=True)
class CreateTopic:
    topic: str
    partitions: int
    settings: list[tuple[str, str]]
    """Penstock's own tail: pairs of name and value, checked by the broker."""


@dataclass(slots=True)
class Metadata:
    topic: str


@dataclass(slots=True)
class Subscribe:
    topic: str
    group: str
    partition: int
    mode: str
    native: bool
    """The mode had a u8 length, as deployed clients send it."""


@dataclass(slots=True)
class Commit:
    topic: str
    group: str
    partition: int
    offset: int


@dataclass(slots=True)
class Fetch:
    topic: str
    partition: int
    offset: int
    max_records: int
    filter: str | None
    """None where the request ends before the field: the peer expects the contract's reply layout."""


@dataclass(slots=True)
class ListTopics:
    pass


@dataclass(slots=True)
class DeleteTopic:
    topic: str


@dataclass(slots=True)
class ClusterMetadata:
    topic: str
    """Empty for all topics."""


@dataclass(slots=True)
class GetOffset:
    topic: str
    group: str
    partition: int


@dataclass(slots=True)
class ResetOffset:
    topic: str
    group: str
    partition: int
    mode: str
    offset: int | None


@dataclass(slots=True)
class ListGroups:
    pass


@dataclass(slots=True)
class DescribeGroup:
    topic: str
    """Empty for any topic."""
    group: str
    group_only: bool
    """The request held one string, so the peer expects the group-wide reply layout."""


@dataclass(slots=True)
class GetLag:
    topic: str
    group: str
    partition: int


@dataclass(slots=True)
class DeleteGroup:
    topic: str
    """Empty for any topic."""
    group: str


@dataclass(slots=True)
class SeekToTimestamp:
    topic: str
    group: str
    """Empty: answer the offset and commit nothing."""
    partition: int
    timestamp_ms: int


@dataclass(slots=True)
class Authenticate:
    user: str
    password: str = field(repr=False)


@dataclass(slots=True)
class WhoAmI:
    pass


@dataclass(slots=True)
class BadRequest:
    """A frame that was read whole but cannot be carried out; the message is the ERROR text."""

    message: str


@dataclass(slots=True)
class Undecoded:
    """A payload that takes too long for the event loop, and is decoded elsewhere when its turn comes. Several gzip payloads are thus
    never in memory inflated at once."""

    payload: bytes
    gzip: bool


Body = (
    Consume
    | CreateTopic
    | Metadata
    | Subscribe
    | Commit
    | Fetch
    | ListTopics
    | DeleteTopic
    | ClusterMetadata
    | GetOffset
    | ResetOffset
    | ListGroups
    | DescribeGroup
    | GetLag
    | DeleteGroup
    | SeekToTimestamp
    | Authenticate
    | WhoAmI
    | AccessBody
    | BlocksBody
    | KeyBody
    | PipelineBody
    | SnapshotBody
    | LifetimeBody
    | SchemaBody
    | StagingBody
    | TransactionBody
    | BadRequest
    | Undecoded
)


@dataclass(slots=True)
class Call:
    """Any request but an uncompressed PRODUCE."""

    opcode: int
    body: Body
    request_bytes: int


Request = ProduceRun | Call
