"""The async FlyMQ client.

Requests are pipelined over one connection within a bounded window (`penstock.clients.requests` has the rules of retrying). A batch is
encoded into one buffer per chunk, and its replies are decoded as arrays; one future stands for a whole chunk.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from random import Random
from typing import Literal

from penstock.clients.arguments import (
    check_topic,
    index_field,
    milliseconds,
    offset_field,
)
from penstock.clients.options import ClientOptions
from penstock.clients.pipeline import Pipeline
from penstock.clients.reading import records_of
from penstock.clients.records import (
    FetchResult,
    GroupDescription,
    Lag,
    PartitionDescription,
    Record,
    RecordMetadata,
    TopicDescription,
)
from penstock.clients.requests import OnLost
from penstock.clients.results import require_success
from penstock.clients.retry import SUBMISSIONS_MAX, Sleep
from penstock.clients.tcp import TcpClient
from penstock.clients.url import Address, parse_tcp_url
from penstock.clock import Clock
from penstock.errors import (
    AuthenticationFailed,
    GroupNotFound,
    InvalidRequest,
    NotSupported,
    PenstockError,
    Unreachable,
)
from penstock.protocols.flymq.client.access import AsyncAccess, AsyncKeys
from penstock.protocols.flymq.client.consumer import AsyncConsumer, Callbacks, ConsumerOptions, OnRebalance
from penstock.protocols.flymq.client.exchanges import (
    Call,
    Channel,
    Produces,
    Replies,
    all_pages,
    metadata_of,
    partition_field,
    replies_in,
)
from penstock.protocols.flymq.client.monitoring import AsyncMonitoring
from penstock.protocols.flymq.client.once import NotIdempotent, OnceSender
from penstock.protocols.flymq.client.producing import (
    Headers,
    Outgoing,
    ProducesTogether,
    Records,
)
from penstock.protocols.flymq.client.reading import EncodedFetch, EncodedRecords, Start, read_batches, timestamp_ms_of
from penstock.protocols.flymq.client.records import AsyncDeadLetters, AsyncSchemas, DelayedRecord
from penstock.protocols.flymq.client.spark import AsyncBlocks, AsyncPipelines, AsyncSnapshots, AsyncStaging
from penstock.protocols.flymq.client.transactions import AsyncTransaction
from penstock.protocols.flymq.codec.frames import ReplyDecoder
from penstock.protocols.flymq.operations.access import Auth, Whoami, decode_authenticated, decode_refusal
from penstock.protocols.flymq.operations.operation import encode_request
from penstock.protocols.flymq.operations.records import (
    CancelDelayed,
    Fetch,
    FetchRecords,
    ProduceDelayed,
    ProduceWithTtl,
)
from penstock.protocols.flymq.operations.topics import (
    ALL_PARTITIONS,
    AddPartitions,
    AlterTopic,
    Commit,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    DescribedTopic,
    DescribeGroup,
    GetLag,
    GetOffset,
    GroupState,
    GroupSummary,
    ListGroups,
    ListTopics,
    Metadata,
    ResetOffset,
    SeekToTimestamp,
    Subscribe,
    TopicList,
    TopicMetadata,
    TruncateTopic,
)

SCHEMES = ("flymq", "flymqs")
PORT = 9092
FETCH_RECORDS = 1000
"""The default of a fetch; deployed brokers return no more."""


class AsyncFlyMQClient(TcpClient[Replies]):
    """A FlyMQ client for asyncio programs.

    ```python
    async with AsyncFlyMQClient("flymq://127.0.0.1:9092") as client:
        await client.send("orders", b"one", key=b"k")
        async for record in client.records("orders"):
            print(record.offset, record.value)
    ```
    Errors are those of `penstock.errors`; `error.retriable` says whether trying again can help. One client serves any number of
    concurrent tasks of one event loop.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: ssl.SSLContext | bool | None = None,
        options: ClientOptions | None = None,
        idempotent: bool = True,
        clock: Clock | None = None,
        random: Random | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """Unless `idempotent` is false, here or in the address (`?idempotent=false`), records are sent again after a lost connection and
        stored once, if the server is a Penstock broker."""
        form = "flymq://host:port, or flymqs:// for TLS"
        address = parse_tcp_url(url, SCHEMES, protocol="FlyMQ", port=PORT, form=form, options=("idempotent",))
        super().__init__(address, tls, options, clock=clock, random=random, sleep=sleep)
        channel = Channel(self._requests, self._options.request_timeout_s)
        self._channel = channel
        self._ask = channel.ask
        self._once = (
            OnceSender(self._requests, channel, self._attempts) if idempotent and _may_send_again(address) else None
        )
        """None also once the server has answered that it has no idempotent producers."""
        self._fetches_whole = True
        """Until the server answers that it does not know FETCH_RECORDS."""
        self.monitoring = AsyncMonitoring(channel)
        """Members and lag of groups, and deliveries of subscriptions in flight."""
        self.dead_letters = AsyncDeadLetters(channel)
        """Dead letters: list, replay, purge."""
        self.schemas = AsyncSchemas(channel)
        """Schemas: register, get, list, validate, delete, bind to a topic."""
        self.access = AsyncAccess(channel)
        """Users, roles, ACLs, the audit trail and the cluster."""
        self.pipelines = AsyncPipelines(channel)
        """Reports of Spark pipelines."""
        self.staging = AsyncStaging(channel)
        """Staged writes, for writers that run in many processes."""
        self.snapshots = AsyncSnapshots(channel)
        """Snapshots of the log, for backups and checks on the broker's machine."""
        self.keys = AsyncKeys(channel)
        """API keys of other protocols: create, list, revoke."""
        self.blocks = AsyncBlocks(channel)
        """Whole blocks, for readers that decode columns themselves, and plans for splitting the work."""

    # -- producing -------------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        *,
        headers: Headers = (),
        ttl_s: float | None = None,
        schema: str | None = None,
    ) -> RecordMetadata:
        """Store one record; return its place once it is committed. For many records, `send_many` is much faster.

        Without a partition the key decides, or round robin if there is none. A value of None is a tombstone: compaction removes its key.
        `headers` are names with values, as a mapping or as pairs. The timestamp is the time of the commit.

        A record with a time to live is invisible once that time has passed. One that does not match its schema ("orders",
        "orders:3") is refused with ValidationFailed. If the connection is lost, the record is sent again, and stored once. If that
        fails too, ConnectionLost and RequestTimeout leave the outcome unknown. Raises NotSupported if the server is not Penstock and
        would lose headers or a null value.
        """
        check_topic(topic)
        outgoing = Outgoing.single(topic, value, key, headers, partition_field(partition), schema)
        ttl_ms = None if ttl_s is None else milliseconds(ttl_s, "time to live")
        if self._once is not None:
            try:
                once = outgoing if ttl_ms is None else replace(outgoing, ttl_ms=ttl_ms)
                return require_success([await self._once.send(once)])[0]
            except NotIdempotent:
                self._once = None
        if ttl_ms is not None:
            if value is not None and schema is None and not outgoing.whole:
                return metadata_of(await self._ask(ProduceWithTtl(topic, value, ttl_ms, key, outgoing.partition)))
            outgoing.ttl_ms = ttl_ms
        exchange = outgoing.exchange(0, 1, self._options.request_timeout_s)
        await self._requests.perform(exchange)
        return require_success(exchange.results)[0]

    async def send_later(
        self,
        topic: str,
        value: bytes | None,
        delay_s: float,
        key: bytes | None = None,
        partition: int | None = None,
        *,
        headers: Headers = (),
        ttl_s: float | None = None,
    ) -> DelayedRecord:
        """Store one record that becomes readable after a delay; return once it is durable. Its `id` cancels it until then.

        A time to live begins when the record becomes readable. Without a delay the record is stored at once, and has no id.
        """
        check_topic(topic)
        delay_ms = milliseconds(delay_s, "delay")
        ttl_ms = 0 if ttl_s is None else milliseconds(ttl_s, "time to live")
        outgoing = Outgoing.single(topic, value, key, headers, partition_field(partition))
        if value is not None and not outgoing.whole:
            request = ProduceDelayed(topic, value, delay_ms, key, outgoing.partition, ttl_ms)
            scheduled = await self._ask(request)
            return DelayedRecord(scheduled.topic, scheduled.partition, scheduled.timestamp_ms, scheduled.id)
        outgoing.ttl_ms, outgoing.delay_ms = ttl_ms, delay_ms
        exchange = ProducesTogether(outgoing.request(0, 1), timeout_s=self._options.request_timeout_s)
        await self._requests.perform(exchange)
        [stored] = require_success(exchange.results)
        return DelayedRecord(topic, stored.partition, stored.timestamp_ms, exchange.ids[0] if exchange.ids else "")

    async def cancel(self, topic: str, delayed_id: str) -> None:
        """Cancel a delayed record. Raises EntryNotFound, also if it is readable already or was cancelled before."""
        check_topic(topic)
        await self._ask(CancelDelayed(topic, delayed_id))

    async def send_many(
        self, topic: str, records: Records, partition: int | None = None, *, schema: str | None = None
    ) -> list[RecordMetadata]:
        """Store many records, pipelined, in order; return the place of each once all are committed.

        Records are values, pairs of key and value, or triples of key, value and headers, as in `send`.

        If all failed for one reason, that error is raised; if some did, BatchFailed, whose `results` has the outcome of each.
        """
        check_topic(topic)
        outgoing = Outgoing.of(topic, records, partition_field(partition), schema)
        if self._once is not None:
            try:
                return require_success(await self._once.send_many(outgoing))
            except NotIdempotent:
                self._once = None
        results: list[RecordMetadata | PenstockError] = []
        for submission in range(1, SUBMISSIONS_MAX + 1):
            lost, may_go_on = await self._send_chunks(outgoing, results)
            if lost is None:
                break
            if not may_go_on or submission == SUBMISSIONS_MAX:
                results += [lost] * (len(outgoing.values) - len(results))
                break
        return require_success(results)

    async def _send_chunks(
        self, outgoing: Outgoing, results: list[RecordMetadata | PenstockError]
    ) -> tuple[PenstockError | None, bool]:
        """Send what `results` does not cover yet and extend it, up to a lost connection: that error, and whether continuing is safe."""
        sent: list[Produces | ProducesTogether] = []
        stopped: PenstockError | None = None
        for first, last in outgoing.chunks(len(results)):
            exchange = outgoing.exchange(first, last, self._options.request_timeout_s)
            try:
                await self._requests.submit(exchange, after=sent[-1] if sent else None)
            except Unreachable as error:
                stopped = error
                break
            sent.append(exchange)
        for exchange in sent:
            try:
                await exchange.finished
            except PenstockError as error:
                results += exchange.results
                return error, not exchange.written and not exchange.results
            results += exchange.results
        return stopped, False

    def transaction(self, transaction_id: str | None = None) -> AsyncTransaction:
        """Return a transaction, for `async with client.transaction() as txn:`.

        An id resumes a transaction that was begun before, here or elsewhere; `commit()` then returns its outcome.
        """
        return AsyncTransaction(self._channel, transaction_id)

    # -- reading ---------------------------------------------------------------------------------------------------------

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_records: int = FETCH_RECORDS,
        filter: str | None = None,  # noqa: A002
    ) -> FetchResult:
        """Read up to `max_records` records of one partition starting at `offset`; none at its end.

        A server that is not Penstock returns keys and values only: no headers, no timestamps, and empty values for tombstones.

        The broker applies `filter`: text found in value or key (any case), a regular expression, or conditions on JSON members, key
        and headers, such as `$.customer.id = 42 and $header.source = web`.
        """
        return (await self.fetch_encoded(topic, partition, offset, max_records, filter)).decode()

    async def fetch_encoded(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_records: int = FETCH_RECORDS,
        filter: str | None = None,  # noqa: A002
    ) -> EncodedRecords | EncodedFetch:
        """Like `fetch`, with the decoding left to the caller."""
        check_topic(topic)
        place = topic, index_field(partition), offset_field(offset), max_records
        if self._fetches_whole:
            try:
                payload = await self._channel.ask_encoded(FetchRecords(*place, filter or ""))
            except NotSupported:
                self._fetches_whole = False
            else:
                return EncodedRecords(topic, partition, payload)
        return EncodedFetch(topic, partition, await self._ask(Fetch(*place, filter)), native=filter is not None)

    def batches(
        self,
        topic: str | Sequence[str],
        partition: int | None = None,
        *,
        start: Start | None = None,
        group: str | None = None,
        follow: bool = False,
        commit: bool = True,
        filter: str | None = None,  # noqa: A002
        limit: int | None = None,
        last: int | None = None,
    ) -> AsyncGenerator[list[Record], None]:
        """Like `records`, a list at a time: the faster way to read many records.

        Each list has records of one partition, in order; the first has those of `last`, in the order of their times.
        """
        topics = [topic] if isinstance(topic, str) else list(topic)
        for name in topics:
            check_topic(name)
        return read_batches(
            self,
            topics,
            partition,
            start,
            group,
            follow=follow,
            commit=commit,
            wanted=filter,
            limit=limit,
            last=last,
            sleep=self._sleep,
        )

    def records(
        self,
        topic: str | Sequence[str],
        partition: int | None = None,
        *,
        start: Start | None = None,
        group: str | None = None,
        follow: bool = False,
        commit: bool = True,
        filter: str | None = None,  # noqa: A002
        limit: int | None = None,
        last: int | None = None,
    ) -> AsyncGenerator[Record, None]:
        """Iterate over the records of one topic or several, of one partition or of all; order holds within a partition.

        `start` is "earliest" (default), "latest", an offset, or a time. With a `group`, reading continues at the group's
        committed offsets, `start` applies only to partitions without one, and offsets are committed as the loop continues (unless
        `commit` is false): a batch is committed when the record after it is requested. Without `follow` the iteration ends at what
        was the end of the topic when it began; with it, it waits for more. `limit` is the maximum number of records. `last` starts
        with that many of the newest records, over all partitions.
        """
        return records_of(
            self.batches(
                topic,
                partition,
                start=start,
                group=group,
                follow=follow,
                commit=commit,
                filter=filter,
                limit=limit,
                last=last,
            )
        )

    def consumer(
        self,
        topics: Sequence[str],
        *,
        group: str,
        start: Literal["earliest", "latest"] = "earliest",
        auto_commit: bool = True,
        session_timeout_s: float = 30.0,
        poll_interval_s_max: float = 300.0,
        instance_id: str | None = None,
        on_assigned: OnRebalance | None = None,
        on_revoked: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
    ) -> AsyncConsumer:
        """Return a member of a consumer group, whose members share the partitions of their topics: iterate over it, or `poll` it.

        `start` applies to partitions without a committed offset. The broker assigns the partitions to other members after
        `session_timeout_s` without a heartbeat, or if the program does not poll for `poll_interval_s_max`. A static member, with an
        `instance_id` that no other member of the group has, keeps its partitions if it restarts within the session timeout. The
        callbacks are called with partitions that are assigned, revoked (commit their offsets), or lost to other members.
        """
        options = ConsumerOptions(start, auto_commit, session_timeout_s, poll_interval_s_max, instance_id or "")
        callbacks = Callbacks(on_assigned, on_revoked, on_lost)
        return AsyncConsumer(self, self._channel, topics, group, options, callbacks, self._clock)

    # -- topics ----------------------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, partitions: int = 1, **config: str | int) -> None:
        """Create a topic; an existing one is not changed. Settings: durability, retention_ms, retention_bytes, cleanup,
        compression, segment_bytes, segment_ms."""
        check_topic(name)
        settings = [(setting, str(value)) for setting, value in config.items()]
        await self._ask(CreateTopic(name, partitions, settings))

    async def alter_topic(self, name: str, **config: str | int) -> None:
        """Change settings of a topic, named as in `create_topic`; others keep their values. Raises TopicNotFound."""
        check_topic(name)
        await self._ask(AlterTopic(name, [(setting, str(value)) for setting, value in config.items()]))

    async def add_partitions(self, name: str, partitions: int) -> None:
        """Add partitions until a topic has this many. Records stay where they are; keys may map to other partitions afterwards."""
        check_topic(name)
        await self._ask(AddPartitions(name, index_field(partitions)))

    async def truncate_topic(
        self, name: str, before: Literal["latest"] | int | datetime, partition: int | None = None
    ) -> None:
        """Delete the records before an offset (in one partition) or a time, or all of them ("latest")."""
        check_topic(name)
        mode, position = "end", 0
        if isinstance(before, datetime):
            mode, position = "time", timestamp_ms_of(before)
        elif before != "latest":
            mode, position = "offset", offset_field(before)
        index = ALL_PARTITIONS if partition is None else index_field(partition)
        await self._ask(TruncateTopic(name, index, mode, position))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records, if it exists."""
        check_topic(name)
        await self._ask(DeleteTopic(name))

    async def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return await self._ask(ListTopics())

    async def describe_topic(self, name: str) -> TopicDescription:
        """Return a topic with its settings and partitions. Raises TopicNotFound."""
        check_topic(name)
        metadata = await self._ask(Metadata(name))
        return _topic(metadata)

    async def describe_topics(self) -> list[TopicDescription]:
        """Return every topic, by name: up to 10,000 partitions a request, or a request for each topic if the server is not Penstock."""

        async def ask(last: DescribedTopic | None) -> tuple[Iterable[DescribedTopic], bool]:
            page = await self._ask(TopicList("" if last is None else last.topic))
            return page.topics, page.more

        try:
            return [*map(_topic, await all_pages(ask))]
        except NotSupported:
            return [await self.describe_topic(name) for name in await self.topics()]

    # -- groups ----------------------------------------------------------------------------------------------------------

    async def subscribe(
        self, topic: str, group: str, partition: int, mode: Literal["earliest", "latest", "commit"] = "commit"
    ) -> int:
        """Join a group until the connection ends; return the offset to start at."""
        check_topic(topic)
        offset = await self._ask(Subscribe(topic, group, index_field(partition), mode))
        self._requests.stays = True  # the broker counts this connection as a member
        return offset

    async def commit(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Commit `offset` as the next one the group reads."""
        check_topic(topic)
        await self._ask(Commit(topic, group, index_field(partition), offset_field(offset)))

    async def committed(self, topic: str, group: str, partition: int) -> int | None:
        """Return the next offset the group reads, or None if it has committed nothing."""
        check_topic(topic)
        try:
            (described,) = await self.describe_group(group, topic)
        except GroupNotFound:
            return None
        return described.offsets.get(partition)

    async def reset(self, topic: str, group: str, partition: int, to: Start) -> int:
        """Move a group's committed offset to "earliest", "latest", an offset, or a time; return the new offset."""
        check_topic(topic)
        if isinstance(to, datetime):
            return await self.seek_to_time(topic, group, partition, to)
        mode, offset = ("offset", offset_field(to)) if isinstance(to, int) else (to, None)
        await self._ask(ResetOffset(topic, group, index_field(partition), mode, offset))
        return await self._ask(GetOffset(topic, group, partition))

    async def seek_to_time(self, topic: str, group: str | None, partition: int, time: datetime | int) -> int:
        """Return the first offset at or after a time (a datetime, or milliseconds since 1970), and commit it if a group is given."""
        check_topic(topic)
        timestamp_ms = timestamp_ms_of(time)
        return await self._ask(SeekToTimestamp(topic, group or "", index_field(partition), timestamp_ms))

    async def groups(self) -> list[GroupDescription]:
        """Return every group of every topic."""
        return [_group(state) for state in await self._ask(ListGroups())]

    async def describe_group(self, group: str, topic: str | None = None) -> list[GroupDescription]:
        """Return a group's committed offsets, one entry for each topic it reads. Raises GroupNotFound."""
        if topic is not None:
            check_topic(topic)
            return [_group(await self._ask(DescribeGroup(topic, group)))]
        found = [each for each in await self.groups() if each.group == group]
        if not found:
            raise GroupNotFound(f"consumer group not found: {group}")
        return found

    async def delete_group(self, group: str, topic: str | None = None) -> None:
        """Delete a group's offsets, in one topic or in all. Raises GroupNotFound."""
        await self._ask(DeleteGroup(topic or "", group))

    async def lag(self, topic: str, group: str, partition: int) -> Lag:
        """Return the consumer lag of a group in one partition."""
        check_topic(topic)
        lag = await self._ask(GetLag(topic, group, index_field(partition)))
        return Lag(lag.committed, lag.latest, lag.lag)

    # -- the connection --------------------------------------------------------------------------------------------------

    async def ping(self) -> float:
        """Send a request that changes nothing and return the round-trip time in seconds."""
        started_s = self._clock.monotonic()
        await self._ask(Whoami())
        return self._clock.monotonic() - started_s

    def _new_pipeline(self, peer: str, on_lost: OnLost[Replies]) -> Pipeline[Replies]:
        return Pipeline(peer, ReplyDecoder(), replies_in, on_lost)

    async def _log_in(self, pipeline: Pipeline[Replies]) -> None:
        timeout_s = self._options.connect_timeout_s
        if self.address.user is None:
            await self._greet(pipeline, Call(encode_request(Whoami()), timeout_s=timeout_s, repeatable=True))
            return
        data = encode_request(Auth(self.address.user, self.address.password or ""))
        call = Call(data, timeout_s=timeout_s, repeatable=False)
        pipeline.submit(call)
        await call.finished
        if not decode_authenticated(call.payload):
            reason = decode_refusal(call.payload)
            raise AuthenticationFailed(
                f"{pipeline.peer} refuses user {self.address.user!r}: {reason or 'no reason given'}"
            )


def _may_send_again(address: Address) -> bool:
    text = address.options.get("idempotent", "true")
    if text not in ("true", "false"):
        raise InvalidRequest(f"address option idempotent is {text!r}: write idempotent=true or idempotent=false")
    return text == "true"


def _topic(metadata: TopicMetadata | DescribedTopic) -> TopicDescription:
    partitions = [PartitionDescription(each.index, each.start_offset, each.next_offset) for each in metadata.partitions]
    return TopicDescription(metadata.topic, partitions, metadata.config)


def _group(state: GroupState | GroupSummary) -> GroupDescription:
    assert isinstance(state, GroupState)
    return GroupDescription(state.topic, state.group, state.members, state.offsets)
