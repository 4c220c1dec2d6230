"""The journal: what makes a commit over many partitions cost one flush, and all or nothing.

A commit that touches several partitions would need a flush for each of their files. Instead its blocks are written, all together and
under one checksum, to the journal; one `fdatasync` of that file makes the commit durable, and the blocks are then copied to their
segments without waiting for the disk. After a crash the journal is read and every block put where it belongs again (`redo`), which
is harmless where it already is there. Once the segments themselves are synced (a checkpoint) the journal file is deleted.

    file:   head: magic "PnJ3", CRC-32C of the salt, salt (u64, random); a copy of it at byte 4096, in another sector; then records
    record: magic "PnJr", CRC-32C of everything from byte 16 on, seal (u64), length of the rest after this field (u64), number of
            blocks (u32), then for each block topic id (16 bytes), partition (u32), segment's base offset (i64), position in its file
            (i64), length (u32); then all blocks back to back

A late record (see `checkpoint.py`) is an entry like a block's, with -1 for the base offset and in place of the position the offset that it
comes before; its bytes are the length of its key (u32), the key, and the value.

The seal of a record is the file's salt xor the record's position: no bytes of a client can pass for a record.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import google_crc32c
import msgspec

from penstock.log.block import seal_at
from penstock.log.checksums import COMBINED_BYTES_MIN, combined
from penstock.log.embedded.disk import AppendFile, Disk

JOURNAL_SUFFIX: Final = ".journal"
_FILE_MAGIC: Final = b"PnJ3"
_FILE_HEAD = struct.Struct("<4sIQ")
HEADS_AT: Final = (0, 4096)
"""Where the salt is: without it no record can be told from what a client wrote, so no single sector may take it away."""
FIRST_RECORD_AT: Final = HEADS_AT[-1] + _FILE_HEAD.size
_MAGIC: Final = b"PnJr"
_SEALED_HEAD = struct.Struct("<4sIQ")
_REST_HEAD = struct.Struct("<QI")
_ENTRY = struct.Struct("<16sIqqI")
_LATE: Final = -1
"""In place of a segment's base offset."""
_KEY_BYTES = struct.Struct("<I")
_RESERVE_STEP_BYTES: Final = 4 << 20
# Below this, a join takes less time than several writes.
_PIECES_BYTES_MIN: Final = 1 << 20


class JournalEntry(msgspec.Struct, frozen=True, gc=False):
    """Bytes and the place in a segment file that they belong to, or a late record."""

    topic_id: bytes
    partition: int
    segment_base: int
    position: int
    data: bytes
    checksum: int | None = None
    """Of the data, where somebody knows it already."""

    @property
    def is_late(self) -> bool:
        return self.segment_base == _LATE

    def late_record(self) -> tuple[bytes, bytes]:
        """Key and value."""
        [key_bytes] = _KEY_BYTES.unpack_from(self.data)
        key_end = _KEY_BYTES.size + key_bytes
        return self.data[_KEY_BYTES.size : key_end], self.data[key_end:]


def late_entry(topic_id: bytes, partition: int, next_offset: int, key: bytes, value: bytes) -> JournalEntry:
    """Return the entry of a late record that comes before `next_offset`."""
    return JournalEntry(topic_id, partition, _LATE, next_offset, _KEY_BYTES.pack(len(key)) + key + value)


class JournalRecord:
    """One commit, ready to be written: everything but the seal, which depends on where it goes."""

    __slots__ = ("_checksum", "_data", "_head", "size_bytes")

    def __init__(self, entries: Sequence[JournalEntry]) -> None:
        places: list[bytes] = []
        data: list[bytes] = []
        data_bytes = 0
        for entry in entries:
            cells = entry.data
            size_bytes = len(cells)
            places.append(_ENTRY.pack(entry.topic_id, entry.partition, entry.segment_base, entry.position, size_bytes))
            data.append(cells)
            data_bytes += size_bytes
        count = len(places)
        sizes = _REST_HEAD.pack(4 + _ENTRY.size * count + data_bytes, count)
        self.size_bytes = _SEALED_HEAD.size + _REST_HEAD.size + _ENTRY.size * count + data_bytes
        if data_bytes < COMBINED_BYTES_MIN:
            self._head, self._data = b"".join((sizes, *places, *data)), []
            self._checksum = google_crc32c.value(self._head)
            return
        self._head, self._data = b"".join((sizes, *places)), data
        self._checksum = google_crc32c.value(self._head)
        for entry in entries:
            if entry.checksum is None or len(entry.data) < COMBINED_BYTES_MIN:
                self._checksum = google_crc32c.extend(self._checksum, entry.data)
            else:
                self._checksum = combined(self._checksum, entry.checksum, len(entry.data))

    def pieces(self, seal: int) -> list[bytes]:
        """The record in pieces that follow one another; a large one is not worth joining."""
        pieces = [_SEALED_HEAD.pack(_MAGIC, self._checksum, seal) + self._head, *self._data]
        return pieces if not self._data or self.size_bytes >= _PIECES_BYTES_MIN else [b"".join(pieces)]


def encode_file_head(salt: int) -> bytes:
    """Encode everything before the first record: the head and its copy."""
    salted = salt.to_bytes(8, "little")
    head = _FILE_HEAD.pack(_FILE_MAGIC, google_crc32c.value(salted), salt)
    return head.ljust(HEADS_AT[1], b"\0") + head


def _salt_at(data: bytes, at: int) -> int | None:
    """Return the salt in the head of a journal file at this position, None if the head is damaged."""
    if len(data) < at + _FILE_HEAD.size:
        return None
    magic, checksum, salt = _FILE_HEAD.unpack_from(data, at)
    if magic != _FILE_MAGIC or google_crc32c.value(data[at + 8 : at + _FILE_HEAD.size]) != checksum:
        return None
    return int(salt)


