"""Reading a FlyMQ topic: cursors from metadata, group offsets and times; `penstock.clients.reading` does the rest."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from penstock.clients import reading
from penstock.clients.reading import Cursor
from penstock.clients.records import FetchResult, PartitionDescription, Record
from penstock.clients.retry import Sleep
from penstock.errors import GroupNotFound, InvalidRequest, PartitionNotFound, ProtocolViolation
from penstock.protocols.bytes import U64, ByteReader
from penstock.protocols.flymq.codec.record_layouts import decode_fetched
from penstock.protocols.flymq.operations.operation import decode_reply
from penstock.protocols.flymq.operations.records import FetchRecords
from penstock.record_headers import decode_headers

if TYPE_CHECKING:
    from penstock.protocols.flymq.client.client import AsyncFlyMQClient

Start = Literal["earliest", "latest"] | int | datetime

LAST_RECORDS_MAX = 100_000
"""Of the last records that are asked for: they are held in memory, twice as many for a moment."""
LAST_SPAN_GROWTH = 4
_COUNT_BYTES = 4
_EMPTY_BYTES = _COUNT_BYTES + U64.size


class EncodedRecords:
    """A FETCH_RECORDS reply as it came. The next offset can be read before the records are decoded, so the next fetch need not wait."""

    __slots__ = ("_partition", "_payload", "_topic", "next_offset")

    def __init__(self, topic: str, partition: int, payload: bytes) -> None:
        self._topic = topic
        self._partition = partition
        self._payload = payload
        self.next_offset: int = ByteReader(payload).u64("next offset")

    def decode(self) -> FetchResult:
        rows = decode_reply(FetchRecords, self._payload)
        count = len(rows.offsets)
        columns = rows.timestamps_ms, rows.keys or [None] * count, rows.values, rows.headers or [None] * count
        if any(len(column) != count for column in columns):
            raise ProtocolViolation(f"a FETCH_RECORDS reply with {count} offsets has columns of other lengths")
        topic, partition = self._topic, self._partition
        if not any(rows.headers):
            records = [
                Record(topic, partition, offset, key, value, timestamp_ms)
                for offset, timestamp_ms, key, value, _ in zip(rows.offsets, *columns, strict=True)
            ]
        else:
            records = [
                Record(topic, partition, offset, key, value, timestamp_ms, tuple(decode_headers(cell)) if cell else ())
                for offset, timestamp_ms, key, value, cell in zip(rows.offsets, *columns, strict=True)
            ]
        return FetchResult(records, rows.next_offset)


class EncodedFetch:
    """A FETCH reply as it came, of a server that does not know FETCH_RECORDS.

    `native`: the reply has the layout of deployed brokers, which they choose if the request has a filter.
    """

    __slots__ = ("_native", "_partition", "_payload", "_topic", "next_offset")

    def __init__(self, topic: str, partition: int, payload: bytes, *, native: bool) -> None:
        if len(payload) < _EMPTY_BYTES:
            raise ProtocolViolation(f"a FETCH reply has at least {_EMPTY_BYTES} bytes, not {len(payload)}")
        self._topic = topic
        self._partition = partition
        self._payload = payload
        self._native = native
        self.next_offset: int = U64.unpack_from(payload, _COUNT_BYTES if native else len(payload) - U64.size)[0]

    def decode(self) -> FetchResult:
        topic, partition = self._topic, self._partition
        rows = decode_fetched(self._payload, native=self._native)
        if rows.keys is None:
            records = [
                Record(topic, partition, offset, None, value)
                for offset, value in zip(rows.offsets, rows.values, strict=True)
            ]
        else:
            records = [
                Record(topic, partition, offset, key, value)
                for offset, key, value in zip(rows.offsets, rows.keys, rows.values, strict=True)
            ]
        return FetchResult(records, rows.next_offset)


def timestamp_ms_of(time: datetime | int) -> int:
    """Milliseconds since 1970; a datetime without a zone is local time, as everywhere in Python."""
    return time if isinstance(time, int) else round(time.timestamp() * 1000)


async def read_batches(
    client: AsyncFlyMQClient,
    topics: Sequence[str],
    partition: int | None,
    start: Start | None,
    group: str | None,
    *,
    follow: bool,
    commit: bool,
    wanted: str | None,
    limit: int | None,
    last: int | None,
    sleep: Sleep,
) -> AsyncGenerator[list[Record], None]:
    """See `AsyncFlyMQClient.records`."""
    reading.check_limit(limit)
    if last is not None:
        if start is not None or group is not None:
            raise InvalidRequest("last says where to start: leave out start and group")
        if not 1 <= last <= LAST_RECORDS_MAX:
            raise InvalidRequest(f"last is {last}: use 1 to {LAST_RECORDS_MAX}")
        start = "latest"
    cursors = [
        cursor for topic in topics for cursor in await _cursors(client, topic, partition, start, group, follow=follow)
    ]

    async def fetch(cursor: Cursor, max_records: int) -> EncodedRecords | EncodedFetch:
        return await client.fetch_encoded(cursor.topic, cursor.partition, cursor.offset, max_records, wanted)

    async def remember(cursor: Cursor, offset: int) -> None:
        assert group is not None
        await client.commit(cursor.topic, group, cursor.partition, offset)

    known = {topic: [cursor for cursor in cursors if cursor.topic == topic] for topic in topics}

    async def added() -> list[Cursor]:
        more: list[Cursor] = []
        for topic in topics:
            partitions = (await client.describe_topic(topic)).partitions
            await reading.check_same_topic(known[topic], partitions, fetch)
            partitions = partitions[len(known[topic]) :]
            if partitions:
                found = await _cursors_of(client, topic, partitions, "earliest", group, follow=True)
                known[topic] += found
                more += found
        return more

    if last is not None:
        records = (await _last(client, cursors, last, wanted))[:limit]
        if records:
            yield records
        if limit is not None:
            limit -= len(records)
            if not limit:
                return
    remembering = remember if group is not None and commit else None
    batches = reading.read_batches(
        cursors,
        fetch,
        remembering,
        follow=follow,
        limit=limit,
        sleep=sleep,
        added=added if partition is None else None,
    )
    async with aclosing(batches):
        async for batch in batches:
            yield batch


async def _last(client: AsyncFlyMQClient, cursors: Sequence[Cursor], count: int, wanted: str | None) -> list[Record]:
    """The last records before the cursors, of all of them together in the order of their times."""
    records: list[Record] = []
    for cursor in cursors:
        records += await _last_of_partition(client, cursor, count, wanted)
        records = sorted(records, key=lambda record: record.timestamp_ms or 0)[-count:]
    return records


async def _last_of_partition(client: AsyncFlyMQClient, cursor: Cursor, count: int, wanted: str | None) -> list[Record]:
    """The last records before a cursor. If compaction, expiry or a filter leave too few of them, looks further back each time."""
    span = count
    while True:
        first = offset = max(0, cursor.offset - span)
        records: deque[Record] = deque(maxlen=count)
        while offset < cursor.offset:
            found = await client.fetch(cursor.topic, cursor.partition, offset, reading.READ_RECORDS, wanted)
            records.extend(record for record in found.records if record.offset < cursor.offset)
            if found.next_offset <= offset:
                break
            offset = found.next_offset
        if len(records) == count or first == 0:
            return list(records)
        span *= LAST_SPAN_GROWTH


async def _cursors(
    client: AsyncFlyMQClient, topic: str, partition: int | None, start: Start | None, group: str | None, *, follow: bool
) -> list[Cursor]:
    if partition is None:
        partitions = (await client.describe_topic(topic)).partitions
    else:
        partitions = [await _partition(client, topic, partition)]
    return await _cursors_of(client, topic, partitions, start, group, follow=follow)


async def _cursors_of(
    client: AsyncFlyMQClient,
    topic: str,
    partitions: Sequence[PartitionDescription],
    start: Start | None,
    group: str | None,
    *,
    follow: bool,
) -> list[Cursor]:
    offsets = await asyncio.gather(*(_start_offset(client, topic, each, start) for each in partitions))
    if group is not None:
        committed = await _committed(client, topic, group)
        await asyncio.gather(*(client.subscribe(topic, group, each.partition) for each in partitions))
        offsets = [committed.get(each.partition, offset) for each, offset in zip(partitions, offsets, strict=True)]
    return [
        Cursor(topic, each.partition, max(offset, each.start_offset), None if follow else each.next_offset)
        for each, offset in zip(partitions, offsets, strict=True)
    ]


async def _partition(client: AsyncFlyMQClient, topic: str, index: int) -> PartitionDescription:
    partitions = (await client.describe_topic(topic)).partitions
    if not 0 <= index < len(partitions):
        raise PartitionNotFound(f"partition {index} not found: topic {topic} has partitions 0 to {len(partitions) - 1}")
    return partitions[index]


async def _start_offset(
    client: AsyncFlyMQClient, topic: str, partition: PartitionDescription, start: Start | None
) -> int:
    if start is None or start == "earliest":
        return partition.start_offset
    if start == "latest":
        return partition.next_offset
    if isinstance(start, datetime):
        return await client.seek_to_time(topic, None, partition.partition, start)
    if isinstance(start, int):
        return start
    raise InvalidRequest(f"start {start!r} is not known: use earliest, latest, an offset, or a datetime")


async def _committed(client: AsyncFlyMQClient, topic: str, group: str) -> dict[int, int]:
    try:
        (described,) = await client.describe_group(group, topic)
    except GroupNotFound:
        return {}
    return described.offsets
