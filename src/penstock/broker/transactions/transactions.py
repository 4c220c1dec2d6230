"""Transactions: records and group offsets that appear together or not at all.

What a transaction gathers stays in memory, visible to no one, until it is committed. The commit is one atomic append of the records, of
the offsets, and of an entry in the table `__transactions` that says so. There is no second step: a crash leaves all of it or none, and
one that comes before the commit leaves nothing. The entry makes a commit happen once: a repeated commit, also after a crash, is told
that it was done. Where the disk fails so that nobody can know (OutcomeUnknown), asking again after a restart gives the answer; a log that
can tell sooner is asked, and the commit is under way until then.

What was committed is kept in the table for a day, so that a second commit is not a first one. How others ended is kept in memory for a
while, so that late requests get an answer that explains itself.

An id is random and belongs to the principal that began it; to others it does not exist. What one principal, and all of them, can make
the broker hold is bounded (`BrokerLimits`). Its states are those of `states`.
Writers that repeat their work after a crash, or have more records than fit into memory, stage them instead: see `staging`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, NamedTuple

import msgspec

from penstock.background import Loop
from penstock.broker.access.checks import (
    Operation,
    Principal,
    Resource,
    ResourceKind,
    authorize,
    on_broker,
    on_topic,
    on_topic_group,
)
from penstock.broker.groups.offsets import OffsetKey, Offsets, PreparedOffsets
from penstock.broker.part import Context, Part
from penstock.broker.records.faults import Faults
from penstock.broker.records.producer import ANY_PARTITION, Accepted, Producer
from penstock.broker.schemas.validation import Validation
from penstock.broker.table import FORGOTTEN_PER_APPEND_MAX, PreparedChange, Table, append_together
from penstock.broker.tracing import ending
from penstock.broker.transactions.commit_checks import check_topic, check_writable
from penstock.broker.transactions.states import State, Transaction
from penstock.broker.transactions.transaction_records import TransactionRecords
from penstock.errors import (
    LimitExceeded,
    OutcomeUnknown,
    PenstockError,
    TransactionNotActive,
    TransactionNotFound,
)
from penstock.futures import shield
from penstock.log.api import Batch, BatchFor

TRANSACTIONS_TOPIC: Final = "__transactions"
OUTCOME_BYTES_MAX: Final = 1 << 10
# What a gathered record takes in memory besides its bytes: objects, and its places in lists.
RECORD_OVERHEAD_BYTES: Final = 128
ENDED_MAX: Final = 10_000
SWEEP_S: Final = 1.0
TOPICS_LISTED_MAX: Final = 5


class Added(NamedTuple):
    """What became of records that were to be added to a transaction."""

    partitions: list[int]
    """For each record; ANY_PARTITION for those that were refused."""
    errors: Mapping[int, PenstockError]
    """Of the records that were refused, by row."""


OnAdded = Callable[[Added], None]


class Outcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A committed transaction, in the table by its id."""

    owner: str
    committed_ms: int


@dataclass(slots=True)
class TransactionStats:
    """Plain numbers, exported on scrape."""

    open: int = 0
    open_bytes: int = 0
    begun: int = 0
    committed: int = 0
    rolled_back: int = 0
    timed_out: int = 0


class OpenTransaction(NamedTuple):
    """An open transaction, for those who watch over the broker."""

    id: str
    owner: str
    state: str
    age_ms: int
    timeout_ms: int
    """After so long it is rolled back."""
    added: int
    """Records and offsets."""
    size_bytes: int
    topics: list[str]
    """The first few by name."""
    topics_total: int


class _Gathered(Transaction):
    """A transaction whose records are in memory."""

    __slots__ = ("added", "deadline_s", "finished", "id", "offsets", "records")

    def __init__(self, transaction_id: str, owner: str, deadline_s: float) -> None:
        super().__init__(owner, State.OPEN)
        self.id = transaction_id
        self.deadline_s = deadline_s
        self.records = TransactionRecords()
        self.offsets: dict[OffsetKey, int] = {}
        self.added = 0
        """Records and offsets."""
        self.finished: asyncio.Future[None]
        """Of the commit under way."""


