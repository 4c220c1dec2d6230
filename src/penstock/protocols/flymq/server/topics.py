"""Handlers of topics, groups, the cluster, and reads of records."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from penstock.broker.cluster import NAME
from penstock.broker.groups.offsets import GroupInfo
from penstock.broker.topics.settings import format_topic_config, parse_topic_config
from penstock.errors import AccessDenied, InvalidRequest, TopicExists, TopicNotFound
from penstock.protocols.flymq.operations import topics as op
from penstock.protocols.flymq.operations.operation import encode_reply
from penstock.protocols.flymq.operations.records import Consume, ConsumeZeroCopy, Fetch, FetchBinary
from penstock.protocols.flymq.server.blocks import TOPICS_PER_TURN
from penstock.protocols.flymq.server.dispatch import Answer, Caller, Frame, handles
from penstock.protocols.flymq.server.fetching import PlainForm

PAGE_PARTITIONS_MAX: Final = 10_000
"""A page of topics ends with the one that reaches this, or this size."""
PAGE_BYTES_MAX: Final = 4 << 20
PARTITION_BYTES: Final = 24
TEXT_BYTES: Final = 4
"""For the lengths of a setting's name and value."""
LEADER_ID = 0
LEADER_EPOCH = 1
SCHEMA_SETTING = "schema"
_SUBSCRIBE_MODES = {"": "latest", "commit": "committed"}
"""The contract's word for the broker's, and what deployed clients mean by none."""


# --- reading ---


@handles(Consume, large_read=True, on_every_node=True)
@handles(ConsumeZeroCopy, large_read=True, on_every_node=True)
def consume(caller: Caller, request: Consume) -> Answer:
    partition = caller.broker.records.partition(caller.principal, request.topic, request.partition)
    caller.note_read(1)
    return caller.fetcher.consume(partition, request.offset, request.opcode)


@handles(Fetch, large_read=True, on_every_node=True)
@handles(FetchBinary, large_read=True, on_every_node=True)
def fetch(caller: Caller, request: Fetch) -> Answer:
    caller.note_dialect(native=request.filter is not None)
    partition = caller.broker.records.partition(caller.principal, request.topic, request.partition)
    return caller.fetcher.fetch(
        partition,
        request.offset,
        request.max_records,
        request.filter,
        PlainForm(request.opcode, native=bool(caller.native)),
        caller.worker,
        caller.note_read,
    )


# --- topics ---


@handles(op.CreateTopic)
async def create_topic(caller: Caller, request: op.CreateTopic) -> op.Done:
    if request.partitions < 0:
        raise InvalidRequest(f"invalid request: {request.partitions} partitions: use 1 or more, or 0 for 1")
    # A topic's schema is sent with its settings, but it is kept with the schemas: it can be changed.
    settings = [setting for setting in request.settings if setting[0] != SCHEMA_SETTING]
    schema = dict(request.settings).get(SCHEMA_SETTING)
    config = parse_topic_config(settings, caller.broker.topics.defaults)
    try:
        await caller.broker.topics.create(
            caller.principal, request.topic, replace(config, partitions=request.partitions or 1), schema
        )
    except TopicExists:
        return op.Done(True, f"topic {request.topic} exists already and was left unchanged")
    return op.Done(True, f"topic {request.topic} created")


@handles(op.Metadata, on_every_node=True)
async def metadata(caller: Caller, request: op.Metadata) -> op.TopicMetadata:
    described = await _described(caller, request.topic)
    return op.TopicMetadata(described.topic, described.partitions, described.config)


@handles(op.TopicList, large_read=True, on_every_node=True)
async def describe_topics(caller: Caller, request: op.TopicList) -> op.TopicPage | Frame:
    names = caller.broker.topics.names(caller.principal)
    rest = names[bisect_right(names, request.after) :]
    topics: list[op.DescribedTopic] = []
    rows = size_bytes = looked_at = 0
    for name in rest:
        if rows >= PAGE_PARTITIONS_MAX or size_bytes >= PAGE_BYTES_MAX:
            break
        if looked_at % TOPICS_PER_TURN == 0:
            await asyncio.sleep(0)  # there may be thousands
        looked_at += 1
        with suppress(TopicNotFound, AccessDenied):  # it was deleted meanwhile, or the client may no longer see it
            described = await _described(caller, name)
            topics.append(described)
            rows += len(described.partitions)
            size_bytes += _size_bytes(described)
    page = op.TopicPage(topics, looked_at < len(rest))
    if len(topics) <= TOPICS_PER_TURN:
        return page
    return await caller.worker.run(lambda _: encode_reply(op.TopicList, page))


