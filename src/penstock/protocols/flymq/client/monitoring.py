"""Groups, subscriptions, delayed records and open transactions as an operator sees them: `client.monitoring`."""

from __future__ import annotations

from penstock.protocols.flymq.client.exchanges import Channel
from penstock.protocols.flymq.operations.groups import (
    GroupList,
    GroupProgress,
    SubscriptionList,
    SubscriptionProgress,
)
from penstock.protocols.flymq.operations.monitoring import DelayedList, OpenTransaction, PendingRecord, TxnList


class AsyncMonitoring:
    """Members, assignments and lag of groups, what subscriptions have in flight, and what waits to become readable. Needs the right to
    administer the broker."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def groups(self, group: str = "", topic: str = "") -> list[GroupProgress]:
        """Return groups by topic and name, each once for each topic it reads, with the lag of every partition; all, or some by name."""
        found: list[GroupProgress] = []
        after = "", ""
        more = True
        while more:
            page = await self._channel.ask(GroupList(group, topic, *after))
            found += page.groups
            more = page.more and bool(page.groups)
            if more:
                after = found[-1].topic, found[-1].group
        return found

    async def subscriptions(self, name: str = "", topic: str = "") -> list[SubscriptionProgress]:
        """Return the subscriptions of BlipMQ, Fujin and Felix by topic and name; all, or some by name."""
        found: list[SubscriptionProgress] = []
        after = "", ""
        more = True
        while more:
            page = await self._channel.ask(SubscriptionList(name, topic, *after))
            found += page.subscriptions
            more = page.more and bool(page.subscriptions)
            if more:
                after = found[-1].topic, found[-1].name
        return found

    async def delayed(self, topic: str = "", limit: int = 1000) -> list[PendingRecord]:
        """Return the delayed records that are due next, at most `limit`, of one topic or of all."""
        found: list[PendingRecord] = []
        after, more = "", True
        while more:
            page = await self._channel.ask(DelayedList(topic, after))
            found += page.records
            after = page.after
            more = bool(after) and len(found) < limit
        return found[:limit]

    async def transactions(self) -> list[OpenTransaction]:
        """Return the open transactions of all clients, oldest first."""
        return await self._channel.ask(TxnList())
