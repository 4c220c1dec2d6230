"""A disk that fails where a test wants it to, and two topics to write to."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from penstock.log.api import Batch, TopicConfig
from penstock.log.appending import start_append
from penstock.log.embedded import EmbeddedEngine
from tests.log.embedded.storage import CountingDisk, path_of
from tests.log.records import append


class SuffixFaults(CountingDisk):
    """Fails one operation on files of one kind, as often as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self._faults: dict[tuple[str, str], list[int]] = {}

    def fail(self, operation: str, suffix: str, number: int, times: int = 1) -> None:
        self._faults[operation, suffix] = [number] * times

    def fail_second(self, operation: str, suffix: str, number: int) -> None:
        self._faults[operation, suffix] = [number, 0]

    def _check(self, operation: str, path: Path) -> None:
        due = self._faults.get((operation, path.suffix))
        if due and (number := due.pop()):
            raise OSError(number, os.strerror(number))

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        self._check("write", path_of(fd))
        return super().pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:
        self._check("flush", path_of(fd))
        super().fdatasync(fd)

    def allocate(self, fd: int, position: int, size_bytes: int) -> None:
        self._check("allocate", path_of(fd))
        super().allocate(fd, position, size_bytes)

    def open_append(self, path: Path, *, create: bool) -> int:
        if create:
            self._check("create", path)
        return super().open_append(path, create=create)

    def sync_directory(self, path: Path) -> None:
        self._check("name", path)
        super().sync_directory(path)

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._check("truncate", path_of(fd))
        super().truncate(fd, size_bytes)


async def two_topics(engine: EmbeddedEngine) -> None:
    await engine.create_topic("orders", TopicConfig())
    await engine.create_topic("other", TopicConfig())
    for topic in ("orders", "other"):
        await append(engine.partition(topic, 0), [b"before"])


async def append_both(engine: EmbeddedEngine, value: bytes) -> list[object]:
    """One append to each topic in one commit; the results."""
    pending = [start_append(engine.partition(topic, 0), Batch([value])) for topic in ("orders", "other")]
    return list(await asyncio.gather(*pending, return_exceptions=True))
