"""What all connections of one Felix listener share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from penstock.broker.broker import Broker
from penstock.protocols.felix.feed import Feeds
from penstock.protocols.felix.identities import Identities
from penstock.protocols.felix.scopes import Scopes
from penstock.protocols.felix.stats import FelixStats

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
