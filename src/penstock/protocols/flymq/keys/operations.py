"""What FlyMQ requests about API keys do. The rest is in `operations`, which this extends."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from penstock.broker.api_keys import DEFAULT_ROLES
from penstock.protocols.flymq.access.operations import Caller
from penstock.protocols.flymq.keys.layouts import encode_key_created, encode_key_revoked, encode_keys
from penstock.protocols.flymq.keys.messages import KeyCreate, KeyDescription, KeyList, KeyRevoke


async def _create(caller: Caller, opcode: int, body: KeyCreate) -> bytes:
    key = await caller.broker.api_keys.create(caller.principal, body.name, body.roles or DEFAULT_ROLES)
    return encode_key_created(key)


def _list(caller: Caller, opcode: int, body: KeyList) -> bytes:
    keys = caller.broker.api_keys.names(caller.principal)
    return encode_keys(KeyDescription(key.name, list(key.roles), key.created_ms, key.created_by) for key in keys)


async def _revoke(caller: Caller, opcode: int, body: KeyRevoke) -> bytes:
    await caller.broker.api_keys.revoke(caller.principal, body.name)
    return encode_key_revoked()


METHODS: Mapping[type, Callable[[Caller, int, Any], bytes | Coroutine[Any, Any, bytes]]] = {
    KeyCreate: _create,
    KeyList: _list,
    KeyRevoke: _revoke,
}
