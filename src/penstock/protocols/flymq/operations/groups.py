"""Consumer groups whose members share partitions, and the lag of groups and subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from penstock.frame_bounds import MEMBER_PARTITIONS_MAX, MEMBER_TOPICS_MAX, REPLY_ITEMS_MAX
from penstock.protocols.flymq.operations.layout import I32, I64, U32, U64, AtMost, Bool, Str
from penstock.protocols.flymq.operations.operation import Operation

Topics = Annotated[Sequence[Str], AtMost(MEMBER_TOPICS_MAX)]
"""Names of topics."""

ALL_PARTITIONS: Final = -1

# --- members ---


class OwnedPartition(NamedTuple):
    """A partition that a member has been told of and has not given up, with the generation of its grant."""

    topic: Str
    partition: I32
    generation: U64


class AssignedPartition(NamedTuple):
    """A partition that a member may read, with the generation of its grant."""

    topic: Str
    partition: I32
    generation: U64
    position: U64
    """Where to begin; 0 for partitions that the heartbeat lists."""
    committed: Bool
    """Whether that is the committed offset, or the log start or end because there is none."""


@dataclass(frozen=True, slots=True)
class GroupAssignment:
    """What a member has to do until its next heartbeat."""

    generation: U64
    heartbeat_ms: U32
    """When to send the next one."""
    partitions: Annotated[list[AssignedPartition], AtMost(REPLY_ITEMS_MAX)]


class GroupHeartbeat(Operation[GroupAssignment], opcode=0xDB, long_lists=True):
    """Join a group (sequence 0), keep the session alive, and get an assignment. What is not in it any more is to be given up, and is
    given up by a heartbeat that does not list it."""

    group: Str
    member: Str
    """An id that the client draws; never used again after a consumer was fenced."""
    topics: Topics
    sequence: U64
    """0 to join, then from 1 on."""
    start: Str
    """earliest or latest: where partitions without a committed offset are read from. This and the next two count when joining."""
    instance: Str
    """The instance id of a static member, or empty."""
    session_ms: U32
    """After so long without a heartbeat the member has lost its partitions."""
    owned: Annotated[Sequence[OwnedPartition], AtMost(MEMBER_PARTITIONS_MAX)]


class GroupLeave(Operation[Bool], opcode=0xDC):
    """End the session of a member. One that is gone already is no error."""

    group: Str
    member: Str
    topics: Topics


class OwnedOffset(NamedTuple):
    """The next offset to read of a partition that the member owns in a generation."""

    topic: Str
    partition: I32
    generation: U64
    offset: U64


class GroupCommit(Operation[Bool], opcode=0xDD, long_lists=True):
    """Store offsets of partitions that a member owns, all or none. Refused (`consumer fenced`) if one of them is not its own any more."""

    group: Str
    member: Str
    offsets: Annotated[Sequence[OwnedOffset], AtMost(MEMBER_PARTITIONS_MAX)]


# --- monitoring ---


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """How far a group has read a partition. -1 stands for what is not known or does not exist."""

    partition: I32
    committed: I64
    next_offset: I64
    lag: I64
    """Records from the committed offset, or the log start, to the end."""
    lag_ms: I64
    """Age of the first of them."""
    member: Str
    """That owns it, or empty."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group."""

    id: Str
    instance: Str
    principal: Str
    session_ms: U64
    silent_ms: U64
    """Since its last heartbeat."""


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A group in one topic: its members, and its lag in every partition."""

    topic: Str
    group: Str
    sessions: U32
    """Connections that SUBSCRIBE has counted."""
    generation: U64
    state: Str
    """empty, stable or rebalancing."""
    members: Annotated[list[GroupMember], AtMost(REPLY_ITEMS_MAX)]
    partitions: Annotated[list[PartitionProgress], AtMost(REPLY_ITEMS_MAX)]


@dataclass(frozen=True, slots=True)
class GroupPage:
    groups: Annotated[list[GroupProgress], AtMost(REPLY_ITEMS_MAX)]
    more: Bool
    """Whether to ask again with the last topic and group of this page."""


class GroupList(Operation[GroupPage], opcode=0xD6, smaller="name a topic"):
    """Groups by topic and name, a page at a time: members, and the lag of every partition."""

    group: Str
    """Empty for all."""
    topic: Str
    """Empty for all."""
    after_topic: Str = ""
    after_group: Str = ""
    """The last of the page before; empty for the first page."""


@dataclass(frozen=True, slots=True)
class SubscriptionPartition:
    partition: I32
    position: U64
    """The next offset to be delivered for the first time."""
    next_offset: U64


@dataclass(frozen=True, slots=True)
class SubscriptionProgress:
    """A subscription of BlipMQ, Fujin or Felix: a durable queue over a topic. Counts begin with the start of the broker."""

    topic: Str
    name: Str
    """Its number if it has no name, as in #17."""
    owner: Str
    created_ms: I64
    lag: U64
    """Records that are not settled."""
    lag_ms: I64
    """Age of the oldest of them, -1 if that is not known."""
    in_flight: U32
    redeliveries: U64
    dead_letters: U64
    dead_letters_waiting: U32
    """Records that are to become dead letters and could not be written yet."""
    partitions: Annotated[list[SubscriptionPartition], AtMost(REPLY_ITEMS_MAX)]


@dataclass(frozen=True, slots=True)
class SubscriptionPage:
    subscriptions: Annotated[list[SubscriptionProgress], AtMost(REPLY_ITEMS_MAX)]
    more: Bool
    """Whether to ask again with the last topic and name of this page."""


class SubscriptionList(Operation[SubscriptionPage], opcode=0xD7, smaller="name a topic"):
    """Subscriptions by topic and name, a page at a time: deliveries in flight, redeliveries, dead letters and lag."""

    name: Str
    """Empty for all."""
    topic: Str
    """Empty for all."""
    after_topic: Str = ""
    after_name: Str = ""
    """The last of the page before; empty for the first page."""


# --- resets ---


@dataclass(frozen=True, slots=True)
class MovedPosition:
    """What a reset changes, or would change, in one partition."""

    partition: I32
    before: I64
    """-1 if the group has committed nothing."""
    after: U64
    log_start: U64
    next_offset: U64


@dataclass
class ResetFields:
    """Where to continue, and in which partitions."""

    topic: Str
    name: Str
    """Of the group or subscription; a subscription without a name has # and its number."""
    mode: Str
    """earliest, latest, offset, time or shift."""
    value: I64 = 0
    """The offset, the time in milliseconds since 1970, or the records to go forward, back if negative."""
    partition: I32 = ALL_PARTITIONS
    """-1 for all."""
    preview: Bool = False
    """Change nothing, only tell what would change."""


class GroupReset(
    ResetFields,
    Operation[Annotated[list[MovedPosition], AtMost(REPLY_ITEMS_MAX)]],
    opcode=0xE0,
    repeatable=False,
):
    """Move the committed offsets of a group that has no members. A group that does not exist is created."""


class SubscriptionReset(
    ResetFields,
    Operation[Annotated[list[MovedPosition], AtMost(REPLY_ITEMS_MAX)]],
    opcode=0xE1,
    repeatable=False,
):
    """Move a subscription that has no readers. Records before the position count as settled, those from it on are delivered as if for the
    first time."""
