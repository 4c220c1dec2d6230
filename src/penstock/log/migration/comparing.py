"""Two logs of a partition, compared record by record: what tells a difference from what a broker has cleaned up since."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from penstock.errors import CorruptBlock
from penstock.log.api import TopicInfo
from penstock.log.migration.source import Source, blocks_between
from penstock.record_headers import decode_headers


class Row(NamedTuple):
    """A record with its place."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    expiry_ms: int


async def rows_between(
    source: Source, topic: str, index: int, start: int, end: int, latest_ms: int
) -> AsyncIterator[Row]:
    """Yield the records from one offset up to another."""
    async for blocks in blocks_between(source, topic, index, start, end):
        for block in blocks:
            first, stop = block.index_of(start), block.index_of(end)
            keys = block.keys(first, stop) or [None] * (stop - first)
            cells = block.headers(first, stop) or [None] * (stop - first)
            expiries = block.expiries(first, stop) or [0] * (stop - first)
            places = zip(block.offsets(first, stop), block.timestamps(first, stop), strict=True)
            for (offset, timestamp_ms), key, value, cell, expiry_ms in zip(
                places, keys, block.values(first, stop), cells, expiries, strict=True
            ):
                latest_ms = max(latest_ms, timestamp_ms)
                yield Row(offset, latest_ms, key, value, tuple(decode_headers(cell or b"")), expiry_ms)


async def compare(
    source: Source, target: Source, info: TopicInfo, index: int, start: int, end: int, latest_ms: int, now_ms: int
) -> None:
    """Raise CorruptBlock at the first record that differs, or that only one of two logs has.

    The target may have records that the source had when they were copied and has cleaned up since: superseded ones of a compacted topic,
    and expired ones.
    """
    there = rows_between(target, info.name, index, start, end, latest_ms)
    place = f"topic {info.name!r} partition {index}"
    async for row in rows_between(source, info.name, index, start, end, latest_ms):
        found = await anext(there, None)
        while found is not None and found.offset < row.offset:
            _check_cleaned_up(found, info, place, now_ms)
            found = await anext(there, None)
        if found is None or found.offset != row.offset:
            raise CorruptBlock(f"{place}: the record at offset {row.offset} is missing in the target")
        for name, one, other in zip(Row._fields, row, found, strict=True):
            if one != other:
                raise CorruptBlock(
                    f"{place}: the record at offset {row.offset} has another {name.removesuffix('_ms')} in the target"
                )
    async for found in there:
        _check_cleaned_up(found, info, place, now_ms)


def _check_cleaned_up(row: Row, info: TopicInfo, place: str, now_ms: int) -> None:
    if info.config.cleanup != "compact" and not 0 < row.expiry_ms <= now_ms:
        raise CorruptBlock(f"{place}: the target has a record at offset {row.offset}, and the source has none there")
