"""Subscriptions of other nodes, as those have stored them: for the node that leads, which lists all.

What is stored is kept as it was read, and looked into when somebody asks: acknowledgements store it again and again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Container, Iterator
from typing import Final, Protocol

import msgspec

from penstock.background import Background
from penstock.broker.access.checks import Principal
from penstock.broker.deliveries.policy import DeliveryPolicy
from penstock.broker.deliveries.shards import (
    SUBSCRIPTIONS_TOPIC,
    number_in,
    shard_of_number,
    shard_of_topic,
)
from penstock.broker.deliveries.stored import StoredSubscription
from penstock.broker.deliveries.subscription import Subscription
from penstock.broker.groups.resets import Move, ResetTarget
from penstock.broker.table import Table
from penstock.clock import Clock
from penstock.log.api import Engine

_DECODER: Final = msgspec.msgpack.Decoder(StoredSubscription)


class Owners(Protocol):
    """The nodes that own shards, as a broker on another node sees them. Raises NotLeading if the one that is asked is not reached."""

    async def reset_subscription(
        self,
        shard: int,
        principal: Principal,
        topic: str,
        subscription: str,
        target: ResetTarget,
        partition: int | None,
        *,
        preview: bool,
    ) -> list[Move]:
        """Have the owner of a shard do what `SubscriptionAdmin.reset` does."""

    async def delete_subscriptions(self, shard: int, principal: Principal, group: str, topic: str | None) -> None:
        """Have the owner of a shard delete the subscriptions of a group that it has. Raises GroupNotFound if there is none."""


class Elsewhere:
    def __init__(
        self, engine: Engine, shards: int, policy: DeliveryPolicy, clock: Clock, background: Background
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._clock = clock
        self._tables = [
            Table(
                engine,
                SUBSCRIPTIONS_TOPIC,
                int,
                msgspec.Raw,
                entries_max=0,  # nothing is put here
                limit="limits.subscriptions_max",
                partition=shard,
                background=background,
            )
            for shard in range(shards)
        ]

    async def load(self) -> None:
        await asyncio.gather(*(table.load() for table in self._tables))

    async def close(self) -> None:
        await asyncio.gather(*(table.close() for table in self._tables))

    async def catch_up(self, group: str | None, topic: str | None) -> None:
        """Show those of a group and topic as they were stored before the call; all where neither is given."""
        await asyncio.gather(*(self._tables[shard].catch_up() for shard in self._shards_of(group, topic)))

    def count(self, owned: Container[int]) -> int:
        """Return about how many there are in shards that this node does not own."""
        return sum(max(0, len(table) - 1) for shard, table in enumerate(self._tables) if shard not in owned)

    def subscriptions(self, owned: Container[int], group: str | None, topic: str | None) -> Iterator[Subscription]:
        """Iterate over read-only copies of the subscriptions in shards that this node does not own, filtered by group and topic if given.

        Records that were not acknowledged count as in flight.
        """
        now_ms = self._clock.now_ms()
        for shard in self._shards_of(group, topic):
            if shard in owned:
                continue
            for number, raw in self._tables[shard].items():
                stored = _DECODER.decode(raw)
                if topic not in (None, stored.topic) or group not in (None, stored.group(number)):
                    continue
                info = self._engine.topics().get(stored.topic)
                if info is not None and info.id == stored.topic_id:
                    handles = self._engine.partitions(info)
                    continued = stored.continued(handles)
                    yield Subscription(number, continued, handles, self._policy, shard=shard, restored_ms=now_ms)

    def _shards_of(self, group: str | None, topic: str | None) -> Collection[int]:
        """Return the shards in which subscriptions of a group in a topic may be: one or two, where both are given."""
        count = len(self._tables)
        if group is None or topic is None:
            return range(count)
        number = number_in(group)
        by_name = shard_of_topic(topic, count)
        return {by_name} if number is None else {by_name, shard_of_number(number, count)}
