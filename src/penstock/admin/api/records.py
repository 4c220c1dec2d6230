"""Records: browse by offset, time or from the latest on, look at one, produce."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated, Final, Literal

import msgspec

from penstock.admin.api.browsing import SCANNED_MAX, Page, Row, Stretch, read_page
from penstock.admin.api.table import Call, Reply, Request, endpoint
from penstock.admin.api.topics import Offset
from penstock.broker.records.operations import Records
from penstock.broker.records.producer import ANY_PARTITION
from penstock.broker.records.spreading import Placement, Scattered
from penstock.broker.schemas.decoded import Decoded
from penstock.errors import (
    CorruptBlock,
    InvalidRequest,
    NoSpace,
    OffsetOutOfRange,
    PartitionNotFound,
    PenstockError,
    RecordTooLarge,
    SchemaNotFound,
    TopicNotFound,
    ValidationFailed,
)
from penstock.futures import set_outcome
from penstock.log.api import PARTITIONS_MAX, Partition, follow_all
from penstock.record_headers import decode_headers, encode_headers

PAGE_RECORDS_MAX: Final = 500
PAGE_PARTITIONS_MAX: Final = 256
"""A page of a topic with more partitions is of one of them."""
CELL_BYTES_DEFAULT: Final = 4 << 10
CELL_BYTES_MAX: Final = 1 << 20
"""How much of a key or value a page shows; one record alone is shown in full."""
PRODUCED_MAX: Final = 1_000
HEADERS_MAX: Final = 256
TIME_MS_MAX: Final = (1 << 62) - 1

PartitionIndex = Annotated[int, msgspec.Meta(ge=0, le=PARTITIONS_MAX)]


class RecordsQuery(Request, frozen=True):
    """Where the page begins. Exactly one of `at`'s ways applies."""

    at: Literal["earliest", "latest", "offset", "time", "positions"] = "latest"
    """latest: the last records there are; positions: where the page before says that the next one begins."""
    partition: PartitionIndex | None = None
    """All partitions if it is left out."""
    offset: Offset | None = None
    time_ms: Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)] | None = None
    positions: Annotated[str, msgspec.Meta(max_length=8192)] = ""
    """As in 0:17,1:4."""
    filter: str = ""
    """Text, regular expression or conditions such as `$.customer.id = 42`, as `penstock consume --filter` takes it."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_RECORDS_MAX)] = 50
    cell_bytes: Annotated[int, msgspec.Meta(ge=0, le=CELL_BYTES_MAX)] = CELL_BYTES_DEFAULT


class Cell(Reply, frozen=True):
    """A key or value: as text if it is UTF-8, else in base64; cut at a bound in pages."""

    size: int
    text: str | None
    base64: str | None
    truncated: bool


class Header(Reply, frozen=True):
    name: str
    value: Cell | None


class Record(Reply, frozen=True):
    partition: int
    offset: int
    timestamp_ms: int
    key: Cell | None
    value: Cell | None
    """null is a tombstone."""
    headers: list[Header]
    decoded: msgspec.Raw | None
    """The value as JSON, if the topic is bound to a schema that it can be read with."""
    schema: str | None
    """The schema that it was read with."""
    fault: str | None
    """Why the value does not follow the topic's schema."""


class Position(Reply, frozen=True):
    partition: int
    offset: int


class RecordPage(Reply, frozen=True):
    records: list[Record]
    """By time."""
    next: list[Position]
    """Where the next page begins."""
    next_positions: str
    """The same, as `positions` takes it."""
    end: bool
    """Whether this page is the last one now."""
    scanned: int
    """How many records were scanned for the filter."""


class NewHeader(Request, frozen=True):
    """Text and base64 exclude each other; a header without either has no value."""

    name: str
    value: str | None = None
    value_base64: str | None = None


class NewRecord(Request, frozen=True):
    """A record to be written. Text and base64 exclude each other; a record without a value is a tombstone."""

    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: Annotated[tuple[NewHeader, ...], msgspec.Meta(max_length=HEADERS_MAX)] = ()
    partition: PartitionIndex | None = None
    """By the key, or in turn without one, if it is left out."""


class NewRecords(Request, frozen=True):
    records: Annotated[list[NewRecord], msgspec.Meta(min_length=1, max_length=PRODUCED_MAX)]
    schema: str | None = None
    """A schema that the records must follow besides the topic's own."""


class Produced(Reply, frozen=True):
    partition: int
    offset: int
    timestamp_ms: int


