"""Records as clients hand them out. Plain structs without garbage-collector tracking: a fetch makes thousands at a time."""

from __future__ import annotations

import msgspec


class RecordMetadata(msgspec.Struct, frozen=True, gc=False):
    """Where and when a record was stored."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record of a topic. `key` is None if it has none, `value` is None for a tombstone."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None
    """When the broker committed it, in milliseconds since 1970; None from a server that does not tell."""
    headers: tuple[tuple[str, bytes | None], ...] = ()
    """Names and values, in order; a name may repeat."""


class FetchResult(msgspec.Struct, frozen=True):
    """The records of one fetch, and the offset of the next one; records that a filter left out are skipped."""

    records: list[Record]
    next_offset: int


class PartitionDescription(msgspec.Struct, frozen=True):
    """`start_offset` is the lowest that retention has left, `next_offset` the one the next record will get."""

    partition: int
    start_offset: int
    next_offset: int


class TopicDescription(msgspec.Struct, frozen=True):
    """A topic, its partitions, and its configuration as text (durability, retention_ms, ...)."""

    name: str
    partitions: list[PartitionDescription]
    config: dict[str, str]


class GroupDescription(msgspec.Struct, frozen=True):
    """A group's committed offsets in one topic, by partition, and how many subscribed connections it has."""

    topic: str
    group: str
    members: int
    offsets: dict[int, int]


class Lag(msgspec.Struct, frozen=True):
    """How far a group is behind in one partition, in records."""

    committed: int
    next_offset: int
    lag: int
