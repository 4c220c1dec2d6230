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

from penstock.errors import PenstockError, TransactionNotActive
from penstock.protocols.flymq.transaction_messages import TxnBegin, TxnCommit, TxnProduce, TxnRollback
from penstock.protocols.flymq.transaction_replies import encode_added, encode_transaction

if TYPE_CHECKING:
    from penstock.protocols.flymq.access_operations import Caller

Answer = bytes | Coroutine[Any, Any, bytes]
_Added = list[int] | PenstockError


def _begin(caller: Caller, opcode: int, body: TxnBegin) -> bytes:
    return encode_transaction(opcode, caller.broker.transactions.begin(caller.principal), done=True)


def _produce(caller: Caller, opcode: int, body: TxnProduce) -> Answer:
    if not caller.broker.has_topic(body.topic):
        return _create_and_produce(caller, body)
    adding = _start(caller, body)
    return _answer(body, adding.result()) if adding.done() else _answer_later(body, adding)


async def _create_and_produce(caller: Caller, body: TxnProduce) -> bytes:
    await caller.broker.ensure_topic(caller.principal, body.topic)
    return _answer(body, await _start(caller, body))


async def _answer_later(body: TxnProduce, adding: asyncio.Future[_Added]) -> bytes:
    return _answer(body, await adding)


def _start(caller: Caller, body: TxnProduce) -> asyncio.Future[_Added]:
    adding: asyncio.Future[_Added] = asyncio.get_running_loop().create_future()
    caller.broker.transactions.produce(
        caller.principal,
        body.topic,
        body.transaction,
        body.partition,
        [body.value],
        None if body.key is None else [body.key],
        done=adding.set_result,
    )
    return adding


def _answer(body: TxnProduce, added: _Added) -> bytes:
    if isinstance(added, PenstockError):
        raise added
    return encode_added(body.topic, added[0], body.key, body.value)


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
