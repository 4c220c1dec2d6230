"""The async RustLog client, for either dialect.

Requests are pipelined over one connection within a bounded window (`penstock.clients.requests` has the rules of retrying). A batch is
encoded into one frame per chunk, which the broker writes as one append.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from random import Random
from types import ModuleType
from typing import Literal

from penstock.clients import reading
from penstock.clients.arguments import (
    check_topic,
    chunks,
    index_field,
    offset_field,
    values_of,
)
from penstock.clients.options import ClientOptions
from penstock.clients.pipeline import Pipeline
from penstock.clients.reading import Cursor
from penstock.clients.records import FetchResult, PartitionDescription, Record, RecordMetadata, TopicDescription
from penstock.clients.requests import OnLost
from penstock.clients.results import require_success
from penstock.clients.retry import Sleep
from penstock.clients.tcp import TcpClient
from penstock.clients.url import parse_tcp_url
from penstock.clock import Clock
from penstock.errors import InvalidRequest, PartitionNotFound, PenstockError, TopicExists
from penstock.protocols.rustlog.client.exchanges import Call, EncodedFetch
from penstock.protocols.rustlog.codec import binary_client, json_client
from penstock.protocols.rustlog.codec.frames import ReplyDecoder
from penstock.protocols.rustlog.codec.messages import (
    Body,
    CreateTopic,
    DescribeTopic,
    Fetch,
    ListTopics,
    Metrics,
    OffsetCommit,
    OffsetFetch,
    Ping,
    Produced,
    Reply,
)
from penstock.protocols.rustlog.wire import PAYLOAD_BYTES_MAX, PORT, U32_MAX, Dialect, Opcode

SCHEMES = {
    "rustlog": Dialect.BINARY,
    "rustlogs": Dialect.BINARY,
    "rustlog+json": Dialect.JSON,
    "rustlogs+json": Dialect.JSON,
}
FETCH_BYTES = 1 << 20
"""What a fetch asks for unless told otherwise."""
READ_BYTES = 2 << 20
"""What each fetch of `records` and `batches` asks for."""
RECORD_BYTES_MAX = PAYLOAD_BYTES_MAX - 1024
"""What fits into a frame besides the longest topic name; a quarter of it is sure to fit in JSON."""
PARTITION_COUNT_S_MAX = 5.0
"""How long `send` counts on a topic to have as many partitions as the broker said; some may have been added."""

Start = Literal["earliest", "latest"] | int


class AsyncRustLogClient(TcpClient[Reply]):
    """A RustLog client for asyncio programs.

    ```python
    async with AsyncRustLogClient("rustlog://127.0.0.1:9292") as client:
        await client.create_topic("orders", 2)
        await client.send("orders", b"one")
        async for record in client.records("orders"):
            print(record.offset, record.value)
    ```
    `rustlog://` speaks the binary dialect, `rustlog+json://` that of the contract; with `rustlogs` for TLS. Errors are those of
    `penstock.errors`. Records have no keys in this protocol, and topics must be created before they are written to. One client
    serves any number of concurrent tasks of one event loop.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: ssl.SSLContext | bool | None = None,
        options: ClientOptions | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        form = "rustlog://host:port, or rustlogs:// for TLS"
        address = parse_tcp_url(url, SCHEMES, protocol="RustLog", port=PORT, form=form)
        if address.user is not None:
            raise InvalidRequest("RustLog has no login: leave user and password out of the address")
        super().__init__(address, tls, options, clock=clock, random=random, sleep=sleep)
        self.dialect: Dialect = SCHEMES[address.scheme]
        self._codec: ModuleType = json_client if self.dialect is Dialect.JSON else binary_client
        self._turns: dict[str, int] = {}
        """By topic written to without a partition: how often so far."""
        self._partition_counts: dict[str, tuple[int, float]] = {}
        """By topic: how many there were, and when the broker said so."""

    # -- producing -------------------------------------------------------------------------------------------------------

    async def send(self, topic: str, value: bytes, partition: int | None = None) -> RecordMetadata:
        """Store one record; return its place once it is committed. Without a partition, round robin.

        The protocol does not tell the record's time: `timestamp_ms` is 0. ConnectionLost and RequestTimeout leave open whether the
        record was stored.
        """
        (stored,) = await self.send_many(topic, [value], partition)
        return stored

    async def send_many(
        self, topic: str, records: Iterable[bytes], partition: int | None = None
    ) -> list[RecordMetadata]:
        """Store many values in one partition, in order; return the place of each once all are committed.

        Without a partition, calls take turns. The batch is cut into frames; where some of them failed, BatchFailed has the results.
        """
        check_topic(topic)
        values = values_of(records, "RustLog records have neither keys nor headers: send values alone")
        largest_bytes = max(map(len, values), default=0)
        if largest_bytes > RECORD_BYTES_MAX:
            raise InvalidRequest(f"a record of {largest_bytes} bytes does not fit into a frame of {PAYLOAD_BYTES_MAX}")
        if partition is None:
            partition = await self._next_partition(topic)
        sent: list[Call] = []
        results: list[RecordMetadata | PenstockError] = []
        bounds = list(chunks(values, 0))
        stopped: PenstockError | None = None
        for first, last in bounds:
            try:
                call = self._produce(topic, index_field(partition), values[first:last])
                await self._requests.submit(call, after=sent[-1] if sent else None)
            except PenstockError as error:
                stopped = error
                break
            sent.append(call)
        for call, (first, last) in zip(sent, bounds, strict=False):
            try:
                await call.finished
                produced: Produced = self._codec.decode_produced(call.payload)
            except PenstockError as error:
                results += [error] * (last - first)
            else:
                results += [RecordMetadata(topic, partition, offset, 0) for offset in produced.offsets]
        if stopped is not None:
            results += [stopped] * (len(values) - len(results))
        return require_success(results)

    def _produce(self, topic: str, partition: int, values: Sequence[bytes]) -> Call:
        data: bytes = self._codec.encode_produce(topic, partition, values)
        if len(data) > PAYLOAD_BYTES_MAX:
            raise InvalidRequest(f"a record of {len(values[0])} bytes takes a frame of {len(data)} in JSON: use binary")
        return Call(data, Opcode.PRODUCE, self.dialect, timeout_s=self._options.request_timeout_s, repeatable=False)

    async def _next_partition(self, topic: str) -> int:
        count, asked_s = self._partition_counts.get(topic, (0, 0.0))
        now_s = self._clock.monotonic()
        if not count or now_s - asked_s >= PARTITION_COUNT_S_MAX:
            count = len((await self.describe_topic(topic)).partitions)
            self._partition_counts[topic] = count, now_s
        turn = self._turns.get(topic, 0)
        self._turns[topic] = turn + 1
        return turn % count

    # -- reading ---------------------------------------------------------------------------------------------------------

    async def fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int = FETCH_BYTES, group: str | None = None
    ) -> FetchResult:
        """Read records of one partition starting at `offset`, about `max_bytes` of them and at least one; none at its end.

        With a `group`, reading begins at what the group has committed, where that is further.
        """
        return (await self.fetch_encoded(topic, partition, offset, max_bytes, group)).decode()

    async def fetch_encoded(
        self, topic: str, partition: int, offset: int, max_bytes: int = FETCH_BYTES, group: str | None = None
    ) -> EncodedFetch:
        """Like `fetch`, with the decoding left to the caller."""
        check_topic(topic)
        if not 0 <= max_bytes <= U32_MAX:
            raise InvalidRequest(f"max_bytes is {max_bytes}: use 0 to {U32_MAX}")
        body = Fetch(topic, index_field(partition), offset_field(offset), max_bytes, group or "")
        return EncodedFetch(topic, partition, await self._ask(Opcode.FETCH, body), self.dialect)

    async def batches(
        self,
        topic: str,
        partition: int | None = None,
        *,
        start: Start | None = None,
        group: str | None = None,
        follow: bool = False,
        commit: bool = True,
        limit: int | None = None,
    ) -> AsyncGenerator[list[Record], None]:
        """Like `records`, a list at a time, each of one partition and in order: the faster way to read many records."""
        check_topic(topic)
        reading.check_limit(limit)
        cursors = await self._cursors(topic, partition, start, group, follow=follow)

        async def fetch(cursor: Cursor, max_records: int) -> EncodedFetch:
            return await self.fetch_encoded(topic, cursor.partition, cursor.offset, READ_BYTES)

        async def remember(cursor: Cursor, offset: int) -> None:
            assert group is not None
            await self.commit(topic, group, cursor.partition, offset)

        known = list(cursors)

        async def added() -> list[Cursor]:
            partitions = (await self.describe_topic(topic)).partitions
            await reading.check_same_topic(known, partitions, fetch)
            more = await self._cursors_of(topic, partitions[len(known) :], "earliest", group, follow=True)
            known.extend(more)
            return more

        remembering = remember if group is not None and commit else None
        batches = reading.read_batches(
            cursors,
            fetch,
            remembering,
            follow=follow,
            limit=limit,
            sleep=self._sleep,
            added=added if partition is None else None,
        )
        async with aclosing(batches):
            async for batch in batches:
                yield batch

    def records(
        self,
        topic: str,
        partition: int | None = None,
        *,
        start: Start | None = None,
        group: str | None = None,
        follow: bool = False,
        commit: bool = True,
        limit: int | None = None,
    ) -> AsyncGenerator[Record, None]:
        """Iterate over the records of one partition or of all of them; order holds within a partition.

        `start` is "earliest" (default), "latest" or an offset. With a `group`, reading continues at the group's committed
        offsets, `start` applies only to partitions without one, and offsets are committed as the loop continues (unless `commit` is
        false). Without `follow` the iteration ends at what was the end of the topic when it began; with it, it waits for more.
        `limit` is the maximum number of records.
        """
        return reading.records_of(
            self.batches(topic, partition, start=start, group=group, follow=follow, commit=commit, limit=limit)
        )

    async def _cursors(
        self, topic: str, partition: int | None, start: Start | None, group: str | None, *, follow: bool
    ) -> list[Cursor]:
        partitions = (await self.describe_topic(topic)).partitions
        if partition is not None:
            if not 0 <= partition < len(partitions):
                raise PartitionNotFound(f"partition {partition} not found: topic {topic} has {len(partitions)}")
            partitions = [partitions[partition]]
        return await self._cursors_of(topic, partitions, start, group, follow=follow)

    async def _cursors_of(
        self,
        topic: str,
        partitions: Sequence[PartitionDescription],
        start: Start | None,
        group: str | None,
        *,
        follow: bool,
    ) -> list[Cursor]:
        cursors = []
        for each in partitions:
            offset = _start_offset(each, start)
            committed = None if group is None else await self.committed(topic, group, each.partition)
            begin = max(offset if committed is None else committed, each.start_offset)
            cursors.append(Cursor(topic, each.partition, begin, None if follow else each.next_offset))
        return cursors

    # -- topics ----------------------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic; one that exists stays as it is."""
        check_topic(name)
        if not 0 <= partitions <= U32_MAX:
            raise InvalidRequest(f"partitions must be 1 or more, got {partitions}")
        try:
            await self._ask(Opcode.CREATE_TOPIC, CreateTopic(name, partitions))
        except TopicExists:
            pass

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        payload = await self._ask(Opcode.LIST_TOPICS, ListTopics())
        return [name for name, _ in self._codec.decode_topics(payload)]

    async def describe_topic(self, name: str) -> TopicDescription:
        """Return a topic with its partitions. Raises TopicNotFound. Sent in JSON whatever the dialect: only that has start offsets."""
        check_topic(name)
        data = json_client.encode_call(DescribeTopic(name))
        state = json_client.decode_topic(await self._call(data, Opcode.DESCRIBE_TOPIC, Dialect.JSON))
        partitions = [
            PartitionDescription(each.index, each.start_offset, each.high_watermark) for each in state.partitions
        ]
        return TopicDescription(state.topic, partitions, {})

    # -- groups ----------------------------------------------------------------------------------------------------------

    async def commit(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Store `offset` as the next one the group will read."""
        check_topic(topic)
        body = OffsetCommit(topic, index_field(partition), group, offset_field(offset))
        if not self._codec.decode_success(await self._ask(Opcode.OFFSET_COMMIT, body)):
            raise PartitionNotFound(f"nothing was committed: topic {topic} has no partition {partition}")

    async def committed(self, topic: str, group: str, partition: int) -> int | None:
        """Return the next offset the group reads, or None if it has committed nothing."""
        check_topic(topic)
        payload = await self._ask(Opcode.OFFSET_FETCH, OffsetFetch(topic, index_field(partition), group))
        offset: int | None = self._codec.decode_committed_offset(payload)
        return offset

    # -- the broker ------------------------------------------------------------------------------------------------------

    async def metrics(self) -> str:
        """What the listener counts, in Prometheus' text form."""
        text: str = self._codec.decode_metrics(await self._ask(Opcode.METRICS, Metrics()))
        return text

    async def ping(self) -> float:
        """Ask for nothing and return how long the answer took, in seconds."""
        started_s = self._clock.monotonic()
        await self._ask(Opcode.PING, Ping())
        return self._clock.monotonic() - started_s

    async def _ask(self, opcode: Opcode, body: Body) -> bytes:
        """Send an idempotent request, which is retried after a lost connection."""
        return await self._call(self._codec.encode_call(body), opcode, self.dialect)

    async def _call(self, data: bytes, opcode: Opcode, dialect: Dialect) -> bytes:
        call = Call(data, opcode, dialect, timeout_s=self._options.request_timeout_s, repeatable=True)
        await self._requests.perform(call)
        return call.payload

    def _new_pipeline(self, peer: str, on_lost: OnLost[Reply]) -> Pipeline[Reply]:
        return Pipeline(peer, ReplyDecoder(), lambda _: 1, on_lost)

    async def _log_in(self, pipeline: Pipeline[Reply]) -> None:
        data, timeout_s = self._codec.encode_call(Ping()), self._options.connect_timeout_s
        await self._greet(pipeline, Call(data, Opcode.PING, self.dialect, timeout_s=timeout_s, repeatable=True))


def _start_offset(partition: PartitionDescription, start: Start | None) -> int:
    if start is None or start == "earliest":
        return partition.start_offset
    if start == "latest":
        return partition.next_offset
    if isinstance(start, int):
        return start
    raise InvalidRequest(f"start {start!r} is not known: use earliest, latest, or an offset")
