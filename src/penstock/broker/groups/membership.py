"""The state of a consumer group: its members, their partitions, and how both are stored. What happens to them is in `coordinator`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from penstock.broker.groups.assignment import TopicPartition


class MemberKey(NamedTuple):
    group: str
    member: str


class Topic(NamedTuple):
    id: str
    partitions: int


class StoredMember(msgspec.Struct, frozen=True, array_like=True):
    """A member and its partitions, or, under the key without a member, the generation of a group."""

    generation: int
    principal: str = ""
    instance: str = ""
    topics: tuple[str, ...] = ()
    start: str = ""
    session_ms: int = 0
    owned: dict[str, tuple[str, dict[int, int]]] = {}
    """By topic: the id of the topic, and the generation in which each partition was granted."""
    initial: dict[str, Topic] = {}
    """For a group, as in `Group.initial`."""


class Session(NamedTuple):
    """What a member asks for when it joins."""

    start: str = "earliest"
    """Where a partition without a committed offset is read from."""
    instance: str = ""
    """The instance id of a static member."""
    timeout_ms: int = 30_000


class Heartbeat(NamedTuple):
    member: str
    """An id that the member has chosen, and that no other member has ever had."""
    sequence: int
    """0 joins the group; the heartbeats after it are numbered from 1."""
    session: Session
    owned: Mapping[TopicPartition, int]
    """Partitions that the member has been told of and has not given up, with the generation of each."""


class Assigned(NamedTuple):
    topic: str
    partition: int
    generation: int
    """Of the grant; a commit names it."""
    position: int
    """Where to begin; 0 for partitions that the heartbeat lists."""
    committed: bool
    """Whether that is the committed offset of the group, or its log start or end because it has none."""


class Assignment(NamedTuple):
    generation: int
    heartbeat_ms: int
    """When to send the next one."""
    partitions: list[Assigned]


class MemberOffset(NamedTuple):
    topic: str
    partition: int
    generation: int
    offset: int
    """The next one to read."""


class MemberInfo(NamedTuple):
    id: str
    instance: str
    principal: str
    topics: frozenset[str]
    session_ms: int
    silent_ms: int
    """Since its last heartbeat."""
    owned: frozenset[TopicPartition]


class ConsumerGroupInfo(NamedTuple):
    generation: int
    state: str
    """empty, stable, or rebalancing while partitions wait for their new owner."""
    members: list[MemberInfo]


class Member:
    __slots__ = (
        "deadline_s",
        "id",
        "instance",
        "owned",
        "principal",
        "sequence",
        "session_ms",
        "start",
        "stored",
        "target",
        "topics",
    )

    def __init__(self, member_id: str, principal: str, topics: Sequence[str], session: Session, now_s: float) -> None:
        self.id = member_id
        self.principal = principal
        self.topics = frozenset(topics)
        self.instance = session.instance
        self.start = session.start
        self.session_ms = session.timeout_ms
        self.deadline_s = now_s + session.timeout_ms / 1000
        self.sequence = 0
        """Of the newest heartbeat."""
        self.owned: dict[TopicPartition, int] = {}
        """Partitions that were granted and not released, with the generation of each grant."""
        self.target: set[TopicPartition] = set()
        """Partitions that it should have."""
        self.stored = False
        """Whether its entry is as it was last sent to the table."""


class Group:
    __slots__ = (
        "balanced",
        "generation",
        "initial",
        "members",
        "name",
        "removed",
        "stored",
        "storing",
        "subscribed",
        "topics",
    )

    def __init__(self, name: str, generation: int = 0) -> None:
        self.name = name
        self.generation = generation
        self.members: dict[str, Member] = {}
        self.subscribed: frozenset[str] = frozenset()
        """Topics of all members, and of partitions that they have not given up."""
        self.topics: dict[str, Topic] = {}
        """Those of them that existed when the target assignment was made."""
        self.initial: dict[str, Topic] = {}
        """Subscribed topics as they were when the group began to read them. Partitions that were added later are read from their start."""
        self.balanced = True
        """Whether every partition is with the member that should have it; False until that was looked up."""
        self.removed: set[str] = set()
        """Members whose entries are to be deleted."""
        self.stored = True
        """Whether the entry with its generation is as it was last sent to the table."""
        self.storing = asyncio.Lock()

    def is_balanced(self) -> bool:
        """Return whether no partition waits to be handed over."""
        if not self.balanced:
            self.balanced = all(member.target <= member.owned.keys() for member in self.members.values())
        return self.balanced


def known_topic(initial: Topic | None, now: Topic | None) -> Topic:
    """Return a topic as a group began to read it. In one that was created again since, every partition was added."""
    if initial is None or now is None or initial.id == now.id:
        known = initial or now
        assert known is not None
        return known
    return Topic(now.id, 0)


def drop_older_grants(group: Group) -> None:
    """Leave each partition to its newest owner: a crash may come between storing a grant and the release before it."""
    newest: dict[TopicPartition, int] = {}
    for member in group.members.values():
        for partition, generation in member.owned.items():
            newest[partition] = max(generation, newest.get(partition, 0))
    for member in group.members.values():
        older = [partition for partition, generation in member.owned.items() if generation < newest[partition]]
        for partition in older:
            del member.owned[partition]
            member.stored = False
        member.target = set(member.owned)


def stored(state: Group, member: Member) -> StoredMember:
    owned: dict[str, tuple[str, dict[int, int]]] = {}
    for (topic, partition), generation in member.owned.items():
        owned.setdefault(topic, (state.topics[topic].id, {}))[1][partition] = generation
    return StoredMember(
        state.generation,
        member.principal,
        member.instance,
        tuple(sorted(member.topics)),
        member.start,
        member.session_ms,
        owned,
    )
