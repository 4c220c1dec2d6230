"""What an append that fails does to those it was gathered with: nothing, unless they must be written together."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from penstock.errors import InvalidRequest, NoSpace, NotWritten, OutcomeUnknown
from penstock.log.api import Appended, Batch, BatchFor, Durability, LateBatch, Partition, TopicConfig
from penstock.log.appending import start_append
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import CountingDisk, path_of, settled
from tests.log.records import append, read_values, start_atomic_append

SMALL = TopicConfig(segment_bytes=2000)
CANNOT_BE_STORED = [1 << 70]
"""Expiries that fit into no column."""


class TopicFaults(CountingDisk):
    """Fails one operation on the files of one topic, for good."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: tuple[str, str] | None = None
        self.number = errno.EIO

    def _check(self, operation: str, fd: int) -> None:
        if self.failing is not None and self.failing == (operation, path_of(fd).parts[-3].split(".")[0]):
            raise OSError(self.number, os.strerror(self.number))

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._check("truncate", fd)
        super().truncate(fd, size_bytes)

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        self._check("write", fd)
        return super().pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:
        self._check("flush", fd)
        super().fdatasync(fd)

    def allocate(self, fd: int, position: int, size_bytes: int) -> None:
        self._check("allocate", fd)
        super().allocate(fd, position, size_bytes)


@pytest.fixture
def faults() -> TopicFaults:
    return TopicFaults()


async def three_topics(engine: EmbeddedEngine, config: TopicConfig = SMALL) -> None:
    for name in ("x", "y", "z"):
        await engine.create_topic(name, config)
    await append(engine.partition("z", 0), [b"z" * 1500])


def parts(engine: EmbeddedEngine, *topics: str) -> list[BatchFor]:
    return [BatchFor(engine.partition(topic, 0), Batch([b"together"])) for topic in topics]


async def outcome(future: object) -> object:
    try:
        return await future  # type: ignore[misc]
    except Exception as error:  # noqa: BLE001 - the error is what is asked for
        return error


async def test_a_partition_that_cannot_roll_fails_only_its_own_append(
    open_engine: OpenEngine, faults: TopicFaults
) -> None:
    engine = await open_engine(disk=faults)
    await three_topics(engine)
    faults.failing = ("truncate", "z")  # sealing its segment fails
    atomic = start_atomic_append(engine, parts(engine, "x", "y"))
    alone = start_append(engine.partition("z", 0), Batch([b"z" * 1500]))
    assert [each.base_offset for each in await atomic] == [0, 0]
    error = await outcome(alone)
    assert type(error) is NotWritten
    assert engine.partition("x", 0).failure is engine.partition("y", 0).failure is None
    assert engine.partition("z", 0).failure is not None
    assert type(await outcome(start_append(engine.partition("z", 0), Batch([b"later"])))) is NotWritten
    await engine.close()
    engine = await open_engine()
    assert await read_values(engine.partition("x", 0)) == await read_values(engine.partition("y", 0)) == [b"together"]
    assert await read_values(engine.partition("z", 0)) == [b"z" * 1500], "what was not written is not there"


async def test_an_atomic_append_of_which_one_part_cannot_be_prepared_is_not_written_and_harms_nothing_else(
    open_engine: OpenEngine, faults: TopicFaults
) -> None:
    engine = await open_engine(disk=faults)
    await three_topics(engine)
    faults.failing = ("truncate", "z")
    before = start_append(engine.partition("x", 0), Batch([b"alone"]))
    doomed = start_atomic_append(
        engine, [*parts(engine, "x"), BatchFor(engine.partition("z", 0), Batch([b"z" * 1500]))]
    )
    also = start_atomic_append(engine, parts(engine, "x", "y"))
    after = start_append(engine.partition("x", 0), Batch([b"alone too"]))
    assert type(await outcome(doomed)) is NotWritten
    assert await before == Appended(0, (await before).timestamp_ms)
    assert [each.base_offset for each in await also] == [1, 0]
    assert (await after).base_offset == 2
    assert engine.partition("x", 0).failure is None
    assert await read_values(engine.partition("x", 0)) == [b"alone", b"together", b"alone too"]


async def test_a_record_that_tells_of_a_part_that_failed_takes_no_other_with_it(
    open_engine: OpenEngine, faults: TopicFaults
) -> None:
    engine = await open_engine(disk=faults)
    await three_topics(engine)
    x, y, z = (engine.partition(topic, 0) for topic in ("x", "y", "z"))
    faults.failing = ("truncate", "z")

    def telling(*parts: Partition) -> LateBatch:
        return LateBatch(None, lambda places: b" ".join(b"%d" % places[part].base_offset for part in parts), 10)

    doomed = start_atomic_append(
        engine, [*parts(engine, "x"), BatchFor(z, Batch([b"z" * 1500])), BatchFor(y, telling(x, z))]
    )
    also = start_atomic_append(engine, [*parts(engine, "x"), BatchFor(y, telling(x))])
    assert type(await outcome(doomed)) is NotWritten
    assert [each.base_offset for each in await also] == [0, 0]
    assert (await read_values(x), await read_values(y)) == ([b"together"], [b"0"])


async def test_a_full_disk_refuses_an_atomic_append_and_no_partition(
    open_engine: OpenEngine, faults: TopicFaults
) -> None:
    engine = await open_engine(disk=faults, options=EngineOptions(reserve_bytes=0))
    await three_topics(engine)
    faults.failing, faults.number = ("allocate", "z"), errno.ENOSPC
    doomed = start_atomic_append(
        engine, [*parts(engine, "x"), BatchFor(engine.partition("z", 0), Batch([b"z" * 300_000]))]
    )
    plain = start_append(engine.partition("y", 0), Batch([b"plain"]))
    assert type(await outcome(doomed)) is NoSpace
    assert (await plain).base_offset == 0
    faults.failing = None
    assert [each.base_offset for each in await start_atomic_append(engine, parts(engine, "x", "z"))] == [0, 1]


