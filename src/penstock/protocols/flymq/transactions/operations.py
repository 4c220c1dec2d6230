"""What FlyMQ requests about transactions do. The rest is in `operations`.

Deployed clients take every reply but ERROR for success, so ERROR it is wherever records that the client counts on are not there. A
transaction that was committed before is answered with the bool at 0, as deployed brokers do: nothing was done now, and nothing is wrong.
The same goes for rolling back what does not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidRequest, LimitExceeded, PartitionNotFound, PenstockError, TransactionNotActive
from penstock.protocols.flymq.error_texts import error_text
from penstock.protocols.flymq.reply_encoding import encode_error
from penstock.protocols.flymq.transactions.messages import TxnBegin, TxnCommit, TxnProduce, TxnRollback
from penstock.protocols.flymq.transactions.replies import encode_added, encode_transaction
from penstock.protocols.flymq.wire import PARTITION_AUTO, Opcode

if TYPE_CHECKING:
    from penstock.protocols.flymq.access.operations import Caller

Answer = bytes | Coroutine[Any, Any, bytes]
_Added = list[int] | PenstockError
_OF_ONE_RECORD = (InvalidRequest, PartitionNotFound, LimitExceeded)
"""What may be the fault of one record of a run. Everything else is the same for all of them."""


class RunRefused(Exception):
    """Of a run of requests some were refused; `reply` answers them all, `errors` of them with ERROR."""

    def __init__(self, reply: bytes, errors: int) -> None:
        super().__init__(f"{errors} requests of a run were refused")
        self.reply = reply
        self.errors = errors


def _begin(caller: Caller, opcode: int, body: TxnBegin) -> bytes:
    return encode_transaction(opcode, caller.broker.transactions.begin(caller.principal), done=True)


def _produce(caller: Caller, opcode: int, body: TxnProduce) -> Answer:
    if not caller.broker.has_topic(body.topic):
        return _create_and_produce(caller, body)
    try:
        adding = _start(caller, body)
    except _OF_ONE_RECORD:
        if len(body.values) == 1:
            raise
        return _produce_one_by_one(caller, body)
    return _replies(body, adding.result()) if adding.done() else _produce_later(caller, body, adding)


async def _create_and_produce(caller: Caller, body: TxnProduce) -> bytes:
    await caller.broker.ensure_topic(caller.principal, body.topic)
    answer = _produce(caller, Opcode.TXN_PRODUCE, body)
    return answer if isinstance(answer, bytes) else await answer


async def _produce_later(caller: Caller, body: TxnProduce, adding: asyncio.Future[_Added]) -> bytes:
    added = await adding
    if isinstance(added, _OF_ONE_RECORD) and len(body.values) > 1:
        return await _produce_one_by_one(caller, body)
    return _replies(body, added)


async def _produce_one_by_one(caller: Caller, body: TxnProduce) -> bytes:
    """The broker refuses a run whole, but the peer sent single requests: only those at fault may fail."""
    replies, errors = [], 0
    for single in body.records():
        try:
            replies.append(_replies(single, await _start(caller, single)))
        except PenstockError as error:
            replies.append(encode_error(error_text(error), native=bool(caller.native)))
            errors += 1
    raise RunRefused(b"".join(replies), errors)


def _start(caller: Caller, body: TxnProduce) -> asyncio.Future[_Added]:
    adding: asyncio.Future[_Added] = asyncio.get_running_loop().create_future()
    caller.broker.transactions.produce(
        caller.principal,
        body.topic,
        body.transaction,
        PARTITION_AUTO if body.partitions is None else body.partitions,
        body.values,
        body.keys,
        done=adding.set_result,
    )
    return adding


def _replies(body: TxnProduce, added: _Added) -> bytes:
    if isinstance(added, PenstockError):
        raise added
    return encode_added(body.topic, added, body.keys, body.values)


async def _commit(caller: Caller, opcode: int, body: TxnCommit) -> bytes:
    transactions = caller.broker.transactions
    # Of a transaction that has ended, the commit itself says how: a client that asks again sends its offsets again too.
    with suppress(TransactionNotActive):
        for group, topic, partition, offset in body.offsets:
            transactions.commit_offset(caller.principal, topic, body.transaction, group, partition, offset)
    return encode_transaction(
        opcode, body.transaction, done=await transactions.commit(caller.principal, body.transaction)
    )


def _rollback(caller: Caller, opcode: int, body: TxnRollback) -> bytes:
    done = caller.broker.transactions.rollback(caller.principal, body.transaction)
    return encode_transaction(opcode, body.transaction, done=done)


METHODS: Mapping[type, Callable[[Caller, int, Any], Answer]] = {
    TxnBegin: _begin,
    TxnProduce: _produce,
    TxnCommit: _commit,
    TxnRollback: _rollback,
}