@endpoint(
    "GET",
    "/topics/{topic}/records",
    asks=Records.readable_topic,
    errors=(InvalidRequest, TopicNotFound, PartitionNotFound, CorruptBlock),
)
async def list_records(call: Call, query: RecordsQuery) -> RecordPage:
    """Return a page of records, from an offset, a time or saved positions on, or the latest."""
    topic = call.path["topic"]
    stretches = await _stretches(call, topic, query)
    schemas = call.broker.schemas
    page = await read_page(
        stretches,
        query.limit,
        query.filter,
        call.worker(),
        call.given.clock.now_ms(),
        newest=query.at == "latest",
        decode=None
        if schemas.bound_to(call.principal, topic) is None
        else partial(schemas.decode, call.principal, topic),
    )
    ends = {each.partition.index: each.end for each in stretches}
    return RecordPage(
        await _records(call, topic, page.rows, query.cell_bytes),
        [Position(*each) for each in page.next.items()],
        ",".join(f"{partition}:{offset}" for partition, offset in page.next.items()),
        all(offset >= ends[partition] for partition, offset in page.next.items()),
        page.scanned,
    )


async def _stretches(call: Call, topic: str, query: RecordsQuery) -> list[Stretch]:
    readable = call.broker.records.readable_topic(call.principal, topic)
    partitions: Sequence[Partition] = readable.partitions
    if query.at == "positions":
        return await _from_positions(call, topic, query.positions)
    if query.partition is not None:
        partitions = [call.broker.records.partition(call.principal, topic, query.partition)]
    elif query.at == "offset":
        raise InvalidRequest("an offset is a place in one partition: give the partition too")
    if len(partitions) > PAGE_PARTITIONS_MAX:
        raise InvalidRequest(
            f"topic {topic} has {len(partitions)} partitions, more than a page shows at once: give the partition"
        )
    if (query.offset is None) == (query.at == "offset") or (query.time_ms is None) == (query.at == "time"):
        raise InvalidRequest(
            f"at={query.at} goes with offset only if it is offset, and with time_ms only if it is time"
        )
    await follow_all(partitions)
    looked_at = SCANNED_MAX // len(partitions) if query.filter else query.limit
    stretches = []
    for each in partitions:
        start, end = each.start_offset, each.committed_end
        if query.at == "latest":
            start = max(start, end - looked_at)
        elif query.at == "offset" and query.offset is not None:
            start = min(max(start, query.offset), end)
        elif query.at == "time" and query.time_ms is not None:
            start = await each.offset_at(query.time_ms)
        stretches.append(Stretch(each, start, end))
    return stretches


async def _from_positions(call: Call, topic: str, text: str) -> list[Stretch]:
    stretches = []
    for pair in text.split(","):
        partition, colon, offset = pair.partition(":")
        if not colon or not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in (partition, offset)):
            raise InvalidRequest(f"positions {text[:100]!r} cannot be read: write them as in 0:17,1:4")
        handle = call.broker.records.partition(call.principal, topic, int(partition))
        await follow_all([handle])
        stretches.append(Stretch(handle, min(int(offset), handle.committed_end), handle.committed_end))
    if len(stretches) > PAGE_PARTITIONS_MAX or len({each.partition.index for each in stretches}) < len(stretches):
        raise InvalidRequest(f"positions name each partition once, and at most {PAGE_PARTITIONS_MAX}")
    return stretches


@endpoint(
    "GET",
    "/topics/{topic}/partitions/{partition}/records/{offset}",
    asks=Records.partition,
    errors=(InvalidRequest, TopicNotFound, PartitionNotFound, OffsetOutOfRange, CorruptBlock),
)
async def get_record(call: Call) -> Record:
    """Return one record in full."""
    topic = call.path["topic"]
    partition, offset = (_number(call.path[name], name) for name in ("partition", "offset"))
    handle = call.broker.records.partition(call.principal, topic, partition)
    await follow_all([handle])
    page = Page()
    if handle.start_offset <= offset < handle.committed_end:
        stretch = Stretch(handle, offset, offset + 1)
        page = await read_page([stretch], 1, "", call.worker(), call.given.clock.now_ms(), newest=False)
    if not page.rows:
        raise OffsetOutOfRange(
            f"partition {partition} of topic {topic} has no record at offset {offset}: it has those from "
            f"{handle.start_offset} to {handle.committed_end - 1}, without those that have expired or were compacted away"
        )
    [record] = await _records(call, topic, page.rows, None)
    return record


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidRequest(f"{what} {text[:100]!r} in the path is not a number")
    return int(text)


