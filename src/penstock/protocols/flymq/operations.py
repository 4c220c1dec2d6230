"""What each FlyMQ request but PRODUCE does: one method a request, from message to reply frame.

A method returns the frame, or a coroutine that will, where it must wait for the log. Refusals are raised as they come from the
broker and put into words by `refusal`. `Operations` belongs to one session: it knows who is asking and which dialect they speak.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from penstock.broker.access import ANONYMOUS, Principal
from penstock.broker.broker import Broker
from penstock.broker.cluster import NAME
from penstock.broker.groups import GroupInfo
from penstock.broker.topics import format_topic_config, parse_topic_config
from penstock.clock import Clock
from penstock.errors import (
    AuthenticationFailed,
    InvalidRequest,
    NotSupported,
    PartitionNotFound,
    PenstockError,
    TopicExists,
    TopicNotFound,
)
from penstock.protocols.flymq.access import operations as access_operations
from penstock.protocols.flymq.access.operations import Caller
from penstock.protocols.flymq.access.replies import encode_authenticated, encode_identity, encode_not_authenticated
from penstock.protocols.flymq.blocks import operations as block_operations
from penstock.protocols.flymq.error_texts import error_text
from penstock.protocols.flymq.fetching import Fetcher
from penstock.protocols.flymq.keys import operations as key_operations
from penstock.protocols.flymq.lifetime import operations as lifetime_operations
from penstock.protocols.flymq.lifetime.operations import OnWritten
from penstock.protocols.flymq.pipelines import operations as pipeline_operations
from penstock.protocols.flymq.reply_encoding import (
    encode_cluster_metadata_reply,
    encode_created,
    encode_done,
    encode_group,
    encode_group_summary,
    encode_groups,
    encode_lag,
    encode_names,
    encode_offset,
    encode_topic_metadata,
)
from penstock.protocols.flymq.reply_messages import GroupLag, GroupState, PartitionMetadata, TopicMetadata
from penstock.protocols.flymq.request_messages import (
    Authenticate,
    ClusterMetadata,
    Commit,
    Consume,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    DescribeGroup,
    Fetch,
    GetLag,
    GetOffset,
    ListGroups,
    ListTopics,
    Metadata,
    ProduceRun,
    ResetOffset,
    SeekToTimestamp,
    Subscribe,
    WhoAmI,
)
from penstock.protocols.flymq.schemas import operations as schema_operations
from penstock.protocols.flymq.snapshots import operations as snapshot_operations
from penstock.protocols.flymq.staging import operations as staging_operations
from penstock.protocols.flymq.transactions import operations as transaction_operations
from penstock.workers import Worker

LEADER_ID = 0
SCHEMA_SETTING = "schema"
_SUBSCRIBE_MODES = {"": "latest", "commit": "committed"}
"""The contract's word for the broker's, and what deployed clients mean by none."""

Answer = bytes | Coroutine[Any, Any, bytes]


class Dialect(Enum):
    """Which replies a listener gives where contract and deployed clients differ."""

    AUTO = "auto"
    SPEC = "spec"
    NATIVE = "native"


@dataclass(frozen=True, slots=True)
class Node:
    """This broker, as cluster metadata names it."""

    id: str
    address: Callable[[], str]
    """Where clients reach it; asked late, because port 0 becomes a number only when the listener has started."""


class Operations:
    __slots__ = (
        "_clock",
        "_dialect",
        "_fetcher",
        "_node",
        "_session_id",
        "_shown_native",
        "_worker",
        "broker",
        "principal",
    )

    def __init__(
        self,
        broker: Broker,
        fetcher: Fetcher,
        clock: Clock,
        node: Node,
        dialect: Dialect,
        principal: Principal,
        session_id: str,
        worker: Worker,
    ) -> None:
        self.broker = broker
        self._clock = clock
        self._fetcher = fetcher
        self._node = node
        self._dialect = dialect
        self.principal = principal
        """Who is asking: changes when they log in."""
        self._session_id = session_id
        self._worker = worker
        self._shown_native: bool | None = None

    def answer(self, opcode: int, body: object) -> Answer:
        method = _METHODS.get(type(body))
        if method is not None:
            return method(self, opcode, body)
        of_feature = _FEATURE_METHODS.get(type(body))
        if of_feature is None:
            raise NotSupported(f"{type(body).__name__} is not available in this version of Penstock")
        return of_feature(self._caller, opcode, body)

    @staticmethod
    def writes(body: object) -> bool:
        """Whether a request is one of the writes that `write` starts."""
        return type(body) in _WRITES

    def write(self, body: object, written: OnWritten) -> None:
        """Start a write to a topic that exists. Raises what is wrong with it, or calls `written` once with the reply or the error."""
        _WRITES[type(body)](self._caller, self._clock, body, written)

    @property
    def _caller(self) -> Caller:
        return Caller(self.broker, self.principal, self._node, self.native, self._worker)

    def note_dialect(self, *, native: bool) -> None:
        """The peer sent something that only one of the two dialects has."""
        self._shown_native = native

    @property
    def native(self) -> bool | None:
        """Whether replies have the layouts of deployed clients; None while nothing the peer sent tells which dialect it speaks."""
        return self._shown_native if self._dialect is Dialect.AUTO else self._dialect is Dialect.NATIVE

    # --- records ---

    def consume(self, opcode: int, body: Consume) -> Answer:
        partition = self.broker.partition(self.principal, body.topic, body.partition)
        return self._fetcher.consume(partition, body.offset, opcode)

    def fetch(self, opcode: int, body: Fetch) -> Answer:
        self.note_dialect(native=body.filter is not None)
        partition = self.broker.partition(self.principal, body.topic, body.partition)
        native = bool(self.native)
        return self._fetcher.fetch(
            partition, body.offset, body.max_records, body.filter, opcode, native=native, worker=self._worker
        )

    # --- topics ---

    async def create_topic(self, opcode: int, body: CreateTopic) -> bytes:
        if body.partitions < 0:
            raise InvalidRequest(f"invalid request: {body.partitions} partitions: use 1 or more, or 0 for 1")
        # A topic's schema travels with its settings, but it is kept with the schemas: it can be changed.
        settings = [setting for setting in body.settings if setting[0] != SCHEMA_SETTING]
        schema = dict(body.settings).get(SCHEMA_SETTING)
        config = parse_topic_config(settings, self.broker.topic_defaults)
        try:
            await self.broker.create_topic(
                self.principal, body.topic, replace(config, partitions=body.partitions or 1), schema
            )
        except TopicExists:
            return encode_created(f"topic {body.topic} exists already and was left unchanged")
        return encode_created(f"topic {body.topic} created")

    def metadata(self, opcode: int, body: Metadata) -> bytes:
        description = self.broker.describe_topic(self.principal, body.topic)
        info = description.info
        settings = dict(format_topic_config(info.config))
        del settings["partitions"]
        settings |= {"id": info.id, "created_ms": str(info.created_ms)}
        schema = self.broker.schemas.bound_to(self.principal, body.topic)
        settings |= {} if schema is None else {SCHEMA_SETTING: schema}
        partitions = [
            PartitionMetadata(each.index, LEADER_ID, each.start_offset, each.committed_end)
            for each in description.partitions
        ]
        return encode_topic_metadata(TopicMetadata(info.name, partitions, settings))

    def list_topics(self, opcode: int, body: ListTopics) -> bytes:
        return encode_names(self.broker.topic_names(self.principal))

    async def delete_topic(self, opcode: int, body: DeleteTopic) -> bytes:
        try:
            await self.broker.delete_topic(self.principal, body.topic)
        except TopicNotFound:
            pass  # deployed clients count on it: what they want gone is gone
        return encode_done(opcode)

    def cluster_metadata(self, opcode: int, body: ClusterMetadata) -> bytes:
        self.note_dialect(native=True)
        broker, principal = self.broker, self.principal
        names = [body.topic] if body.topic else broker.topic_names(principal)
        topics = (
            (name, [each.failure is None for each in broker.describe_topic(principal, name).partitions])
            for name in names
        )
        return encode_cluster_metadata_reply(NAME, self._node.id, self._node.address(), topics)

    # --- groups ---

    def subscribe(self, opcode: int, body: Subscribe) -> bytes:
        self.note_dialect(native=body.native)
        mode = _SUBSCRIBE_MODES.get(body.mode, body.mode)
        offset = self.broker.start_position(self.principal, body.topic, body.group, body.partition, mode)
        self.broker.subscribe(self.principal, body.topic, body.group, self._session_id)
        return encode_offset(opcode, offset)

    async def commit(self, opcode: int, body: Commit) -> bytes:
        await self.broker.commit_offset(self.principal, body.topic, body.group, body.partition, body.offset)
        return encode_done(opcode)

    def get_offset(self, opcode: int, body: GetOffset) -> bytes:
        committed = self.broker.committed_offset(self.principal, body.topic, body.group, body.partition)
        return encode_offset(opcode, committed or 0)

    async def reset_offset(self, opcode: int, body: ResetOffset) -> bytes:
        await self.broker.reset_offset(self.principal, body.topic, body.group, body.partition, body.mode, body.offset)
        return encode_done(opcode)

    def list_groups(self, opcode: int, body: ListGroups) -> bytes:
        return encode_groups(map(_group_state, self.broker.list_groups(self.principal)))

    def describe_group(self, opcode: int, body: DescribeGroup) -> bytes:
        infos = self.broker.describe_group(self.principal, body.group, body.topic or None)
        if not body.group_only:
            return encode_group(_group_state(infos[0]))
        members = sorted({member for info in infos for member in info.members})
        topics = [info.topic for info in infos]
        return encode_group_summary(body.group, "Stable" if members else "Empty", members, topics, self._node.address())

    def get_lag(self, opcode: int, body: GetLag) -> bytes:
        lag = self.broker.lag(self.principal, body.topic, body.group, body.partition)
        committed = lag.committed or 0
        return encode_lag(GroupLag(committed, committed, lag.committed_end, lag.records))

    async def delete_group(self, opcode: int, body: DeleteGroup) -> bytes:
        await self.broker.delete_group(self.principal, body.group, body.topic or None)
        return encode_done(opcode)

    async def seek_to_timestamp(self, opcode: int, body: SeekToTimestamp) -> bytes:
        offset = await self.broker.seek_to_time(
            self.principal, body.topic, body.group, body.partition, body.timestamp_ms
        )
        return encode_offset(opcode, offset)

    # --- who is asking ---

    async def authenticate(self, opcode: int, body: Authenticate) -> bytes:
        native = self.native
        if self.principal.trusted:
            # Authentication is off here: deployed clients that have credentials send them all the same and need a yes.
            return encode_authenticated(body.user, [], native=native)
        users = self.broker.users
        try:
            self.principal = await users.authenticate(body.user, body.password, self.principal.address)
        except AuthenticationFailed as error:
            return encode_not_authenticated(error.message, native=native)
        standing = users.standing(self.principal)
        return encode_authenticated(standing.name, standing.roles, native=native)

    def who_am_i(self, opcode: int, body: WhoAmI) -> bytes:
        if self.principal == ANONYMOUS:
            return encode_identity("", [], [])
        return encode_identity(*self.broker.users.standing(self.principal))


def _group_state(info: GroupInfo) -> GroupState:
    return GroupState(info.topic, info.group, len(info.members), {each.partition: each.offset for each in info.offsets})


def refusal(body: object, error: PenstockError) -> str:
    """The ERROR text for a request that was refused."""
    if isinstance(error, PartitionNotFound) and isinstance(body, Consume | ProduceRun):
        # The word that deployed brokers have for it here; everywhere else they say "not found".
        _, _, explanation = error.message.partition(": ")
        return f"partition {body.partition} out of range" + (f": {explanation}" if explanation else "")
    return error_text(error)


_METHODS: Mapping[type, Callable[[Operations, int, Any], Answer]] = {
    Consume: Operations.consume,
    CreateTopic: Operations.create_topic,
    Metadata: Operations.metadata,
    Subscribe: Operations.subscribe,
    Commit: Operations.commit,
    Fetch: Operations.fetch,
    ListTopics: Operations.list_topics,
    DeleteTopic: Operations.delete_topic,
    ClusterMetadata: Operations.cluster_metadata,
    GetOffset: Operations.get_offset,
    ResetOffset: Operations.reset_offset,
    ListGroups: Operations.list_groups,
    DescribeGroup: Operations.describe_group,
    GetLag: Operations.get_lag,
    DeleteGroup: Operations.delete_group,
    SeekToTimestamp: Operations.seek_to_timestamp,
    Authenticate: Operations.authenticate,
    WhoAmI: Operations.who_am_i,
}

_FEATURE_METHODS: Mapping[type, Callable[[Caller, int, Any], Answer]] = {
    **access_operations.METHODS,
    **block_operations.METHODS,
    **key_operations.METHODS,
    **pipeline_operations.METHODS,
    **snapshot_operations.METHODS,
    **lifetime_operations.METHODS,
    **schema_operations.METHODS,
    **staging_operations.METHODS,
    **transaction_operations.METHODS,
}

_WRITES: Mapping[type, Callable[[Caller, Clock, Any, OnWritten], None]] = {
    **lifetime_operations.WRITES,
    **schema_operations.WRITES,
    **staging_operations.WRITES,
}
