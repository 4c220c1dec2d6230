"""Handlers of topics, groups, the cluster, and reads of records."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace

from penstock.broker.cluster import NAME
from penstock.broker.groups.groups import GroupInfo
from penstock.broker.groups.monitoring import PAGE_PARTITIONS_MAX
from penstock.broker.topics.settings import format_topic_config, parse_topic_config
from penstock.errors import InvalidRequest, TopicExists, TopicNotFound
from penstock.protocols.flymq.operations.records import Consume, ConsumeZeroCopy, Fetch, FetchBinary
from penstock.protocols.flymq.operations.topics import (
    AddPartitions,
    AlterTopic,
    ClusterJoin,
    ClusterLeave,
    ClusterMetadata,
    ClusterPartition,
    ClusterState,
    ClusterStatus,
    ClusterTopic,
    ClusterTopics,
    Commit,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    DescribedTopic,
    DescribeGroup,
    Done,
    GetLag,
    GetOffset,
    GroupLag,
    GroupState,
    GroupSummary,
    ListGroups,
    ListTopics,
    Metadata,
    PartitionLeader,
    PartitionMetadata,
    ResetOffset,
    SeekToTimestamp,
    SnapshotCreate,
    SnapshotDescription,
    SnapshotRelease,
    Subscribe,
    TopicList,
    TopicMetadata,
    TopicPage,
    TruncateTopic,
)
from penstock.protocols.flymq.server.dispatch import Answer, Caller, handles
from penstock.protocols.flymq.server.fetching import PlainForm

LEADER_ID = 0
LEADER_EPOCH = 1
SCHEMA_SETTING = "schema"
_SUBSCRIBE_MODES = {"": "latest", "commit": "committed"}
"""The contract's word for the broker's, and what deployed clients mean by none."""


# --- reading ---


@handles(Consume)
@handles(ConsumeZeroCopy)
def consume(caller: Caller, request: Consume) -> Answer:
    partition = caller.broker.partition(caller.principal, request.topic, request.partition)
    return caller.fetcher.consume(partition, request.offset, request.opcode)


@handles(Fetch)
@handles(FetchBinary)
def fetch(caller: Caller, request: Fetch) -> Answer:
    caller.note_dialect(native=request.filter is not None)
    partition = caller.broker.partition(caller.principal, request.topic, request.partition)
    return caller.fetcher.fetch(
        partition,
        request.offset,
        request.max_records,
        request.filter,
        PlainForm(request.opcode, native=bool(caller.native)),
        caller.worker,
    )


# --- topics ---


@handles(CreateTopic)
async def create_topic(caller: Caller, request: CreateTopic) -> Done:
    if request.partitions < 0:
        raise InvalidRequest(f"invalid request: {request.partitions} partitions: use 1 or more, or 0 for 1")
    # A topic's schema is sent with its settings, but it is kept with the schemas: it can be changed.
    settings = [setting for setting in request.settings if setting[0] != SCHEMA_SETTING]
    schema = dict(request.settings).get(SCHEMA_SETTING)
    config = parse_topic_config(settings, caller.broker.topic_defaults)
    try:
        await caller.broker.create_topic(
            caller.principal, request.topic, replace(config, partitions=request.partitions or 1), schema
        )
    except TopicExists:
        return Done(True, f"topic {request.topic} exists already and was left unchanged")
    return Done(True, f"topic {request.topic} created")


@handles(Metadata)
def metadata(caller: Caller, request: Metadata) -> TopicMetadata:
    described = _described(caller, request.topic)
    return TopicMetadata(described.topic, described.partitions, described.config)


@handles(TopicList)
def describe_topics(caller: Caller, request: TopicList) -> TopicPage:
    names = caller.broker.topic_names(caller.principal)
    rest = names[bisect_right(names, request.after) :]
    page: list[DescribedTopic] = []
    rows = 0
    for name in rest:
        if rows >= PAGE_PARTITIONS_MAX:
            break
        page.append(_described(caller, name))
        rows += len(page[-1].partitions)
    return TopicPage(page, len(page) < len(rest))


def _described(caller: Caller, topic: str) -> DescribedTopic:
    description = caller.broker.describe_topic(caller.principal, topic)
    info = description.info
    settings = dict(format_topic_config(info.config))
    del settings["partitions"]
    settings |= {"id": info.id, "created_ms": str(info.created_ms)}
    schema = caller.broker.schemas.bound_to(caller.principal, topic)
    settings |= {} if schema is None else {SCHEMA_SETTING: schema}
    partitions = [
        PartitionMetadata(each.index, LEADER_ID, each.start_offset, each.committed_end)
        for each in description.partitions
    ]
    return DescribedTopic(info.name, partitions, settings)


@handles(AlterTopic)
async def alter_topic(caller: Caller, request: AlterTopic) -> Done:
    if any(name == SCHEMA_SETTING for name, _ in request.settings):
        raise InvalidRequest("schema is not a setting that can be altered: bind the topic to another schema instead")
    await caller.broker.topics.alter(caller.principal, request.topic, request.settings)
    return Done(True, f"topic {request.topic} altered")


@handles(AddPartitions)
async def add_partitions(caller: Caller, request: AddPartitions) -> Done:
    info = await caller.broker.topics.add_partitions(caller.principal, request.topic, request.partitions)
    return Done(True, f"topic {request.topic} has {info.config.partitions} partitions")


@handles(TruncateTopic)
async def truncate_topic(caller: Caller, request: TruncateTopic) -> Done:
    await caller.broker.topics.truncate(
        caller.principal, request.topic, request.mode, request.position, request.partition
    )
    return Done(True, f"topic {request.topic} truncated")


@handles(ListTopics)
def list_topics(caller: Caller, request: ListTopics) -> list[str]:
    return caller.broker.topic_names(caller.principal)


@handles(DeleteTopic)
async def delete_topic(caller: Caller, request: DeleteTopic) -> bool:
    try:
        await caller.broker.delete_topic(caller.principal, request.topic)
    except TopicNotFound:
        pass  # deployed clients count on it
    return True


@handles(SnapshotCreate)
async def create_snapshot(caller: Caller, request: SnapshotCreate) -> SnapshotDescription:
    snapshot = await caller.broker.snapshot(caller.principal)
    return SnapshotDescription(snapshot.id, snapshot.directory)


@handles(SnapshotRelease)
async def release_snapshot(caller: Caller, request: SnapshotRelease) -> bool:
    await caller.broker.release_snapshot(caller.principal, request.id)
    return True


# --- groups ---


@handles(Subscribe)
def subscribe(caller: Caller, request: Subscribe) -> int:
    caller.note_dialect(native=request.native)
    mode = _SUBSCRIBE_MODES.get(request.mode, request.mode)
    offset = caller.broker.start_position(caller.principal, request.topic, request.group, request.partition, mode)
    caller.broker.subscribe(caller.principal, request.topic, request.group, caller.session_id)
    return offset


@handles(Commit)
async def commit(caller: Caller, request: Commit) -> bool:
    await caller.broker.commit_offset(caller.principal, request.topic, request.group, request.partition, request.offset)
    return True


@handles(GetOffset)
def get_offset(caller: Caller, request: GetOffset) -> int:
    return caller.broker.committed_offset(caller.principal, request.topic, request.group, request.partition) or 0


@handles(ResetOffset)
async def reset_offset(caller: Caller, request: ResetOffset) -> bool:
    await caller.broker.reset_offset(
        caller.principal, request.topic, request.group, request.partition, request.mode, request.offset
    )
    return True


@handles(ListGroups)
def list_groups(caller: Caller, request: ListGroups) -> Iterable[GroupState]:
    return map(_group_state, caller.broker.list_groups(caller.principal))


@handles(DescribeGroup)
def describe_group(caller: Caller, request: DescribeGroup) -> GroupState | GroupSummary:
    infos = caller.broker.describe_group(caller.principal, request.group, request.topic or None)
    if not request.group_only:
        return _group_state(infos[0])
    members = sorted({member for info in infos for member in info.members})
    topics = [info.topic for info in infos]
    return GroupSummary(request.group, "Stable" if members else "Empty", members, topics, caller.node.address())


def _group_state(info: GroupInfo) -> GroupState:
    return GroupState(info.topic, info.group, len(info.members), {each.partition: each.offset for each in info.offsets})


@handles(GetLag)
def get_lag(caller: Caller, request: GetLag) -> GroupLag:
    lag = caller.broker.lag(caller.principal, request.topic, request.group, request.partition)
    committed = lag.committed or 0
    return GroupLag(committed, committed, lag.committed_end, lag.records)


@handles(DeleteGroup)
async def delete_group(caller: Caller, request: DeleteGroup) -> bool:
    await caller.broker.delete_group(caller.principal, request.group, request.topic or None)
    return True


@handles(SeekToTimestamp)
async def seek_to_timestamp(caller: Caller, request: SeekToTimestamp) -> int:
    return await caller.broker.seek_to_time(
        caller.principal, request.topic, request.group, request.partition, request.timestamp_ms
    )


# --- the cluster ---


@handles(ClusterJoin)
def join_cluster(caller: Caller, request: ClusterJoin) -> bool:
    caller.broker.cluster.join(caller.principal, request.peer)


@handles(ClusterLeave)
def leave_cluster(caller: Caller, request: ClusterLeave) -> bool:
    caller.broker.cluster.leave(caller.principal)


@handles(ClusterStatus)
def cluster_status(caller: Caller, request: ClusterStatus) -> ClusterState:
    status = caller.broker.cluster.status(caller.principal)
    node = (caller.node.id, caller.node.address(), "degraded" if status.partitions_failed else "online")
    return ClusterState(status.name, caller.node.id, [node], status.topics, status.partitions, status.partitions_failed)


@handles(ClusterMetadata)
def cluster_metadata(caller: Caller, request: ClusterMetadata) -> ClusterTopics:
    """One node leads every partition."""
    caller.note_dialect(native=True)
    broker, principal, node = caller.broker, caller.principal, caller.node.id
    place = (node, caller.node.address(), LEADER_EPOCH)
    # A partition that takes no more writes still has its one replica, which can be read, and none in sync.
    leaders = {
        True: PartitionLeader(*place, "online", (node,), (node,)),
        False: PartitionLeader(*place, "offline", (node,), ()),
    }
    names = [request.topic] if request.topic else broker.topic_names(principal)

    def described(name: str) -> ClusterTopic:
        partitions = broker.describe_topic(principal, name).partitions
        return ClusterTopic(name, [ClusterPartition(each.index, leaders[each.failure is None]) for each in partitions])

    return ClusterTopics(NAME, map(described, names))
