"""What each RustLog request but PRODUCE does: one method a request, from message to reply frame.

A method returns the frame, or a coroutine that will, where it must wait for the log. Refusals are raised as they come from the broker
and put into words by `refusals`. Where contract (JSON) and deployed brokers (binary) differ, the method says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from penstock.broker.access.checks import Operation, Principal, Resource, ResourceKind, authorize
from penstock.broker.broker import Broker
from penstock.broker.groups.lag import LagReport
from penstock.broker.groups.truncation import position_of_client
from penstock.clock import Clock
from penstock.errors import (
    AccessDenied,
    AuthenticationRequired,
    GroupNotFound,
    InvalidRequest,
    OffsetOutOfRange,
    PartitionNotFound,
    TopicNotFound,
)
from penstock.log.api import Partition
from penstock.protocols.rustlog.codec import binary_dialect, json_dialect, messages
from penstock.protocols.rustlog.server.fetching import Fetcher, Gathering
from penstock.protocols.rustlog.server.metrics import RustLogStats, metrics_text
from penstock.protocols.rustlog.wire import PARTITIONS_MAX, Dialect

Answer = bytes | Coroutine[Any, Any, bytes]


class Replies(Protocol):
    """What a dialect can say."""

    def encode_offset_committed(self, success: bool) -> bytes: ...
    def encode_committed_offset(self, offset: int | None) -> bytes: ...
    def encode_created(self) -> bytes: ...
    def encode_topics(self, topics: Sequence[tuple[str, int]]) -> bytes: ...
    def encode_topic(self, state: messages.TopicState) -> bytes: ...
    def encode_partition(self, topic: str, state: messages.PartitionState) -> bytes: ...
    def encode_metrics(self, text: str) -> bytes: ...
    def encode_pong(self) -> bytes: ...


REPLIES: Mapping[Dialect, Replies] = {Dialect.JSON: json_dialect, Dialect.BINARY: binary_dialect}


class _Fetched(NamedTuple):
    """What the metrics are told of a Fetch."""

    records: int
    size_bytes: int
    seconds: float


class Operations:
    """Those of one session."""

    __slots__ = ("_broker", "_clock", "_fetched", "_fetcher", "_principal", "_stats")

    def __init__(
        self, broker: Broker, fetcher: Fetcher, clock: Clock, principal: Principal, stats: RustLogStats
    ) -> None:
        self._broker = broker
        self._fetcher = fetcher
        self._clock = clock
        self._principal = principal
        self._stats = stats
        self._fetched: _Fetched | None = None

    def answer(self, call: messages.Call) -> Answer:
        return _METHODS[type(call.body)](self, call.dialect, call.body)

    # --- records ---

    def fetch(self, dialect: Dialect, body: messages.Fetch) -> Answer:
        started_s = self._clock.monotonic()
        committed = self._committed(body.topic, body.group, body.partition) if body.group else None
        try:
            partition = self._broker.records.partition(self._principal, body.topic, body.partition)
        except (TopicNotFound, PartitionNotFound):
            if dialect is Dialect.BINARY and body.group and committed is None:
                # Deployed consumers begin before their topic exists, and count on hearing that nothing is there.
                return binary_dialect.encode_fetched((), 0, 0)
            raise
        if not partition.followed:
            return self._fetch_followed(partition, dialect, body)
        offset, end = max(body.offset, committed or 0), partition.committed_end
        if dialect is Dialect.BINARY and not partition.start_offset <= offset < end:
            return binary_dialect.encode_fetched((), 0, position_of_client(partition, offset))
        if offset >= end:
            return json_dialect.encode_fetched((), min(position_of_client(partition, offset), end))
        if offset < partition.start_offset:
            raise OffsetOutOfRange(
                f"topic={body.topic}, partition={body.partition}, offset={offset}: the first record left is {partition.start_offset}"
            )

        def fetched(gathering: Gathering) -> bytes:
            if gathering.trace is not None:
                gathering.trace.end(gathering.next_offset)
            reply = gathering.encode()
            self._fetched = _Fetched(gathering.count, len(reply), self._clock.monotonic() - started_s)
            return reply

        return self._fetcher.fetch(partition, offset, body.max_bytes, dialect, body.group or "", fetched)

    async def _fetch_followed(self, partition: Partition, dialect: Dialect, body: messages.Fetch) -> bytes:
        await partition.follow()
        reply = self.fetch(dialect, body)
        return reply if isinstance(reply, bytes) else await reply

    def count_fetched(self, *, sent: bool) -> None:
        """Count the last Fetch, if its reply was sent; one that was not is made again."""
        fetched, self._fetched = self._fetched, None
        if fetched is not None and sent:
            stats = self._stats
            stats.sent_records += fetched.records
            stats.fetched_bytes += fetched.size_bytes
            stats.fetch_seconds.observe(fetched.seconds)

    # --- groups ---

    def offset_commit(self, dialect: Dialect, body: messages.OffsetCommit) -> Answer:
        if dialect is Dialect.JSON:
            try:
                self._broker.records.partition(self._principal, body.topic, body.partition)
            except (TopicNotFound, PartitionNotFound):
                return json_dialect.encode_offset_committed(False)
        return _after(
            self._broker.groups.commit(self._principal, body.topic, body.group, body.partition, body.offset),
            REPLIES[dialect].encode_offset_committed(True),
        )

    def offset_fetch(self, dialect: Dialect, body: messages.OffsetFetch) -> bytes:
        return REPLIES[dialect].encode_committed_offset(self._committed(body.topic, body.group, body.partition))

    def _committed(self, topic: str, group: str, partition: int) -> int | None:
        try:
            return self._broker.groups.committed(self._principal, topic, group, partition)
        except GroupNotFound:
            return None

    # --- topics ---

    async def create_topic(self, dialect: Dialect, body: messages.CreateTopic) -> bytes:
        if not 1 <= body.partitions <= PARTITIONS_MAX:
            raise InvalidRequest(f"{body.partitions} partitions: use 1 to {PARTITIONS_MAX}")
        config = replace(self._broker.topics.defaults, partitions=body.partitions)
        await self._broker.topics.create(self._principal, body.topic, config)
        return REPLIES[dialect].encode_created()

    def list_topics(self, dialect: Dialect, body: messages.ListTopics) -> bytes:
        broker, principal = self._broker, self._principal
        topics = [
            (name, broker.topics.describe(principal, name).info.config.partitions)
            for name in broker.topics.names(principal)
        ]
        return REPLIES[dialect].encode_topics(topics)

    async def describe_topic(self, dialect: Dialect, body: messages.DescribeTopic) -> bytes:
        return REPLIES[dialect].encode_topic(messages.TopicState(body.topic, await self._partitions(body.topic)))

    async def describe_partition(self, dialect: Dialect, body: messages.DescribePartition) -> bytes:
        partitions = await self._partitions(body.topic)
        if body.partition >= len(partitions):
            raise PartitionNotFound(f"partition {body.partition} not found: {body.topic} has {len(partitions)}")
        return REPLIES[dialect].encode_partition(body.topic, partitions[body.partition])

    def check_partition(self, topic: str, partition: int) -> None:
        """Raises if there is no such partition or it may not be written, for a PRODUCE that brings no records."""
        authorize(self._broker.access, self._principal, Operation.WRITE, Resource(ResourceKind.TOPIC, topic))
        if partition >= self._broker.topics.describe(self._principal, topic).info.config.partitions:
            raise PartitionNotFound(f"partition {partition} not found in topic {topic}")

    async def _partitions(self, topic: str) -> list[messages.PartitionState]:
        described = await self._broker.topics.follow(self._principal, topic)
        return [
            messages.PartitionState(each.index, each.committed_end, each.start_offset) for each in described.partitions
        ]

    # --- the broker ---

    async def metrics(self, dialect: Dialect, body: messages.Metrics) -> bytes:
        lags: LagReport | None = None
        try:
            lags = await self._broker.groups.lags(self._principal)
        except (AccessDenied, AuthenticationRequired):
            pass  # other people's groups are not shown to everyone
        return REPLIES[dialect].encode_metrics(metrics_text(self._stats, lags))

    def ping(self, dialect: Dialect, body: messages.Ping) -> bytes:
        return REPLIES[dialect].encode_pong()


async def _after(work: asyncio.Future[None], reply: bytes) -> bytes:
    await work
    return reply


_METHODS: Mapping[type, Callable[[Operations, Dialect, Any], Answer]] = {
    messages.Fetch: Operations.fetch,
    messages.OffsetCommit: Operations.offset_commit,
    messages.OffsetFetch: Operations.offset_fetch,
    messages.CreateTopic: Operations.create_topic,
    messages.ListTopics: Operations.list_topics,
    messages.DescribeTopic: Operations.describe_topic,
    messages.DescribePartition: Operations.describe_partition,
    messages.Metrics: Operations.metrics,
    messages.Ping: Operations.ping,
}
