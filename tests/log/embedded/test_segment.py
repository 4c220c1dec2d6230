from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.errors import CorruptBlock
from penstock.log.block import BEGINS, ENDS, MAGIC, Block, encode_block
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.index import STEP_BYTES, SegmentIndex
from penstock.log.embedded.segment import Segment, SegmentWriter, log_path, offset_range
from tests.log.embedded.storage import SALTS, CountingDisk, sealed

WINDOW_BYTES = 4 * STEP_BYTES


def segment_of(directory: Path, *pieces: bytes) -> Segment:
    """A segment that holds these blocks and whatever is between them."""
    path = log_path(directory, 0)
    data = sealed(pieces, SALTS.of(path.stem))
    path.write_bytes(data)
    return Segment(Disk(), path, 0, SegmentIndex(0), len(data), SALTS)


def blocks_of(sizes: list[int]) -> list[bytes]:
    chance = random.Random(7)
    return [encode_block(offset, 1, [chance.randbytes(size)]) for offset, size in enumerate(sizes)]


@pytest.mark.parametrize(
    "sizes",
    [
        [1, 2, 3],
        [100] * 5000,
        [WINDOW_BYTES + 1, 5, WINDOW_BYTES - 76, WINDOW_BYTES - 75, 3 * WINDOW_BYTES, 3 * WINDOW_BYTES, 1, 1],
        [1 << 20] * 3 + [10] * 300 + [1 << 20],
    ],
    ids=["few", "many small", "around the window", "large and small"],
)
def test_blocks_of_any_size_are_read_from_any_block_on(tmp_path: Path, sizes: list[int]) -> None:
    blocks = blocks_of(sizes)
    segment = segment_of(tmp_path, *blocks)
    positions = [sum(map(len, blocks[:at])) for at in range(len(blocks))]
    found = list(segment.blocks_from(0, segment.end))
    assert [position for position, _ in found] == positions
    assert [block.data for _, block in found] == blocks
    for at in sorted({0, 1, len(blocks) // 2, len(blocks) - 1}):
        read = [block.base_offset for _, block in segment.blocks_from(positions[at], segment.end)]
        assert read == list(range(at, len(blocks)))
    stop = positions[-1]
    assert [block.base_offset for _, block in segment.blocks_from(0, stop)] == list(range(len(blocks) - 1))


@pytest.mark.parametrize(
    "damage_bytes", [1, 63, WINDOW_BYTES - 2, WINDOW_BYTES - 1, WINDOW_BYTES, WINDOW_BYTES + 1, 700_000]
)
def test_the_next_whole_block_is_found_behind_any_amount_of_damage(tmp_path: Path, damage_bytes: int) -> None:
    first, last = blocks_of([10, 20])
    garbage = random.Random(1).randbytes(damage_bytes)
    segment = segment_of(tmp_path, first, garbage, last)
    with pytest.raises(CorruptBlock, match=rf"{segment.path} at byte {len(first)}"):
        list(segment.blocks_from(0, segment.end))
    behind = segment.next_whole_block(len(first), segment.end, 1)
    assert behind is not None
    assert behind[0] == len(first) + damage_bytes
    assert behind[1].data == last


def test_what_only_begins_like_a_block_is_passed_over(tmp_path: Path) -> None:
    first, second, last = blocks_of([10, 500, 20])
    salt = SALTS.of(log_path(tmp_path, 0).stem)
    start = len(first) + 10
    torn = sealed([second], salt ^ start)[:-1]  # sealed for where it is, and not whole
    another = sealed([second], salt)  # whole, but of another place
    stranger = sealed([second], salt ^ 1 ^ (start + len(torn) + len(another)))  # whole, but of another file
    decoys = bytes(10) + torn + another + stranger + MAGIC * 50 + second[:70] + MAGIC
    segment = segment_of(tmp_path, first, decoys, last)
    behind = segment.next_whole_block(len(first), segment.end, 1)
    assert behind is not None
    assert behind[1].data == last
    assert segment.next_whole_block(behind[0], segment.end, 1) is None


def test_a_block_of_a_value_is_none_of_the_log_even_if_it_is_a_copy_of_one(tmp_path: Path) -> None:
    """As a torn write of a backup of this very file would leave it."""
    first, last = blocks_of([10, 20])
    salt = SALTS.of(log_path(tmp_path, 0).stem)
    forged = encode_block(1_000_000, 1, [b"never sent"])
    copies = sealed([first, last], salt) + sealed([forged], salt)
    segment = segment_of(tmp_path, first, b"torn" + copies + forged)
    assert segment.next_whole_block(len(first), segment.end, 1) is None
    with pytest.raises(CorruptBlock, match="wrong magic"):
        list(segment.blocks_from(0, segment.end))
    with pytest.raises(CorruptBlock, match="another file or another place"):
        list(segment.blocks_from(len(first) + 4, segment.end))


def test_the_next_block_that_begins_a_commit_is_found_behind_those_that_do_not(tmp_path: Path) -> None:
    pieces = [
        encode_block(offset, 1, [b"value"], commit=commit)
        for offset, commit in enumerate([BEGINS | ENDS, BEGINS, 0, ENDS, BEGINS | ENDS])
    ]
    segment = segment_of(tmp_path, pieces[0], b"damage", *pieces[1:])
    size = len(pieces[0])
    for start, following, beginning in ((size, 1, 1), (size + 6, 2, 4), (2 * size + 6, 3, 4), (3 * size + 6, 4, 4)):
        found = segment.next_whole_block(start, segment.end, 1)
        assert found is not None
        assert found[1].base_offset == following
        begins = segment.next_whole_block(start, segment.end, 1, begins=True)
        assert begins is not None
        assert begins[1].base_offset == beginning
    assert segment.next_whole_block(4 * size + 6, segment.end, 1, begins=True) is None


def test_a_segment_of_a_topic_that_is_deleted_is_not_read_on(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, *blocks_of([10, 20]))
    reading = segment.blocks_from(0, segment.end)
    next(reading)
    segment.abandoned = True
    with pytest.raises(OSError, match="deleted"):
        next(reading)


def test_a_block_that_would_reach_beyond_the_end_is_none(tmp_path: Path) -> None:
    first, last = blocks_of([10, 20])
    segment = segment_of(tmp_path, first, b"x", last)
    assert segment.next_whole_block(len(first), segment.end - 1, 1) is None
    with pytest.raises(CorruptBlock, match="beyond the segment"):
        list(segment.blocks_from(len(first) + 1, segment.end - 1))


def test_an_index_rebuilt_over_damage_knows_the_blocks_around_it(tmp_path: Path) -> None:
    blocks = blocks_of([30_000] * 20)
    segment = segment_of(tmp_path, *blocks)
    data = bytearray(segment.path.read_bytes())
    data[len(blocks[0]) * 10 + 99] ^= 1
    segment.path.write_bytes(data)
    segment.rebuild_index(segment.end)
    assert segment.index.blocks == 19
    assert segment.index.next_offset == 20
    assert segment.index.covers == segment.end
    for offset in [*range(10), *range(11, 20)]:
        position = segment.index.position_of(offset)
        assert position <= len(blocks[0]) * offset
        assert position >= len(blocks[0]) * (offset - 4)


def test_a_removed_segment_stays_readable_to_who_holds_it(tmp_path: Path) -> None:
    blocks = blocks_of([10, 20])
    segment = segment_of(tmp_path, *blocks)
    segment.save_index(segment.index.encode(), sync=False)
    segment.remove()
    assert list(tmp_path.iterdir()) == []
    assert [block.data for _, block in segment.blocks_from(0, segment.end)] == blocks


def test_a_reader_that_opens_a_segment_while_it_is_removed_still_reads_it(tmp_path: Path) -> None:
    opening, removed = threading.Event(), threading.Event()

    class SlowToOpen(CountingDisk):
        def open_read(self, path: Path) -> int:
            if not opening.is_set():
                opening.set()
                removed.wait(0.2)  # long enough for a removal that does not wait
            return super().open_read(path)

    blocks = blocks_of([10, 20])
    path = log_path(tmp_path, 0)
    path.write_bytes(sealed(blocks, SALTS.of(path.stem)))
    segment = Segment(SlowToOpen(), path, 0, SegmentIndex(0), sum(map(len, blocks)), SALTS)

    def remove() -> None:
        opening.wait(10)
        segment.remove()
        removed.set()

    with ThreadPoolExecutor(1) as thread:
        removing = thread.submit(remove)
        assert [block.data for _, block in segment.blocks_from(0, segment.end)] == blocks
        removing.result(10)
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_file_tells_its_offsets(tmp_path: Path) -> None:
    assert offset_range(log_path(tmp_path, 17)) == (17, None)
    assert offset_range(tmp_path / "00000000000000000017-00000000000000000099.log") == (17, 99)
    names = [f"{n:020d}.log" for n in (0, 9, 10)] + [f"{n:020d}-{n + 5:020d}.log" for n in (5, 100)]
    assert [offset_range(Path(name))[0] for name in sorted(names)] == [0, 5, 9, 10, 100]


def test_rolling_syncs_seals_and_names_before_anything_is_written_to_the_next(tmp_path: Path) -> None:
    steps: list[str] = []

    class Steps(CountingDisk):
        def fdatasync(self, fd: int) -> None:
            super().fdatasync(fd)
            steps.append(f"flush {Path(f'/proc/self/fd/{fd}').readlink().name}")

        def rename(self, old: Path, new: Path) -> None:
            super().rename(old, new)
            steps.append(f"name {new.name}")

        def open_append(self, path: Path, *, create: bool) -> int:
            steps.append(f"open {path.name}")
            return super().open_append(path, create=create)

        def sync_directory(self, path: Path) -> None:
            super().sync_directory(path)
            steps.append("flush directory")

    disk = Steps()
    segment = Segment(disk, log_path(tmp_path, 0), 0, SegmentIndex(0), 0, SALTS)
    writer = SegmentWriter(disk, segment, create=True, created_ms=0)
    data = encode_block(0, 50, [b"x"])
    writer.file.reserve(len(data))
    segment.index.add(Block(data), writer.file.write(data))
    steps.clear()
    following = writer.roll(99)
    first, second = "00000000000000000000", "00000000000000000001"
    assert steps == [
        f"flush {first}.log",
        f"flush {first}.index.tmp",
        f"name {first}.index",
        "flush directory",
        f"open {second}.log",
        "flush directory",
    ]
    assert segment.index.sealed
    assert segment.path.stat().st_size == len(data)
    assert (following.next_offset, following.segment.index.last_timestamp_ms, following.created_ms) == (1, 50, 99)
    following.file.close()


def test_planning_reads_a_saved_index_in_passing_and_makes_a_damaged_one_again(tmp_path: Path) -> None:
    blocks = blocks_of([STEP_BYTES] * 6)
    whole = segment_of(tmp_path, *blocks)
    whole.rebuild_index(whole.end)
    marks, end = whole.stretch(2, 5, whole.end, 1)
    assert [mark.offset for mark in marks] == [2, 3, 4]
    assert end == sum(map(len, blocks[:5]))
    for damage in (b"", b"\xff"):
        whole.index_path.write_bytes(whole.index.encode()[: -1 if damage else None] + damage)
        index = SegmentIndex.decode_head(whole.index.encode(), 0)
        assert index is not None
        other = Segment(Disk(), whole.path, 0, index, whole.end, SALTS)
        assert other.stretch(2, 5, whole.end, 1) == (marks, end)
        assert other.index.loaded is bool(damage), "only an index that had to be made anew stays"
