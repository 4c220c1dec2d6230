"""Subscriptions as an operator sees them: lag, deliveries in flight, dead letters, and moving where one continues."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from penstock.background import run_to_completion
from penstock.broker.access.checks import Operation, Principal, on_broker, on_topic_group
from penstock.broker.deliveries.subscription import Subscription
from penstock.broker.deliveries.subscriptions import Subscriptions
from penstock.broker.groups.lag import Lookups, RecordAges
from penstock.broker.groups.monitoring import Filter, first_page
from penstock.broker.groups.resets import Move, ResetTarget, audited, handles_to_reset, move_of
from penstock.broker.part import Context, Part


class SubscriptionStatus(NamedTuple):
    topic: str
    name: str
    """Its number if it has no name, as in #17."""
    owner: str
    created_ms: int
    lag: int
    """Records that are not settled."""
    seconds: float | None
    """Age of the oldest of them."""
    in_flight: int
    redeliveries: int
    """Since the broker started."""
    dead_letters: int
    """Records of this subscription that became dead letters since the broker started."""
    waiting: int
    """Records that are to become dead letters and could not be written yet."""
    positions: list[tuple[int, int]]
    """By partition: the next offset to be delivered for the first time, and the high watermark."""


class SubscriptionPage(NamedTuple):
    items: list[SubscriptionStatus]
    more: bool


class SubscriptionAdmin(Part):
    def __init__(self, context: Context, subscriptions: Subscriptions, ages: RecordAges) -> None:
        super().__init__(context)
        self._subscriptions = subscriptions
        self._ages = ages

    @on_broker(Operation.ADMIN)
    async def statuses(self, principal: Principal, wanted: Filter) -> SubscriptionPage:
        """Return subscriptions by topic and name; those of other nodes, on the node that leads, as they are stored."""
        group, topic = wanted.name or None, wanted.topic or None
        await self._subscriptions.catch_up(group, topic)
        of_group = sorted(self._subscriptions.of_group(group, topic), key=lambda each: (each.topic, each.group))
        found = [each for each in of_group if (each.topic, each.group) > wanted.after]
        page = first_page(found, lambda each: len(each.positions))
        lookups = Lookups()
        return SubscriptionPage([await self._status(each, lookups) for each in page], len(page) < len(found))

    @on_broker(Operation.ADMIN)
    async def first_statuses(self, principal: Principal, rows_max: int) -> list[SubscriptionStatus]:
        """Return at most this many subscriptions, those with a name first, for metrics."""
        lookups = Lookups()
        chosen = list(islice(self._subscriptions.here(), rows_max))
        return [await self._status(each, lookups) for each in chosen]

    @on_topic_group(Operation.COMMIT, "subscription")
    @run_to_completion
    async def reset(
        self,
        principal: Principal,
        topic: str,
        subscription: str,
        target: ResetTarget,
        partition: int | None = None,
        *,
        preview: bool = False,
    ) -> list[Move]:
        """Move a subscription, which is known by its name or by # and its number, in all partitions of its topic or in one.

        Records before the new position count as settled, those from it on are delivered as if for the first time.

        Raises GroupNotFound, InvalidRequest while it has readers or records that wait to become dead letters, PartitionNotFound.
        """
        subscriptions, owners = self._subscriptions, self._subscriptions.owners
        await subscriptions.catch_up(subscription, topic)
        known = subscriptions.of_group(subscription, topic)  # a group may be named as if it had a number
        shard = known[0].shard if known else subscriptions.shard_of(topic, subscription)
        if owners is not None and not subscriptions.owns(shard):
            return await owners.reset_subscription(
                shard, principal, topic, subscription, target, partition, preview=preview
            )
        found = self._subscriptions.find_in_topic(topic, subscription)
        handles = await handles_to_reset(self._engine, topic, target, partition)
        positions = found.positions
        moves = [await move_of(handle, positions[handle.index], target) for handle in handles]
        self._subscriptions.check_unused(found)
        if not preview:
            await self._subscriptions.move(found, {each.partition: each.after for each in moves})
            self._audit.note(principal, "subscription.reset", subscription, details=audited(topic, target, partition))
        return moves

    async def _status(self, subscription: Subscription, lookups: Lookups) -> SubscriptionStatus:
        await subscription.follow()
        seconds = await self._ages.oldest_s(subscription.topic_id, subscription.first_unsettled(), lookups)
        return SubscriptionStatus(
            subscription.topic,
            subscription.group,
            subscription.owner,
            subscription.created_ms,
            subscription.lag,
            seconds,
            subscription.in_flight,
            subscription.redeliveries,
            subscription.dead_letters,
            subscription.exhausted,
            subscription.progress,
        )
