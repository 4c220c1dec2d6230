from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.log.block import Block, encode_block, seal_at
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.index import HEAD_BYTES, STEP_BYTES, SegmentIndex
from penstock.log.embedded.segment import Segment, log_path
from penstock.log.embedded.segment import load_index as load_index_of
from penstock.log.salts import PartitionSalts
from tests.log.embedded.storage import SALTS

BASE = 1000


def written(directory: Path, blocks: int = 60, seed: int = 1) -> tuple[Segment, list[tuple[int, Block]]]:
    """A segment file with blocks of many sizes, its index as the writer keeps it, and where each block is."""
    chance = random.Random(seed)
    path = log_path(directory, BASE)
    index = SegmentIndex(BASE)
    placed: list[tuple[int, Block]] = []
    offset, stamp, data = BASE, 5000, b""
    for _ in range(blocks):
        count = chance.randint(1, 4)
        block = Block(encode_block(offset, stamp, [chance.randbytes(chance.choice([10, 5000, 40_000]))] * count))
        index.add(block, len(data))
        placed.append((len(data), block))
        data += encode_block(offset, stamp, block.values(), seal=seal_at(SALTS.of(path.stem), len(data)))
        offset += count
        stamp += chance.choice([0, 0, 1, 100])
    path.write_bytes(data)
    return Segment(Disk(), path, BASE, index, len(data), SALTS), placed


def load_index(path: Path, size_bytes: int) -> SegmentIndex | None:
    return load_index_of(path, size_bytes, Disk(), SALTS.of(path.stem))


def loaded(encoded: bytes) -> SegmentIndex | None:
    index = SegmentIndex.decode_head(encoded, BASE)
    return index if index is not None and index.load_entries(encoded) else None


def test_an_offset_is_looked_for_at_or_shortly_before_its_block(tmp_path: Path) -> None:
    segment, placed = written(tmp_path)
    assert len(placed) * 2 > segment.end / STEP_BYTES, "the index is sparse: fewer entries than blocks"
    for position, block in placed:
        for offset in range(block.base_offset, block.next_offset):
            found = segment.index.position_of(offset)
            assert found in {at for at, _ in placed}
            assert position - STEP_BYTES < found <= position
    assert segment.index.position_of(0) == 0
    assert segment.index.position_of(1 << 60) <= placed[-1][0]


def test_a_time_is_looked_for_at_or_before_the_first_block_that_reaches_it(tmp_path: Path) -> None:
    segment, placed = written(tmp_path)
    for time in range(4990, placed[-1][1].last_timestamp_ms + 10):
        found = segment.index.position_at(time)
        first = next((at for at, block in placed if block.last_timestamp_ms >= time), segment.end)
        assert found <= first


def test_an_index_survives_being_saved(tmp_path: Path) -> None:
    segment, placed = written(tmp_path)
    segment.index.sealed = True
    again = loaded(segment.index.encode())
    assert again is not None
    assert again.encode() == segment.index.encode()
    assert again.sealed
    assert (again.next_offset, again.covers) == (placed[-1][1].next_offset, segment.end)
    assert (again.first_timestamp_ms, again.last_timestamp_ms) == (5000, placed[-1][1].last_timestamp_ms)
    assert again.blocks == len(placed)


def test_an_index_made_again_from_the_log_is_the_one_that_was_kept(tmp_path: Path) -> None:
    segment, _ = written(tmp_path)
    kept = segment.index.encode()
    segment.index = SegmentIndex(BASE)
    segment.rebuild_index(segment.end)
    assert segment.index.encode() == kept


def test_entries_are_taken_from_the_file_when_they_are_wanted_and_made_again_when_it_is_gone(tmp_path: Path) -> None:
    segment, placed = written(tmp_path)
    for present in (True, False):
        segment.save_index(segment.index.encode(), sync=False)
        index = load_index(segment.path, segment.end)
        assert index is not None
        assert not index.loaded
        again = Segment(Disk(), segment.path, BASE, index, segment.end, SALTS)
        if not present:
            again.index_path.unlink()
        position, block = placed[-1]
        assert position - STEP_BYTES < again.position_of(block.base_offset) <= position
        assert again.index.loaded


def test_an_index_with_any_bit_flipped_is_not_taken(tmp_path: Path) -> None:
    segment, _ = written(tmp_path, blocks=20)
    encoded = segment.index.encode()
    assert len(encoded) > HEAD_BYTES + 24
    for bit in range(8 * len(encoded)):
        flipped = bytearray(encoded)
        flipped[bit // 8] ^= 1 << bit % 8
        assert loaded(bytes(flipped)) is None


def test_an_index_cut_anywhere_or_with_more_after_it_is_not_taken(tmp_path: Path) -> None:
    segment, _ = written(tmp_path, blocks=20)
    encoded = segment.index.encode()
    for size in range(len(encoded)):
        assert loaded(encoded[:size]) is None
    assert loaded(encoded + b"\0") is None


@pytest.mark.parametrize("sealed", [False, True])
def test_an_index_that_covers_more_than_the_log_has_is_not_taken(tmp_path: Path, sealed: bool) -> None:
    segment, _ = written(tmp_path)
    segment.index.sealed = sealed
    segment.save_index(segment.index.encode(), sync=False)
    assert load_index(segment.path, segment.end) is not None
    assert load_index(segment.path, segment.end - 1) is None
    longer = load_index(segment.path, segment.end + 1)
    assert (longer is None) == sealed, "a sealed segment has the size it had when it was sealed"


def test_an_index_of_another_segment_is_not_taken(tmp_path: Path) -> None:
    segment, _ = written(tmp_path, seed=1)
    (tmp_path / "other").mkdir()
    other, _ = written(tmp_path / "other", seed=2)
    other.path.write_bytes(other.path.read_bytes().ljust(segment.end, b"\0")[: segment.end])
    segment.save_index(segment.index.encode(), sync=False)
    segment.index_path.rename(other.index_path)
    assert load_index(other.path, segment.end) is None
    assert load_index(segment.path, segment.end) is None, "and there is none where it was"
    assert loaded(segment.index.encode()) is not None
    assert SegmentIndex.decode_head(segment.index.encode(), 1 << 40) is None, "its offsets lie below this segment's"


def test_an_index_is_not_taken_for_a_file_that_was_put_in_the_place_of_its_own(tmp_path: Path) -> None:
    segment, _ = written(tmp_path)
    segment.save_index(segment.index.encode(), sync=False)
    assert load_index(segment.path, segment.end) is not None
    elsewhere = PartitionSalts(SALTS.topic_salt, 1)
    moved = load_index_of(segment.path, segment.end, Disk(), elsewhere.of(segment.path.stem))
    assert moved is None


def test_an_empty_segment_has_an_empty_index() -> None:
    index = SegmentIndex(7, last_timestamp_ms=99)
    assert (index.position_of(7), index.position_at(0), index.next_offset, index.last_timestamp_ms) == (0, 0, 7, 99)