def _size_bytes(described: op.DescribedTopic) -> int:
    """About what a topic takes in a reply."""
    settings = sum(len(name) + len(text) + TEXT_BYTES for name, text in described.config.items())
    return len(described.topic) + PARTITION_BYTES * len(described.partitions) + settings


async def _described(caller: Caller, topic: str) -> op.DescribedTopic:
    description = await caller.broker.topics.follow(caller.principal, topic)
    info = description.info
    settings = dict(format_topic_config(info.config))
    del settings["partitions"]
    settings |= {"id": info.id, "created_ms": str(info.created_ms)}
    schema = caller.broker.schemas.bound_to(caller.principal, topic)
    settings |= {} if schema is None else {SCHEMA_SETTING: schema}
    partitions = [
        op.PartitionMetadata(each.index, LEADER_ID, each.start_offset, each.committed_end)
        for each in description.partitions
    ]
    return op.DescribedTopic(info.name, partitions, settings)


@handles(op.AlterTopic)
async def alter_topic(caller: Caller, request: op.AlterTopic) -> op.Done:
    if any(name == SCHEMA_SETTING for name, _ in request.settings):
        raise InvalidRequest("schema is not a setting that can be altered: bind the topic to another schema instead")
    await caller.broker.topics.alter(caller.principal, request.topic, request.settings)
    return op.Done(True, f"topic {request.topic} altered")


@handles(op.AddPartitions)
async def add_partitions(caller: Caller, request: op.AddPartitions) -> op.Done:
    info = await caller.broker.topics.add_partitions(caller.principal, request.topic, request.partitions)
    return op.Done(True, f"topic {request.topic} has {info.config.partitions} partitions")


@handles(op.TruncateTopic)
async def truncate_topic(caller: Caller, request: op.TruncateTopic) -> op.Done:
    await caller.broker.topics.truncate(
        caller.principal, request.topic, request.mode, request.position, request.partition
    )
    return op.Done(True, f"topic {request.topic} truncated")


@handles(op.ListTopics, large_read=True, on_every_node=True)
def list_topics(caller: Caller, request: op.ListTopics) -> list[str]:
    return caller.broker.topics.names(caller.principal)


@handles(op.DeleteTopic)
async def delete_topic(caller: Caller, request: op.DeleteTopic) -> bool:
    try:
        await caller.broker.topics.delete(caller.principal, request.topic)
    except TopicNotFound:
        pass  # deployed clients count on it
    return True


@handles(op.SnapshotCreate)
async def create_snapshot(caller: Caller, request: op.SnapshotCreate) -> op.SnapshotDescription:
    snapshot = await caller.broker.snapshots.create(caller.principal)
    return op.SnapshotDescription(snapshot.id, snapshot.directory)


@handles(op.SnapshotRelease)
async def release_snapshot(caller: Caller, request: op.SnapshotRelease) -> bool:
    await caller.broker.snapshots.release(caller.principal, request.id)
    return True


# --- groups ---


@handles(op.Subscribe, on_every_node=True)
async def subscribe(caller: Caller, request: op.Subscribe) -> int:
    caller.note_dialect(native=request.native)
    mode = _SUBSCRIBE_MODES.get(request.mode, request.mode)
    offset = await caller.broker.groups.start_position(
        caller.principal, request.topic, request.group, request.partition, mode
    )
    caller.broker.groups.subscribe(caller.principal, request.topic, request.group, caller.session_id)
    return offset


@handles(op.Commit, on_every_node=True)
async def commit(caller: Caller, request: op.Commit) -> bool:
    await caller.broker.groups.commit(caller.principal, request.topic, request.group, request.partition, request.offset)
    return True


@handles(op.GetOffset, on_every_node=True)
def get_offset(caller: Caller, request: op.GetOffset) -> int:
    return caller.broker.groups.committed(caller.principal, request.topic, request.group, request.partition) or 0


