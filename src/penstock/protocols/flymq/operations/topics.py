"""Topics, consumer groups and the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Self

from penstock.errors import ProtocolViolation
from penstock.frame_bounds import REPLY_ITEMS_MAX
from penstock.protocols.bytes import ByteReader
from penstock.protocols.flymq.operations.layout import (
    I32,
    I64,
    NOT_SENT,
    TAIL,
    U32,
    U64,
    AtMost,
    Bool,
    Label,
    Number,
    OneOf,
    Pieces,
    Shared,
    ShortText,
    Str,
    Tail,
    Word,
)
from penstock.protocols.flymq.operations.limits import SETTINGS_MAX
from penstock.protocols.flymq.operations.operation import Operation, ReplyList

Names = Annotated[list[Str], AtMost(REPLY_ITEMS_MAX)]
ALL_PARTITIONS: Final = -1


@dataclass(slots=True)
class Done:
    """The outcome of a change. Deployed brokers leave the message out of some."""

    success: Bool
    message: Annotated[Str, Tail(always_sent=True)] = ""


# --- topics ---


class CreateTopic(Operation[Done], opcode=0x03):
    """Create a topic. One that exists stays as it is, and that is no error."""

    topic: Str
    partitions: I32
    """0 for 1."""
    settings: Annotated[list[tuple[Str, Str]], AtMost(SETTINGS_MAX), TAIL] = field(default_factory=list)
    """Pairs of name and value."""


@dataclass(slots=True)
class PartitionMetadata:
    index: Annotated[I32, Label("partition")]
    leader: I32
    start_offset: U64
    next_offset: U64


@dataclass(slots=True)
class TopicMetadata:
    topic: Str
    partitions: Annotated[list[PartitionMetadata], AtMost(REPLY_ITEMS_MAX)]
    config: Annotated[dict[Str, Str], AtMost(REPLY_ITEMS_MAX), Tail(always_sent=True)] = field(default_factory=dict)


class Metadata(Operation[TopicMetadata], opcode=0x04):
    """The partitions of a topic and its settings, among them `id`, `created_ms` and `schema`."""

    topic: Str


class ListTopics(Operation[Names], opcode=0x08):
    """The names of all topics that the client may see, sorted."""


@dataclass(slots=True)
class DescribedTopic:
    """What METADATA tells of a topic."""

    topic: Str
    partitions: Annotated[list[PartitionMetadata], AtMost(REPLY_ITEMS_MAX)]
    config: Annotated[dict[Str, Str], AtMost(REPLY_ITEMS_MAX)]


@dataclass(slots=True)
class TopicPage:
    topics: Annotated[list[DescribedTopic], AtMost(REPLY_ITEMS_MAX)]
    more: Bool
    """Whether to ask again with the last topic of this page."""


class TopicList(Operation[TopicPage], opcode=0xCF):
    """The topics that the client may see with what METADATA tells of each, by name, a page at a time."""

    after: Str = ""
    """The last topic of the page before; empty for the first page."""


class DeleteTopic(Operation[Bool], opcode=0x09, repeatable=False):
    """Delete a topic. That it does not exist is no error."""

    topic: Str


class AlterTopic(Operation[Done], opcode=0xCC):
    """Change settings of a topic. Those that are not sent stay as they are."""

    topic: Str
    settings: Annotated[list[tuple[Str, Str]], AtMost(SETTINGS_MAX)]
    """Pairs of name and value, as in CREATE_TOPIC; without `partitions` and `schema`."""


class AddPartitions(Operation[Done], opcode=0xCD):
    """Give a topic more partitions. Records stay where they are; records with a key may go to another partition from then on."""

    topic: Str
    partitions: I32
    """How many it is to have; not fewer than it has."""


class TruncateTopic(Operation[Done], opcode=0xCE):
    """Delete the records of a topic before a position."""

    topic: Str
    partition: I32
    """-1 for all."""
    mode: Word
    """offset: before `position`, which needs one partition; time: older than `position`, in ms since 1970; end: all there are."""
    position: I64
    """Ignored for the mode end."""


@dataclass(slots=True)
class SnapshotDescription:
    """A snapshot that the broker has made in its data directory."""

    id: Str
    directory: Str
    """On the machine of the broker."""


class SnapshotCreate(Operation[SnapshotDescription], opcode=0xC6):
    """Keep every topic as it is now, for a reader on the broker's machine that locks the snapshot within a minute."""


class SnapshotRelease(Operation[Bool], opcode=0xC7):
    """Forget a snapshot. Once nobody holds its lock, its files are removed."""

    id: Str


# --- groups ---


class Subscribe(Operation[U64], opcode=0x05):
    """Join a group for as long as the connection lasts; the reply is the offset to start at."""

    topic: Str
    group: Str
    partition: I32
    mode: Str
    """earliest, latest or commit. Deployed clients send an s8."""
    native: Annotated[bool, NOT_SENT] = False
    """The mode had a u8 length, as deployed clients send it."""

    @classmethod
    def read(cls, reader: ByteReader) -> Self:
        topic, group, partition = reader.text16("topic"), reader.text16("group"), reader.i32("partition")
        start = reader.peek(1)
        # A u8 length can only equal the bytes after it if the u16 reading does not, so the two forms never both fit.
        if start and start[0] == reader.remaining - 1:
            return cls(topic, group, partition, reader.text8("mode"), native=True)
        return cls(topic, group, partition, reader.text16("mode"))

    def write(self, pieces: Pieces) -> None:
        *names, mode = self.payload.fields
        for each in names:
            each.layout.write(getattr(self, each.name), pieces)
        (ShortText() if self.native else mode.layout).write(self.mode, pieces)


