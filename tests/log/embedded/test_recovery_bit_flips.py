"""One bit flipped anywhere in a data directory: found and named, or of no consequence; never other data, and nothing deleted."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.table import Table
from penstock.errors import CorruptBlock
from penstock.log.api import Batch, Partition, TopicConfig
from penstock.log.appending import start_append
from penstock.log.block import HEADER_BYTES
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.embedded.journal import FIRST_RECORD_AT, HEADS_AT
from penstock.testing.clock import ManualClock
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import (
    CountingDisk,
    UnflushedDisk,
    crash_image,
    everything,
    files,
    path_of,
    segment_files,
)
from tests.log.records import Record, append, read_all, records_of

STEP_BYTES = 97
SECTOR_BYTES = 4096
RANDOM_FLIPS = 15
OPTIONS = EngineOptions(reserve_bytes=0)
CORRUPT = re.compile(r"corrupt block in (?P<file>\S+) at byte (?P<position>\d+)")
# What a start may remove or replace: the marker of a clean stop, a journal that was applied, and what tells one run from another.
EPHEMERAL = re.compile(r"clean-shutdown|journal/|LOCK")


def places(size: int, seed: str) -> Iterator[tuple[int, int]]:
    """Positions and bits to flip in a file of this size."""
    chance = random.Random(seed)
    for position in range(0, size, STEP_BYTES):
        yield position, position // STEP_BYTES % 8
    for _ in range(min(RANDOM_FLIPS, size)):
        yield chance.randrange(size), chance.randrange(8)


def plain_name(name: str) -> str:
    """A file's name without the random id in it, so that every run flips the same bits."""
    return re.sub(r"\.[0-9a-f]{32}/", "/", name)


def flipped(content: bytes, position: int, bit: int) -> bytes:
    changed = bytearray(content)
    changed[position] ^= 1 << bit
    return bytes(changed)


async def make_log(
    data_dir: Path, clock: ManualClock, *, clean: bool, image: Path
) -> dict[tuple[str, int], list[Record]]:
    """A small log of every shape: plain, compressed, several segments, several partitions over the journal, a compacted table."""
    engine = EmbeddedEngine(data_dir, clock=clock, options=OPTIONS)
    await engine.start()
    await engine.create_topic("plain", TopicConfig(segment_bytes=500))
    await engine.create_topic("squeezed", TopicConfig(compression="zstd"))
    await engine.create_topic("pair", TopicConfig(partitions=2))
    for number in range(8):
        clock.advance(1)
        await append(engine.partition("plain", 0), [b"%d" % number, b"v" * (number * 3)], [b"k%d" % number, None])
        await append(engine.partition("squeezed", 0), [b"squeeze me " * 40])
        await asyncio.gather(
            *(start_append(engine.partition("pair", index), Batch([b"%d" % number])) for index in (0, 1))
        )
    expected = await everything(engine)
    if clean:
        await engine.close()
    crash_image(data_dir, image)
    await engine.close()
    for path in image.rglob("*.log"):  # reserved space is tried in a test of its own; here it only takes time
        path.write_bytes(path.read_bytes().rstrip(b"\0"))
    return expected


async def read_one(partition: Partition, offset: int) -> Record | str:
    """The record at an offset, or the text of the error it is answered with."""
    try:
        [block, *_] = await partition.read(offset, 1)
    except CorruptBlock as error:
        return str(error)
    return records_of(block, block.index_of(offset))[0]


async def check_reads(engine: EmbeddedEngine, expected: dict[tuple[str, int], list[Record]], damaged: Path) -> int:
    """Reads every offset of every partition: right, or an error that names the file and a position. Returns how many were errors."""
    errors = 0
    for (topic, index), records in expected.items():
        partition = engine.partition(topic, index)
        assert partition.start_offset == 0
        for record in records[: partition.committed_end]:
            answer = await read_one(partition, record.offset)
            if isinstance(answer, str):
                named = CORRUPT.search(answer)
                assert named is not None, answer
                assert Path(named["file"]) == damaged
                assert 0 <= int(named["position"]) < damaged.stat().st_size
                errors += 1
            else:
                assert answer == record
    return errors


def nothing_was_deleted(before: dict[str, bytes], image: Path, damaged: str, damaged_content: bytes) -> None:
    """Every byte that was there is there: in its place, put aside, or mended from the journal."""
    after = files(image)
    for name, content in before.items():
        if EPHEMERAL.match(name) or name.endswith(".index"):
            continue
        if name.endswith(("topic.json", "topic.json.copy")):
            assert name in after
            continue
        kept = after[name].rstrip(b"\0")
        if kept != content.rstrip(b"\0"):
            assert name == damaged
            asides = [key for key in after if key.startswith(f"{name.removesuffix('.log')}.torn-at-")]
            assert kept + b"".join(after[aside] for aside in asides) == damaged_content.rstrip(b"\0")


