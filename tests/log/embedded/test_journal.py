from __future__ import annotations

import struct
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.log.embedded.disk import Disk
from penstock.log.embedded.journal import (
    HEADS_AT,
    Journal,
    JournalEntry,
    JournalRecord,
    encode_file_head,
    journal_paths,
    late_entry,
    read_records,
)
from penstock.log.embedded.recovery import redo_journal
from penstock.log.embedded.syncs import Syncs
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


SALT = 0x1122334455667788
HEAD = encode_file_head(SALT)


def journal_of(*records: list[JournalEntry], salt: int = SALT) -> bytes:
    """A journal file that holds these records."""
    data = encode_file_head(salt)
    for entries in records:
        data += b"".join(JournalRecord(entries).pieces(salt ^ len(data)))
    return data


def read(data: bytes) -> tuple[list[list[JournalEntry]], list[int]]:
    """The records of a journal file, and where it is damaged."""
    damaged: list[int] = []
    return list(read_records(data, damaged.append, lambda at: None)), damaged


def torn_at(data: bytes) -> list[int]:
    torn: list[int] = []
    list(read_records(data, lambda at: None, torn.append))
    return torn


ENDS = [len(journal_of(*RECORDS[:count])) for count in range(len(RECORDS) + 1)]


def test_the_layout_on_disk_is_pinned() -> None:
    rest = struct.pack("<I", 1) + struct.pack("<16sIqqI", TOPIC, 3, 1, 2, 5) + b"three"
    size = struct.pack("<Q", len(rest))
    checksum = struct.pack("<I", google_crc32c.value(size + rest))
    salt = struct.pack("<Q", SALT)
    head = b"PnJ3" + struct.pack("<I", google_crc32c.value(salt)) + salt
    assert head + bytes(4080) + head == HEAD
    assert journal_of(RECORDS[2]) == HEAD + b"PnJr" + checksum + struct.pack("<Q", SALT ^ 4112) + size + rest


@pytest.mark.parametrize("behind", [b"", bytes(4096), b"PnJr", b"torn" * 100])
def test_records_are_read_in_order_up_to_what_is_no_record(behind: bytes) -> None:
    assert read(journal_of(*RECORDS) + behind) == (RECORDS, [])


def test_a_record_cut_anywhere_is_not_read() -> None:
    data = journal_of(*RECORDS)
    for size in range(len(data)):
        assert read(data[:size]) == (RECORDS[: sum(end <= size for end in ENDS[1:])], [])


def test_a_record_with_any_bit_flipped_is_told_and_the_others_are_read() -> None:
    data = journal_of(*RECORDS)
    for bit in range(8 * ENDS[1], 8 * ENDS[2]):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert read(bytes(flipped)) == ([RECORDS[0], RECORDS[2]], [ENDS[1]])