@handles(op.ResetOffset)
async def reset_offset(caller: Caller, request: op.ResetOffset) -> bool:
    await caller.broker.groups.reset_offset(
        caller.principal, request.topic, request.group, request.partition, request.mode, request.offset
    )
    return True


@handles(op.ListGroups, large_read=True)
def list_groups(caller: Caller, request: op.ListGroups) -> Iterable[op.GroupState]:
    return map(_group_state, caller.broker.groups.all(caller.principal))


@handles(op.DescribeGroup)
def describe_group(caller: Caller, request: op.DescribeGroup) -> op.GroupState | op.GroupSummary:
    infos = caller.broker.groups.describe(caller.principal, request.group, request.topic or None)
    if not request.group_only:
        return _group_state(infos[0])
    members = sorted({member for info in infos for member in info.members})
    topics = [info.topic for info in infos]
    return op.GroupSummary(request.group, "Stable" if members else "Empty", members, topics, caller.node.address())


def _group_state(info: GroupInfo) -> op.GroupState:
    return op.GroupState(
        info.topic, info.group, len(info.members), {each.partition: each.offset for each in info.offsets}
    )


@handles(op.GetLag)
async def get_lag(caller: Caller, request: op.GetLag) -> op.GroupLag:
    lag = await caller.broker.groups.lag(caller.principal, request.topic, request.group, request.partition)
    committed = lag.committed or 0
    return op.GroupLag(committed, committed, lag.committed_end, lag.records)


@handles(op.DeleteGroup)
async def delete_group(caller: Caller, request: op.DeleteGroup) -> bool:
    await caller.broker.groups.delete(caller.principal, request.group, request.topic or None)
    return True


@handles(op.SeekToTimestamp, on_every_node=True)
async def seek_to_timestamp(caller: Caller, request: op.SeekToTimestamp) -> int:
    return await caller.broker.groups.seek_to_time(
        caller.principal, request.topic, request.group, request.partition, request.timestamp_ms
    )


# --- the cluster ---


@handles(op.ClusterJoin, on_every_node=True)
def join_cluster(caller: Caller, request: op.ClusterJoin) -> bool:
    caller.broker.cluster.join(caller.principal, request.peer)


@handles(op.ClusterLeave, on_every_node=True)
def leave_cluster(caller: Caller, request: op.ClusterLeave) -> bool:
    caller.broker.cluster.leave(caller.principal)


@handles(op.ClusterStatus, on_every_node=True)
def cluster_status(caller: Caller, request: op.ClusterStatus) -> op.ClusterState:
    status = caller.broker.cluster.status(caller.principal)
    own_state = "degraded" if status.partitions_failed else "online"
    nodes = [(caller.node.id, caller.node.address(), own_state)]
    leader = caller.node.id
    if status.nodes:
        nodes = [
            (node.id, node.addresses.get("flymq", ""), own_state if node.id == caller.node.id else "online")
            for node in status.nodes
        ]
        leader = next((node.id for node in status.nodes if node.leads), "")
    return op.ClusterState(
        status.name,
        leader,
        nodes,
        status.topics,
        status.partitions,
        status.partitions_failed,
        [node or "" for node in status.owners],
    )


@handles(op.ClusterMetadata, on_every_node=True)
def cluster_metadata(caller: Caller, request: op.ClusterMetadata) -> op.ClusterTopics:
    """One node leads every partition."""
    caller.note_dialect(native=True)
    broker, principal, node = caller.broker, caller.principal, caller.node.id
    place = (node, caller.node.address(), LEADER_EPOCH)
    # A partition that takes no more writes still has its one replica, which can be read, and none in sync.
    leaders = {
        True: op.PartitionLeader(*place, "online", (node,), (node,)),
        False: op.PartitionLeader(*place, "offline", (node,), ()),
    }
    names = [request.topic] if request.topic else broker.topics.names(principal)

    def described(name: str) -> op.ClusterTopic:
        partitions = broker.topics.describe(principal, name).partitions
        return op.ClusterTopic(
            name, [op.ClusterPartition(each.index, leaders[each.failure is None]) for each in partitions]
        )

    return op.ClusterTopics(NAME, map(described, names))
