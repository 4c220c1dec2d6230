"""Handlers of transactions.

Deployed clients take every reply but ERROR for success, so ERROR it is wherever records that the client counts on are not there. A
transaction that was committed before is answered with the bool at 0, as deployed brokers do: nothing was done now, and nothing is wrong.
The same goes for rolling back what does not exist.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from penstock.errors import InvalidRequest, LimitExceeded, PartitionNotFound, PenstockError, TransactionNotActive
from penstock.protocols.flymq.errors import encode_error, error_text
from penstock.protocols.flymq.operations.transactions import (
    TransactionState,
    TxnBegin,
    TxnCommit,
    TxnProduce,
    TxnRollback,
    encode_added,
)
from penstock.protocols.flymq.server.dispatch import Answer, Caller, handles
from penstock.protocols.flymq.wire import PARTITION_AUTO

_Added = list[int] | PenstockError
_OF_ONE_RECORD = (InvalidRequest, PartitionNotFound, LimitExceeded)
"""What may be the fault of one record of a run. Everything else is the same for all of them."""


class RunRefused(Exception):
    """Of a run of requests some were refused; `reply` answers them all, `errors` of them with ERROR."""

    def __init__(self, reply: bytes, errors: int) -> None:
        super().__init__(f"{errors} requests of a run were refused")
        self.reply = reply
        self.errors = errors


@handles(TxnBegin)
def begin(caller: Caller, request: TxnBegin) -> TransactionState:
    return TransactionState(caller.broker.transactions.begin(caller.principal), True)


@handles(TxnProduce)
def produce(caller: Caller, request: TxnProduce) -> Answer:
    if not caller.broker.has_topic(request.topic):
        return _create_and_produce(caller, request)
    try:
        adding = _start(caller, request)
    except _OF_ONE_RECORD:
        if len(request.values) == 1:
            raise
        return _produce_one_by_one(caller, request)
    return _replies(request, adding.result()) if adding.done() else _produce_later(caller, request, adding)


async def _create_and_produce(caller: Caller, request: TxnProduce) -> bytes:
    await caller.broker.ensure_topic(caller.principal, request.topic)
    answer: Answer = produce(caller, request)
    return answer if isinstance(answer, bytes) else await answer


async def _produce_later(caller: Caller, request: TxnProduce, adding: asyncio.Future[_Added]) -> bytes:
    added = await adding
    if isinstance(added, _OF_ONE_RECORD) and len(request.values) > 1:
        return await _produce_one_by_one(caller, request)
    return _replies(request, added)


async def _produce_one_by_one(caller: Caller, request: TxnProduce) -> bytes:
    """The broker refuses a run whole, but the peer sent single requests: only those at fault may fail."""
    replies, errors = [], 0
    for single in request.records():
        try:
            replies.append(_replies(single, await _start(caller, single)))
        except PenstockError as error:
            replies.append(encode_error(error_text(error), native=bool(caller.native)))
            errors += 1
    raise RunRefused(b"".join(replies), errors)


def _start(caller: Caller, request: TxnProduce) -> asyncio.Future[_Added]:
    adding: asyncio.Future[_Added] = asyncio.get_running_loop().create_future()
    caller.broker.transactions.produce(
        caller.principal,
        request.topic,
        request.transaction,
        PARTITION_AUTO if request.partitions is None else request.partitions,
        request.values,
        request.keys,
        done=adding.set_result,
    )
    return adding


def _replies(request: TxnProduce, added: _Added) -> bytes:
    if isinstance(added, PenstockError):
        raise added
    return encode_added(request.topic, added, request.keys, request.values)


@handles(TxnCommit)
async def commit(caller: Caller, request: TxnCommit) -> TransactionState:
    transactions = caller.broker.transactions
    # Of a transaction that has ended, the commit itself says how: a client that asks again sends its offsets again too.
    with suppress(TransactionNotActive):
        for group, topic, partition, offset in request.offsets:
            transactions.commit_offset(caller.principal, topic, request.transaction, group, partition, offset)
    done = await transactions.commit(caller.principal, request.transaction)
    return TransactionState(request.transaction, done)


@handles(TxnRollback)
def rollback(caller: Caller, request: TxnRollback) -> TransactionState:
    done = caller.broker.transactions.rollback(caller.principal, request.transaction)
    return TransactionState(request.transaction, done)
