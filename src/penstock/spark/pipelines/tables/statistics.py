"""Minimum, maximum and null count of the columns of a Parquet file, in the JSON form of Delta's add action.

Readers skip files by them, so a bound that is not certain is left out: strings longer than `TEXT_CHARS_MAX`, columns with NaN (which sorts
above every number in Spark and is in no Parquet statistics), nested columns, decimals and binaries. Timestamps are rounded outwards to
milliseconds, which is all that every Delta reader understands.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

TEXT_CHARS_MAX: Final = 64
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS_US: Final = 1000

Convert = Callable[[Any, bool], Any]
"""From a statistic, and whether it is the maximum, to a JSON value; None if there is no safe one."""


def file_statistics(metadata: Any, schema: pa.Schema, columns_with_nan: Collection[str]) -> str:
    """Return the statistics of a file by its Parquet footer."""
    nulls: dict[str, int] = {}
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    for index, path in enumerate(paths):
        field_index = schema.get_field_index(path)
        if field_index < 0 or pa.types.is_nested(schema.field(field_index).type) or paths.count(path) > 1:
            continue
        chunks = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if not chunks or any(each is None or not each.has_null_count for each in chunks):
            continue
        nulls[path] = sum(each.null_count for each in chunks)
        chunks = [each for each in chunks if each.num_values]
        convert = _converter(schema.field(field_index).type)
        if convert is None or path in columns_with_nan or not chunks or not all(each.has_min_max for each in chunks):
            continue
        low = convert(min(_value(each, "min") for each in chunks), False)
        high = convert(max(_value(each, "max") for each in chunks), True)
        if low is not None:
            lows[path] = low
        if high is not None:
            highs[path] = high
    return json.dumps(
        {"numRecords": metadata.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}, allow_nan=False
    )


def _value(statistics: Any, which: str) -> Any:
    """Return text as text and everything else as the number it is stored as."""
    raw = getattr(statistics, f"{which}_raw")
    return raw.decode(errors="replace") if isinstance(raw, bytes) else raw


def _converter(kind: pa.DataType) -> Convert | None:
    if pa.types.is_signed_integer(kind):
        return lambda value, is_max: value
    if pa.types.is_floating(kind):
        return lambda value, is_max: value if math.isfinite(value) else None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return lambda value, is_max: value if len(value) <= TEXT_CHARS_MAX else None
    if pa.types.is_date32(kind):
        return _date
    if pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None:
        return _timestamp
    return None


def _date(days: int, is_max: bool) -> str | None:
    try:
        return (date(1970, 1, 1) + timedelta(days)).isoformat()
    except OverflowError:
        return None


def _timestamp(microseconds: int, is_max: bool) -> str | None:
    milliseconds = -(-microseconds // _MS_US) if is_max else microseconds // _MS_US
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