@pytest.mark.parametrize("at", HEADS_AT)
def test_a_journal_of_which_one_head_is_damaged_is_told_and_read_by_the_other(at: int) -> None:
    data = journal_of(*RECORDS)
    for bit in range(8 * at, 8 * (at + 16)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert read(bytes(flipped)) == (RECORDS, [at])


@pytest.mark.parametrize("sector_bytes", [512, 4096])
@pytest.mark.parametrize("at", HEADS_AT)
def test_a_lost_sector_with_a_head_takes_no_record_that_is_not_in_it(at: int, sector_bytes: int) -> None:
    large = [JournalEntry(TOPIC, 0, 0, 0, b"v" * sector_bytes)]
    data = bytearray(journal_of(large, *RECORDS))
    data[at : at + sector_bytes] = bytes(sector_bytes)
    found, damaged = read(bytes(data))
    assert found == ([large, *RECORDS] if at == 0 else RECORDS)
    assert damaged == ([0] if at == 0 else [4096, 4112])


def test_a_first_record_that_was_torn_with_a_head_is_torn_and_read_if_it_is_whole() -> None:
    record = [JournalEntry(TOPIC, 0, 0, 0, b"v" * 9000)]
    for lost, found, torn in ((0, [record], 0), (4096, [], 4096), (8192, [], 4112)):
        data = bytearray(journal_of(record))
        data[lost : lost + 512] = bytes(512)
        assert read(bytes(data)) == (found, [])
        assert torn_at(bytes(data)) == [torn]


def test_a_damaged_head_is_damage_once_a_second_record_was_begun() -> None:
    data = bytearray(journal_of(*RECORDS[:2]))
    data[0] ^= 1
    data[-1] ^= 1
    assert read(bytes(data)) == ([RECORDS[0]], [0])
    assert torn_at(bytes(data)) == [ENDS[1]]


def test_a_damaged_record_that_another_damaged_one_follows_is_no_torn_write() -> None:
    data = bytearray(journal_of(*RECORDS))
    data[ENDS[2] - 1] ^= 1
    data[ENDS[3] - 1] ^= 1
    assert read(bytes(data)) == ([RECORDS[0]], [ENDS[1]])
    assert torn_at(bytes(data)) == [ENDS[2]]


def test_a_journal_that_lost_both_heads_is_taken_for_a_torn_one() -> None:
    data = bytearray(journal_of(*RECORDS))
    for at in HEADS_AT:
        data[at] ^= 1
    assert read(bytes(data)) == ([], [])
    assert torn_at(bytes(data)) == [0]


@pytest.mark.parametrize("data", [b"", HEAD[:5], HEAD, bytes(5000), HEAD + bytes(5000)])
def test_a_journal_that_nothing_was_written_to_is_no_damage(data: bytes) -> None:
    assert read(data) == ([], [])


ELSEWHERE = [journal_of(RECORDS[0])[len(HEAD) :], journal_of(RECORDS[0], salt=SALT + 1)[len(HEAD) :]]


@given(st.lists(st.binary(max_size=60) | st.sampled_from([b"PnJr", bytes(40), *ELSEWHERE]), max_size=8))
def test_a_record_that_was_written_to_another_place_or_another_file_is_none(pieces: list[bytes]) -> None:
    """Whatever the values of a torn record hold: a record is one only where it was written, which no client can choose."""
    torn = b"".join([bytes(40), *pieces])
    assert read(journal_of(RECORDS[1]) + torn) == ([RECORDS[1]], [])


def test_a_journal_goes_from_file_to_file(tmp_path: Path) -> None:
    journal = Journal(Disk(), tmp_path, 5)
    assert journal.retire() is None
    assert journal_paths(tmp_path) == []
    journal.write(JournalRecord(RECORDS[0]))
    journal.write(JournalRecord(RECORDS[1]))
    journal.undo_last()
    journal.write(JournalRecord(RECORDS[2]))
    journal.sync()
    first = journal.retire()
    assert first is not None
    assert journal.end == 0
    journal.write(JournalRecord(RECORDS[1]))
    second = journal.retire()
    assert second is not None
    assert journal_paths(tmp_path) == [first, second] == [tmp_path / f"{n:020d}.journal" for n in (5, 6)]
    assert read(first.read_bytes()) == ([RECORDS[0], RECORDS[2]], [])
    assert read(second.read_bytes()) == ([RECORDS[1]], [])
    assert first.read_bytes()[:16] != second.read_bytes()[:16], "each has a salt of its own"


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
            journal.write(JournalRecord(RECORDS[0]))
    disk.failing = False
    journal.write(JournalRecord(RECORDS[0]))
    assert journal.retire() == tmp_path / f"{0:020d}.journal"


# -- redo ---------------------------------------------------------------------------------------------------------------


def test_redo_puts_blocks_in_their_place_however_often(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    segment = tmp_path / "00000000000000000100.log"
    segment.write_bytes(b"12345")
    (tmp_path / "journal" / "0.journal").write_bytes(
        journal_of(
            [JournalEntry(TOPIC, 0, 100, 5, b"abc")],
            [JournalEntry(TOPIC, 0, 100, 8, b"def"), JournalEntry(TOPIC, 1, 0, 0, b"another partition")],
        )
    )
    (tmp_path / "journal" / "1.journal").write_bytes(journal_of([JournalEntry(TOPIC, 0, 100, 11, b"ghi")]))

    def directory_of(topic_id: bytes, partition: int) -> Path | None:
        return tmp_path if (topic_id, partition) == (TOPIC, 0) else None

    for _ in range(3):
        assert redo_journal(Disk(), tmp_path / "journal", directory_of, Syncs(Disk())) == ([], [])
        assert segment.read_bytes() == b"12345abcdefghi"


def test_redo_leaves_segments_alone_that_have_been_sealed_since(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    older, segment = tmp_path / "00000000000000000100.log", tmp_path / "00000000000000000200.log"
    older.write_bytes(b"sealed")
    segment.write_bytes(b"newer")
    (tmp_path / "journal" / "0.journal").write_bytes(journal_of([JournalEntry(TOPIC, 0, 100, 0, b"older")]))
    redo_journal(Disk(), tmp_path / "journal", lambda *_: tmp_path, Syncs(Disk()))
    assert (older.read_bytes(), segment.read_bytes()) == (b"sealed", b"newer")


@pytest.mark.parametrize("content", [b"", bytes(4096)])
def test_redo_passes_over_a_segment_that_a_failed_roll_left(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal").mkdir()
    segment, unused = tmp_path / "00000000000000000100.log", tmp_path / "00000000000000000200.log"
    segment.write_bytes(b"12345")
    unused.write_bytes(content)
    (tmp_path / "journal" / "0.journal").write_bytes(
        journal_of([JournalEntry(TOPIC, 0, 100, 5, b"abc")], [JournalEntry(TOPIC, 0, 200, 0, b"def")])
    )
    redo_journal(Disk(), tmp_path / "journal", lambda *_: tmp_path, Syncs(Disk()))
    assert segment.read_bytes() == b"12345abc"
    assert unused.read_bytes().rstrip(b"\0") == b"def", "what was written to it after all is put back too"


def test_redo_names_a_damaged_journal_and_applies_what_it_can(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    segment = tmp_path / "00000000000000000100.log"
    segment.write_bytes(b"12345")
    data = bytearray(journal_of([JournalEntry(TOPIC, 0, 100, 5, b"abc")], [JournalEntry(TOPIC, 0, 100, 8, b"def")]))
    data[len(HEAD) + 24] ^= 1
    path = tmp_path / "journal" / "0.journal"
    path.write_bytes(data)
    assert redo_journal(Disk(), tmp_path / "journal", lambda *_: tmp_path, Syncs(Disk())).damaged == [path]
    assert segment.read_bytes() == b"12345\0\0\0def"


def test_what_redo_wrote_is_flushed(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    segment = tmp_path / "00000000000000000100.log"
    segment.write_bytes(b"")
    (tmp_path / "journal" / "0.journal").write_bytes(journal_of([JournalEntry(TOPIC, 0, 100, 0, b"abc")]))
    disk = FaultyDisk()
    disk.fail_next_fsync()
    syncs = Syncs(disk)
    redo_journal(disk, tmp_path / "journal", lambda *_: tmp_path, syncs)
    with pytest.raises(OSError, match="error"):
        syncs.finish()


def test_a_late_record_is_an_entry_without_a_segment() -> None:
    late = late_entry(TOPIC, 3, 17, b"key", b"value")
    [[block, read_back]], _ = read(journal_of([RECORDS[0][0], late]))
    assert (block.is_late, read_back.is_late) == (False, True)
    assert (read_back.partition, read_back.position, read_back.late_record()) == (3, 17, (b"key", b"value"))


def test_a_record_of_data_whose_checksum_is_known_is_the_same_record() -> None:
    data = [bytes(range(256)) * 400, b"small"]
    plain = [JournalEntry(TOPIC, number, 0, 0, each) for number, each in enumerate(data)]
    known = [replace(entry, checksum=google_crc32c.value(entry.data)) for entry in plain]
    assert journal_of(known) == journal_of(plain)
    [[*entries]], _ = read(journal_of(known))
    assert [entry.data for entry in entries] == data


def test_a_large_record_is_written_in_pieces(tmp_path: Path) -> None:
    entries = [JournalEntry(TOPIC, number, 0, 0, bytes([number]) * (1 << 20)) for number in range(3)]
    record = JournalRecord(entries)
    assert [id(piece) for piece in record.pieces(0)[1:]] == [id(entry.data) for entry in entries]
    assert sum(map(len, record.pieces(0))) == record.size_bytes
    assert len(JournalRecord([JournalEntry(TOPIC, 0, 0, 0, b"small")]).pieces(0)) == 1
    journal = Journal(Disk(), tmp_path, 0)
    journal.reserve(record.size_bytes)
    journal.write(record)
    journal.sync()
    path = journal.retire()
    assert path is not None
    assert read(path.read_bytes()) == ([entries], [])