async def _records(call: Call, topic: str, rows: Sequence[Row], cell_bytes: int | None) -> list[Record]:
    decoded = await call.broker.schemas.decode(
        call.principal, topic, [row.value for row in rows], [row.headers for row in rows]
    )
    return [_record(row, each, cell_bytes) for row, each in zip(rows, decoded, strict=True)]


def _record(row: Row, decoded: Decoded, cell_bytes: int | None) -> Record:
    return Record(
        row.partition,
        row.offset,
        row.timestamp_ms,
        cell(row.key, cell_bytes),
        cell(row.value, cell_bytes),
        shown_headers(row.headers, cell_bytes),
        None if decoded.json is None else msgspec.Raw(decoded.json),
        decoded.schema,
        decoded.fault,
    )


def shown_headers(encoded: bytes | None, cell_bytes: int | None) -> list[Header]:
    """Return headers as they are shown, HEADERS_MAX at most; none if they cannot be decoded."""
    try:
        headers = decode_headers(encoded or b"")
    except CorruptBlock:
        headers = []
    return [Header(name, cell(value, cell_bytes)) for name, value in headers[:HEADERS_MAX]]


def cell(data: bytes | None, bytes_max: int | None) -> Cell | None:
    """Return bytes as they are shown, truncated to `bytes_max`."""
    if data is None:
        return None
    truncated = bytes_max is not None and len(data) > bytes_max
    shown = data[:bytes_max] if truncated else data
    try:
        # What is cut may end within a character.
        text = shown.decode(errors="ignore") if truncated and _is_text(data) else shown.decode()
    except UnicodeDecodeError:
        return Cell(len(data), None, base64.b64encode(shown).decode(), truncated)
    return Cell(len(data), text, None, truncated)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@endpoint(
    "POST",
    "/topics/{topic}/records",
    asks=Records.produce,
    status=HTTPStatus.CREATED,
    errors=(
        InvalidRequest,
        TopicNotFound,
        PartitionNotFound,
        RecordTooLarge,
        SchemaNotFound,
        ValidationFailed,
        NoSpace,
    ),
)
async def produce_records(call: Call, body: NewRecords) -> list[Produced]:
    """Write records to a topic that exists; answered when they are committed. If one is refused, that is the answer."""
    values = [given_bytes(each.value, each.value_base64, "value") for each in body.records]
    keys = [given_bytes(each.key, each.key_base64, "key") for each in body.records]
    headers = [given_headers(each.headers) for each in body.records]
    partitions = [ANY_PARTITION if each.partition is None else each.partition for each in body.records]
    placed: asyncio.Future[list[Placement] | Scattered] = asyncio.get_running_loop().create_future()
    call.broker.records.produce(
        call.principal,
        call.path["topic"],
        partitions[0] if len(set(partitions)) == 1 else partitions,
        values,
        keys if any(key is not None for key in keys) else None,
        headers if any(headers) else None,
        units=[len(values)],
        schema=body.schema or None,
        done=partial(set_outcome, placed),
    )
    return _produced(await placed, len(values))


def _produced(outcome: list[Placement] | Scattered, count: int) -> list[Produced]:
    placements = outcome.placements() if isinstance(outcome, Scattered) else outcome
    produced: dict[int, Produced] = {}
    for placement in placements:
        rows, result = placement.rows, placement.result
        if isinstance(result, PenstockError):
            raise result
        numbers = range(count)[rows] if isinstance(rows, slice) else rows
        for at, row in enumerate(numbers):
            produced[row] = Produced(placement.partition, result.base_offset + at, result.timestamp_ms)
    return [produced[row] for row in range(count)]


def given_headers(headers: Iterable[NewHeader]) -> bytes | None:
    """Return headers as they are stored. Raises InvalidRequest."""
    pairs = [(each.name, given_bytes(each.value, each.value_base64, "value")) for each in headers]
    return encode_headers(pairs) or None


def given_bytes(text: str | None, encoded: str | None, what: str) -> bytes | None:
    """Return what is given as text or in base64, None for neither. Raises InvalidRequest."""
    if text is not None and encoded is not None:
        raise InvalidRequest(f"{what} and {what}_base64 exclude each other: give one of them")
    if encoded is None:
        return None if text is None else text.encode()
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"{what}_base64 is not base64") from None
