"""Transactions as clients use them: `client.transaction()`."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

from penstock.clients.arguments import Values, check_bytes, check_topic, chunks, columns, index_field, offset_field
from penstock.clients.results import require_success
from penstock.errors import (
    ConnectionLost,
    InvalidRequest,
    OutcomeUnknown,
    PenstockError,
    RequestTimeout,
    TransactionNotActive,
)
from penstock.protocols.flymq.client.exchanges import Calls, Channel, partition_field
from penstock.protocols.flymq.operations.transactions import (
    GroupOffset,
    TxnBegin,
    TxnCommit,
    TxnRollback,
    check_txn_record,
    decode_added,
    encode_txn_produces,
)

_OUTCOME_UNKNOWN = (ConnectionLost, OutcomeUnknown, RequestTimeout)


class AsyncTransaction:
    """Records and group offsets that become visible together or not at all.

    ```python
    async with client.transaction() as txn:
        await txn.send("orders", b"one", key=b"k")
        await txn.send("payments", b"1.00")
        txn.commit_offset("carts", "checkout", partition=0, offset=42)
    ```
    The end of the block commits; an exception inside it rolls back. Nothing can be read before the commit is done. A transaction that is
    open for too long (a minute, unless the broker is configured otherwise) is rolled back by the broker.
    """

    def __init__(self, channel: Channel, transaction_id: str | None) -> None:
        self._channel = channel
        self._id = transaction_id
        self._offsets: dict[tuple[str, str, int], int] = {}
        self._lost: PenstockError | None = None
        self._committed = False

    @property
    def id(self) -> str:
        """The id that the broker assigned."""
        if self._id is None:
            raise InvalidRequest("the transaction has not begun: use it in a with block, or call begin() first")
        return self._id

    async def begin(self) -> Self:
        """Begin the transaction, as entering the block does."""
        if self._id is not None:
            raise InvalidRequest(f"transaction {self._id} has begun already: make another with client.transaction()")
        # Begun twice because an answer was lost, the first one holds nothing and times out.
        self._id = (await self._channel.ask(TxnBegin())).transaction
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
        """Add one record; return its partition. The commit assigns its offset."""
        check_topic(topic)
        check_bytes([value], [key])
        (added,) = await self._add(topic, [value], [key], partition)
        return added

    async def send_many(self, topic: str, records: Values, partition: int | None = None) -> list[int]:
        """Add many records (values, or pairs of key and value), pipelined, in order; return the partition of each.

        If some are refused, the others are in the transaction: roll back, or commit without the refused ones.
        """
        check_topic(topic)
        keys, values = columns(records)
        check_bytes(values, keys or ())
        return await self._add(topic, values, keys, partition)

    def commit_offset(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Commit a group's next offset with the transaction, so that input offsets and output records change atomically."""
        check_topic(topic)
        self._offsets[group, topic, index_field(partition)] = offset_field(offset)

    async def commit(self) -> None:
        """Commit: make all records visible atomically. Retried after a lost connection; a commit is never applied twice.

        Raises TransactionNotFound or TransactionNotActive if it was not committed and cannot be: it timed out, or the broker was restarted.
        After OutcomeUnknown, RequestTimeout and ConnectionLost the outcome is unknown: call it again to find out.
        """
        if self._lost is not None:
            raise TransactionNotActive(
                f"transaction is not active: whether all records are in it is unknown ({self._lost}); roll back and begin again"
            )
        if self._committed:
            raise TransactionNotActive("transaction is not active: committed")
        offsets = [GroupOffset(*place, offset) for place, offset in self._offsets.items()]
        await self._channel.ask(TxnCommit(self.id, offsets))
        self._committed = True

    async def rollback(self) -> None:
        """Roll back: drop all records. Raises TransactionNotActive if it is committed."""
        await self._channel.ask(TxnRollback(self.id))

    async def _add(
        self, topic: str, values: list[bytes], keys: list[bytes | None] | None, partition: int | None
    ) -> list[int]:
        field = partition_field(partition)
        largest_bytes = max(map(len, values), default=0) + max((len(key) for key in keys or () if key), default=0)
        check_txn_record(self.id, topic, largest_bytes)
        sent: list[Calls] = []
        results: list[int | PenstockError] = []
        try:
            for first, last in chunks(values, 0, keys):
                data = encode_txn_produces(self.id, topic, values[first:last], keys and keys[first:last], field)
                calls = Calls(data, requests=last - first, timeout_s=self._channel.timeout_s)
                await self._channel.requests.submit(calls, after=sent[-1] if sent else None)
                sent.append(calls)
            for calls in sent:
                await calls.finished
                results += [each if isinstance(each, PenstockError) else decode_added(each) for each in calls.results]
        except PenstockError as error:
            if sent:
                self._lost = error
            raise
        return require_success(results)