class _Ended(NamedTuple):
    owner: str
    state: State


class Transactions(Part):
    """The transactions of one broker. `new_token` makes text that nobody can guess."""

    def __init__(
        self,
        context: Context,
        producer: Producer,
        validation: Validation,
        offsets: Offsets,
        *,
        new_token: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        super().__init__(context)
        self.stats = TransactionStats()
        self._producer = producer
        self._group_offsets = offsets
        self._validation = validation
        self._new_token = new_token
        self._open: dict[str, _Gathered] = {}
        """In the order in which they began, which is the order in which they time out."""
        self._open_by_owner: Counter[str] = Counter()
        self._ended: dict[str, _Ended] = {}
        """The last ones, the oldest first."""
        self._unknown: dict[str, _Ended] = {}
        """Not forgotten: who hears that there is no such transaction writes its records again. They are few: where a commit ends like this,
        the log takes no other until it is started again."""
        limits = self._limits
        self._table = Table(
            self._engine,
            TRANSACTIONS_TOPIC,
            str,
            Outcome,
            # Old ids are forgotten a moment after new ones have come, and in that moment every open transaction may be committed.
            entries_max=limits.transactions_remembered_max + 2 * limits.transactions_max + FORGOTTEN_PER_APPEND_MAX,
            limit="limits.transactions_remembered_max",
            background=self.background,
            value_bytes_max=OUTCOME_BYTES_MAX,
        )
        self._sweeping: Loop | None = None

    async def start(self) -> None:
        await self._table.load()
        self._sweeping = self.background.loop("transaction_sweep", self._sweep_step, first_s=SWEEP_S)

    async def close(self) -> None:
        """Wait for commits under way. What is open is dropped, as it would be by a crash."""
        if self._sweeping is not None:
            await self._sweeping.stop()
        await self._table.close()

    # -- operations -------------------------------------------------------------------------------------------------------

    @on_broker(Operation.WRITE)
    def begin(self, principal: Principal) -> str:
        """Open a transaction; returns its id."""
        limits = self._limits
        of_principal = self._open_by_owner[principal.name]
        if len(self._open) >= limits.transactions_max or of_principal >= limits.transactions_per_principal_max:
            self.sweep()
        if len(self._open) >= limits.transactions_max:
            raise LimitExceeded(
                f"{len(self._open)} transactions are open, the most allowed: end some or raise limits.transactions_max"
            )
        if self._open_by_owner[principal.name] >= limits.transactions_per_principal_max:
            raise LimitExceeded(
                f"{principal.name} has {limits.transactions_per_principal_max} transactions open, the most allowed: "
                "end some or raise limits.transactions_per_principal_max"
            )
        deadline_s = self._clock.monotonic() + limits.transaction_ms_max / 1000
        transaction = _Gathered(f"txn-{self._new_token()}", principal.name, deadline_s)
        self._open[transaction.id] = transaction
        self._open_by_owner[principal.name] += 1
        self.stats.begun += 1
        self.stats.open += 1
        return transaction.id

    @on_topic(Operation.WRITE)
    def produce(
        self,
        principal: Principal,
        topic: str,
        transaction_id: str,
        partition: int | Sequence[int],
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[bytes | None] | None = None,
        expiries: Sequence[int] | None = None,
        *,
        done: OnAdded,
    ) -> None:
        """Add records, and tell `done` the partition of each: before this returns, unless checking them against the topic's schema takes
        a while.

        Raises what concerns all records, as `Records.produce` does. A record that `Records.produce` would refuse, or that does not fit into
        the transaction, is not added, and the others are. So a commit finds nothing left to refuse but the state of the disk and of the
        topics. Offsets are decided by the commit.
        """
        self._active(principal, transaction_id)
        batch = Batch(values, keys, headers, expiries)
        if self._tracing is not None:
            batch, end = self._tracing.produce(topic, batch)
            done = ending(end, done, lambda added: next(iter(added.errors.values()), None))
        self._validation.screen(
            topic,
            None,
            batch,
            None,
            lambda faults, stamped: done(self._add(principal, topic, transaction_id, partition, stamped, faults)),
            lambda error: done(Added([ANY_PARTITION] * len(batch), dict.fromkeys(range(len(batch)), error))),
        )

    def _add(
        self,
        principal: Principal,
        topic: str,
        transaction_id: str,
        partition: int | Sequence[int],
        batch: Batch,
        faults: Faults | None,
    ) -> Added:
        transaction = self._active(principal, transaction_id)
        accepted = self._producer.select(topic, partition, batch, faults)
        if accepted.faults is None:
            with suppress(LimitExceeded):
                self._grow(transaction, len(batch), batch.size_bytes + len(batch) * RECORD_OVERHEAD_BYTES)
                transaction.records.add(topic, accepted.topic.id, accepted.partitions, batch)
                return Added(accepted.partitions, {})
        return self._add_fitting(transaction, topic, accepted, len(batch))

    def _add_fitting(self, transaction: _Gathered, topic: str, accepted: Accepted, count: int) -> Added:
        """Add, in order, those accepted records of a run of `count` for which there is room."""
        faults = accepted.faults or Faults(None)
        by_row = [ANY_PARTITION] * count
        for place, row in enumerate(faults.accepted(count)):
            record, index = accepted.batch.rows(place, place + 1), accepted.partitions[place]
            try:
                self._grow(transaction, 1, record.size_bytes + RECORD_OVERHEAD_BYTES)
            except LimitExceeded as error:
                faults.refuse(row, error)
            else:
                transaction.records.add(topic, accepted.topic.id, [index], record)
                by_row[row] = index
        return Added(by_row, faults.errors)

    @on_topic_group(Operation.COMMIT)
    def commit_offset(
        self, principal: Principal, topic: str, transaction_id: str, group: str, partition: int, offset: int
    ) -> None:
        """Add the next offset a group reads, so that records count as read exactly when what came of them is written."""
        transaction = self._active(principal, transaction_id)
        key = OffsetKey(topic, group, partition)
        self._group_offsets.check(key, offset)
        if key not in transaction.offsets:
            self._grow(transaction, 1, len(topic) + len(group) + RECORD_OVERHEAD_BYTES)
        transaction.offsets[key] = offset

    @on_broker(Operation.WRITE)
    async def commit(self, principal: Principal, transaction_id: str) -> bool:
        """Write everything that was added, all or nothing. True if this call did it, False if it was done before.

        Raises OutcomeUnknown if only a restart can tell whether it is written. After any other error it certainly is not, and the
        transaction is what it was.
        """
        transaction = self._find(principal, transaction_id)
        if transaction is None:
            ended = self._ended_as(principal, transaction_id)
            if ended is State.UNKNOWN:
                raise _unknown(transaction_id, "restart the broker, then commit it again to learn which")
            if ended is not State.COMMITTED:
                raise _gone(transaction_id, ended)
            return False
        is_first = transaction.state is State.OPEN
        if is_first:
            self._append(principal, transaction)
        # The caller may be cancelled; the commit continues.
        await shield(transaction.finished)
        return is_first

    @on_broker(Operation.WRITE)
    def rollback(self, principal: Principal, transaction_id: str) -> bool:
        """Drop everything that was added. False if there is no such transaction, so that there was nothing to drop.

        Raises TransactionNotActive if it was committed, or may have been. Rolling back twice is rolling back once.
        """
        transaction = self._find(principal, transaction_id)
        if transaction is None:
            ended = self._ended_as(principal, transaction_id)
            if ended in (State.COMMITTED, State.UNKNOWN):
                raise _not_active(ended)
            return ended is not None
        if transaction.state is State.COMMITTING:
            raise _not_active(transaction.state)
        self._end(transaction, State.ROLLED_BACK)
        self.stats.rolled_back += 1
        return True

    @on_broker(Operation.ADMIN)
    def list_open(self, principal: Principal) -> list[OpenTransaction]:
        """Return the open transactions of all principals, oldest first."""
        self.sweep()
        now_s, longest_ms = self._clock.monotonic(), self._limits.transaction_ms_max
        listed = []
        for each in self._open.values():
            topics = sorted(each.records.topics() | {key.topic for key in each.offsets})
            left_ms = max(0, round((each.deadline_s - now_s) * 1000))
            listed.append(
                OpenTransaction(
                    each.id,
                    each.owner,
                    each.state.name.lower(),
                    max(0, longest_ms - left_ms),
                    left_ms,
                    each.added,
                    each.size_bytes,
                    topics[:TOPICS_LISTED_MAX],
                    len(topics),
                )
            )
        return listed

    # -- committing -------------------------------------------------------------------------------------------------------

    def _append(self, principal: Principal, transaction: _Gathered) -> None:
        """Start the commit. Raises what keeps it from being started."""
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        batches = self._batches(principal, transaction)
        outcome = Outcome(transaction.owner, self._clock.now_ms())
        changes: list[PreparedChange[Any, Any]] = [self._table.prepare([(transaction.id, outcome)])]
        offsets = self._offsets(principal, transaction)
        if offsets is not None:
            changes.append(offsets.change)

        def settled(error: PenstockError | None) -> None:
            if offsets is not None:
                offsets.settled()
            self._settle(transaction, error)

        try:
            parts = (*batches, *(change.part for change in changes))
            check_writable(parts, f"transaction {transaction.id} was not committed")
            append_together(self._engine, batches, changes, settled)
        except PenstockError:
            if offsets is not None:
                offsets.settled()
            raise
        transaction.become(State.COMMITTING)
        transaction.finished = finished

    def _batches(self, principal: Principal, transaction: _Gathered) -> list[BatchFor]:
        """What was added, for the topics as they are now. Raises where one is gone, or no longer open to the principal."""
        batches = []
        for (topic, topic_id, index), batch in transaction.records.batches():
            authorize(self.access, principal, Operation.WRITE, Resource(ResourceKind.TOPIC, topic))
            deleted = f"after transaction {transaction.id} wrote to it; roll the transaction back"
            check_topic(self._engine, topic, topic_id, deleted)
            batches.append(BatchFor(self._engine.partition(topic, index), batch))
        return batches

    def _offsets(self, principal: Principal, transaction: _Gathered) -> PreparedOffsets | None:
        for key in transaction.offsets:
            authorize(self.access, principal, Operation.COMMIT, Resource(ResourceKind.GROUP, key.group, key.topic))
        return self._group_offsets.prepare(transaction.offsets) if transaction.offsets else None

    def _settle(self, transaction: _Gathered, error: PenstockError | None) -> None:
        finished = transaction.finished
        if error is None:
            self._end(transaction, State.COMMITTED)
            self.stats.committed += 1
            finished.set_result(None)
            if len(self._table) > self._limits.transactions_remembered_max:
                self._forget()
            return
        if isinstance(error, OutcomeUnknown):
            self._end(transaction, State.UNKNOWN)
            error = _unknown(transaction.id, str(error))
        else:
            transaction.become(State.OPEN)
        finished.set_exception(error)
        finished.exception()  # seen, even where nobody waits any more

    # -- finding and ending -----------------------------------------------------------------------------------------------

    def _find(self, principal: Principal, transaction_id: str) -> _Gathered | None:
        """The principal's transaction, if it is open."""
        transaction = self._open.get(transaction_id)
        if transaction is None or transaction.owner != principal.name:
            return None
        if transaction.state is State.OPEN and transaction.deadline_s <= self._clock.monotonic():
            self._time_out(transaction)
            return None
        return transaction

    def _active(self, principal: Principal, transaction_id: str) -> _Gathered:
        """The principal's transaction, if more may be added to it."""
        transaction = self._find(principal, transaction_id)
        if transaction is None:
            raise _gone(transaction_id, self._ended_as(principal, transaction_id))
        if transaction.state is not State.OPEN:
            raise _not_active(transaction.state)
        return transaction

    def _ended_as(self, principal: Principal, transaction_id: str) -> State | None:
        """None if the principal has no such transaction, or had it so long ago that it is forgotten."""
        outcome = self._table.get(transaction_id)
        if outcome is not None:
            return State.COMMITTED if outcome.owner == principal.name else None
        ended = self._unknown.get(transaction_id) or self._ended.get(transaction_id)
        return ended.state if ended is not None and ended.owner == principal.name else None

    def _grow(self, transaction: _Gathered, records: int, size_bytes: int) -> None:
        """Count what is about to be added. Raises if it does not fit."""
        limits = self._limits
        if transaction.added + records > limits.transaction_records_max:
            raise LimitExceeded(
                f"transaction {transaction.id} has {transaction.added} records: no more than {limits.transaction_records_max} "
                "fit; commit more often or raise limits.transaction_records_max"
            )
        if transaction.size_bytes + size_bytes > limits.transaction_bytes_max:
            raise LimitExceeded(
                f"transaction {transaction.id} holds {transaction.size_bytes} bytes: no more than {limits.transaction_bytes_max} "
                "fit; commit more often or raise limits.transaction_bytes_max"
            )
        if self.stats.open_bytes + size_bytes > limits.transactions_bytes_max:
            raise LimitExceeded(
                f"open transactions hold {self.stats.open_bytes} bytes: no more than {limits.transactions_bytes_max} "
                "fit; end some or raise limits.transactions_bytes_max"
            )
        transaction.added += records
        transaction.size_bytes += size_bytes
        self.stats.open_bytes += size_bytes

    def _end(self, transaction: _Gathered, state: State) -> None:
        transaction.become(state)
        del self._open[transaction.id]
        self._open_by_owner[transaction.owner] -= 1
        if not self._open_by_owner[transaction.owner]:
            del self._open_by_owner[transaction.owner]
        self.stats.open -= 1
        self.stats.open_bytes -= transaction.size_bytes
        if len(self._ended) >= ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        ended = self._unknown if state is State.UNKNOWN else self._ended
        ended[transaction.id] = _Ended(transaction.owner, state)

    def _time_out(self, transaction: _Gathered) -> None:
        self._end(transaction, State.TIMED_OUT)
        self.stats.timed_out += 1

    # -- as time passes ---------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """End what has timed out, and forget what was committed long ago."""
        now_s = self._clock.monotonic()
        late = list(takewhile(lambda transaction: transaction.deadline_s <= now_s, self._open.values()))
        for transaction in late:
            if transaction.state is State.OPEN:
                self._time_out(transaction)
        self._forget()

    async def _sweep_step(self) -> float:
        self.sweep()
        return SWEEP_S

    def _forget(self) -> None:
        """Delete the oldest entries of the table. They are in the order of their commits."""
        surplus = len(self._table) - self._limits.transactions_remembered_max
        before_ms = self._clock.now_ms() - self._limits.transactions_remembered_ms
        oldest = takewhile(
            lambda item: item[0] < surplus or item[1][1].committed_ms < before_ms, enumerate(self._table.items())
        )
        self._table.forget(key for _, (key, _) in oldest)


def _gone(transaction_id: str, ended: State | None) -> PenstockError:
    return TransactionNotFound(f"transaction not found: {transaction_id}") if ended is None else _not_active(ended)


def _not_active(state: State) -> TransactionNotActive:
    return TransactionNotActive(f"transaction is not active: {state.value}")


def _unknown(transaction_id: str, why: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"whether transaction {transaction_id} was committed is unknown: {why}")