class Commit(Operation[Bool], opcode=0x06):
    """Store the offset of a group in a partition."""

    topic: Str
    group: Str
    partition: I32
    offset: U64
    """The next one that the group reads."""


class GetOffset(Operation[U64], opcode=0x60):
    """The committed offset; 0 if there is none."""

    topic: Str
    group: Str
    partition: I32


class ResetOffset(Operation[Bool], opcode=0x61):
    """Move the committed offset of a group."""

    topic: Str
    group: Str
    partition: I32
    mode: Word
    """earliest, latest or offset."""
    offset: Annotated[int | None, Number("u64", "Q"), TAIL] = None
    """Needed for the mode offset, and ignored for others."""

    @classmethod
    def read(cls, reader: ByteReader) -> Self:
        request = super().read(reader)
        if request.mode == "offset" and request.offset is None:
            raise ProtocolViolation("buffer too small: offset is missing")
        return request


@dataclass(slots=True)
class GroupState:
    """Committed offsets and subscribed connections of one group on one topic."""

    topic: Str
    group: Str
    members: U32
    offsets: Annotated[dict[I32, U64], AtMost(REPLY_ITEMS_MAX)]
    """By partition."""


class ListGroups(
    Operation[ReplyList[GroupState]],
    opcode=0x62,
    smaller="describe one group at a time",
):
    """Every group on every topic: members, and the committed offset of each partition."""


@dataclass(slots=True)
class GroupSummary:
    """A group over all its topics."""

    group: Str
    state: Str
    members: Names
    topics: Names
    coordinator: Str


class DescribeGroup(
    Operation[Annotated[GroupState | GroupSummary, OneOf(GroupState, GroupSummary)]],
    opcode=0x63,
    smaller="name a topic too",
):
    """One group on one topic. A request of one string alone names a group over all topics, and gets the second form of reply."""

    topic: Str
    """Empty for any topic."""
    group: Str
    group_only: Annotated[bool, NOT_SENT] = False
    """The request held one string, so the peer expects the summary."""

    @classmethod
    def read(cls, reader: ByteReader) -> Self:
        topic, group = _topic_and_group(reader)
        return cls(topic or "", group, group_only=topic is None)


@dataclass(slots=True)
class GroupLag:
    current: U64
    committed: U64
    latest: U64
    lag: U64


class GetLag(Operation[GroupLag], opcode=0x64):
    """How many records a group has yet to read; `current` is the committed offset, `latest` the next one of the partition."""

    topic: Str
    group: Str
    partition: I32


class DeleteGroup(Operation[Bool], opcode=0x65, repeatable=False):
    """Delete the committed offsets of a group."""

    topic: Str
    """Empty for any topic; it may be absent too."""
    group: Str

    @classmethod
    def read(cls, reader: ByteReader) -> Self:
        topic, group = _topic_and_group(reader)
        return cls(topic or "", group)


class SeekToTimestamp(Operation[U64], opcode=0x66):
    """The first offset at or after a time."""

    topic: Str
    group: Str
    """Empty: answer the offset and commit nothing."""
    partition: I32
    timestamp_ms: I64


def _topic_and_group(reader: ByteReader) -> tuple[str | None, str]:
    first = reader.text16("topic or group")
    return (first, reader.text16("group")) if reader.remaining else (None, first)


# --- the cluster ---


class ClusterJoin(Operation[Bool], opcode=0x50):
    """Always refused: nodes join by their configuration."""

    peer: Annotated[Str, TAIL] = ""


class ClusterLeave(Operation[Bool], opcode=0x51):
    """Always refused: nodes leave when they are stopped."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster and its nodes (id, address, state), and how many topics and partitions it has."""

    name: Annotated[Str, Label("cluster")]
    leader: Str
    nodes: Annotated[list[tuple[Str, Str, Str]], AtMost(REPLY_ITEMS_MAX)]
    topics: U32
    partitions: U32
    partitions_failed: U32
    owners: Annotated[list[Str], AtMost(REPLY_ITEMS_MAX), TAIL] = field(default_factory=list)
    """The node that owns each shard of the subscriptions, empty if none does now; absent if one node has all."""


class ClusterStatus(Operation[ClusterState], opcode=0x52):
    """The cluster, its nodes (id, address, state), and how much it holds."""


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    node: Annotated[Str, Label("leader")]
    address: Str
    epoch: U64
    state: Str
    replicas: Annotated[tuple[Str, ...], AtMost(REPLY_ITEMS_MAX)]
    in_sync: Annotated[tuple[Str, ...], AtMost(REPLY_ITEMS_MAX)]


@dataclass(slots=True)
class ClusterPartition:
    index: Annotated[I32, Label("partition")]
    leader: Annotated[PartitionLeader, Shared(PartitionLeader)]


@dataclass(slots=True)
class ClusterTopic:
    topic: Str
    partitions: Annotated[list[ClusterPartition], AtMost(REPLY_ITEMS_MAX)]


@dataclass(slots=True)
class ClusterTopics:
    cluster: Str
    topics: ReplyList[ClusterTopic]


class ClusterMetadata(Operation[ClusterTopics], opcode=0x53, smaller="name a topic"):
    """The leader of each partition. Not in the contract; deployed clients learn the number of partitions from it."""

    topic: Annotated[Str, Tail(always_sent=True)] = ""
    """Empty for all topics."""
