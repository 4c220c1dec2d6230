"""Cache requests: what scope they mean, and how they are answered in each dialect.

A cache is named like a stream. The contract's requests name none; they mean the default one, of the tenant that asks where that is known.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from penstock.errors import LimitExceeded
from penstock.protocols.felix.codec.frames import encode_message
from penstock.protocols.felix.codec.messages import (
    CacheDelete,
    CacheGet,
    CacheOk,
    CachePut,
    CacheValue,
    Ok,
    SpecCacheValue,
)
from penstock.protocols.felix.codec.scopes import Scope
from penstock.protocols.felix.server.identities import Identity
from penstock.protocols.felix.server.shared import Shared
from penstock.protocols.felix.wire import PAYLOAD_BYTES_MAX

_ROOM_BYTES: Final = 64 << 10
"""Left in a frame for what stands around a value: names, a key and an id, each character of which may take six bytes in JSON."""
VALUE_BYTES_MAX: Final = (PAYLOAD_BYTES_MAX - _ROOM_BYTES) // 4 * 3
"""A value must fit into the reply to any request for it, whatever names and id that has."""


def put(shared: Shared, identity: Identity, request: CachePut, *, native: bool) -> bytes:
    """Raises what the cache does, AccessDenied, and LimitExceeded."""
    if len(request.value) > VALUE_BYTES_MAX:
        raise LimitExceeded(
            f"a value of {len(request.value)} bytes does not fit into the frame that would answer a cache_get: at most {VALUE_BYTES_MAX}"
        )
    cache = shared.topic(identity, _scope(shared, identity, request))
    shared.broker.cache.put(identity.principal, cache, request.key, request.value, request.ttl_ms)
    if request.request_id is None or request.request_id is UNSET:
        return encode_message(Ok())
    return encode_message(CacheOk(request_id=request.request_id) if native else Ok(request_id=request.request_id))


def get(shared: Shared, identity: Identity, request: CacheGet, *, native: bool) -> bytes:
    """Names come back as they came, those that were left out stay out."""
    cache = shared.topic(identity, _scope(shared, identity, request))
    return _value(request, shared.broker.cache.get(identity.principal, cache, request.key), native=native)


def delete(shared: Shared, identity: Identity, request: CacheDelete, *, native: bool) -> bytes:
    """Answered with what was removed, as a get is; so it takes the right to read as well as that to write."""
    cache = shared.topic(identity, _scope(shared, identity, request))
    value = shared.broker.cache.get(identity.principal, cache, request.key)
    shared.broker.cache.delete(identity.principal, cache, request.key)
    return _value(request, value, native=native)


def _value(request: CacheGet | CacheDelete, value: bytes | None, *, native: bool) -> bytes:
    form = CacheValue if native else SpecCacheValue
    return encode_message(
        form(
            tenant_id=request.tenant_id,
            namespace=request.namespace,
            cache=request.cache,
            key=request.key,
            value=value,
            request_id=UNSET if request.request_id is None else request.request_id,
        )
    )


def names_whole_scope(request: CachePut | CacheGet | CacheDelete) -> bool:
    return isinstance(request.tenant_id, str) and isinstance(request.namespace, str) and isinstance(request.cache, str)


def _scope(shared: Shared, identity: Identity, request: CachePut | CacheGet | CacheDelete) -> Scope:
    scope = shared.scopes.cache(request.tenant_id, request.namespace, request.cache)
    if not isinstance(request.tenant_id, str) and identity.tenant_id is not None:
        return scope._replace(tenant_id=identity.tenant_id)
    return scope
