"""A writer's side of a stream: WRITE, and transactions.

WRITEs are started without waiting for one another and answered in order, once they are on disk. Everything else waits until they are
answered, so BEGIN comes after the writes before it, and DISCONNECT is the last that is said. Inside a transaction a WRITE is answered when
the broker has taken it; it is on disk, with all others, when COMMIT is answered.

A COMMIT that fails leaves the transaction open; a ROLLBACK always ends it. A stream that ends rolls back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from penstock.broker.records.producer import ANY_PARTITION
from penstock.broker.records.spreading import Placement, Scattered, errors_by_row
from penstock.broker.transactions.transactions import Added
from penstock.errors import PenstockError, TopicNotFound
from penstock.protocols.conversation import ReplySlot
from penstock.protocols.fujin.codec import reply_encoding
from penstock.protocols.fujin.codec.messages import (
    BadCommand,
    Command,
    Disconnect,
    Headers,
    RefusedWrite,
    Transact,
    WriteRun,
)
from penstock.protocols.fujin.server.stream import FujinStream
from penstock.protocols.fujin.wire import INVALID_TX_STATE, WRITER_NOT_FOUND, Reply, Request
from penstock.record_headers import encode_headers

Outcome = list[Placement] | Scattered | Added | Exception
"""What became of a run: where its records are, the partitions they will go to with the commit, or why there is neither."""
_WRITE = int(Request.WRITE)


class Writer:
    """Implements `Role`."""

    __slots__ = ("_committing", "_session", "_transaction", "_writes_in_flight")

    def __init__(self, session: FujinStream) -> None:
        self._session = session
        self._transaction: str | None = None
        self._committing = False
        self._writes_in_flight = 0
        session.stats.requests[Request.CONNECT_WRITER] += 1

    # -- what the session calls ----------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return not self._writes_in_flight

    def may_start(self, command: Command) -> bool:
        return not self._writes_in_flight or isinstance(command, WriteRun | RefusedWrite)

    def handle(self, command: Command, held_bytes: int) -> None:
        stats = self._session.stats
        if isinstance(command, WriteRun):
            count = len(command.values)
            stats.requests[_WRITE] += count
            stats.received_records += count
            self._write(command, self._session.reserve(held_bytes))
            return
        if isinstance(command, RefusedWrite):
            stats.requests[_WRITE] += 1
            stats.received_records += 1
            self._session.answer(
                self._session.reserve(held_bytes), self._refuse([command.correlation_id], command.reason)
            )
        elif isinstance(command, Transact):
            stats.requests[command.request] += 1
            self._transact(command, self._session.reserve(held_bytes))
        else:
            stats.requests[Request.DISCONNECT if isinstance(command, Disconnect) else 0] += 1
            assert isinstance(command, Disconnect | BadCommand)
            self._session.stream.release(held_bytes)
            self._session.flush()
            self._session.disconnect()
        self._session.flush()

    def resume(self) -> None:
        self._session.advance()

    def stopping(self) -> None:
        """A writer has nothing to cancel."""

    def ended(self) -> None:
        self._roll_back()

    # -- writes -----------------------------------------------------------------------------------------------------------

    def _write(self, run: WriteRun, slot: ReplySlot) -> None:
        session = self._session
        topic = session.settings.find(run.topic).topic
        if session.broker.topics.exists(topic):
            self._produce(topic, run, slot)
        elif session.settings.auto_create:
            session.in_background(self._create_and_write(topic, run, slot))
        else:
            session.answer(slot, self._refuse(run.correlation_ids, WRITER_NOT_FOUND))
            session.flush()

    async def _create_and_write(self, topic: str, run: WriteRun, slot: ReplySlot) -> None:
        session = self._session
        try:
            await session.broker.topics.ensure(session.principal, topic)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            self._session.answer(slot, self._fail(run.correlation_ids, error))
        else:
            if session.over:  # nobody waits for it, and its transaction, if it had one, was rolled back
                self._session.answer(slot, b"")
            else:
                self._produce(topic, run, slot)
        self._session.flush()

    def _produce(self, topic: str, run: WriteRun, slot: ReplySlot) -> None:
        session = self._session
        headers = None if run.headers is None else list(map(_cell, run.headers))
        settled = partial(self._settled, run, slot)
        self._writes_in_flight += 1
        try:
            if self._transaction is None:
                session.broker.records.produce(
                    session.principal, topic, ANY_PARTITION, run.values, None, headers, done=settled
                )
            else:
                session.broker.transactions.produce(
                    session.principal, topic, self._transaction, ANY_PARTITION, run.values, None, headers, done=settled
                )
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            settled(error)

    def _settled(self, run: WriteRun, slot: ReplySlot, outcome: Outcome) -> None:
        self._writes_in_flight -= 1
        session = self._session
        session.answer(slot, self._replies_to(run, outcome))
        if self._writes_in_flight:
            session.flush_soon()
        else:
            session.flush()
            if session.has_more:
                session.advance_soon()

    def _replies_to(self, run: WriteRun, outcome: Outcome) -> bytes:
        if isinstance(outcome, Exception):
            return self._fail(run.correlation_ids, outcome)
        errors = outcome.errors if isinstance(outcome, Added) else errors_by_row(outcome, len(run.values))
        if not errors:
            return reply_encoding.written(run.correlation_ids)
        return b"".join(
            self._fail([each], errors[row]) if row in errors else reply_encoding.written([each])
            for row, each in enumerate(run.correlation_ids)
        )

    # -- transactions -----------------------------------------------------------------------------------------------------

    def _transact(self, command: Transact, slot: ReplySlot) -> None:
        kind = command.request
        if (self._transaction is None) != (kind == Request.BEGIN):
            self._session.stats.errors += 1
            reply = reply_encoding.failed(_reply_to(kind), command.correlation_id, INVALID_TX_STATE)
            self._session.answer(slot, reply)
        elif kind == Request.COMMIT:
            self._committing = True
            self._session.in_background(self._commit(command, slot))
        else:
            try:
                if kind == Request.BEGIN:
                    self._transaction = self._session.broker.transactions.begin(self._session.principal)
                else:
                    transaction, self._transaction = self._transaction, None
                    assert transaction is not None
                    self._session.broker.transactions.rollback(self._session.principal, transaction)
                reply = reply_encoding.done(_reply_to(kind), command.correlation_id)
            except Exception as error:  # noqa: BLE001  whatever it is, it is answered
                reply = reply_encoding.failed(_reply_to(kind), command.correlation_id, self._session.reason(error))
            self._session.answer(slot, reply)

    async def _commit(self, command: Transact, slot: ReplySlot) -> None:
        session, transaction = self._session, self._transaction
        assert transaction is not None
        try:
            await session.broker.transactions.commit(session.principal, transaction)
            self._transaction = None
            reply = reply_encoding.done(Reply.COMMIT, command.correlation_id)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            reply = reply_encoding.failed(Reply.COMMIT, command.correlation_id, session.reason(error))
        self._committing = False
        self._session.answer(slot, reply)
        self._session.flush()
        if session.over:
            self._roll_back()  # the stream has ended meanwhile, and the commit may have failed

    def _roll_back(self) -> None:
        if self._committing:
            return
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            try:
                self._session.broker.transactions.rollback(self._session.principal, transaction)
            except PenstockError:
                pass  # it has ended already

    # -- refusals ---------------------------------------------------------------------------------------------------------

    def _fail(self, correlation_ids: Sequence[bytes], error: Exception) -> bytes:
        reason = self._session.reason(error, len(correlation_ids))
        if isinstance(error, TopicNotFound):
            reason = WRITER_NOT_FOUND
        return b"".join([reply_encoding.failed(Reply.WRITE, each, reason) for each in correlation_ids])

    def _refuse(self, correlation_ids: Sequence[bytes], reason: str) -> bytes:
        self._session.stats.errors += len(correlation_ids)
        return b"".join([reply_encoding.failed(Reply.WRITE, each, reason) for each in correlation_ids])


def _reply_to(request: int) -> int:
    """BEGIN, COMMIT and ROLLBACK are answered with the number below their own."""
    return request - 1


def _cell(headers: Headers) -> bytes | None:
    return encode_headers(headers) if headers else None
