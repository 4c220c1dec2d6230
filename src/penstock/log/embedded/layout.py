"""One partition's part of a commit: which records, in which blocks, where in the file.

Appends that gathered for a partition are joined into few large blocks (reading is as fast as blocks are large), a very large one is
cut (reading from its middle must stay cheap). What comes as blocks stays as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from penstock.columns import are_uniform, joined
from penstock.errors import InvalidRequest, PenstockError
from penstock.log.api import Appended, Batch, BlockBatch, LateBatch, PlacedBatch
from penstock.log.block import (
    BEGINS,
    ENDS,
    Block,
    BlockHeader,
    encode_block,
    encode_plain_block,
    place_block,
    seal_at,
    whole_checksum,
)
from penstock.log.checksums import COMBINED_BYTES_MIN, combined
from penstock.log.embedded.atomic import Waiting
from penstock.log.embedded.journal import JournalEntry
from penstock.log.embedded.segment import Segment

if TYPE_CHECKING:
    from penstock.log.embedded.partition import EmbeddedPartition

_T = TypeVar("_T")
log = structlog.get_logger(__name__)


# What a record costs in a block besides its bytes: its lengths, at most.
_ROW_BYTES: Final = 12


class PartitionCommit:
    """One partition's part of a commit: filled in by the commit thread, applied on the loop."""

    __slots__ = (
        "appends",
        "atomic",
        "base_offset",
        "blocks",
        "carries_late",
        "data",
        "end",
        "error",
        "is_flushed",
        "late",
        "next_offset",
        "partition",
        "refused",
        "rolled",
        "segment",
        "size_bytes",
        "start",
        "timestamp_ms",
        "written",
    )

    def __init__(self, partition: EmbeddedPartition, appends: list[Waiting], *, carries_late: bool = False) -> None:
        self.partition = partition
        self.appends = appends
        self.carries_late = carries_late
        """Whether the first of them is the partition's late records."""
        self.refused: list[tuple[Waiting, PenstockError]] = []
        """Appends that are not written though others may be."""
        self.size_bytes = 0
        """What the records take in blocks, headers aside."""
        self.atomic = False
        """Whether some append must not be written alone."""
        self.late = False
        """Whether some append tells where other parts of the commit are laid out."""
        self.is_flushed = True
        """Whether its appends are answered only once it is on the disk; found out when it is laid out."""
        self._measure()
        self.segment: Segment | None = None
        """Where it goes; None before it is laid out."""
        self.rolled = False
        """Whether it is the first to go there."""
        self.error: PenstockError | None = None
        """What became of all appends that were not refused one by one."""
        self.written = False
        self.blocks: list[tuple[BlockHeader, bytes]] = []
        self.data = b""
        self.base_offset = self.next_offset = self.timestamp_ms = 0
        self.start = self.end = 0
        """Where it begins and ends in the file."""

    def _measure(self) -> None:
        size_bytes, atomic, late = 0, False, False
        for append in self.appends:
            batch = append.batch
            size_bytes += batch.size_bytes + _ROW_BYTES * batch.count
            if append.whole is not None:
                atomic = True
                late = late or type(batch) is LateBatch
        self.size_bytes, self.atomic, self.late = size_bytes, atomic, late

    def refuse(self, appends: Sequence[Waiting], error: PenstockError) -> None:
        """Leave appends out, and with them all of the atomic ones they are parts of."""
        for append in appends:
            self.refused.append((append, error))
            if append.whole is not None and append.whole.refusal is None:
                append.whole.refusal = error
        left_out = {id(append) for append in appends}
        self.appends = [append for append in self.appends if id(append) not in left_out]
        self._measure()

    def leave_out_refused(self) -> bool:
        """Leave out what another part of the commit has refused. True if there was any, so that the rest must be laid out again."""
        refused = [append for append in self.appends if append.whole is not None and append.whole.refusal is not None]
        for append in refused:
            assert append.whole is not None
            assert append.whole.refusal is not None
            self.refuse([append], append.whole.refusal)
        return bool(refused)

    def refuse_what_cannot_be_encoded(self, error: Exception) -> None:
        """After `lay_out` failed so: only the appends that are to blame are left out."""
        to_blame = [append for append in self.appends if not _can_be_encoded(append.batch)] or self.appends
        self.refuse(to_blame, InvalidRequest(f"the records cannot be stored in {self.partition}: {error}"))

    def rolls(self, now_ms: int) -> bool:
        """Whether the records belong into a new segment."""
        writer, config = self.partition.writer, self.partition.config
        filled = writer.file.end
        return filled > 0 and (
            filled + self.size_bytes > config.segment_bytes or now_ms - writer.created_ms >= config.segment_ms
        )

    def lay_out(self, now_ms: int, block_bytes_target: int, *, rolls: bool) -> None:
        """Build the blocks at the partition's end and make sure of the space for them, in a new segment if it `rolls`."""
        partition = self.partition
        writer = partition.writer
        if rolls:
            writer = partition.writer = writer.roll(now_ms)
            self.rolled = True
        file, segment = writer.file, writer.segment
        self.segment = segment
        self.timestamp_ms = max(now_ms, segment.index.last_timestamp_ms)
        offset, salt = segment.index.next_offset, segment.salt
        position = self.start = file.end
        appends = self.appends
        first = appends[0].batch
        if len(appends) == 1 and type(first) is Batch and self.size_bytes <= block_bytes_target:
            # Most commits: one block for one append.
            header, self.data = block = self._encode(first, offset, seal_at(salt, position), BEGINS | ENDS)
            self.blocks = [block]
            self.base_offset, self.next_offset = offset, header.next_offset
            self.end = position + header.size_bytes
        else:
            self._lay_out_pieces(self._pieces(block_bytes_target), offset, salt)
        if self.atomic:
            self._note_places()
        file.reserve(self.end - position)

    def _lay_out_pieces(self, pieces: Sequence[Batch | Block], offset: int, salt: int) -> None:
        """Build a block of each piece."""
        position = self.start
        self.blocks = []
        for number, piece in enumerate(pieces, 1):
            commit = BEGINS * (number == 1) | ENDS * (number == len(pieces))
            header, data = self._encode(piece, offset, seal_at(salt, position), commit)
            self.blocks.append((header, data))
            offset = header.next_offset
            position += header.size_bytes
        self.base_offset, self.next_offset = self.blocks[0][0].base_offset, offset
        self.end = position
        self.data = b"".join([data for _, data in self.blocks])

    def _note_places(self) -> None:
        offset = self.base_offset
        for append in self.appends:
            if append.whole is not None:
                append.whole.places[self.partition] = Appended(offset, self.timestamp_ms)
            offset += append.batch.count

    def _pieces(self, block_bytes_target: int) -> list[Batch | Block]:
        """What becomes one block each."""
        fits = self.size_bytes <= block_bytes_target
        first = self.appends[0].batch
        if isinstance(first, PlacedBatch):
            assert len(self.appends) == 1, "an append that places records is alone in its commit"
            return [first]
        pieces: list[Batch | Block] = []
        for laid_out, appends in itertools.groupby(self.appends, lambda append: isinstance(append.batch, BlockBatch)):
            if laid_out:
                for append in appends:
                    assert isinstance(append.batch, BlockBatch)
                    pieces += append.batch.blocks
            else:
                batches = [_made(append) for append in appends]
                pieces += [_join(batches)] if fits else gather(batches, block_bytes_target)
        return pieces

    def _encode(self, piece: Batch | Block, offset: int, seal: int, commit: int) -> tuple[BlockHeader, bytes]:
        compress = self.partition.config.compression == "zstd"
        if (
            type(piece) is Batch
            and piece.keys is None
            and piece.headers is None
            and piece.expiries is None
            and not compress
        ):
            return encode_plain_block(offset, self.timestamp_ms, piece.values, seal, commit)
        if isinstance(piece, Block):
            data = place_block(piece, offset, self.timestamp_ms, compress=compress, seal=seal, commit=commit)
            return BlockHeader(data), data
        placed = piece if isinstance(piece, PlacedBatch) else None
        data = encode_block(
            offset if placed is None else placed.offsets[0],
            self.timestamp_ms,
            piece.values,
            piece.keys,
            piece.headers,
            piece.expiries,
            compress=compress,
            timestamps=None if placed is None else placed.timestamps,
            offsets=None if placed is None else placed.offsets,
            seal=seal,
            commit=commit,
        )
        return BlockHeader(data), data

    def journal_entry(self) -> JournalEntry:
        """What the journal records of it, once it is laid out."""
        partition, data = self.partition, self.data
        checksum = None if len(data) < COMBINED_BYTES_MIN else self._checksum()
        assert self.segment is not None
        return JournalEntry(partition.topic_id, partition.index, self.segment.base_offset, self.start, data, checksum)

    def _checksum(self) -> int | None:
        """Of the data, from those of its blocks; None if it is quicker to look at the data itself."""
        if len(self.data) < COMBINED_BYTES_MIN * len(self.blocks):
            return None
        checksum = 0
        for header, _ in self.blocks:
            checksum = combined(checksum, whole_checksum(header, header.seal), header.size_bytes)
        return checksum

    def add_to_index(self) -> None:
        """After the data is written."""
        position = self.start
        assert self.segment is not None
        for header, _ in self.blocks:
            self.segment.index.add(header, position)
            position += header.size_bytes
        self.written = True

    def answer(self) -> None:
        """Tell every append how it went; on the loop."""
        offset, timestamp_ms, error = self.base_offset, self.timestamp_ms, self.error
        for append in self.appends:
            try:
                append.done(error or Appended(offset, timestamp_ms))
            except Exception:  # a bug in one session must not leave the others of this commit unanswered
                log.exception("append_callback_failed", partition=str(self.partition))
            offset += append.batch.count
        for append, refusal in self.refused:
            try:
                append.done(refusal)
            except Exception:
                log.exception("append_callback_failed", partition=str(self.partition))


