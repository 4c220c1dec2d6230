"""Handlers that tell what waits to become readable: delayed records and open transactions."""

from __future__ import annotations

from penstock.broker.schedule.schedule import Pending
from penstock.protocols.flymq.operations.monitoring import (
    DelayedList,
    DelayedPage,
    OpenTransaction,
    PendingRecord,
    TxnList,
)
from penstock.protocols.flymq.server.dispatch import Caller, handles

NO_VALUE = -1


@handles(DelayedList)
async def list_delayed(caller: Caller, request: DelayedList) -> DelayedPage:
    page = await caller.broker.schedule.list_pending(caller.principal, request.topic, request.after)
    return DelayedPage([_pending(each) for each in page.entries], page.after)


@handles(TxnList)
def list_transactions(caller: Caller, request: TxnList) -> list[OpenTransaction]:
    return [OpenTransaction(*each) for each in caller.broker.transactions.list_open(caller.principal)]


def _pending(entry: Pending) -> PendingRecord:
    record = entry.record
    return PendingRecord(
        entry.id,
        record.topic,
        record.partition,
        entry.due_ms,
        record.key,
        NO_VALUE if record.value is None else len(record.value),
        record.ttl_ms,
    )
