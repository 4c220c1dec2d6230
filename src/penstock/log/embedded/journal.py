"""The journal: what makes a commit over many partitions cost one flush, and all or nothing.

A commit that touches several partitions would need a flush for each of their files. Instead its blocks are written, all together and
under one checksum, to the journal; one `fdatasync` of that file makes the commit durable, and the blocks are then copied to their
segments without waiting for the disk. After a crash the journal is read and every block put where it belongs again (`redo`), which
is harmless where it already is there. Once the segments themselves are synced (a checkpoint) the journal file is deleted.

    record: magic "PnJr", CRC-32C of the rest, length of the rest after this field (u64), number of blocks (u32), then for each block
            topic id (16 bytes), partition (u32), segment's base offset (i64), position in its file (i64), length (u32);
            then all blocks back to back
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c

from penstock.log.checksums import COMBINED_BYTES_MIN, combined
from penstock.log.embedded.crashpoints import Site
from penstock.log.embedded.disk import AppendFile, Disk

JOURNAL_SUFFIX: Final = ".journal"
_MAGIC: Final = b"PnJr"
_HEAD = struct.Struct("<4sIQI")
_ENTRY = struct.Struct("<16sIqqI")
_RESERVE_STEP_BYTES: Final = 4 << 20
# Below this, a join takes less time than several writes.
_PIECES_BYTES_MIN: Final = 1 << 20


class JournalEntry(NamedTuple):
    """Bytes and the place in a segment file that they belong to."""

    topic_id: bytes
    partition: int
    segment_base: int
    position: int
    data: bytes
    checksum: int | None = None
    """Of the data, where somebody knows it already."""


def record_pieces(entries: Sequence[JournalEntry]) -> list[bytes]:
    """A record, in pieces that follow one another; a large one is not worth joining."""
    places = b"".join(
        _ENTRY.pack(entry.topic_id, entry.partition, entry.segment_base, entry.position, len(entry.data))
        for entry in entries
    )
    rest_bytes = 4 + len(places) + sum(len(entry.data) for entry in entries)
    head = b"".join((rest_bytes.to_bytes(8, "little"), len(entries).to_bytes(4, "little"), places))
    checksum = google_crc32c.value(head)
    for entry in entries:
        if entry.checksum is None or len(entry.data) < COMBINED_BYTES_MIN:
            checksum = google_crc32c.extend(checksum, entry.data)
        else:
            checksum = combined(checksum, entry.checksum, len(entry.data))
    pieces = [b"".join((_MAGIC, checksum.to_bytes(4, "little"), head)), *(entry.data for entry in entries)]
    return pieces if rest_bytes >= _PIECES_BYTES_MIN else [b"".join(pieces)]


def decode_record(data: bytes, at: int) -> tuple[list[JournalEntry], int] | None:
    """The record that begins at `at`, and where the next one would; None where there is no whole record."""
    if len(data) - at < _HEAD.size:
        return None
    magic, checksum, rest_bytes, count = _HEAD.unpack_from(data, at)
    rest_at = at + _HEAD.size - 4
    end = rest_at + rest_bytes
    if magic != _MAGIC or end > len(data) or google_crc32c.value(data[at + 8 : end]) != checksum:
        return None
    entries = []
    place_at = rest_at + 4
    data_at = place_at + count * _ENTRY.size
    for _ in range(count):
        topic_id, partition, segment_base, position, size_bytes = _ENTRY.unpack_from(data, place_at)
        entries.append(JournalEntry(topic_id, partition, segment_base, position, data[data_at : data_at + size_bytes]))
        place_at += _ENTRY.size
        data_at += size_bytes
    return entries, end


def read_records(data: bytes) -> Iterator[list[JournalEntry]]:
    """Whole records in order, going on behind a damaged one: each names its own places, so order is not needed to apply them."""
    at = 0
    while at < len(data):
        record = decode_record(data, at)
        if record is None:
            at = data.find(_MAGIC, at + 1)
            if at < 0:
                return
        else:
            entries, at = record
            yield entries


def journal_paths(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"*{JOURNAL_SUFFIX}"))


class Journal:
    """The journal being written. Used by the commit thread; `retire` hands finished files to a checkpoint."""

    def __init__(self, disk: Disk, directory: Path, next_number: int) -> None:
        self._disk = disk
        self._directory = directory
        self._next_number = next_number
        self._file: AppendFile | None = None

    @property
    def size_bytes(self) -> int:
        return self._file.end if self._file else 0

    def reserve(self, size_bytes: int) -> None:
        self._open().reserve(size_bytes)

    def write(self, record: Sequence[bytes]) -> None:
        file = self._open()
        file.ease_flush(sum(map(len, record)))
        self._disk.crash_half_written(Site.JOURNAL_HALF_WRITTEN, file.fd, record, file.end)
        file.write_pieces(record)
        self._disk.crash_point(Site.JOURNAL_WRITTEN)

    def sync(self) -> None:
        """Make what was written durable. After an error nothing is known of the file: retire it and never write to it again."""
        self._open().sync()
        self._disk.crash_point(Site.JOURNAL_SYNCED)

    def undo(self, end: int) -> None:
        """Drop what was written from `end` on, before it was synced."""
        if self._file:
            self._file.cut(end)

    def retire(self) -> Path | None:
        """Close the current file and return it; the next record begins a new one."""
        if self._file is None:
            return None
        path = self._file.path
        self._file.close()
        self._file = None
        return path

    def _open(self) -> AppendFile:
        if self._file is None:
            path = self._directory / f"{self._next_number:020d}{JOURNAL_SUFFIX}"
            file = AppendFile(self._disk, path, create=True, reserve_step_bytes=_RESERVE_STEP_BYTES)
            try:
                self._disk.sync_directory(self._directory)
            except OSError:
                file.close()  # a journal that a power cut could take away is none; the next record tries again
                raise
            self._file = file
            self._next_number += 1
        return self._file