def _made(append: Waiting) -> Batch:
    """The records of an append that does not come as blocks."""
    if isinstance(append.batch, LateBatch):
        assert append.whole is not None, "a record that tells of other parts came without them"
        return append.batch.made(append.whole.places)
    assert isinstance(append.batch, Batch)
    return append.batch


def _can_be_encoded(batch: Batch | BlockBatch | LateBatch) -> bool:
    if not isinstance(batch, Batch):
        return True  # they are blocks already, or the broker's own
    try:
        encode_block(0, 0, batch.values, batch.keys, batch.headers, batch.expiries)
    except Exception:  # noqa: BLE001 - whatever is wrong with the records
        return False
    return True


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


def _stored_bytes(batch: Batch | BlockBatch | LateBatch) -> int:
    return batch.size_bytes + _ROW_BYTES * batch.count


def _join(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    columns = [batch.values for batch in batches]
    values: Sequence[bytes | None]
    if are_uniform(columns):
        values = joined(columns)
    else:
        values = list(itertools.chain.from_iterable(columns))
    return Batch(
        values,
        _join_column(batches, [batch.keys for batch in batches], None),
        _join_column(batches, [batch.headers for batch in batches], None),
        _join_column(batches, [batch.expiries for batch in batches], 0),
        size_bytes=sum([batch.size_bytes for batch in batches]),
    )


def _join_column(batches: list[Batch], columns: Sequence[Sequence[_T] | None], absent: _T) -> list[_T] | None:
    if all(column is None for column in columns):
        return None
    joined: list[_T] = []
    for batch, column in zip(batches, columns, strict=True):
        joined += [absent] * len(batch) if column is None else column
    return joined
