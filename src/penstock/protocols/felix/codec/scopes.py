"""Tenants, namespaces and streams as topics; the same for caches.

A stream is the topic `tenant/namespace/stream`, where the default tenant and the default namespace are left out: stream `orders` of both
is topic `orders`, of tenant `t1` it is `t1/orders`. The default tenant is the broker's own: its streams are all topics of all tenants,
as far as the access rules go. Any other tenant is confined to the topics below its name, which is why neither its name nor that of a
namespace may contain a "/"; a stream's may.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import UnsetType

from penstock.errors import InvalidRequest, PartitionNotFound

DEFAULT_CACHE: Final = "default"
"""Where values go that name no cache, as in the contract, whose messages know of none."""


class Scope(NamedTuple):
    """What a message names."""

    tenant_id: str
    namespace: str
    name: str
    """Of the stream or cache."""


class Scopes:
    def __init__(self, default_tenant: str = "default", default_namespace: str = "default") -> None:
        self.default_tenant = default_tenant
        self.default_namespace = default_namespace

    def topic(self, scope: Scope) -> str:
        """Raises InvalidRequest if a name cannot be a level of a topic's."""
        tenant_id, namespace, name = scope
        if not tenant_id or "/" in tenant_id:
            raise InvalidRequest(f'unknown tenant {tenant_id!r}: a name is not empty and has no "/"')
        if not namespace or "/" in namespace:
            raise InvalidRequest(f'namespace {namespace!r} not found: a name is not empty and has no "/"')
        if namespace != self.default_namespace:
            name = f"{namespace}/{name}"
        return name if tenant_id == self.default_tenant else f"{tenant_id}/{name}"

    def cache(
        self, tenant_id: str | UnsetType | None, namespace: str | UnsetType | None, cache: str | UnsetType | None
    ) -> Scope:
        """What a message means whose scope may be left out."""
        return Scope(
            tenant_id if isinstance(tenant_id, str) else self.default_tenant,
            namespace if isinstance(namespace, str) else self.default_namespace,
            cache if isinstance(cache, str) else DEFAULT_CACHE,
        )


def check_shard(shard: int | UnsetType | None) -> None:
    """Raises PartitionNotFound for any but the one shard that every stream has."""
    if shard:
        raise PartitionNotFound(f"shard {shard} not found: every stream has one, which is 0")