def _end_of(data: bytes, at: int, salt: int) -> int | None:
    """Where the record at `at` says it ends; None if none was written there."""
    rest_at = at + _SEALED_HEAD.size
    if len(data) < rest_at + _REST_HEAD.size:
        return None
    magic, _, seal = _SEALED_HEAD.unpack_from(data, at)
    if magic != _MAGIC or seal != seal_at(salt, at):
        return None
    rest_bytes, _ = _REST_HEAD.unpack_from(data, rest_at)
    return int(rest_at + 8 + rest_bytes)


def decode_record(data: bytes, at: int, salt: int) -> tuple[list[JournalEntry], int] | None:
    """The record that begins at `at`, and where the next one would; None if there is no whole record."""
    end = _end_of(data, at, salt)
    if end is None or end > len(data):
        return None
    rest_at = at + _SEALED_HEAD.size
    if google_crc32c.value(data[rest_at:end]) != int.from_bytes(data[at + 4 : at + 8], "little"):
        return None
    _, count = _REST_HEAD.unpack_from(data, rest_at)
    entries = []
    place_at = rest_at + _REST_HEAD.size
    data_at = place_at + count * _ENTRY.size
    for _ in range(count):
        topic_id, partition, segment_base, position, size_bytes = _ENTRY.unpack_from(data, place_at)
        entries.append(JournalEntry(topic_id, partition, segment_base, position, data[data_at : data_at + size_bytes]))
        place_at += _ENTRY.size
        data_at += size_bytes
    return entries, end


def read_records(
    data: bytes, on_damage: Callable[[int], None], on_torn: Callable[[int], None]
) -> Iterator[list[JournalEntry]]:
    """Yield the whole records of a journal file in order; positions of damage go to `on_damage`, that of a torn write to `on_torn`.

    What is not whole at the end of the file is a torn write: nobody was told of it. What another record follows is damage, since every
    record is flushed before the next is written, and the heads with the first one. Records after damage are read too: each names its own
    places, so order is not needed to apply them. They are found by their seals, which no client can have put into a value.
    """
    salts = {at: _salt_at(data, at) for at in HEADS_AT}
    broken_heads = [at for at, salt in salts.items() if salt is None]
    salt = next((salt for salt in salts.values() if salt is not None), None)
    at = FIRST_RECORD_AT
    while salt is not None and at < len(data):
        record = decode_record(data, at, salt)
        following = _next_record(data, at, salt) if record is None else None
        if following is not None or (at > FIRST_RECORD_AT and _end_of(data, at, salt) is not None):
            for position in broken_heads:
                on_damage(position)
            broken_heads.clear()
        if record is not None:
            entries, at = record
            yield entries
        elif following is not None:
            on_damage(at)
            at = following
        else:
            break
    torn = [*broken_heads, at] if data[at:].strip(b"\0") else broken_heads
    if torn and data[FIRST_RECORD_AT:].strip(b"\0"):
        on_torn(torn[0])


def _next_record(data: bytes, at: int, salt: int) -> int | None:
    """Where the next record after a damaged one begins: where that says that it ends, otherwise at the next seal."""
    end = _end_of(data, at, salt)
    if end is not None and _end_of(data, end, salt) is not None:
        return end
    found = data.find(_MAGIC, at + 1)
    while found >= 0 and _end_of(data, found, salt) is None:
        found = data.find(_MAGIC, found + 1)
    return found if found >= 0 else None


def journal_paths(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"*{JOURNAL_SUFFIX}"))


class Journal:
    """The journal being written. Used by the commit thread; `retire` hands finished files to a checkpoint."""

    def __init__(self, disk: Disk, directory: Path, next_number: int) -> None:
        self._disk = disk
        self._directory = directory
        self._next_number = next_number
        self._file: AppendFile | None = None
        self._salt = 0
        self._last_at = 0
        self.end = 0
        """Where the next record goes; 0 while there is no file."""

    def reserve(self, size_bytes: int) -> None:
        """Make sure of space for a record, in a new file if there is none."""
        (self._file or self._open()).reserve(size_bytes)

    def write(self, record: JournalRecord) -> None:
        file = self._file or self._open()
        self._last_at = file.end
        pieces = record.pieces(seal_at(self._salt, file.end))
        for piece in pieces:
            file.write(piece, is_flushed=len(pieces) == 1)
        self.end = file.end

    def sync(self) -> None:
        """Make what was written durable. After an error nothing is known of the file: retire it and never write to it again."""
        (self._file or self._open()).sync()

    def undo_last(self) -> None:
        """Drop the last record, whole or not. If it was synced, so must this be."""
        if self._file:
            self._file.cut(self._last_at)
            self.end = self._last_at

    def retire(self) -> Path | None:
        """Close the current file and return it; the next record begins a new one."""
        if self._file is None:
            return None
        path = self._file.path
        self._file.close()
        self._file = None
        self.end = 0
        return path

    def _open(self) -> AppendFile:
        path = self._directory / f"{self._next_number:020d}{JOURNAL_SUFFIX}"
        file = AppendFile(self._disk, path, create=True, reserve_step_bytes=_RESERVE_STEP_BYTES)
        self._salt = secrets.randbits(64)
        try:
            file.write(encode_file_head(self._salt))  # flushed with the first record
            self._disk.sync_directory(self._directory)
        except OSError:
            file.close()  # a journal that a power cut could take away is none; the next record tries again
            raise
        self._file = file
        self.end = file.end
        self._next_number += 1
        return file
