"""What staging keeps in the log: tickets and commits in tables, and what stands in front of staged records."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from penstock.log.api import Durability, TopicConfig

TICKETS_TOPIC: Final = "__staged"
COMMITS_TOPIC: Final = "__staged_commits"
STAGING_PREFIX: Final = "__staging-"
# Staged records need not survive a power cut: a commit that needs them to makes sure of them first (see `publication`). Whole segments
# are given back as soon as what they hold is published, so they are small.
STAGING_CONFIG: Final = TopicConfig(partitions=1, durability=Durability("none"), segment_bytes=16 << 20)
ATTEMPT_BYTES_MAX: Final = 64
TICKET_BYTES_MAX: Final = 1 << 10
# A request counts for at least this much of the bounds on staged bytes: it takes memory, too.
REQUEST_BYTES_MIN: Final = 4 << 10


class TicketKey(msgspec.Struct, frozen=True, array_like=True, gc=False, order=True):
    """Who staged it: one attempt of one task at one epoch of an application."""

    application: str
    epoch: int
    attempt: str


class TicketEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    owner: str
    run: int
    first_offset: int
    """Its records are in the application's staging topic, from here on."""
    chosen: int = -1
    """Its turn in the commit that publishes it; -1 before there is one."""
    requests: int = 0


class CommitEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A commit that is decided and not yet all published; of each application there is one at most."""

    epoch: int
    applied: int
    """How many staged requests are published."""


class StagedHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """In front of the blocks of one request, as the key of their record. A head without an attempt belongs to no ticket."""

    epoch: int
    attempt: str
    sequence: int
    topic: str
    topic_id: str
    parts: list[tuple[int, int]]
    """Partition and bytes of each block; the blocks follow one another."""


class Place(NamedTuple):
    """Where a request to stage belongs: `sequence` counts the requests of one attempt from 0."""

    application: str
    run: int
    epoch: int
    attempt: str
    sequence: int


class Unstaged(NamedTuple):
    """Records for one topic that come with the commit of their epoch."""

    topic: str
    topic_id: str
    """Of the topic that they were laid out for."""
    parts: Sequence[tuple[int, bytes]]
    """Partitions and blocks for them."""


class Winner(NamedTuple):
    """An attempt that is to be published, and how many requests it staged."""

    attempt: str
    requests: int


encode_head = msgspec.msgpack.Encoder().encode
decode_head = msgspec.msgpack.Decoder(StagedHeader).decode


def staging_topic(application: str) -> str:
    return STAGING_PREFIX + sha256(application.encode()).hexdigest()[:32]