async def test_a_part_that_cannot_be_written_after_it_was_recorded_fails_only_what_is_written_with_it(
    open_engine: OpenEngine, faults: TopicFaults
) -> None:
    engine = await open_engine(disk=faults)
    await three_topics(engine, TopicConfig())
    await engine.create_topic("w", TopicConfig())
    faults.failing = ("write", "z")
    atomic = start_atomic_append(engine, parts(engine, "y", "z"))
    plain = [start_append(engine.partition(topic, 0), Batch([b"plain"])) for topic in ("x", "w")]
    assert type(await outcome(atomic)) is OutcomeUnknown
    assert [(await each).base_offset for each in plain] == [0, 0]
    assert [engine.partition(topic, 0).failure is None for topic in ("w", "x", "y", "z")] == [True, True, False, False]
    assert await read_values(engine.partition("y", 0)) == [], "all or nothing holds for readers too"
    faults.failing = None
    await engine.close()
    engine = await open_engine()
    assert await read_values(engine.partition("y", 0)) == [b"together"]
    assert await read_values(engine.partition("z", 0)) == [b"z" * 1500, b"together"]


async def test_what_an_unflushed_topic_cannot_flush_is_not_followed_by_an_atomic_append(
    open_engine: OpenEngine, faults: TopicFaults
) -> None:
    engine = await open_engine(disk=faults)
    await three_topics(engine, TopicConfig(durability=Durability("none")))
    faults.failing = ("flush", "z")
    doomed = start_atomic_append(engine, parts(engine, "x", "z"))
    assert type(await outcome(doomed)) is NotWritten
    assert engine.partition("x", 0).failure is None
    assert engine.partition("z", 0).failure is not None
    assert await read_values(engine.partition("x", 0)) == []


async def test_records_that_cannot_be_encoded_fail_their_own_append_only(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await three_topics(engine)
    partition = engine.partition("x", 0)
    good = [start_append(partition, Batch([b"good"]))]
    bad = start_append(partition, Batch([b"bad"], expiries=CANNOT_BE_STORED))
    good.append(start_append(partition, Batch([b"better"])))
    poisoned = start_atomic_append(
        engine,
        [
            BatchFor(engine.partition("y", 0), Batch([b"with it"])),
            BatchFor(partition, Batch([b"bad"], expiries=CANNOT_BE_STORED)),
        ],
    )
    other = start_append(engine.partition("y", 0), Batch([b"not with it"]))
    assert [(await each).base_offset for each in good] == [0, 1]
    assert type(await outcome(bad)) is InvalidRequest
    assert type(await outcome(poisoned)) is InvalidRequest
    assert (await other).base_offset == 0
    assert await read_values(partition) == [b"good", b"better"]
    assert await read_values(engine.partition("y", 0)) == [b"not with it"]


async def test_an_atomic_append_with_a_part_that_has_no_size_is_not_queued_in_half(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await three_topics(engine)
    wrong = BatchFor(engine.partition("y", 0), object())  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        engine.append_atomic([*parts(engine, "x"), wrong], lambda _: None)
    assert (await append(engine.partition("x", 0), [b"first"])).base_offset == 0
    assert await read_values(engine.partition("x", 0)) == [b"first"]


async def test_an_atomic_append_to_one_partition_needs_no_journal(open_engine: OpenEngine, disk: CountingDisk) -> None:
    engine = await open_engine(disk=disk)
    await engine.create_topic("x", TopicConfig(durability=Durability("none")))
    disk.flushes.clear()
    await start_atomic_append(engine, parts(engine, "x"))
    assert disk.flushes == {"log": 1}


async def test_a_checkpoint_has_an_opening_of_its_own_of_each_file(open_engine: OpenEngine) -> None:
    """The system reports an error of writing back once to each opening, so a shared one could hide it from one of two flushes."""

    class Positions(CountingDisk):
        flushed = 0

        def fdatasync(self, fd: int) -> None:
            if threading.current_thread().name.startswith("penstock-checkpoint"):
                os.lseek(fd, 7, os.SEEK_SET)
                self.flushed += 1
            super().fdatasync(fd)

    disk = Positions()
    engine = await open_engine(disk=disk, options=EngineOptions.model_construct(journal_bytes=1))
    await three_topics(engine)
    await start_atomic_append(engine, parts(engine, "x", "y"))
    await settled(engine)
    assert disk.flushed == 2
    for topic in ("x", "y"):
        assert os.lseek(engine.partition(topic, 0).writer.file.fd, 0, os.SEEK_CUR) == 0


async def test_a_start_makes_sure_that_journals_it_has_applied_stay_gone(
    open_engine: OpenEngine, data_dir: Path
) -> None:
    class Directories(CountingDisk):
        def __init__(self) -> None:
            super().__init__()
            self.steps: list[str] = []

        def unlink(self, path: Path) -> None:
            super().unlink(path)
            self.steps.append(f"remove {path.suffix or path.name}")

        def sync_directory(self, path: Path) -> None:
            super().sync_directory(path)
            self.steps.append(f"flush {path.name}")

    engine = await open_engine()
    await three_topics(engine)
    await start_atomic_append(engine, parts(engine, "x", "y"))
    (data_dir / "journal" / "00000000000000000007.journal").write_bytes(b"")
    await engine.close()
    (data_dir / "clean-shutdown").unlink(missing_ok=True)
    disk = Directories()
    await open_engine(disk=disk)
    removed = disk.steps.index("remove .journal")
    assert "flush journal" in disk.steps[removed:]
