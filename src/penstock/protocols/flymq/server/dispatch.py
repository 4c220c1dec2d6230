"""Who is calling, and which handler answers which operation.

A handler takes the caller and the request and returns the reply, or a coroutine that will if it must wait for the log. Refusals are
raised as they come from the broker, and `refusal` puts them into words.

Writes are started one after another, like PRODUCE, without waiting for each other's commit: a writer takes a callback instead.

What a node does that does not lead is declared with the handler, too: without `on_every_node`, requests are passed on to the leader.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from penstock.broker.access.checks import Principal
from penstock.broker.broker import Broker
from penstock.clock import Clock
from penstock.errors import PartitionNotFound, PenstockError
from penstock.protocols.flymq.codec.record_layouts import ProduceRun
from penstock.protocols.flymq.errors import error_text
from penstock.protocols.flymq.operations.operation import Operation, encode_reply
from penstock.protocols.flymq.operations.records import (
    Consume,
    ProduceDelayed,
    ProduceOnce,
    ProduceRecords,
    ProduceWithTtl,
)
from penstock.protocols.flymq.operations.schemas import ProduceWithSchema
from penstock.protocols.flymq.operations.transactions import TxnProduce
from penstock.protocols.flymq.server.fetching import Fetcher
from penstock.stats import SessionStats
from penstock.workers import Worker


class Dialect(Enum):
    """Which replies a listener gives where contract and deployed clients differ."""

    AUTO = "auto"
    SPEC = "spec"
    NATIVE = "native"


@dataclass(frozen=True, slots=True)
class Node:
    """This broker, as cluster metadata names it."""

    id: str
    address: Callable[[], str]
    """Where clients reach it; a function, because port 0 becomes a number only when the listener has started."""


@dataclass(slots=True)
class Caller:
    """One session, as handlers see it."""

    broker: Broker
    fetcher: Fetcher
    clock: Clock
    node: Node
    dialect: Dialect
    principal: Principal
    """Changes when the client logs in."""
    session_id: str
    worker: Worker
    """Runs what takes too long for the event loop."""
    refuse_added: Callable[[object, PenstockError], bytes]
    """Counts a TXN_PRODUCE that is refused while others of its run are not, and returns its ERROR."""
    stats: SessionStats
    _shown_native: bool | None = None
    _read_records: int = 0

    def note_read(self, records: int) -> None:
        """Say how many records the reply of this request has; a refusal takes it back."""
        self._read_records = records

    def count_read(self, *, sent: bool) -> None:
        """Count the records of the last reply, if it was sent; one that was not is made again."""
        if self._read_records:
            if sent:
                self.stats.sent_records += self._read_records
            self._read_records = 0

    def note_dialect(self, *, native: bool) -> None:
        """The client sent something that only one of the two dialects has."""
        self._shown_native = native

    @property
    def native(self) -> bool | None:
        """Whether replies have the layouts of deployed clients; None while nothing the client sent tells which dialect it speaks."""
        return self._shown_native if self.dialect is Dialect.AUTO else self.dialect is Dialect.NATIVE


Frame = bytes
"""An encoded reply, which a handler may return in place of the reply."""
Answer = Frame | Coroutine[Any, Any, Any]
"""An encoded reply, or what will return the reply for `encode_answer`."""
Written = Callable[[Any], None]
"""Called once with the reply to a write, or with its PenstockError; never before the writer returns, because it starts what follows."""

Reply = TypeVar("Reply")
Handler = Callable[[Caller, Any], Any]
Writer = Callable[[Caller, Any, Written], None]
"""Raises what is wrong with the request, or calls `Written` once, with the reply (for `encode_answer`) or the error."""

_SINGLE_WRITES: frozenset[type] = frozenset({ProduceDelayed, ProduceWithSchema, ProduceWithTtl})
_BATCH_WRITES: frozenset[type] = frozenset({ProduceOnce, ProduceRecords, TxnProduce})
HANDLERS: dict[type[Operation[Any]], Handler] = {}
WRITERS: dict[type[Operation[Any]], Writer] = {}
"""Of requests that start a write to a topic that exists."""
ON_EVERY_NODE: set[type[Operation[Any]]] = set()
LARGE_READS: set[type[Operation[Any]]] = set()


def handles(
    kind: type[Operation[Reply]], *, large_read: bool = False, on_every_node: bool = False
) -> Callable[[Callable[[Caller, Any], Reply | Frame | Coroutine[Any, Any, Reply | Frame]]], Handler]:
    """Declare the handler of an operation. Type checkers compare what it returns with the operation's reply.

    A large read changes nothing and may have a large reply: it is carried out again if there was no room for that.
    """

    def declare(handler: Handler) -> Handler:
        HANDLERS[kind] = handler
        if large_read:
            LARGE_READS.add(kind)
        if on_every_node:
            ON_EVERY_NODE.add(kind)
        return handler

    return declare


def writes(kind: type[Operation[Any]], *, on_every_node: bool = False) -> Callable[[Writer], Writer]:
    """Declare the writer of an operation whose request names a topic."""

    def declare(writer: Writer) -> Writer:
        WRITERS[kind] = writer
        if on_every_node:
            ON_EVERY_NODE.add(kind)
        return writer

    return declare


def dispatch(caller: Caller, request: Operation[Any]) -> Answer:
    """Return the encoded reply, or a coroutine that returns what is to be encoded. Raises what the handler raises."""
    reply = HANDLERS[type(request)](caller, request)
    if isinstance(reply, bytes):
        return reply
    return reply if inspect.iscoroutine(reply) else encode_reply(type(request), reply)


def encode_answer(kind: type[Operation[Any]], reply: Any) -> Frame:
    """Encode what a handler returned, unless it has done so."""
    return reply if isinstance(reply, bytes) else encode_reply(kind, reply)


def records_in(request: Any) -> int:
    """Return how many records a request brings to be stored. Those of a STAGE are in blocks, and counted once these are checked."""
    kind = type(request)
    if kind in _BATCH_WRITES:
        return len(request.values)
    return 1 if kind in _SINGLE_WRITES else 0


def refusal(request: object, error: PenstockError) -> str:
    """The ERROR text for a request that was refused."""
    if isinstance(error, PartitionNotFound) and isinstance(request, Consume | ProduceRun):
        # The word that deployed brokers have for it here; everywhere else they say "not found".
        return error.message.replace("not found", "out of range", 1)
    return error_text(error)
