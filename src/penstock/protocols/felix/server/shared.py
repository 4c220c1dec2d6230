"""What all connections of one Felix listener share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from penstock.broker.broker import Broker
from penstock.errors import AccessDenied
from penstock.protocols.felix.codec.scopes import Scope, Scopes
from penstock.protocols.felix.server.feed import Feeds
from penstock.protocols.felix.server.identities import Identities, Identity
from penstock.protocols.felix.server.stats import FelixStats

Dialect = Literal["auto", "spec", "native"]


@dataclass(frozen=True, slots=True)
class Shared:
    broker: Broker
    dialect: Dialect
    scopes: Scopes
    auto_create: bool
    """Whether streams that are published or subscribed to are made where they are missing."""
    identities: Identities
    feeds: Feeds
    subscription_ids: Iterator[int]
    """Numbers for subscriptions whose clients give them none."""
    stats: FelixStats
    subscriptions_max: int
    """Per connection."""
    login_required: bool = False
    """Whether frames of clients that have not logged in are small."""

    def topic(self, identity: Identity, scope: Scope) -> str:
        """The topic that a scope means to this principal. Raises AccessDenied if it is another tenant's."""
        if identity.tenant_id is not None and identity.tenant_id != scope.tenant_id:
            raise AccessDenied(f"unauthorized: tenant mismatch, this token is of tenant {identity.tenant_id}")
        return self.scopes.topic(scope)
