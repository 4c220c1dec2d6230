"""Groups and subscriptions as an operator sees them: members, assignment, lag, deliveries in flight.

Lists come in pages, so that one request has a bounded number of partitions to look at, and of timestamps to look up on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from penstock.broker.access.checks import Operation, Principal, on_broker
from penstock.broker.deliveries.subscription import Subscription
from penstock.broker.deliveries.subscriptions import Subscriptions, group_name
from penstock.broker.groups.assignment import TopicPartition
from penstock.broker.groups.coordinator import Coordinator
from penstock.broker.groups.groups import GroupInfo, Groups
from penstock.broker.groups.lag import Lags, Lookups, PartitionLag, RecordAges
from penstock.broker.groups.membership import MemberInfo
from penstock.broker.part import Context, Part

PAGE_PARTITIONS_MAX: Final = 2_000
"""A page ends with the group or subscription that reaches it."""

_Item = TypeVar("_Item")


class Filter(NamedTuple):
    """Which groups or subscriptions to list; empty for all. `after` is the topic and the name at which the page before ended."""

    name: str = ""
    topic: str = ""
    after: tuple[str, str] = ("", "")


class GroupStatus(NamedTuple):
    topic: str
    group: str
    sessions: int
    """Connections that subscribed to the topic as FlyMQ's SUBSCRIBE does: they share no partitions."""
    generation: int
    """0 if the group never had members."""
    state: str
    members: list[MemberInfo]
    """Those that subscribe to the topic."""
    partitions: list[PartitionLag]
    owners: list[str]
    """The member of each partition, empty if it has none."""


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


class GroupPage(NamedTuple):
    """One page of a list, and whether there are more after it."""

    items: list[GroupStatus]
    more: bool


class SubscriptionPage(NamedTuple):
    items: list[SubscriptionStatus]
    more: bool


class Monitoring(Part):
    def __init__(
        self,
        context: Context,
        groups: Groups,
        coordinator: Coordinator,
        subscriptions: Subscriptions,
        lags: Lags,
        ages: RecordAges,
    ) -> None:
        super().__init__(context)
        self._groups = groups
        self._coordinator = coordinator
        self._subscriptions = subscriptions
        self._lags = lags
        self._ages = ages

    @on_broker(Operation.ADMIN)
    async def groups(self, principal: Principal, wanted: Filter) -> GroupPage:
        """Return groups by topic and name, each once for each topic that it reads."""
        found = [
            info
            for info in self._groups.infos()
            if wanted.name in ("", info.group)
            and wanted.topic in ("", info.topic)
            and (info.topic, info.group) > wanted.after
        ]
        page = _page(found, lambda info: self._partitions(info.topic) or len(info.offsets))
        lookups = Lookups()
        return GroupPage([await self._group_status(info, lookups) for info in page], len(page) < len(found))

    @on_broker(Operation.ADMIN)
    async def subscriptions(self, principal: Principal, wanted: Filter) -> SubscriptionPage:
        """Return subscriptions by topic and name."""
        found = [
            each
            for each in sorted(self._subscriptions.all(), key=lambda each: (each.topic, group_name(each)))
            if wanted.name in ("", group_name(each))
            and wanted.topic in ("", each.topic)
            and (each.topic, group_name(each)) > wanted.after
        ]
        page = _page(found, lambda each: len(each.positions))
        lookups = Lookups()
        return SubscriptionPage(
            [await self._subscription_status(each, lookups) for each in page], len(page) < len(found)
        )

    @on_broker(Operation.ADMIN)
    async def subscription_statuses(self, principal: Principal, rows_max: int) -> list[SubscriptionStatus]:
        """Return at most this many subscriptions, those with a name first, for metrics."""
        lookups = Lookups()
        chosen = list(islice(self._subscriptions.all(), rows_max))
        return [await self._subscription_status(each, lookups) for each in chosen]

    async def _subscription_status(self, subscription: Subscription, lookups: Lookups) -> SubscriptionStatus:
        seconds = await self._ages.oldest_s(subscription.topic_id, subscription.first_unsettled(), lookups)
        return SubscriptionStatus(
            subscription.topic,
            group_name(subscription),
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

    async def _group_status(self, info: GroupInfo, lookups: Lookups) -> GroupStatus:
        partitions = await self._lags.of_group(info, lookups)
        consumers = self._coordinator.info(info.group)
        members = [] if consumers is None else [each for each in consumers.members if info.topic in each.topics]
        owners = {partition: member.id for member in members for partition in member.owned}
        sessions = len(info.members) - len(members)
        return GroupStatus(
            info.topic,
            info.group,
            max(sessions, 0),
            0 if consumers is None else consumers.generation,
            consumers.state if consumers is not None and members else "stable" if sessions > 0 else "empty",
            members,
            partitions,
            [owners.get(TopicPartition(info.topic, each.partition), "") for each in partitions],
        )

    def _partitions(self, topic: str) -> int:
        info = self._engine.topics().get(topic)
        return 0 if info is None else info.config.partitions


def _page(found: Sequence[_Item], partitions: Callable[[_Item], int]) -> Sequence[_Item]:
    """Return the first items, up to the one that reaches the bound of a page."""
    rows = 0
    for count, item in enumerate(found, 1):
        rows += max(1, partitions(item))
        if rows >= PAGE_PARTITIONS_MAX:
            return found[:count]
    return found
