"""What waits to become readable: delayed records and open transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from penstock.frame_bounds import REPLY_ITEMS_MAX
from penstock.protocols.flymq.operations.layout import I32, I64, U32, U64, AtMost, Key, Str
from penstock.protocols.flymq.operations.operation import Operation


@dataclass(frozen=True, slots=True)
class PendingRecord:
    """A delayed record."""

    id: Str
    """What CANCEL_DELAYED takes."""
    topic: Str
    partition: I32
    due_ms: I64
    key: Key
    value_bytes: I64
    """-1 for a tombstone."""
    ttl_ms: U64
    """From its delivery on; 0: it does not expire."""


@dataclass(frozen=True, slots=True)
class DelayedPage:
    records: Annotated[list[PendingRecord], AtMost(REPLY_ITEMS_MAX)]
    after: Str
    """What to ask for the next page with; empty after the last."""


class DelayedList(Operation[DelayedPage], opcode=0xDE, smaller="name a topic"):
    """Delayed records by the time they are due, a page at a time. A page of one topic may be empty although others follow."""

    topic: Str
    """Empty for all."""
    after: Str = ""
    """From the page before; empty for the first page."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is neither committed nor rolled back."""

    id: Str
    owner: Str
    state: Str
    """open or committing."""
    age_ms: U64
    timeout_ms: U64
    """After so long it is rolled back."""
    records: U32
    """Records and group offsets."""
    memory_bytes: U64
    topics: Annotated[list[Str], AtMost(REPLY_ITEMS_MAX)]
    """By name; the first few if there are many."""
    topics_total: U32


class TxnList(Operation[Annotated[list[OpenTransaction], AtMost(REPLY_ITEMS_MAX)]], opcode=0xDF):
    """Open transactions of all clients, oldest first."""
