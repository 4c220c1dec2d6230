"""The end of a partition's log goes missing after it was synced: that is damage, never a torn tail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.errors import CorruptBlock, MissingSegment
from penstock.log.api import Durability, TopicConfig
from penstock.log.block import BlockHeader
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.embedded.verify import verify
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import everything, files, partition_of, segment_files
from tests.log.records import append, read_from

Spoil = Callable[[Path], None]


def second_block_end(data: bytes) -> int:
    first = BlockHeader(data).size_bytes
    return first + BlockHeader(data, first).size_bytes


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut_at_a_block(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: second_block_end(path.read_bytes())])


def cut_in_a_block(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: second_block_end(path.read_bytes()) + 30])


def cut_in_the_first_block(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def remove(path: Path) -> None:
    path.unlink()


def remove_with_its_index(path: Path) -> None:
    path.unlink()
    path.with_suffix(".index").unlink()


def overwrite_with_zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


async def filled(engine: EmbeddedEngine, segments: int, durability: str = "fsync") -> None:
    """Fill this many segments of topic `orders`; the last holds several blocks."""
    config = TopicConfig(segment_bytes=1200, durability=Durability.parse(durability))
    await engine.create_topic("orders", config)
    partition = partition_of(engine)
    while len(partition.segments) < segments or partition.segments[-1].end < 400:
        await append(partition, [b"r%d" % partition.committed_end])


CUTS: list[Spoil] = [empty, cut_at_a_block, cut_in_a_block, cut_in_the_first_block, remove, remove_with_its_index]


@pytest.mark.parametrize("durability", ["fsync", "none"])
@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("spoil", CUTS)
async def test_a_log_that_lost_its_end_after_a_clean_stop_is_refused(
    open_engine: OpenEngine, data_dir: Path, spoil: Spoil, segments: int, durability: str
) -> None:
    engine = await open_engine()
    await filled(engine, segments, durability)
    end = partition_of(engine).committed_end
    await engine.close()
    spoil(segment_files(data_dir)[-1])
    assert verify(data_dir).damage
    before = files(data_dir)
    for _ in range(2):
        with pytest.raises(MissingSegment, match=r"backup.*--set log\.accept_gaps=true"):
            await open_engine()
        assert files(data_dir) == before, "a refused start changes nothing"
    with capture_logs() as lines:
        engine = await open_engine(options=EngineOptions(accept_gaps=True))
    assert "gap_accepted" in [line["event"] for line in lines]
    left = await everything(engine)
    assert (await append(partition_of(engine), [b"next"])).base_offset == end, "no offset is given out twice"
    await engine.close()
    engine = await open_engine(options=EngineOptions(accept_gaps=True))
    after = await everything(engine)
    assert [record.value for record in after["orders", 0]] == [
        *(record.value for record in left["orders", 0]),
        b"next",
    ]


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("spoil", [empty, cut_at_a_block, cut_in_a_block, remove])
async def test_an_index_proves_a_loss_after_a_crash_too(
    open_engine: OpenEngine, data_dir: Path, spoil: Spoil, segments: int
) -> None:
    engine = await open_engine()
    await filled(engine, segments)
    await engine.close()
    (data_dir / "clean-shutdown").unlink()
    spoil(segment_files(data_dir)[-1])
    assert verify(data_dir).damage
    with pytest.raises(MissingSegment, match=r"--set log\.accept_gaps=true"):
        await open_engine()


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a crash"])
@pytest.mark.parametrize("segments", [1, 2])
async def test_a_last_segment_of_zeros_keeps_its_offsets_and_reads_as_damaged(
    open_engine: OpenEngine, data_dir: Path, segments: int, clean: bool
) -> None:
    engine = await open_engine()
    await filled(engine, segments)
    end = partition_of(engine).committed_end
    await engine.close()
    last = segment_files(data_dir)[-1]
    overwrite_with_zeros(last)
    if not clean:
        (data_dir / "clean-shutdown").unlink()
    assert verify(data_dir).damage
    with capture_logs() as lines:
        engine = await open_engine()
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["block_corrupt"]
    partition = partition_of(engine)
    assert (partition.committed_end, engine.stats.corrupt_blocks) == (end, 1)
    with pytest.raises(CorruptBlock):
        await read_from(partition, int(last.stem))
    assert (await append(partition, [b"next"])).base_offset == end


@pytest.mark.parametrize("position", [0, 5, 10, 20, 40, 72])
async def test_a_flip_in_the_only_commit_that_was_synced_is_not_cut_as_a_torn_tail(
    open_engine: OpenEngine, data_dir: Path, position: int
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    await append(partition_of(engine), [b"only"])
    await engine.close()
    (data_dir / "clean-shutdown").unlink()
    [path] = segment_files(data_dir)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    engine = await open_engine()
    assert engine.stats.torn_tails == 0
    assert path.read_bytes() == bytes(data)
    with pytest.raises(CorruptBlock):
        await read_from(partition_of(engine), 0)
    assert (await append(partition_of(engine), [b"next"])).base_offset == 1


async def test_a_rewritten_segment_that_was_cut_at_a_block_is_refused(open_engine: OpenEngine, data_dir: Path) -> None:
    """Its name says where it ends, so that no gap shows."""
    engine = await open_engine(options=EngineOptions.model_construct(block_bytes_target=100))
    await filled(engine, 2)
    await engine.maintain()
    await engine.close()
    first = segment_files(data_dir)[0]
    assert "-" in first.stem
    cut_at_a_block(first)
    with pytest.raises(MissingSegment, match=first.name):
        await open_engine()


@pytest.mark.parametrize("durability", ["none", "interval:60000"])
async def test_a_tail_that_was_not_synced_may_be_lost_in_a_crash(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, durability: str
) -> None:
    engine = await open_engine()
    await filled(engine, 1, durability)
    await engine.close()
    (data_dir / "clean-shutdown").unlink()
    [path] = segment_files(data_dir)
    path.with_suffix(".index").unlink()
    cut_at_a_block(path)
    engine = await open_engine()
    assert partition_of(engine).committed_end == 2
    assert partition_of(engine).cut_since(0) == 2
