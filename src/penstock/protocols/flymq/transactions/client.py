"""Transactions as clients use them: `client.transaction()` of the async client and of its twin."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

from penstock.clients.arguments import Values, check_bytes, check_topic, chunks, columns, index_field, offset_field
from penstock.clients.requests import Requests
from penstock.clients.sync_twin import SyncTransaction
from penstock.errors import (
    BatchFailed,
    ConnectionLost,
    InvalidRequest,
    OutcomeUnknown,
    PenstockError,
    RequestTimeout,
    TransactionNotActive,
)
from penstock.protocols.flymq.arguments import partition_field
from penstock.protocols.flymq.exchanges import Call, Calls, Replies
from penstock.protocols.flymq.transactions import replies, requests
from penstock.protocols.flymq.transactions.messages import GroupOffset

_OUTCOME_UNKNOWN = (ConnectionLost, OutcomeUnknown, RequestTimeout)


class AsyncTransaction:
    """Records and group offsets that appear together or not at all.

    ```python
    async with client.transaction() as txn:
        await txn.send("orders", b"one", key=b"k")
        await txn.send("payments", b"1.00")
        txn.commit_offset("carts", "checkout", partition=0, offset=42)
    ```
    The end of the block commits; an exception inside it rolls back. Nothing can be read before the commit is done. A transaction that is
    open for too long (a minute, unless the broker is configured otherwise) is rolled back by the broker.
    """

    def __init__(self, connection: Requests[Replies], timeout_s: float, transaction_id: str | None) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._id = transaction_id
        self._offsets: dict[tuple[str, str, int], int] = {}
        self._lost: PenstockError | None = None
        self._committed = False

    @property
    def id(self) -> str:
        """What the broker calls it."""
        if self._id is None:
            raise InvalidRequest("the transaction has not begun: use it in a with block, or call begin() first")
        return self._id

    async def begin(self) -> Self:
        """What entering the block does first."""
        if self._id is not None:
            raise InvalidRequest(f"transaction {self._id} has begun already: make another with client.transaction()")
        # Begun twice because an answer was lost, the first one holds nothing and times out.
        self._id, _ = replies.decode_transaction(await self._ask(requests.encode_begin()))
        return self

    async def __aenter__(self) -> Self:
        return self if self._id is not None else await self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            # The exception says what happened; a transaction that cannot be rolled back now times out.
            with suppress(PenstockError):
                await self.rollback()
            return
        try:
            await self.commit()
        except _OUTCOME_UNKNOWN:
            raise
        except PenstockError:
            with suppress(PenstockError):
                await self.rollback()
            raise

    async def send(self, topic: str, value: bytes, key: bytes | None = None, partition: int | None = None) -> int:
        """Add one record; returns its partition. Its offset is decided by the commit."""
        check_topic(topic)
        check_bytes([value], [key])
        (added,) = await self._add(topic, [value], [key], partition)
        return added

    async def send_many(self, topic: str, records: Values, partition: int | None = None) -> list[int]:
        """Add many records (values, or pairs of key and value), pipelined, in order; returns the partition of each.

        Where some are refused, the others are in the transaction: roll back, or commit without those.
        """
        check_topic(topic)
        keys, values = columns(records)
        check_bytes(values, keys or ())
        return await self._add(topic, values, keys, partition)

    def commit_offset(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Note the next offset that a group reads; it moves with the commit. So a record that was read, and what came of it, are one."""
        check_topic(topic)
        self._offsets[group, topic, index_field(partition)] = offset_field(offset)

    async def commit(self) -> None:
        """Make everything readable, all or nothing. Sent again where the connection is lost: it is never done twice.

        Raises TransactionNotFound or TransactionNotActive where it was not done and cannot be any more: it timed out, or the broker was
        restarted. After OutcomeUnknown, RequestTimeout and ConnectionLost whether it was done is unknown: call it again to learn.
        """
        if self._lost is not None:
            raise TransactionNotActive(
                f"transaction is not active: whether all records are in it is unknown ({self._lost}); roll back and begin again"
            )
        if self._committed:
            raise TransactionNotActive("transaction is not active: committed")
        offsets = [GroupOffset(*place, offset) for place, offset in self._offsets.items()]
        await self._ask(requests.encode_commit(self.id, offsets))
        self._committed = True

    async def rollback(self) -> None:
        """Drop everything. Raises TransactionNotActive where it was committed before."""
        await self._ask(requests.encode_rollback(self.id))

    async def _add(
        self, topic: str, values: list[bytes], keys: list[bytes | None] | None, partition: int | None
    ) -> list[int]:
        field = partition_field(partition)
        largest_bytes = max(map(len, values), default=0) + max((len(key) for key in keys or () if key), default=0)
        requests.check_record(self.id, topic, largest_bytes)
        sent: list[Calls] = []
        results: list[int | PenstockError] = []
        try:
            for first, last in chunks(values, 0):
                data = requests.encode_produce_many(
                    self.id, topic, values[first:last], keys and keys[first:last], field
                )
                calls = Calls(data, requests=last - first, timeout_s=self._timeout_s)
                await self._connection.submit(calls, after=sent[-1] if sent else None)
                sent.append(calls)
            for calls in sent:
                await calls.finished
                results += [
                    each if isinstance(each, PenstockError) else replies.decode_added(each) for each in calls.results
                ]
        except PenstockError as error:
            if sent:
                self._lost = error
            raise
        return _all_added(results)

    async def _ask(self, data: bytes) -> bytes:
        """Every request but those that add records may be sent again: the second finds done what the first did."""
        call = Call(data, timeout_s=self._timeout_s, repeatable=True)
        await self._connection.perform(call)
        return call.payload


def _all_added(results: list[int | PenstockError]) -> list[int]:
    added = [result for result in results if isinstance(result, int)]
    errors = [result for result in results if isinstance(result, PenstockError)]
    if not errors:
        return added
    if not added and len({type(error) for error in errors}) == 1:
        raise errors[0]
    raise BatchFailed(
        f"{len(errors)} of {len(results)} records were refused; the first error: {errors[0]}", results
    ) from errors[0]


class Transaction(SyncTransaction[AsyncTransaction]):
    """The same calls as `AsyncTransaction`, each waiting for its answer.

    ```python
    with client.transaction() as txn:
        txn.send("orders", b"one", key=b"k")
        txn.send("payments", b"1.00")
    ```
    """

    @property
    def id(self) -> str:
        """What the broker calls it."""
        return self._transaction.id

    def begin(self) -> Self:
        """What entering the block does first."""
        self._thread.run(self._transaction.begin())
        return self

    def send(self, topic: str, value: bytes, key: bytes | None = None, partition: int | None = None) -> int:
        """Add one record; returns its partition. For many records, `send_many` is much faster."""
        return self._thread.run(self._transaction.send(topic, value, key, partition))

    def send_many(self, topic: str, records: Values, partition: int | None = None) -> list[int]:
        """Add many records (values, or pairs of key and value), in order; returns the partition of each."""
        return self._thread.run(self._transaction.send_many(topic, records, partition))

    def commit_offset(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Note the next offset that a group reads; it moves with the commit."""
        self._transaction.commit_offset(topic, group, partition, offset)
