"""One partition's part of a commit: which records, in which blocks, where in the file.

Appends that gathered for a partition are joined into few large blocks (reading is as fast as blocks are large), a very large one is
cut (reading from its middle must stay cheap). What comes as blocks stays as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from penstock.errors import PenstockError
from penstock.log.api import Appended, Batch, BlockBatch, OnAppended
from penstock.log.block import BlockHeader, encode_block, place_block, whole_checksum
from penstock.log.checksums import COMBINED_BYTES_MIN, combined
from penstock.log.embedded.segment import Segment

if TYPE_CHECKING:
    from penstock.log.embedded.partition import EmbeddedPartition

_T = TypeVar("_T")
_log = structlog.get_logger(__name__)


# What a record costs in a block beside its bytes: its lengths, at most.
_ROW_BYTES: Final = 12


class PartitionCommit:
    """One partition's part of a commit: filled in by the commit thread, applied on the loop."""

    __slots__ = (
        "appends",
        "base_offset",
        "blocks",
        "data",
        "end",
        "error",
        "headers",
        "next_offset",
        "partition",
        "rolled",
        "segment",
        "size_bytes",
        "timestamp_ms",
    )

    def __init__(self, partition: EmbeddedPartition, appends: list[tuple[Batch | BlockBatch, OnAppended]]) -> None:
        self.partition = partition
        self.appends = appends
        self.size_bytes = sum([_stored_bytes(batch) for batch, _ in appends])
        """What the records take in blocks, headers aside."""
        self.segment: Segment | None = None
        """Where it goes; None before it is laid out."""
        self.rolled = False
        """Whether it is the first to go there."""
        self.error: PenstockError | None = None
        self.blocks: list[bytes] = []
        self.headers: list[BlockHeader] = []
        self.data = b""
        self.base_offset = self.next_offset = self.timestamp_ms = self.end = 0

    def rolls(self, now_ms: int) -> bool:
        """Whether the records belong into a new segment."""
        writer, config = self.partition.writer, self.partition.config
        filled = writer.file.end
        return filled > 0 and (
            filled + self.size_bytes > config.segment_bytes or now_ms - writer.created_ms >= config.segment_ms
        )

    def lay_out(self, now_ms: int, block_bytes_target: int) -> None:
        """Build the blocks at the partition's end and make sure of the space for them."""
        self.blocks.clear()
        self.headers.clear()
        partition = self.partition
        writer = partition.writer
        if self.rolls(now_ms):
            writer = partition.writer = writer.roll(now_ms)
            self.rolled = True
        self.segment = writer.segment
        self.timestamp_ms = max(now_ms, writer.last_timestamp_ms)
        self.base_offset = offset = writer.next_offset
        for laid_out, appends in itertools.groupby(self.appends, lambda append: isinstance(append[0], BlockBatch)):
            if laid_out:
                offset = self._place([batch for batch, _ in appends if isinstance(batch, BlockBatch)], offset)
            else:
                batches = [batch for batch, _ in appends if isinstance(batch, Batch)]
                offset = self._encode(batches, offset, block_bytes_target)
        self.next_offset = offset
        self.data = self.blocks[0] if len(self.blocks) == 1 else b"".join(self.blocks)
        writer.file.reserve(len(self.data))

    def _encode(self, batches: list[Batch], offset: int, block_bytes_target: int) -> int:
        compress = self.partition.config.compression == "zstd"
        for batch in [_join(batches)] if self.size_bytes <= block_bytes_target else gather(batches, block_bytes_target):
            self._add(
                encode_block(
                    offset,
                    self.timestamp_ms,
                    batch.values,
                    batch.keys,
                    batch.headers,
                    batch.expiries,
                    compress=compress,
                )
            )
            offset += len(batch)
        return offset

    def _place(self, batches: list[BlockBatch], offset: int) -> int:
        compress = self.partition.config.compression == "zstd"
        for block in itertools.chain.from_iterable(batch.blocks for batch in batches):
            self._add(place_block(block, offset, self.timestamp_ms, compress=compress))
            offset += block.count
        return offset

    def _add(self, block: bytes) -> None:
        self.blocks.append(block)
        self.headers.append(BlockHeader(block))

    def checksum(self) -> int | None:
        """Of the data, from those of its blocks; None where it is quicker to look at the data itself."""
        if len(self.data) < COMBINED_BYTES_MIN * len(self.headers):
            return None
        checksum = 0
        for header in self.headers:
            checksum = combined(checksum, whole_checksum(header), header.size_bytes)
        return checksum

    def write(self) -> None:
        self.partition.writer.write(self.data, self.headers)
        self.end = self.partition.writer.file.end

    def answer(self) -> None:
        """Tell every append how it went; on the loop."""
        offset = self.base_offset
        for batch, done in self.appends:
            try:
                done(self.error or Appended(offset, self.timestamp_ms))
            except Exception:  # noqa: BLE001 - a bug in one session must not leave the others of this commit unanswered
                _log.exception("the owner of an append failed on its answer", partition=str(self.partition))
            offset += len(batch)


def gather(batches: Sequence[Batch], block_bytes_target: int) -> list[Batch]:
    """The same records in order, as few batches as keep near the target: small appends join, a large one is cut."""
    gathered: list[Batch] = []
    joining: list[Batch] = []
    joining_bytes = 0
    for batch in itertools.chain.from_iterable(_cut(batch, block_bytes_target) for batch in batches):
        if joining and joining_bytes + _stored_bytes(batch) > block_bytes_target:
            gathered.append(_join(joining))
            joining, joining_bytes = [], 0
        joining.append(batch)
        joining_bytes += _stored_bytes(batch)
    gathered.append(_join(joining))
    return gathered


def _cut(batch: Batch, bytes_target: int) -> list[Batch]:
    if _stored_bytes(batch) <= bytes_target:
        return [batch]
    pieces: list[Batch] = []
    start = size = 0
    for row in range(len(batch)):
        cells = (column[row] for column in (batch.values, batch.keys, batch.headers) if column is not None)
        row_bytes = _ROW_BYTES + sum(len(cell) for cell in cells if cell is not None)
        if size and size + row_bytes > bytes_target:
            pieces.append(batch.rows(start, row))
            start, size = row, 0
        size += row_bytes
    pieces.append(batch.rows(start, len(batch)))
    return pieces


def _stored_bytes(batch: Batch | BlockBatch) -> int:
    return batch.size_bytes + _ROW_BYTES * len(batch)


def _join(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    values: list[bytes | None] = []
    for batch in batches:
        values += batch.values
    return Batch(
        values,
        _join_column(batches, [batch.keys for batch in batches], None),
        _join_column(batches, [batch.headers for batch in batches], None),
        _join_column(batches, [batch.expiries for batch in batches], 0),
    )


def _join_column(batches: list[Batch], columns: Sequence[Sequence[_T] | None], absent: _T) -> list[_T] | None:
    if all(column is None for column in columns):
        return None
    joined: list[_T] = []
    for batch, column in zip(batches, columns, strict=True):
        joined += [absent] * len(batch) if column is None else column
    return joined
