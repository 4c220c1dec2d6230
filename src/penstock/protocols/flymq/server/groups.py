"""Handlers of consumer groups whose members share partitions, and of the lag and the resets of groups and subscriptions."""

from __future__ import annotations

from penstock.broker.deliveries.admin import SubscriptionStatus
from penstock.broker.groups.assignment import TopicPartition
from penstock.broker.groups.lag import PartitionLag
from penstock.broker.groups.membership import Heartbeat, MemberOffset, Session
from penstock.broker.groups.monitoring import Filter, GroupStatus
from penstock.broker.groups.resets import Move, ResetTarget, parse_mode
from penstock.protocols.flymq.operations import groups as op
from penstock.protocols.flymq.server.dispatch import Caller, handles

UNKNOWN = -1

# --- members ---


@handles(op.GroupHeartbeat)
async def heartbeat(caller: Caller, request: op.GroupHeartbeat) -> op.GroupAssignment:
    owned = {TopicPartition(each.topic, each.partition): each.generation for each in request.owned}
    session = Session(request.start, request.instance, request.session_ms)
    assignment = await caller.broker.coordinator.heartbeat(
        caller.principal, request.group, request.topics, Heartbeat(request.member, request.sequence, session, owned)
    )
    partitions = [op.AssignedPartition(*each) for each in assignment.partitions]
    return op.GroupAssignment(assignment.generation, assignment.heartbeat_ms, partitions)


@handles(op.GroupLeave)
async def leave(caller: Caller, request: op.GroupLeave) -> bool:
    await caller.broker.coordinator.leave(caller.principal, request.group, request.topics, request.member)
    return True


@handles(op.GroupCommit)
async def commit(caller: Caller, request: op.GroupCommit) -> bool:
    offsets = [MemberOffset(*each) for each in request.offsets]
    await caller.broker.coordinator.commit(caller.principal, request.group, offsets, request.member)
    return True


# --- monitoring ---


@handles(op.GroupList)
async def list_groups(caller: Caller, request: op.GroupList) -> op.GroupPage:
    wanted = Filter(request.group, request.topic, (request.after_topic, request.after_group))
    page = await caller.broker.groups.statuses(caller.principal, wanted)
    return op.GroupPage([_group(status) for status in page.items], page.more)


@handles(op.SubscriptionList)
async def list_subscriptions(caller: Caller, request: op.SubscriptionList) -> op.SubscriptionPage:
    wanted = Filter(request.name, request.topic, (request.after_topic, request.after_name))
    page = await caller.broker.subscription_admin.statuses(caller.principal, wanted)
    return op.SubscriptionPage([_subscription(status) for status in page.items], page.more)


# --- resets ---


@handles(op.GroupReset)
async def reset_group(caller: Caller, request: op.GroupReset) -> list[op.MovedPosition]:
    return _moved(
        await caller.broker.groups.reset(
            caller.principal, request.topic, request.name, *_wanted(request), preview=request.preview
        )
    )


@handles(op.SubscriptionReset)
async def reset_subscription(caller: Caller, request: op.SubscriptionReset) -> list[op.MovedPosition]:
    return _moved(
        await caller.broker.subscription_admin.reset(
            caller.principal, request.topic, request.name, *_wanted(request), preview=request.preview
        )
    )


def _wanted(request: op.ResetFields) -> tuple[ResetTarget, int | None]:
    target = ResetTarget(parse_mode(request.mode), request.value)
    return target, None if request.partition == op.ALL_PARTITIONS else request.partition


def _moved(moves: list[Move]) -> list[op.MovedPosition]:
    return [
        op.MovedPosition(
            each.partition,
            UNKNOWN if each.before is None else each.before,
            each.after,
            each.start_offset,
            each.committed_end,
        )
        for each in moves
    ]


def _group(status: GroupStatus) -> op.GroupProgress:
    return op.GroupProgress(
        status.topic,
        status.group,
        status.sessions,
        status.generation,
        status.state,
        [
            op.GroupMember(each.id, each.instance, each.principal, each.session_ms, each.silent_ms)
            for each in status.members
        ],
        [_partition(*each) for each in zip(status.partitions, status.owners, strict=True)],
    )


def _partition(lag: PartitionLag, owner: str) -> op.PartitionProgress:
    return op.PartitionProgress(
        lag.partition,
        UNKNOWN if lag.committed is None else lag.committed,
        UNKNOWN if lag.committed_end is None else lag.committed_end,
        UNKNOWN if lag.records is None else lag.records,
        _milliseconds(lag.seconds),
        owner,
    )


def _subscription(status: SubscriptionStatus) -> op.SubscriptionProgress:
    return op.SubscriptionProgress(
        status.topic,
        status.name,
        status.owner,
        status.created_ms,
        status.lag,
        _milliseconds(status.seconds),
        status.in_flight,
        status.redeliveries,
        status.dead_letters,
        status.waiting,
        [op.SubscriptionPartition(index, *progress) for index, progress in enumerate(status.positions)],
    )


def _milliseconds(seconds: float | None) -> int:
    return UNKNOWN if seconds is None else round(seconds * 1000)
