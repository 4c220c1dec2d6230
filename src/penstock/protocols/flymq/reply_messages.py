"""What FlyMQ replies say, as their encoders take it and their decoders give it. Records travel as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from penstock.protocols.flymq.wire import ROW_FIXED_BYTES

VECTOR_ROWS_MIN = 16
"""Below this many rows, going one by one is faster than setting up arrays."""


@dataclass(slots=True)
class Placed:
    """Records of a run that landed in one partition: record `rows[i]` has offset `base_offset + i`."""

    rows: slice | list[int]
    partition: int
    base_offset: int
    timestamp_ms: int


@dataclass(slots=True)
class Failed:
    """Records of a run that were not stored; `reply` is the ERROR frame each of them gets."""

    rows: slice | list[int]
    reply: bytes


@dataclass(slots=True)
class Rows:
    """Fetched records, as columns."""

    offsets: Sequence[int]
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]

    def fitting(self, bytes_max: int) -> int:
        """How many rows from the first on take no more than this in a reply."""
        size = 0
        for row, value in enumerate(self.values):
            size += ROW_FIXED_BYTES + len(value or b"")
            if self.keys is not None:
                size += len(self.keys[row] or b"")
            if size > bytes_max:
                return row
        return len(self.values)

    def head(self, count: int) -> Rows:
        return Rows(self.offsets[:count], self.keys and self.keys[:count], self.values[:count])

    @property
    def size_bytes(self) -> int:
        """What the rows take in a reply."""
        size = len(self.values) * ROW_FIXED_BYTES + sum(map(len, filter(None, self.values)))
        return size if self.keys is None else size + sum(map(len, filter(None, self.keys)))


@dataclass(slots=True)
class UniformRows:
    """Fetched records without keys whose values all take `value_bytes`, back to back in `data`."""

    offsets: Sequence[int]
    value_bytes: int
    data: bytes | memoryview

    def fitting(self, bytes_max: int) -> int:
        return min(len(self.offsets), bytes_max // (ROW_FIXED_BYTES + self.value_bytes))

    def head(self, count: int) -> UniformRows:
        return UniformRows(self.offsets[:count], self.value_bytes, self.data[: count * self.value_bytes])

    @property
    def size_bytes(self) -> int:
        return len(self.offsets) * (ROW_FIXED_BYTES + self.value_bytes)


@dataclass(slots=True)
class Fetched:
    """A decoded FETCH reply. `keys` is None where no record has one."""

    offsets: list[int]
    keys: list[bytes | None] | None
    values: list[bytes]
    next_offset: int


@dataclass(slots=True)
class PartitionMetadata:
    index: int
    leader: int
    start_offset: int
    next_offset: int


@dataclass(slots=True)
class TopicMetadata:
    topic: str
    partitions: list[PartitionMetadata]
    config: dict[str, str]


@dataclass(slots=True)
class ClusterPartition:
    index: int
    leader: str
    address: str


@dataclass(slots=True)
class GroupState:
    """Committed offsets and subscribed connections of one group on one topic."""

    topic: str
    group: str
    members: int
    offsets: dict[int, int]


@dataclass(slots=True)
class GroupLag:
    current: int
    committed: int
    latest: int
    lag: int


@lru_cache(maxsize=64)
def uniform_dtype(value_bytes: int, native: bool) -> np.dtype[np.void]:
    offset, record = ("offset", ">u8"), [("key_size", ">u4"), ("value_size", ">u4"), ("value", f"V{value_bytes}")]
    return np.dtype([offset, *record] if native else [*record, offset])
