"""What is found in one segment whose blocks have the right checksums: order, commits, contents, and an index that does not fit."""

from __future__ import annotations

from pathlib import Path
from struct import pack_into

import google_crc32c
import pytest

from penstock.log.block import BEGINS, ENDS, HEADER_BYTES, KEYS, SUMMED_AT, BlockHeader, encode_block
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.findings import Kind, Severity
from penstock.log.embedded.index import SegmentIndex
from penstock.log.embedded.verify_segment import Progress, SegmentCheck, Where
from tests.log.embedded.storage import SALTS, sealed

WHOLE = BEGINS | ENDS
Found = tuple[Severity, Kind, int | None, str]


def check(tmp_path: Path, blocks: list[bytes], where: Where | None = None) -> tuple[list[Found], Where]:
    """Findings in a sealed segment of these blocks, without those about its index, and where it ends."""
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(sealed(blocks, SALTS.of(path.stem)))
    found, where = run(path, where or Where(0))
    return [each for each in found if each[1] is not Kind.INDEX], where


def run(path: Path, where: Where) -> tuple[list[Found], Where]:
    found: list[Found] = []

    def report(severity: Severity, kind: Kind, path: Path, position: int | None, text: str) -> None:
        found.append((severity, kind, position, text))

    checked = SegmentCheck(
        Disk(),
        path,
        path.stat().st_size,
        SALTS,
        where,
        report=report,
        check_block=None,
        clean=True,
        index_expected=True,
        progress=Progress(None),
    )
    return found, checked.run_sealed()


def resummed(block: bytearray) -> bytes:
    """The block with the checksum of what it holds now."""
    pack_into("<I", block, 4, google_crc32c.value(bytes(block[SUMMED_AT:])))
    return bytes(block)


def test_blocks_in_order_are_fine(tmp_path: Path) -> None:
    blocks = [
        encode_block(0, 5, [b"a", None, b""], [b"k", None, b""], commit=WHOLE),
        encode_block(3, 5, [b"c"], commit=BEGINS),
        encode_block(4, 5, [b"d"], compress=True, commit=0),
        encode_block(5, 6, [b"e" * 500] * 2, compress=True, commit=ENDS),
        encode_block(9, 7, [b"f", b"g"], timestamps=[7, 9], offsets=[9, 12], commit=WHOLE),
    ]
    assert check(tmp_path, blocks) == ([], Where(13, 9))


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (encode_block(0, 5, [b"b"], commit=WHOLE), "after one that ends at 0"),
        (encode_block(1, 4, [b"b"], commit=WHOLE), "time goes back, from 5 to 4"),
        (encode_block(1, 5, [b"b"], commit=ENDS), "commit that has not begun"),
        (encode_block(1, 5, [b"b"], commit=BEGINS), "last block is missing"),
    ],
)
def test_offsets_times_and_commits_that_do_not_follow_are_damage(tmp_path: Path, second: bytes, text: str) -> None:
    first = encode_block(0, 5, [b"a"], commit=WHOLE)
    [(severity, _, position, found)], _ = check(tmp_path, [first, second])
    assert (severity, position) == (Severity.DAMAGE, len(first))
    assert text in found


def test_a_commit_that_begins_before_the_last_one_has_ended_is_damage(tmp_path: Path) -> None:
    first = encode_block(0, 5, [b"a"], commit=BEGINS)
    [(_, _, position, found)], _ = check(tmp_path, [first, encode_block(1, 5, [b"b"], commit=WHOLE)])
    assert position == len(first)
    assert "before the one at byte 0 has ended" in found


def test_time_continues_from_the_segment_before(tmp_path: Path) -> None:
    [(_, _, position, found)], _ = check(tmp_path, [encode_block(0, 5, [b"a"], commit=WHOLE)], Where(0, 6))
    assert (position, found) == (0, "time goes back, from 6 to 5")


def lengths_that_do_not_add_up(values: list[bytes], keys: list[bytes] | None) -> bytes:
    block = bytearray(encode_block(0, 5, values, keys, commit=WHOLE))
    pack_into("<i", block, HEADER_BYTES + (4 * len(values) if keys else 0), 1)
    return resummed(block)


def lengths_that_overflow() -> bytes:
    block = bytearray(encode_block(0, 5, [b""] * 4 + [b"1234"], commit=WHOLE))
    pack_into("<iiiii", block, HEADER_BYTES, *[1 << 30] * 4, 4)
    return resummed(block)


def negative_length() -> bytes:
    block = bytearray(encode_block(0, 5, [b"12", b""], commit=WHOLE))
    pack_into("<ii", block, HEADER_BYTES, 4, -2)
    return resummed(block)


def offsets_that_do_not_rise() -> bytes:
    block = bytearray(encode_block(0, 5, [b""] * 3, offsets=[0, 2, 5], commit=WHOLE))
    pack_into("<III", block, HEADER_BYTES + 12, 0, 0, 5)
    return resummed(block)


def other_offsets_than_the_header() -> bytes:
    block = bytearray(encode_block(0, 5, [b""] * 3, offsets=[0, 2, 5], commit=WHOLE))
    pack_into("<III", block, HEADER_BYTES + 12, 0, 2, 4)
    return resummed(block)


def times_that_go_back() -> bytes:
    return encode_block(0, 5, [b""] * 3, timestamps=[5, 4, 6], commit=WHOLE)


