"""Consumer groups and subscriptions: list, describe with lag, reset with a preview, delete."""

from __future__ import annotations

import math
from typing import Annotated, Final

import msgspec

from penstock.admin.api.records import TIME_MS_MAX, PartitionIndex
from penstock.admin.api.table import Call, Reply, Request, endpoint
from penstock.admin.api.topics import Offset
from penstock.admin.history import Kind
from penstock.broker.access.checks import BROKER, Declaration, Operation, ResourceKind, authorize
from penstock.broker.deliveries.admin import SubscriptionAdmin, SubscriptionStatus
from penstock.broker.groups.monitoring import Filter, GroupStatus
from penstock.broker.groups.operations import Groups
from penstock.broker.groups.resets import Move, ResetMode, ResetTarget
from penstock.broker.limits import INT64_MAX
from penstock.errors import GroupNotFound, InvalidRequest, PartitionNotFound, TopicNotFound

READ_LAGS: Final = Declaration(Operation.ADMIN, ResourceKind.BROKER)


class GroupsQuery(Request, frozen=True):
    name: str = ""
    topic: str = ""
    after_topic: str = ""
    after_name: str = ""
    """The topic and the name at which the page before ended."""


class Member(Reply, frozen=True):
    id: str
    instance: str
    principal: str
    session_ms: int
    silent_ms: int


class GroupPartition(Reply, frozen=True):
    partition: int
    committed: int | None
    """null if the group has committed no offset."""
    high_watermark: int | None
    lag: int | None
    lag_s: float | None
    owner: str


class Group(Reply, frozen=True):
    """A group in one topic."""

    name: str
    topic: str
    state: str
    generation: int
    sessions: int
    lag: int
    lag_s: float | None
    members: list[Member]
    partitions: list[GroupPartition]


class GroupPage(Reply, frozen=True):
    groups: list[Group]
    more: bool


class SubscriptionPosition(Reply, frozen=True):
    partition: int
    next_offset: int
    """The next that is delivered for the first time."""
    high_watermark: int


class Subscription(Reply, frozen=True):
    name: str
    topic: str
    owner: str
    created_ms: int
    lag: int
    lag_s: float | None
    in_flight: int
    redeliveries: int
    dead_letters: int
    waiting: int
    """Records that could not be written as dead letters yet."""
    partitions: list[SubscriptionPosition]


class SubscriptionPage(Reply, frozen=True):
    subscriptions: list[Subscription]
    more: bool


class LagHistory(Reply, frozen=True):
    """The lag in one topic in the last hour, one sample every ten seconds, the oldest first."""

    topic: str
    at_ms: list[int]
    lag: list[int]
    lag_s: list[float | None]


class Reset(Request, frozen=True, kw_only=True):
    """Where a group or subscription is to continue in a topic."""

    to: ResetMode
    partition: PartitionIndex | None = None
    """All partitions if it is left out."""
    offset: Offset | None = None
    time_ms: Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)] | None = None
    shift: Annotated[int, msgspec.Meta(ge=-INT64_MAX, le=INT64_MAX)] | None = None
    """Records to go forward, or back if negative."""
    preview: bool = False
    """Only tell what would change."""


class GroupReset(Reset, frozen=True, kw_only=True):
    topic: str


class ResetPartition(Reply, frozen=True):
    partition: int
    before: int | None
    after: int
    start_offset: int
    high_watermark: int


class ResetResult(Reply, frozen=True):
    applied: bool
    partitions: list[ResetPartition]


class GroupTopic(Request, frozen=True):
    topic: str = ""
    """Only in this topic; in all if it is left out."""


@endpoint("GET", "/groups", asks=Groups.statuses, errors=(InvalidRequest,))
async def list_groups(call: Call, query: GroupsQuery) -> GroupPage:
    """List consumer groups with their members and lag, once for each topic that they read."""
    page = await call.broker.groups.statuses(call.principal, _filter(query))
    return GroupPage([_group(each) for each in page.items], page.more)


@endpoint("GET", "/subscriptions", asks=SubscriptionAdmin.statuses, errors=(InvalidRequest,))
async def list_subscriptions(call: Call, query: GroupsQuery) -> SubscriptionPage:
    """List subscriptions, whose records are acknowledged one by one, with lag and deliveries in flight."""
    page = await call.broker.subscription_admin.statuses(call.principal, _filter(query))
    return SubscriptionPage([_subscription(each) for each in page.items], page.more)


@endpoint("GET", "/groups/{group}", asks=Groups.statuses, errors=(GroupNotFound,))
async def get_group(call: Call) -> list[Group]:
    """Return one consumer group in each topic that it reads."""
    name = call.path["group"]
    page = await call.broker.groups.statuses(call.principal, Filter(name))
    if not page.items:
        raise GroupNotFound(f"group not found: {name}")
    return [_group(each) for each in page.items]


