"""What a record of a dead-letter topic says: the record that failed, why, where it came from, how often and when it was tried.

Three kinds are distinguished:
- written by this broker: the failed record as it was, with headers `penstock-dlq-...` behind its own;
- written by a FlyMQ client: a JSON object with the failed record in `payload` (base64), as deployed clients do it themselves;
- anything else that somebody put there: a dead letter that says nothing about itself.

Anyone who may write to a dead-letter topic may claim anything in it. A claim that is out of bounds is cut or left out, so that every letter
fits into every reply and none keeps the others from being listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from penstock.broker.limits import INT64_MAX
from penstock.broker.records.visibility import visible_rows
from penstock.errors import CorruptBlock
from penstock.log.block import Block
from penstock.names import NAME_BYTES_MAX
from penstock.record_headers import decode_headers, encode_headers

HEADER_PREFIX: Final = "penstock-dlq-"
# A letter must fit into a reply frame where the record did; the reason is a part of what is left besides a record.
REASON_BYTES_MAX: Final = 512
# Larger ones are listed as they are: reading them would hold up everybody else.
JSON_BYTES_MAX: Final = 4 << 20
# As long as any other name. A letter with a longer id goes by its place.
ID_BYTES_MAX: Final = NAME_BYTES_MAX
ATTEMPTS_MAX: Final = (1 << 32) - 1
_PARTITION_MAX: Final = (1 << 31) - 1
_HEADER_NAME_BYTES_MAX: Final = (1 << 16) - 1
_PLACE: Final = re.compile(r"[0-9]+-[0-9]+")


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """A record to be dead-lettered, and its failure metadata."""

    topic: str
    partition: int
    offset: int
    value: bytes | None
    key: bytes | None
    headers: bytes | None
    reason: str
    attempts: int
    first_failed_ms: int
    failed_ms: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An entry of a dead-letter topic."""

    id: str
    partition: int
    """Where it is in the dead-letter topic, together with the offset."""
    offset: int
    value: bytes | None
    """The failed record, with its own key and headers."""
    key: bytes | None
    headers: bytes | None
    reason: str = ""
    attempts: int = 0
    origin_partition: int | None = None
    origin_offset: int | None = None
    first_failed_ms: int | None = None
    failed_ms: int | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.value or b"") + len(self.key or b"") + len(self.headers or b"")


class _JsonEntry(msgspec.Struct):
    payload: bytes
    id: str = ""
    original_topic: str = ""
    original_offset: int | None = None
    reason: str = ""
    error_message: str = ""
    retry_count: int = 0
    first_failed_at: str | int | None = None
    last_failed_at: str | int | None = None
    headers: dict[str, str] | None = None


_JSON: Final = msgspec.json.Decoder(_JsonEntry)


def failure_headers(failed: FailedRecord) -> bytes:
    """The header cell of a dead letter: the record's own headers, then the failure metadata."""
    own = [] if failed.headers is None else decode_headers(failed.headers)
    story = {
        "reason": _cut(failed.reason),
        "topic": failed.topic,
        "partition": str(failed.partition),
        "offset": str(failed.offset),
        "attempts": str(failed.attempts),
        "first-failed-ms": str(failed.first_failed_ms),
        "failed-ms": str(failed.failed_ms),
    }
    kept = [pair for pair in own if not pair[0].startswith(HEADER_PREFIX)]
    return encode_headers([*kept, *((HEADER_PREFIX + name, text.encode()) for name, text in story.items())])


def letters_of(block: Block, partition: int, start: int, now_ms: int) -> Iterator[DeadLetter]:
    """The dead letters of a block from a row on, without expired ones."""
    rows = visible_rows(block, start, block.count, now_ms)
    offsets, values, keys, headers = block.offsets(), block.values(), block.keys(), block.headers()
    for row in range(start, block.count) if rows is None else rows:
        yield _letter(
            partition,
            offsets[row],
            values[row],
            None if keys is None else keys[row],
            None if headers is None else headers[row],
        )


def _letter(partition: int, offset: int, value: bytes | None, key: bytes | None, headers: bytes | None) -> DeadLetter:
    place = f"{partition}-{offset}"
    pairs = [] if headers is None else _readable(headers)
    story = {
        name.removeprefix(HEADER_PREFIX): (text or b"").decode(errors="replace")
        for name, text in pairs
        if name.startswith(HEADER_PREFIX)
    }
    if "reason" in story:
        own = [pair for pair in pairs if not pair[0].startswith(HEADER_PREFIX)]
        return DeadLetter(
            place,
            partition,
            offset,
            value,
            key,
            encode_headers(own) if own else None,
            _cut(story["reason"]),
            min(_number(story.get("attempts")) or 0, ATTEMPTS_MAX),
            _within(_number(story.get("partition")), _PARTITION_MAX),
            _number(story.get("offset")),
            _number(story.get("first-failed-ms")),
            _number(story.get("failed-ms")),
        )
    entry = _json_entry(value)
    if entry is None:
        return DeadLetter(place, partition, offset, value, key, headers)
    return DeadLetter(
        _id_of(entry, place),
        partition,
        offset,
        entry.payload,
        key,
        encode_headers([(name, text.encode()) for name, text in entry.headers.items()]) if entry.headers else None,
        _cut(entry.error_message or entry.reason),
        min(max(entry.retry_count, 0), ATTEMPTS_MAX),
        None,
        _within(entry.original_offset, INT64_MAX),
        _time_ms(entry.first_failed_at),
        _time_ms(entry.last_failed_at),
    )


def _readable(headers: bytes) -> list[tuple[str, bytes | None]]:
    try:
        return decode_headers(headers)
    except CorruptBlock:
        return []  # a cell that no reader could read has no metadata


def _json_entry(value: bytes | None) -> _JsonEntry | None:
    if value is None or len(value) > JSON_BYTES_MAX or value[:1] != b"{":
        return None
    try:
        entry = _JSON.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if any(len(name.encode()) > _HEADER_NAME_BYTES_MAX for name in entry.headers or ()):
        return None
    return entry if entry.id or entry.original_topic else None


def _id_of(entry: _JsonEntry, place: str) -> str:
    """The id that the entry claims, unless it is too long or could be taken for the place of another letter."""
    if not entry.id or len(entry.id.encode()) > ID_BYTES_MAX or _PLACE.fullmatch(entry.id):
        return place
    return entry.id


def _cut(reason: str) -> str:
    return reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")


def _within(number: int | None, number_max: int) -> int | None:
    return number if number is not None and 0 <= number <= number_max else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 18 else None


def _time_ms(time: str | int | None) -> int | None:
    if not isinstance(time, str):
        return _within(time, INT64_MAX)
    try:
        return _within(round(datetime.fromisoformat(time).timestamp() * 1000), INT64_MAX)
    except (ValueError, OverflowError):
        return None