@pytest.mark.parametrize("clean", [False, True], ids=["after a crash", "after a clean stop"])
async def test_a_bit_flipped_in_a_log_file_is_named_or_harmless(
    tmp_path: Path, clock: ManualClock, open_engine: OpenEngine, clean: bool
) -> None:
    expected = await make_log(tmp_path / "data", clock, clean=clean, image=tmp_path / "master")
    master = tmp_path / "master"
    before = files(master)
    flips = found = 0
    for name in [name for name in before if name.endswith(".log")]:
        image = crash_image(master, tmp_path / "image")
        for position, bit in places(len(before[name]), plain_name(name)):
            shutil.rmtree(image)
            shutil.copytree(master, image)
            (image / name).write_bytes(flipped(before[name], position, bit))
            engine = await open_engine(image, disk=UnflushedDisk(), options=OPTIONS)
            missing = sum(len(records) - engine.partition(*place).committed_end for place, records in expected.items())
            errors = await check_reads(engine, expected, image / name)
            # After a crash a flip in the very last block looks like a torn write: cut, kept aside, told. The journal may mend it.
            assert missing <= 2
            assert missing == 0 or not clean
            assert missing == 0 or engine.stats.torn_tails == 1
            assert errors <= 2, "only the block with the flip is hurt"
            flips += 1
            found += bool(errors or missing)
            await engine.close()
            nothing_was_deleted(before, image, name, flipped(before[name], position, bit))
    assert flips > 100
    assert found == flips if clean else found > flips / 4, "the journal mends what is in it"


@pytest.mark.parametrize("clean", [False, True], ids=["after a crash", "after a clean stop"])
async def test_a_bit_flipped_in_any_other_file_is_harmless(
    tmp_path: Path, clock: ManualClock, open_engine: OpenEngine, clean: bool
) -> None:
    expected = await make_log(tmp_path / "data", clock, clean=clean, image=tmp_path / "master")
    master = tmp_path / "master"
    before = {name: content.rstrip(b"\0") for name, content in files(master).items()}
    others = [name for name, content in before.items() if not name.endswith(".log") and content]
    kinds = {Path(name).suffix or name for name in others}
    assert kinds == {".json", ".copy", ".index", "LOCK", "clean-shutdown" if clean else ".journal"}
    for name in others:
        for position, bit in list(places(len(before[name]), plain_name(name)))[::3]:
            image = crash_image(master, tmp_path / "image")
            (image / name).write_bytes(flipped(before[name], position, bit))
            engine = await open_engine(image, disk=UnflushedDisk(), options=OPTIONS)
            assert await everything(engine) == expected, f"bit {bit} of byte {position} in {name}"
            assert engine.stats.corrupt_blocks == engine.stats.torn_tails == 0
            await engine.close()
            nothing_was_deleted(before, image, name, b"")
            if name.endswith((".json", ".copy")):
                assert (image / name).read_bytes().rstrip() == before[name].rstrip(), "the good copy was written again"


async def test_a_journal_with_a_flipped_bit_loses_only_its_damaged_record(
    tmp_path: Path, clock: ManualClock, open_engine: OpenEngine
) -> None:
    """The worst of both: a power cut took what was in the segments, and the journal is damaged too."""
    expected = await make_log(tmp_path / "data", clock, clean=False, image=tmp_path / "master")
    master = tmp_path / "master"
    [journal] = (master / "journal").iterdir()
    content = journal.read_bytes().rstrip(b"\0")
    pair = [path for path in master.rglob("*.log") if "pair" in path.as_posix()]
    for path in pair:
        path.write_bytes(b"")
    used = [place for place in places(len(content), "journal") if not 16 <= place[0] < HEADS_AT[1]]
    for position, bit in used[::4]:
        image = crash_image(master, tmp_path / "image")
        (image / "journal" / journal.name).write_bytes(flipped(content, position, bit))
        engine = await open_engine(image, disk=UnflushedDisk(), options=OPTIONS)
        for index in (0, 1):
            partition = engine.partition("pair", index)
            right = 0
            for record in expected["pair", index][: partition.committed_end]:
                answer = await read_one(partition, record.offset)
                assert answer == record or CORRUPT.search(str(answer))
                right += answer == record
            assert right == (7 if position >= FIRST_RECORD_AT else 8), "one of the two heads is enough"
        await engine.close()


