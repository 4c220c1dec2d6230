"""A log with a torn tail on a disk without space: it opens, and keeps a copy of the tail if there is any way to."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.log.api import TopicConfig
from penstock.log.embedded import EngineOptions
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import CountingDisk, crash_image, partition_of, path_of, segment_files
from tests.log.records import append, read_values

TORN = b"torn " * 20


class NoRoomForCopies(CountingDisk):
    """No space for the copy of a tail, until something was given up for it."""

    def __init__(self, reserve: Path | None, *, tail_frees: bool) -> None:
        super().__init__()
        self._reserve = reserve
        self._tail_frees = tail_frees
        self._cut = False

    def truncate(self, fd: int, size_bytes: int) -> None:
        super().truncate(fd, size_bytes)
        self._cut = self._cut or path_of(fd).suffix == ".log"

    def write_file(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        given_up = self._reserve is not None and not self._reserve.exists()
        if ".torn-at-" in path.name and not given_up and not (self._tail_frees and self._cut):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write_file(path, data, sync=sync)


@pytest.mark.parametrize(
    ("reserve", "tail_frees", "kept"),
    [(True, False, True), (False, True, True), (False, False, False)],
    ids=["the reserve makes room", "the tail makes room", "nothing makes room"],
)
async def test_a_torn_tail_on_a_full_disk_is_cut(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, reserve: bool, tail_frees: bool, kept: bool
) -> None:
    engine = await open_engine(options=EngineOptions(reserve_bytes=4096))
    await engine.create_topic("orders", TopicConfig())
    await append(engine.partition("orders", 0), [b"acknowledged"])
    end = partition_of(engine).size_bytes
    image = crash_image(data_dir, tmp_path / "image")
    [path] = segment_files(image)
    path.write_bytes(path.read_bytes()[:end] + TORN)
    disk = NoRoomForCopies(image / "reserve" if reserve else None, tail_frees=tail_frees)
    with capture_logs() as lines:
        recovered = await open_engine(image, disk=disk)
    assert await read_values(partition_of(recovered)) == [b"acknowledged"]
    assert (await append(partition_of(recovered), [b"next"])).base_offset == 1
    copy = path.with_suffix(f".torn-at-{end}")
    assert copy.exists() == kept
    assert not kept or copy.read_bytes() == TORN
    expected = [] if kept else ["torn_tail_not_copied"]
    assert [line["event"] for line in lines] == [*expected, "torn_tail_cut"]
    assert lines[-1]["kept_as"] == (copy.name if kept else None)
