"""Handlers that tell what waits to become readable: delayed records and open transactions."""

from __future__ import annotations

from penstock.broker.schedule.schedule import Pending
from penstock.protocols.flymq.operations import monitoring as op
from penstock.protocols.flymq.server.dispatch import Caller, handles

NO_VALUE = -1


@handles(op.DelayedList)
async def list_delayed(caller: Caller, request: op.DelayedList) -> op.DelayedPage:
    page = await caller.broker.schedule.list_pending(caller.principal, request.topic, request.after)
    return op.DelayedPage([_pending(each) for each in page.entries], page.after)


@handles(op.TxnList)
def list_transactions(caller: Caller, request: op.TxnList) -> list[op.OpenTransaction]:
    return [op.OpenTransaction(*each) for each in caller.broker.transactions.list_open(caller.principal)]


def _pending(entry: Pending) -> op.PendingRecord:
    record = entry.record
    return op.PendingRecord(
        entry.id,
        record.topic,
        record.partition,
        entry.due_ms,
        record.key,
        NO_VALUE if record.value is None else len(record.value),
        record.ttl_ms,
    )