async def test_a_bit_flipped_in_a_table_is_named_when_it_is_loaded(
    tmp_path: Path, data_dir: Path, clock: ManualClock, open_engine: OpenEngine
) -> None:
    engine = await open_engine()
    table: Table[str, int] = Table(engine, "__groups", str, int, entries_max=1000, limit="limits.settings_max")
    await table.load()
    for number in range(20):
        await table.put(f"group-{number % 7}", number)
    entries = dict(table.items())
    await table.close()
    await engine.close()
    [path] = (data_dir / "topics").glob("__groups.*/0/*.log")
    content = path.read_bytes()
    for position, bit in places(len(content), "table"):
        image = crash_image(data_dir, tmp_path / "image")
        damaged = image / path.relative_to(data_dir)
        damaged.write_bytes(flipped(content, position, bit))
        engine = await open_engine(image, disk=UnflushedDisk(), options=OPTIONS)
        again: Table[str, int] = Table(engine, "__groups", str, int, entries_max=1000, limit="limits.settings_max")
        with pytest.raises(CorruptBlock, match=rf"__groups.*{re.escape(str(damaged))} at byte \d+"):
            await again.load()
        await engine.close()
        assert damaged.read_bytes() == flipped(content, position, bit)
    engine = await open_engine()
    whole: Table[str, int] = Table(engine, "__groups", str, int, entries_max=1000, limit="limits.settings_max")
    await whole.load()
    assert dict(whole.items()) == entries


class BadSector(CountingDisk):
    """Cannot read one sector of segments."""

    def __init__(self, position: int) -> None:
        super().__init__()
        self._start = position - position % SECTOR_BYTES
        self.file = ""
        """The name of the only segment file that has it; any, if empty."""

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        path = path_of(fd)
        is_bad = path.suffix == ".log" and self.file in ("", path.name)
        if is_bad and position < self._start + SECTOR_BYTES and self._start < position + size_bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pread(fd, size_bytes, position)


async def test_a_sector_the_disk_cannot_read_is_named_like_any_damage(
    data_dir: Path, clock: ManualClock, open_engine: OpenEngine
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    for number in range(200):
        await append(engine.partition("orders", 0), [b"%d" % number * 40])
    records = await read_all(engine.partition("orders", 0))
    await engine.close()
    engine = await open_engine(disk=BadSector(SECTOR_BYTES))
    answers = [await read_one(engine.partition("orders", 0), offset) for offset in range(200)]
    errors = [answer for answer in answers if isinstance(answer, str)]
    assert errors
    assert all(re.search(r"orders.*\.log at byte \d+.*Input/output error", error) for error in errors)
    sound = [answer for answer in answers if not isinstance(answer, str)]
    assert sound == [record for record, answer in zip(records, answers, strict=True) if not isinstance(answer, str)]
    assert len(errors) < 60, "what lies around the sector is served"
    assert answers[0] == records[0]
    assert answers[-1] == records[-1]


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "crash"])
@pytest.mark.parametrize("sector", [0, 1])
@pytest.mark.parametrize("segment", [0, -1], ids=["sealed segment", "last segment"])
async def test_a_sector_the_disk_cannot_read_keeps_no_log_from_opening(
    data_dir: Path, tmp_path: Path, open_engine: OpenEngine, segment: int, sector: int, clean: bool
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig(segment_bytes=12_000))
    for number in range(80):
        await append(engine.partition("orders", 0), [b"%02d" % number * 100])
    records = await read_all(engine.partition("orders", 0))
    disk = BadSector(sector * SECTOR_BYTES)
    disk.file = segment_files(data_dir)[segment].name
    if clean:
        await engine.close()
        engine = await open_engine(disk=disk)
    else:
        engine = await open_engine(crash_image(data_dir, tmp_path / "image"), disk=disk)
    assert engine.partition("orders", 0).committed_end == len(records)
    answers = [await read_one(engine.partition("orders", 0), offset) for offset in range(len(records))]
    lost = [offset for offset, answer in enumerate(answers) if isinstance(answer, str)]
    assert [answer for answer in answers if not isinstance(answer, str)] == [
        record for record in records if record.offset not in lost
    ]
    block_bytes = HEADER_BYTES + 4 + 200
    assert 0 < len(lost) <= SECTOR_BYTES // block_bytes + 2, "only what the sector holds a part of"