@endpoint("GET", "/groups/{group}/lag-history", asks=READ_LAGS)
async def get_group_lag_history(call: Call) -> list[LagHistory]:
    """Return the lag of a consumer group in the last hour, in each topic that it reads. Empty until it is sampled."""
    return _lag_histories(call, "group", call.path["group"])


@endpoint(
    "GET", "/topics/{topic}/subscriptions/{subscription}", asks=SubscriptionAdmin.statuses, errors=(GroupNotFound,)
)
async def get_subscription(call: Call) -> Subscription:
    """Return one subscription."""
    topic, name = call.path["topic"], call.path["subscription"]
    page = await call.broker.subscription_admin.statuses(call.principal, Filter(name, topic))
    if not page.items:
        raise GroupNotFound(f"subscription not found: {name} in topic {topic}")
    return _subscription(page.items[0])


@endpoint("GET", "/topics/{topic}/subscriptions/{subscription}/lag-history", asks=READ_LAGS)
async def get_subscription_lag_history(call: Call) -> list[LagHistory]:
    """Return the lag of a subscription in the last hour. Empty until it is sampled."""
    return _lag_histories(call, "subscription", call.path["subscription"], call.path["topic"])


def _lag_histories(call: Call, kind: Kind, name: str, topic: str | None = None) -> list[LagHistory]:
    authorize(call.broker.access, call.principal, READ_LAGS.operation, BROKER)
    return [
        LagHistory(
            each,
            list(times_ms),
            list(series.records),
            [None if math.isnan(age_s) else age_s for age_s in series.seconds],
        )
        for each, times_ms, series in call.given.history.lags_of(kind, name, topic)
    ]


def _filter(query: GroupsQuery) -> Filter:
    return Filter(query.name, query.topic, (query.after_topic, query.after_name))


def _group(status: GroupStatus) -> Group:
    ages = [each.seconds for each in status.partitions]
    known = [age for age in ages if age is not None]
    return Group(
        status.group,
        status.topic,
        status.state,
        status.generation,
        status.sessions,
        sum(each.records or 0 for each in status.partitions),
        max(known) if len(known) == len(ages) and known else None,
        [Member(each.id, each.instance, each.principal, each.session_ms, each.silent_ms) for each in status.members],
        [
            GroupPartition(lag.partition, lag.committed, lag.committed_end, lag.records, lag.seconds, owner)
            for lag, owner in zip(status.partitions, status.owners, strict=True)
        ],
    )


def _subscription(status: SubscriptionStatus) -> Subscription:
    return Subscription(
        status.name,
        status.topic,
        status.owner,
        status.created_ms,
        status.lag,
        status.seconds,
        status.in_flight,
        status.redeliveries,
        status.dead_letters,
        status.waiting,
        [SubscriptionPosition(partition, *place) for partition, place in enumerate(status.positions)],
    )


@endpoint(
    "POST",
    "/groups/{group}/reset",
    asks=Groups.reset,
    errors=(InvalidRequest, TopicNotFound, PartitionNotFound),
)
async def reset_group(call: Call, body: GroupReset) -> ResetResult:
    """Set where a group continues: at the earliest or latest record, an offset, a time, or some records before or after."""
    moves = await call.broker.groups.reset(
        call.principal, body.topic, call.path["group"], _target(body), body.partition, preview=body.preview
    )
    return _reset_result(body, moves)


@endpoint(
    "POST",
    "/topics/{topic}/subscriptions/{subscription}/reset",
    asks=SubscriptionAdmin.reset,
    errors=(InvalidRequest, GroupNotFound, TopicNotFound, PartitionNotFound),
)
async def reset_subscription(call: Call, body: Reset) -> ResetResult:
    """Set where a subscription continues. Records before that count as settled, those after it are delivered as if for the first time."""
    moves = await call.broker.subscription_admin.reset(
        call.principal,
        call.path["topic"],
        call.path["subscription"],
        _target(body),
        body.partition,
        preview=body.preview,
    )
    return _reset_result(body, moves)


def _target(body: Reset) -> ResetTarget:
    given = {"offset": body.offset, "time": body.time_ms, "shift": body.shift}
    if any((value is None) == (body.to == name) for name, value in given.items()):
        raise InvalidRequest(f"to={body.to} goes with offset, time_ms or shift only if it is offset, time or shift")
    if body.to == "offset" and body.partition is None:
        raise InvalidRequest("an offset is a place in one partition: give the partition too")
    return ResetTarget(body.to, given.get(body.to) or 0)


def _reset_result(body: Reset, moves: list[Move]) -> ResetResult:
    return ResetResult(not body.preview, [ResetPartition(*each) for each in moves])


@endpoint("DELETE", "/groups/{group}", asks=Groups.delete, errors=(InvalidRequest, GroupNotFound))
async def delete_group(call: Call, query: GroupTopic) -> None:
    """Forget the offsets and subscriptions of a group, in one topic or in all."""
    await call.broker.groups.delete(call.principal, call.path["group"], query.topic or None)
