"""What FlyMQ says about records that come later, records that end, and records that failed: requests, and what their replies hold."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.protocols.flymq.wire import PARTITION_AUTO

# --- requests ---


@dataclass(slots=True)
class ProduceDelayed:
    topic: str
    value: bytes
    delay_ms: int
    """Zero or less: at once."""
    key: bytes | None = None
    """This and the following are Penstock's own tail."""
    partition: int = PARTITION_AUTO
    ttl_ms: int = 0


@dataclass(slots=True)
class ProduceWithTtl:
    topic: str
    value: bytes
    ttl_ms: int
    """Zero: for ever."""
    key: bytes | None = None
    """This and the following are Penstock's own tail."""
    partition: int = PARTITION_AUTO


@dataclass(slots=True)
class CancelDelayed:
    topic: str
    id: str


@dataclass(slots=True)
class FetchDlq:
    topic: str
    max_records: int


@dataclass(slots=True)
class ReplayDlq:
    topic: str
    id: str


@dataclass(slots=True)
class ReplayDlqAt:
    topic: str
    offset: int
    """In the dead-letter topic."""


@dataclass(slots=True)
class ReplayDlqAll:
    """Penstock's own form."""

    topic: str
    filter: str
    """Empty for all."""
    dry_run: bool


@dataclass(slots=True)
class PurgeDlq:
    topic: str


LifetimeBody = (
    ProduceDelayed | ProduceWithTtl | CancelDelayed | FetchDlq | ReplayDlq | ReplayDlqAt | ReplayDlqAll | PurgeDlq
)

# --- in replies ---


class DelayedRecord(msgspec.Struct, frozen=True):
    """A record that waits for its time."""

    topic: str
    partition: int
    due_ms: int
    id: str
    """What cancels it; empty where there was no delay and the record is stored."""


class DeadLetterInfo(msgspec.Struct, frozen=True):
    """A record that failed, and why. What a broker does not tell is None."""

    id: str
    value: bytes
    reason: str
    attempts: int
    key: bytes | None = None
    partition: int | None = None
    """Where it came from, as far as it is known."""
    offset: int | None = None
    first_failed_ms: int | None = None
    failed_ms: int | None = None
