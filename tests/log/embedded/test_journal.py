from __future__ import annotations

import struct
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.embedded.crashpoints import CrashPoints
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.journal import Journal, JournalEntry, journal_paths, read_records, record_pieces
from penstock.log.embedded.recovery import redo_journal
from penstock.testing.faults import FaultyDisk

TOPIC = bytes(range(16))
RECORDS = [
    [JournalEntry(TOPIC, 0, 100, 64, b"one")],
    [
        JournalEntry(TOPIC, 1, 0, 0, b""),
        JournalEntry(bytes(16), 7, 1 << 40, 1 << 35, b"PnJr" * 9),
        JournalEntry(TOPIC, 2, 5, 6, bytes(100)),
    ],
    [JournalEntry(TOPIC, 3, 1, 2, b"three")],
]


def encode_record(entries: list[JournalEntry]) -> bytes:
    return b"".join(record_pieces(entries))


ENCODED = [encode_record(record) for record in RECORDS]


def test_the_layout_on_disk_is_pinned() -> None:
    rest = struct.pack("<I", 1) + struct.pack("<16sIqqI", TOPIC, 3, 1, 2, 5) + b"three"
    size = struct.pack("<Q", len(rest))
    checksum = struct.pack("<I", google_crc32c.value(size + rest))
    assert ENCODED[2] == b"PnJr" + checksum + size + rest


@pytest.mark.parametrize("behind", [b"", bytes(4096), b"PnJr", b"torn" * 100])
def test_records_are_read_in_order_up_to_what_is_no_record(behind: bytes) -> None:
    assert list(read_records(b"".join(ENCODED) + behind)) == RECORDS


def test_a_record_cut_anywhere_is_not_read() -> None:
    data = b"".join(ENCODED)
    ends = [len(ENCODED[0]), len(ENCODED[0]) + len(ENCODED[1]), len(data)]
    for size in range(len(data)):
        assert list(read_records(data[:size])) == RECORDS[: sum(end <= size for end in ends)]


def test_a_record_with_any_bit_flipped_is_passed_over_and_the_others_are_read() -> None:
    start = len(ENCODED[0])
    data = b"".join(ENCODED)
    for bit in range(8 * start, 8 * (start + len(ENCODED[1]))):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert list(read_records(bytes(flipped))) == [RECORDS[0], RECORDS[2]]


@given(st.lists(st.binary(max_size=60) | st.sampled_from([b"PnJr", ENCODED[0], bytes(40)]), max_size=8))
def test_among_any_bytes_every_whole_record_is_found(pieces: list[bytes]) -> None:
    assert list(read_records(b"".join(pieces))) == [RECORDS[0]] * pieces.count(ENCODED[0])


def test_a_journal_goes_from_file_to_file(tmp_path: Path) -> None:
    journal = Journal(Disk(CrashPoints({})), tmp_path, 5)
    assert journal.retire() is None
    assert journal_paths(tmp_path) == []
    journal.write([ENCODED[0]])
    end = journal.size_bytes
    journal.write([ENCODED[1]])
    journal.undo(end)
    journal.write([ENCODED[2]])
    journal.sync()
    first = journal.retire()
    assert first is not None
    assert journal.size_bytes == 0
    journal.write([ENCODED[1]])
    second = journal.retire()
    assert second is not None
    assert journal_paths(tmp_path) == [first, second] == [tmp_path / f"{n:020d}.journal" for n in (5, 6)]
    assert list(read_records(first.read_bytes())) == [RECORDS[0], RECORDS[2]]
    assert list(read_records(second.read_bytes())) == [RECORDS[1]]


def test_a_journal_whose_name_may_not_last_is_not_used(tmp_path: Path) -> None:
    class LosesNames(FaultyDisk):
        failing = True

        def sync_directory(self, path: Path) -> None:
            if self.failing:
                raise OSError(28, "No space left on device")
            super().sync_directory(path)

    disk = LosesNames()
    journal = Journal(disk, tmp_path, 0)
    for _ in range(2):
        with pytest.raises(OSError, match="space"):
            journal.write([ENCODED[0]])
    disk.failing = False
    journal.write([ENCODED[0]])
    assert journal.retire() == tmp_path / f"{0:020d}.journal"


# -- redo ---------------------------------------------------------------------------------------------------------------


def test_redo_puts_blocks_in_their_place_however_often(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    segment = tmp_path / "00000000000000000100.log"
    segment.write_bytes(b"12345")
    (tmp_path / "journal" / "0.journal").write_bytes(
        encode_record([JournalEntry(TOPIC, 0, 100, 5, b"abc")])
        + encode_record([JournalEntry(TOPIC, 0, 100, 8, b"def"), JournalEntry(TOPIC, 1, 0, 0, b"another partition")])
    )
    (tmp_path / "journal" / "1.journal").write_bytes(encode_record([JournalEntry(TOPIC, 0, 100, 11, b"ghi")]))

    def last_segment_of(topic_id: bytes, partition: int) -> Path | None:
        return segment if (topic_id, partition) == (TOPIC, 0) else None

    for _ in range(3):
        assert redo_journal(Disk(CrashPoints({})), tmp_path / "journal", last_segment_of) == 3
        assert segment.read_bytes() == b"12345abcdefghi"


def test_redo_leaves_segments_alone_that_have_been_sealed_since(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    segment = tmp_path / "00000000000000000200.log"
    segment.write_bytes(b"newer")
    (tmp_path / "journal" / "0.journal").write_bytes(encode_record([JournalEntry(TOPIC, 0, 100, 0, b"older")]))
    assert redo_journal(Disk(CrashPoints({})), tmp_path / "journal", lambda *_: segment) == 0
    assert segment.read_bytes() == b"newer"


def test_what_redo_wrote_is_flushed(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    segment = tmp_path / "00000000000000000100.log"
    segment.write_bytes(b"")
    (tmp_path / "journal" / "0.journal").write_bytes(encode_record([JournalEntry(TOPIC, 0, 100, 0, b"abc")]))
    disk = FaultyDisk()
    disk.fail_next_fsync()
    with pytest.raises(OSError, match="error"):
        redo_journal(disk, tmp_path / "journal", lambda *_: segment)


def test_a_record_of_data_whose_checksum_is_known_is_the_same_record() -> None:
    data = [bytes(range(256)) * 400, b"small"]
    plain = [JournalEntry(TOPIC, number, 0, 0, each) for number, each in enumerate(data)]
    known = [entry._replace(checksum=google_crc32c.value(entry.data)) for entry in plain]
    assert encode_record(known) == encode_record(plain)
    assert [entry.data for entry in next(read_records(encode_record(known)))] == data


def test_a_large_record_is_written_in_pieces(tmp_path: Path) -> None:
    entries = [JournalEntry(TOPIC, number, 0, 0, bytes([number]) * (1 << 20)) for number in range(3)]
    pieces = record_pieces(entries)
    assert [id(piece) for piece in pieces[1:]] == [id(entry.data) for entry in entries]
    assert len(record_pieces([JournalEntry(TOPIC, 0, 0, 0, b"small")])) == 1
    journal = Journal(Disk(), tmp_path, 0)
    journal.reserve(sum(map(len, pieces)))
    journal.write(pieces)
    journal.sync()
    path = journal.retire()
    assert path is not None
    assert list(read_records(path.read_bytes())) == [entries]
