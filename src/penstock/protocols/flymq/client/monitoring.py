"""Groups, subscriptions, delayed records and open transactions as an operator sees them: `client.monitoring`."""

from __future__ import annotations

from datetime import datetime

from penstock.clients.arguments import index_field, offset_field
from penstock.errors import InvalidRequest
from penstock.protocols.flymq.client.exchanges import Channel, all_pages
from penstock.protocols.flymq.client.reading import Start, timestamp_ms_of
from penstock.protocols.flymq.operations.groups import (
    ALL_PARTITIONS,
    GroupList,
    GroupProgress,
    GroupReset,
    MovedPosition,
    SubscriptionList,
    SubscriptionProgress,
    SubscriptionReset,
)
from penstock.protocols.flymq.operations.monitoring import DelayedList, OpenTransaction, PendingRecord, TxnList


class AsyncMonitoring:
    """Members, assignments and lag of groups, what subscriptions have in flight, and what waits to become readable. Needs the right to
    administer the broker."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def groups(self, group: str = "", topic: str = "") -> list[GroupProgress]:
        """Return groups by topic and name, each once for each topic it reads, with the lag of every partition; all, or some by name."""

        async def ask(last: GroupProgress | None) -> tuple[list[GroupProgress], bool]:
            after = () if last is None else (last.topic, last.group)
            page = await self._channel.ask(GroupList(group, topic, *after))
            return page.groups, page.more

        return await all_pages(ask)

    async def subscriptions(self, name: str = "", topic: str = "") -> list[SubscriptionProgress]:
        """Return the subscriptions of BlipMQ, Fujin and Felix by topic and name; all, or some by name."""

        async def ask(last: SubscriptionProgress | None) -> tuple[list[SubscriptionProgress], bool]:
            after = () if last is None else (last.topic, last.name)
            page = await self._channel.ask(SubscriptionList(name, topic, *after))
            return page.subscriptions, page.more

        return await all_pages(ask)

    async def reset_group(
        self,
        group: str,
        topic: str,
        to: Start | None = None,
        *,
        shift: int | None = None,
        partition: int | None = None,
        preview: bool = False,
    ) -> list[MovedPosition]:
        """Move a group in a topic `to` "earliest", "latest", an offset or a time, or by `shift` records (back if negative); return what
        changed in each partition.

        All partitions are moved, unless one is given. With `preview` nothing changes. Positions stay within the log. Raises
        InvalidRequest while the group has members. Needs the right to commit for the group only.
        """
        return await self._channel.ask(GroupReset(topic, group, *_target(to, shift), _index(partition), preview))

    async def reset_subscription(
        self,
        name: str,
        topic: str,
        to: Start | None = None,
        *,
        shift: int | None = None,
        partition: int | None = None,
        preview: bool = False,
    ) -> list[MovedPosition]:
        """The same for a subscription of BlipMQ, Fujin or Felix, known by its name or by # and its number.

        Records before the new position count as settled, those from it on are delivered as if for the first time. Raises GroupNotFound,
        InvalidRequest while it has readers.
        """
        return await self._channel.ask(SubscriptionReset(topic, name, *_target(to, shift), _index(partition), preview))

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


def _target(to: Start | None, shift: int | None) -> tuple[str, int]:
    """Return the mode of a reset and its value."""
    if (to is None) == (shift is None):
        raise InvalidRequest("a reset goes to a position or by a shift: give one of both")
    if shift is not None:
        if not -1 << 63 <= shift < 1 << 63:
            raise InvalidRequest(f"shift {shift} is out of range: use -2**63 to 2**63 - 1")
        return "shift", shift
    if isinstance(to, datetime):
        return "time", timestamp_ms_of(to)
    return ("offset", offset_field(to)) if isinstance(to, int) else (str(to), 0)


def _index(partition: int | None) -> int:
    return ALL_PARTITIONS if partition is None else index_field(partition)
