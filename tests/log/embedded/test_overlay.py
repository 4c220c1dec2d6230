"""A disk that shows files with patches over them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.log.embedded.overlay import OverlayDisk

CONTENT = bytes(range(32))


def shown(path: Path, patches: list[tuple[int, bytes]], position: int, size_bytes: int) -> bytes:
    disk = OverlayDisk()
    for at, data in patches:
        disk.patch(path, at, data)
    fd = disk.open_read(path)
    try:
        return disk.pread(fd, size_bytes, position)
    finally:
        os.close(fd)


@given(st.sets(st.integers(0, 9)), st.integers(0, 40), st.integers(0, 40))
@example(places={0, 9}, position=0, size_bytes=33)
def test_what_is_read_is_what_a_file_with_the_patches_written_to_it_would_hold(
    places: set[int], position: int, size_bytes: int
) -> None:
    patches = [(4 * place, bytes([100 + place]) * 4) for place in places]
    expected = bytearray(CONTENT)
    for at, data in patches:
        expected.extend(bytes(max(0, at + len(data) - len(expected))))
        expected[at : at + len(data)] = data
    with tempfile.NamedTemporaryFile() as file:
        file.write(CONTENT)
        file.flush()
        found = shown(Path(file.name), patches, position, size_bytes)
    assert found == bytes(expected[position : position + size_bytes])


def test_the_last_of_several_patches_to_one_place_counts(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    assert shown(path, [(3, b"old"), (3, b"new")], 0, 8) == b"\0\1\2new\6\7"


def test_patches_beyond_the_end_make_the_file_larger(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"ab")
    disk = OverlayDisk()
    assert disk.size_of(path) == 2
    disk.patch(path, 4, b"cd")
    assert disk.size_of(path) == 6
    assert shown(path, [(4, b"cd")], 0, 10) == b"ab\0\0cd"
