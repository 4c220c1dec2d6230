"""Commits of several blocks: there as a whole or not at all, and damage inside of one that was flushed is not taken for a torn write."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.errors import CorruptBlock
from penstock.log.api import Durability, TopicConfig
from penstock.log.block import BEGINS, ENDS, BlockHeader
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.testing.powercut import PowerCutDisk
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import UnflushedDisk, crash_image, partition_of, segment_files
from tests.log.records import append, read_from, read_values

SMALL_BLOCKS = EngineOptions.model_construct(block_bytes_target=2000, reserve_bytes=0)
RECORDS_PER_COMMIT = 8
BLOCKS_PER_COMMIT = 4


async def commit(engine: EmbeddedEngine, number: int) -> list[bytes]:
    """One append that makes several blocks."""
    values = [b"%d-%d " % (number, row) + b"v" * 900 for row in range(RECORDS_PER_COMMIT)]
    await append(engine.partition("orders", 0), values)
    return values


async def committed(engine: EmbeddedEngine, commits: int, config: TopicConfig | None = None) -> list[bytes]:
    await engine.create_topic("orders", config or TopicConfig())
    return [value for number in range(commits) for value in await commit(engine, number)]


def headers(path: Path) -> list[tuple[int, BlockHeader]]:
    data = path.read_bytes()
    found: list[tuple[int, BlockHeader]] = []
    position = 0
    while data[position:].strip(b"\0"):
        found.append((position, BlockHeader(data, position)))
        position += found[-1][1].size_bytes
    return found


def damage(path: Path, position: int, size: int = 1) -> None:
    data = bytearray(path.read_bytes())
    for at in range(position, position + size):
        data[at] ^= 0xFF
    path.write_bytes(data)


async def test_the_first_and_the_last_block_of_a_commit_say_so(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine(options=SMALL_BLOCKS)
    await committed(engine, 2)
    await append(engine.partition("orders", 0), [b"one block"])
    [path] = segment_files(data_dir)
    several = [BEGINS, *[0] * (BLOCKS_PER_COMMIT - 2), ENDS]
    assert [header.flags & (BEGINS | ENDS) for _, header in headers(path)] == [*several, *several, BEGINS | ENDS]


@pytest.mark.parametrize("durability", ["fsync", "none"])
@pytest.mark.parametrize("lost", range(BLOCKS_PER_COMMIT))
async def test_a_last_commit_that_lacks_any_of_its_blocks_is_cut_whole(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, durability: str, lost: int
) -> None:
    engine = await open_engine(options=SMALL_BLOCKS)
    values = await committed(engine, 3, TopicConfig(durability=Durability.parse(durability)))
    image = crash_image(data_dir, tmp_path / "image")
    [path] = segment_files(image)
    blocks = headers(path)
    last = blocks[-BLOCKS_PER_COMMIT:]
    position, header = last[lost]
    data = bytearray(path.read_bytes())
    data[position : position + header.size_bytes] = bytes(header.size_bytes)  # it never reached the disk
    path.write_bytes(data)
    with capture_logs() as lines:
        recovered = await open_engine(image, options=SMALL_BLOCKS)
    partition = partition_of(recovered)
    assert partition.committed_end == 2 * RECORDS_PER_COMMIT
    assert await read_values(partition) == values[: 2 * RECORDS_PER_COMMIT]
    assert recovered.stats.corrupt_blocks == 0
    assert recovered.stats.torn_tails == 1
    assert [line["event"] for line in lines] == ["torn_tail_cut"]
    kept = path.with_suffix(f".torn-at-{last[0][0]}")
    assert kept.read_bytes() == bytes(data[last[0][0] :]).rstrip(b"\0"), "all that was there of it is put aside"
    assert (await append(partition, [b"next"])).base_offset == 2 * RECORDS_PER_COMMIT


@pytest.mark.parametrize("hurt", range(BLOCKS_PER_COMMIT))
@pytest.mark.parametrize("at", [0, 10, 24, 80], ids=["magic", "seal", "size", "body"])
async def test_damage_in_a_commit_that_another_follows_leaves_all_other_blocks_readable(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, hurt: int, at: int
) -> None:
    engine = await open_engine(options=SMALL_BLOCKS)
    values = await committed(engine, 3)
    image = crash_image(data_dir, tmp_path / "image")
    [path] = segment_files(image)
    position, header = headers(path)[BLOCKS_PER_COMMIT + hurt]
    damage(path, position + at)
    recovered = await open_engine(image, options=SMALL_BLOCKS)
    partition = partition_of(recovered)
    assert partition.committed_end == 3 * RECORDS_PER_COMMIT
    assert recovered.stats.torn_tails == 0
    assert recovered.stats.corrupt_blocks == 1
    for offset in range(header.base_offset, header.next_offset):
        with pytest.raises(CorruptBlock, match=f"{path}.* at byte {position}"):
            await partition.read(offset)
    for offset in [*range(header.base_offset), *range(header.next_offset, 3 * RECORDS_PER_COMMIT)]:
        [block, *_] = await partition.read(offset, 1)
        assert block.values(block.index_of(offset))[0] == values[offset]


async def test_offsets_of_a_damaged_commit_are_not_given_out_again_when_a_torn_one_follows_it(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    """That a commit was begun after it proves that it was flushed, even if that one has to be cut."""
    engine = await open_engine(options=SMALL_BLOCKS)
    values = await committed(engine, 3)
    image = crash_image(data_dir, tmp_path / "image")
    [path] = segment_files(image)
    blocks = headers(path)
    damage(path, blocks[2 * BLOCKS_PER_COMMIT - 1][0] + 80)  # the last block of the second commit
    damage(path, blocks[-1][0] + 80)  # the last block of the third
    recovered = await open_engine(image, options=SMALL_BLOCKS)
    partition = partition_of(recovered)
    assert partition.committed_end == 2 * RECORDS_PER_COMMIT
    whole = blocks[2 * BLOCKS_PER_COMMIT - 1][1].base_offset
    for offset in range(whole):
        [block, *_] = await partition.read(offset, 1)
        assert block.values(block.index_of(offset))[0] == values[offset]
    with pytest.raises(CorruptBlock, match="no whole block follows"):
        await partition.read(whole)
    assert (await append(partition, [b"next"])).base_offset == 2 * RECORDS_PER_COMMIT
    await recovered.close()
    again = await open_engine(image, options=SMALL_BLOCKS)
    assert [record.value for record in await read_from(again.partition("orders", 0), 2 * RECORDS_PER_COMMIT)] == [
        b"next"
    ]


@pytest.mark.parametrize("seed", range(20))
async def test_a_power_cut_in_a_commit_of_several_blocks_leaves_no_damage(tmp_path: Path, seed: int) -> None:
    """However few of its sectors are lost: nobody was promised these records, so nobody may be told that they are damaged."""
    source, image = tmp_path / "source", tmp_path / "image"
    source.mkdir()
    disk = PowerCutDisk(source, None)
    engine = EmbeddedEngine(source, disk=disk, options=SMALL_BLOCKS)
    await engine.start()
    values = await committed(engine, 1)
    flush = disk.fdatasync

    def cut(fd: int) -> None:
        if not disk.is_off:
            disk.cut()
        flush(fd)

    disk.fdatasync = cut  # type: ignore[method-assign]
    with pytest.raises(Exception, match="power is gone"):
        await commit(engine, 1)
    await engine.close()
    disk.image(image, random.Random(seed), loss=0.04)
    recovered = EmbeddedEngine(image, disk=UnflushedDisk(), options=SMALL_BLOCKS)
    await recovered.start()
    partition = partition_of(recovered)
    assert recovered.stats.corrupt_blocks == 0
    assert partition.committed_end in (RECORDS_PER_COMMIT, 2 * RECORDS_PER_COMMIT)
    found = await read_values(partition)
    assert found[:RECORDS_PER_COMMIT] == values
    await recovered.close()


@pytest.mark.parametrize("durability", ["none", "interval:60000"])
async def test_without_fsync_the_log_ends_before_the_first_block_that_is_not_whole(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, durability: str
) -> None:
    """A power cut may keep a later commit and lose an earlier one: what follows a loss must not be served as if nothing was missing."""
    engine = await open_engine(options=SMALL_BLOCKS)
    config = TopicConfig(durability=Durability.parse(durability))
    values = await committed(engine, 3, config)
    image = crash_image(data_dir, tmp_path / "image")
    [path] = segment_files(image)
    second = headers(path)[BLOCKS_PER_COMMIT][0]
    damage(path, second + 100)
    recovered = await open_engine(image, options=SMALL_BLOCKS)
    assert await read_values(recovered.partition("orders", 0)) == values[:RECORDS_PER_COMMIT]
    assert (recovered.stats.torn_tails, recovered.stats.corrupt_blocks) == (1, 0)
    assert path.with_suffix(f".torn-at-{second}").exists()
