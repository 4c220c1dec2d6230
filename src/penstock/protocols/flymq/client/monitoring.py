"""Groups and subscriptions as an operator sees them: `client.monitoring`."""

from __future__ import annotations

from penstock.protocols.flymq.client.exchanges import Channel
from penstock.protocols.flymq.operations.groups import (
    GroupList,
    GroupProgress,
    SubscriptionList,
    SubscriptionProgress,
)


class AsyncMonitoring:
    """Members, assignments and lag of groups, and what subscriptions have in flight. Needs the right to administer the broker."""

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