def two_times_and_no_column() -> bytes:
    block = bytearray(encode_block(0, 5, [b"a"], commit=WHOLE))
    pack_into("<q", block, 56, 6)
    return resummed(block)


@pytest.mark.parametrize(
    "block",
    [
        lengths_that_do_not_add_up([b"four"], None),
        lengths_that_do_not_add_up([b"four", b"five"], None),
        lengths_that_do_not_add_up([b"four", b"five"], [b"key", b"key"]),
        lengths_that_overflow(),
        negative_length(),
        offsets_that_do_not_rise(),
        other_offsets_than_the_header(),
        times_that_go_back(),
        two_times_and_no_column(),
    ],
)
def test_a_block_that_contradicts_itself_is_damage_though_its_checksum_is_right(tmp_path: Path, block: bytes) -> None:
    assert BlockHeader(block).flags & ~(KEYS | 0x13) == WHOLE
    [(severity, kind, position, _)], _ = check(tmp_path, [block])
    assert (severity, kind, position) == (Severity.DAMAGE, Kind.SEGMENT, 0)


def test_after_damage_the_check_continues_and_blocks_of_the_same_commit_are_not_blamed(tmp_path: Path) -> None:
    commit = [
        encode_block(0, 5, [b"a"], commit=BEGINS),
        encode_block(1, 5, [b"b"], commit=0),
        encode_block(2, 5, [b"c"], commit=ENDS),
    ]
    path = tmp_path / "00000000000000000000.log"
    data = bytearray(sealed(commit, SALTS.of(path.stem)))
    data[HEADER_BYTES] ^= 1
    path.write_bytes(bytes(data))
    found, where = run(path, Where(0))
    segment = [each for each in found if each[1] is Kind.SEGMENT]
    assert [each[2] for each in segment] == [0]
    assert "offsets 0 to 0 cannot be read" in segment[0][3]
    assert where == Where(3, 5)


def test_a_segment_of_a_rewrite_ends_where_its_name_says(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000-00000000000000000005.log"
    path.write_bytes(sealed([encode_block(0, 5, [b"a"], commit=WHOLE)], SALTS.of(path.stem)))
    assert run(path, Where(0))[1] == Where(5, 5)
    path.write_bytes(sealed([encode_block(7, 5, [b"a"], commit=WHOLE)], SALTS.of(path.stem)))
    found, where = run(path, Where(0))
    assert any("beyond the end in its name" in text for *_, text in found)
    assert where == Where(5, 5)


def saved_index(path: Path, blocks: list[bytes]) -> SegmentIndex:
    index = SegmentIndex(0)
    position = 0
    for block in blocks:
        index.add(BlockHeader(block), position)
        position += len(block)
    index.sealed = True
    return index


@pytest.mark.parametrize(
    "spoil",
    [
        {"blocks": 7},
        {"first_checksum": 1},
        {"first_timestamp_ms": 4},
        {"expires": True},
        {"next_offset": 1},
        {"last_timestamp_ms": 1},
    ],
)
def test_an_index_that_does_not_fit_its_segment_is_damage_though_its_checksum_is_right(
    tmp_path: Path, spoil: dict[str, int]
) -> None:
    blocks = [encode_block(0, 5, [b"a"], commit=WHOLE), encode_block(1, 5, [b"b"], commit=WHOLE)]
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(sealed(blocks, SALTS.of(path.stem)))
    index = saved_index(path, blocks)
    path.with_suffix(".index").write_bytes(index.encode())
    assert run(path, Where(0))[0] == []
    for name, value in spoil.items():
        setattr(index, name, value)
    path.with_suffix(".index").write_bytes(index.encode())
    [(severity, kind, *_)] = run(path, Where(0))[0]
    assert (severity, kind) == (Severity.DAMAGE, Kind.INDEX)


def test_an_entry_of_an_index_that_points_elsewhere_is_damage(tmp_path: Path) -> None:
    blocks = [encode_block(0, 5, [b"a"], commit=WHOLE), encode_block(1, 5, [b"b"], commit=WHOLE)]
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(sealed(blocks, SALTS.of(path.stem)))
    index = saved_index(path, blocks)
    index._offsets[0] = 1
    path.with_suffix(".index").write_bytes(index.encode())
    [(_, kind, _, text)] = run(path, Where(0))[0]
    assert kind is Kind.INDEX
    assert "entry 0 does not fit" in text


def test_an_index_of_a_part_of_the_segment_is_out_of_date_and_only_noted(tmp_path: Path) -> None:
    """A roll that failed after the index was saved, and the segment continued."""
    blocks = [encode_block(0, 5, [b"a"], commit=WHOLE), encode_block(1, 5, [b"b"], commit=WHOLE)]
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(sealed(blocks, SALTS.of(path.stem)))
    path.with_suffix(".index").write_bytes(saved_index(path, blocks[:1]).encode())
    [(severity, kind, _, text)] = run(path, Where(0))[0]
    assert (severity, kind) == (Severity.NOTE, Kind.INDEX)
    assert "out of date" in text


def test_a_missing_index_is_only_noted(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(sealed([encode_block(0, 5, [b"a"], commit=WHOLE)], SALTS.of(path.stem)))
    [(severity, kind, *_)] = run(path, Where(0))[0]
    assert (severity, kind) == (Severity.NOTE, Kind.INDEX)
