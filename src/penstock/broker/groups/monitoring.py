"""Pages of groups and subscriptions for operators, and the status of a group: members, assignment, lag.

Lists come in pages, so that one request has a bounded number of partitions to look at, and of timestamps to look up on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from penstock.broker.groups.lag import PartitionLag
from penstock.broker.groups.membership import MemberInfo

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


class GroupPage(NamedTuple):
    """One page of a list, and whether there are more after it."""

    items: list[GroupStatus]
    more: bool


def first_page(found: Sequence[_Item], partitions: Callable[[_Item], int]) -> Sequence[_Item]:
    """Return the first items, up to the one that reaches the bound of a page."""
    rows = 0
    for count, item in enumerate(found, 1):
        rows += max(1, partitions(item))
        if rows >= PAGE_PARTITIONS_MAX:
            return found[:count]
    return found
