"""Opening, copying and damaging the directory of an embedded engine."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import CorruptBlock
from penstock.log.api import Engine
from penstock.log.block import SEAL_AT, SUMMED_AT, Block, seal_at
from penstock.log.embedded import EmbeddedEngine
from penstock.log.embedded.disk import QUICK_FLUSH_S_MAX, Disk
from penstock.log.embedded.partition import EmbeddedPartition
from penstock.log.salts import PartitionSalts
from penstock.testing.faults import FaultyDisk
from tests.log.records import Record, read_all


class CountingDisk(FaultyDisk):
    """Counts flushes by the kind of file (`log`, `journal`, ...) and directories by name."""

    def __init__(self) -> None:
        super().__init__()
        self.flushes: Counter[str] = Counter()
        self.directory_flushes = 0

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        self.flushes[path_of(fd).suffix.removeprefix(".")] += 1

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.directory_flushes += 1


class ReadCounter(Disk):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        data = super().pread(fd, size_bytes, position)
        self.read_bytes += len(data)
        return data


class UnflushedDisk(CountingDisk):
    """Flushes nothing: whether flushes are there is tried elsewhere, and without them hundreds of starts take seconds."""

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


SALTS = PartitionSalts(bytes(range(16)), 0)
"""Of segments that a test makes by hand."""


def sealed(pieces: Sequence[bytes], salt: int) -> bytes:
    """The content of a segment file: pieces back to back, those that are whole blocks sealed for where they are."""
    data = b""
    for piece in pieces:
        try:
            Block(piece)
        except CorruptBlock:
            data += piece
        else:
            data += piece[:SEAL_AT] + seal_at(salt, len(data)).to_bytes(8, "little") + piece[SUMMED_AT:]
    return data


def path_of(fd: int) -> Path:
    return Path(f"/proc/self/fd/{fd}").readlink()


async def settled(engine: EmbeddedEngine) -> None:
    """Wait for a checkpoint under way, so that an image can be taken of one moment."""
    await engine._committer.run(engine._committer.checkpoints.finish)


def crash_image(data_dir: Path, image: Path) -> Path:
    """What `kill -9` at this moment would leave: the files as the running engine has written them so far."""
    if image.exists():
        shutil.rmtree(image)
    shutil.copytree(data_dir, image)
    return image


def files(data_dir: Path) -> dict[str, bytes]:
    return {path.relative_to(data_dir).as_posix(): path.read_bytes() for path in data_dir.rglob("*") if path.is_file()}


def partition_directory(data_dir: Path, topic: str = "orders", partition: int = 0) -> Path:
    [directory] = (data_dir / "topics").glob(f"{topic}.*/{partition}")
    return directory


def segment_files(data_dir: Path, topic: str = "orders", partition: int = 0) -> list[Path]:
    return sorted(partition_directory(data_dir, topic, partition).glob("*.log"))


def partition_of(engine: EmbeddedEngine, topic: str = "orders", index: int = 0) -> EmbeddedPartition:
    return engine.partition(topic, index)


async def everything(engine: Engine) -> dict[tuple[str, int], list[Record]]:
    """All records of all topics."""
    return {
        (name, index): await read_all(engine.partition(name, index))
        for name, info in sorted(engine.topics().items())
        for index in range(info.config.partitions)
    }


def cut_log(data_dir: Path, topic: str, end_offset: int, partition: int = 0) -> None:
    """What a power cut may leave of a topic without `fsync`: its log, without the blocks from an offset on."""
    path = segment_files(data_dir, topic, partition)[-1]
    data, position = path.read_bytes(), 0
    while (block := Block(data[position:])).base_offset < end_offset:
        position += block.size_bytes
    assert block.base_offset == end_offset
    path.write_bytes(data[:position])


class TimedDisk(CountingDisk):
    """Flushes take as long as the test says, by a clock of the disk's own. Notes which threads write segments."""

    def __init__(self) -> None:
        super().__init__()
        self.flush_takes_s = QUICK_FLUSH_S_MAX / 10
        self.time_s = 0.0
        self.now_s = lambda: self.time_s
        self.threads: list[str] = []

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        if path_of(fd).suffix == ".log":
            self.threads.append(threading.current_thread().name)
        return super().pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        self.time_s += self.flush_takes_s
