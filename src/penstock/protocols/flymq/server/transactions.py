"""Handlers of transactions.

Deployed clients take every reply but ERROR for success, so ERROR it is wherever records that the client counts on are not there. A
transaction that was committed before is answered with the bool at 0, as deployed brokers do: nothing was done now, and nothing is wrong.
The same goes for rolling back what does not exist.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from penstock.broker.transactions.transactions import Added
from penstock.errors import TransactionNotActive
from penstock.futures import set_outcome
from penstock.protocols.flymq.operations import transactions as op
from penstock.protocols.flymq.server.dispatch import Answer, Caller, handles
from penstock.protocols.flymq.wire import PARTITION_AUTO


@handles(op.TxnBegin)
def begin(caller: Caller, request: op.TxnBegin) -> op.TransactionState:
    return op.TransactionState(caller.broker.transactions.begin(caller.principal), True)


@handles(op.TxnProduce)
def produce(caller: Caller, request: op.TxnProduce) -> Answer:
    if not caller.broker.topics.exists(request.topic):
        return _create_and_produce(caller, request)
    adding: asyncio.Future[Added] = asyncio.get_running_loop().create_future()
    caller.broker.transactions.produce(
        caller.principal,
        request.topic,
        request.transaction,
        PARTITION_AUTO if request.partitions is None else request.partitions,
        request.values,
        request.keys,
        done=partial(set_outcome, adding),
    )
    return _replies(caller, request, adding.result()) if adding.done() else _reply_later(caller, request, adding)


async def _create_and_produce(caller: Caller, request: op.TxnProduce) -> bytes:
    await caller.broker.topics.ensure(caller.principal, request.topic)
    answer: Answer = produce(caller, request)
    return answer if isinstance(answer, bytes) else await answer


async def _reply_later(caller: Caller, request: op.TxnProduce, adding: asyncio.Future[Added]) -> bytes:
    return _replies(caller, request, await adding)


def _replies(caller: Caller, request: op.TxnProduce, added: Added) -> bytes:
    replies = op.encode_added(request.topic, added.partitions, request.keys, request.values)
    if not added.errors:
        return replies
    size = len(replies) // len(request.values)
    return b"".join(
        caller.refuse_added(request, added.errors[row]) if row in added.errors else replies[row * size :][:size]
        for row in range(len(request.values))
    )


@handles(op.TxnCommit)
async def commit(caller: Caller, request: op.TxnCommit) -> op.TransactionState:
    transactions = caller.broker.transactions
    # Of a transaction that has ended, the commit itself says how: a client that asks again sends its offsets again too.
    with suppress(TransactionNotActive):
        for group, topic, partition, offset in request.offsets:
            transactions.commit_offset(caller.principal, topic, request.transaction, group, partition, offset)
    done = await transactions.commit(caller.principal, request.transaction)
    return op.TransactionState(request.transaction, done)


@handles(op.TxnRollback)
def rollback(caller: Caller, request: op.TxnRollback) -> op.TransactionState:
    done = caller.broker.transactions.rollback(caller.principal, request.transaction)
    return op.TransactionState(request.transaction, done)
