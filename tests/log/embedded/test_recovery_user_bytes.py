"""What a client wrote is never taken for a part of the log, whatever it wrote and whatever a crash leaves of it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from penstock.errors import CorruptBlock, MissingSegment
from penstock.log.api import Batch, BatchFor, TopicConfig
from penstock.log.block import SEAL_AT, SUMMED_AT, BlockHeader, encode_block, seal_at
from penstock.log.embedded import EmbeddedEngine
from penstock.log.embedded.journal import (
    FIRST_RECORD_AT,
    JournalEntry,
    JournalRecord,
    encode_file_head,
    journal_paths,
)
from penstock.log.salts import salt_beside
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import crash_image, files, partition_of, segment_files
from tests.log.records import append, read_from, read_values, start_atomic_append

FORGED = encode_block(1_000_000, 1, [b"never sent as a record"])


def replaced(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


@pytest.mark.parametrize("lost_bytes", [1, 72, 512])
async def test_a_block_inside_a_torn_value_is_not_served(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, lost_bytes: int
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    partition = partition_of(engine)
    await append(partition, [b"first", b"second"])
    [path] = segment_files(data_dir)
    end = partition.size_bytes
    mirrored = path.read_bytes()[:end]  # a backup of the topic, kept in the topic
    await append(partition, [b"x" * 600 + FORGED + mirrored + b"y" * 600])
    image = crash_image(data_dir, tmp_path / "image")
    replaced(
        image / path.relative_to(data_dir), end, bytes(lost_bytes)
    )  # the power cut took the first of what was not flushed
    recovered = await open_engine(image)
    assert partition_of(recovered).committed_end == 2
    assert await read_values(partition_of(recovered)) == [b"first", b"second"]
    assert (await append(partition_of(recovered), [b"next"])).base_offset == 2


async def test_a_block_inside_a_damaged_value_is_not_served(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    partition = partition_of(engine)
    await append(partition, [b"first"])
    end = partition.size_bytes
    await append(partition, [b"x" * 600 + encode_block(2, 1, [b"never sent"]) + b"y" * 600])
    await append(partition, [b"third"])
    await engine.close()
    [path] = segment_files(data_dir)
    for lost_bytes in (10, 100):
        image = crash_image(data_dir, tmp_path / "image")
        replaced(image / path.relative_to(data_dir), end, bytes(lost_bytes))
        recovered = await open_engine(image)
        found = await partition_of(recovered).read(2)
        assert [block.values() for block in found] == [[b"third"]]
        await recovered.close()


async def injected(engine: EmbeddedEngine, padding_bytes: int) -> None:
    """An atomic append to topic `mine` whose values hold a journal record for topic `secret`."""
    await engine.create_topic("secret", TopicConfig())
    await engine.create_topic("mine", TopicConfig(partitions=2))
    await append(engine.partition("secret", 0), [b"acknowledged"])
    topic_id = bytes.fromhex(engine.topics()["secret"].id)
    record = JournalRecord([JournalEntry(topic_id, 0, 0, 0, encode_block(0, 1, [b"replaced by another tenant"]))])
    inner = b"".join(record.pieces(0)) + encode_file_head(0) + b"".join(record.pieces(seal_at(0, FIRST_RECORD_AT)))
    value = b"z" * 700 + inner + b"z" * padding_bytes
    await start_atomic_append(engine, [BatchFor(engine.partition("mine", at), Batch([value])) for at in (0, 1)])


async def test_a_journal_record_inside_a_torn_one_is_not_applied(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await injected(engine, 700)
    [journal] = journal_paths(data_dir / "journal")
    for lost_from, lost_bytes in ((4112, 16), (4112, 20), (4112, 40), (4096, 512), (0, 4608)):
        image = crash_image(data_dir, tmp_path / "image")
        replaced(image / journal.relative_to(data_dir), lost_from, bytes(lost_bytes))
        recovered = await open_engine(image)
        assert await read_values(recovered.partition("secret", 0)) == [b"acknowledged"]
        await recovered.close()


async def test_a_journal_record_inside_one_that_was_written_in_part_is_not_applied(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    """A large record is written piece by piece, so the end of the process may come between two of them."""
    engine = await open_engine()
    await injected(engine, 700_000)
    image = crash_image(data_dir, tmp_path / "image")
    [journal] = journal_paths(image / "journal")
    data = journal.read_bytes()
    journal.write_bytes(data[: data.rindex(b"PnB2")])
    recovered = await open_engine(image)
    assert await read_values(recovered.partition("secret", 0)) == [b"acknowledged"]


# -- files that are not where they were written ---------------------------------------------------------------------------


async def two_partitions(engine: EmbeddedEngine, topic: str) -> None:
    await engine.create_topic(topic, TopicConfig(partitions=2))
    for index in (0, 1):
        for _ in range(3):
            await append(engine.partition(topic, index), [b"%s-%d" % (topic.encode(), index)])


@pytest.mark.parametrize("clean", [False, True], ids=["after a crash", "after a clean stop"])
@pytest.mark.parametrize("with_index", [False, True])
@pytest.mark.parametrize("other", [("orders", 1), ("other", 0)], ids=["of a partition", "of a topic"])
async def test_a_file_in_the_place_of_another_is_refused_though_its_offsets_fit(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, clean: bool, with_index: bool, other: tuple[str, int]
) -> None:
    engine = await open_engine()
    await two_partitions(engine, "orders")
    await two_partitions(engine, "other")
    if clean:
        await engine.close()
    image = crash_image(data_dir, tmp_path / "image")
    shutil.rmtree(image / "journal")
    [right], [wrong] = segment_files(image), segment_files(image, *other)
    right.write_bytes(wrong.read_bytes())
    if with_index and clean:
        right.with_suffix(".index").write_bytes(wrong.with_suffix(".index").read_bytes())
    (image / "journal").mkdir()
    before = files(image)
    with pytest.raises(MissingSegment, match=f"{right} holds the blocks of another file"):
        await open_engine(image)
    assert files(image) == before


@pytest.mark.parametrize("clean", [False, True], ids=["after a crash", "after a clean stop"])
async def test_a_damaged_seal_is_not_taken_for_that_of_another_file(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, clean: bool
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    await append(engine.partition("orders", 0), [b"the only block"])
    if clean:
        await engine.close()
    image = crash_image(data_dir, tmp_path / "image")
    [path] = segment_files(image)
    data = bytearray(path.read_bytes().rstrip(b"\0"))
    data[SEAL_AT + 3] ^= 0x10
    path.write_bytes(data)
    recovered = await open_engine(image)
    if clean:  # the index tells that it was synced
        assert (partition_of(recovered).committed_end, recovered.stats.corrupt_blocks) == (1, 1)
        assert path.read_bytes() == data
    else:
        assert partition_of(recovered).committed_end == 0
        assert path.with_suffix(".torn-at-0").read_bytes() == data


@pytest.mark.parametrize("clean", [False, True], ids=["after a crash", "after a clean stop"])
async def test_a_first_seal_that_is_lost_does_not_make_the_rest_of_the_file_anothers(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, clean: bool
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    for number in range(3):
        await append(engine.partition("orders", 0), [b"%d" % number])
    if clean:
        await engine.close()
    image = crash_image(data_dir, tmp_path / "image")
    [path] = segment_files(image)
    seal = int.from_bytes(path.read_bytes()[SEAL_AT:SUMMED_AT], "little")
    replaced(path, SEAL_AT, (seal ^ 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little"))
    recovered = await open_engine(image)
    assert recovered.stats.corrupt_blocks == 1
    partition = partition_of(recovered)
    assert [record.value for record in await read_from(partition, 1)] == [b"1", b"2"]
    with pytest.raises(CorruptBlock, match="offset 1 and later ones can be read"):
        await partition.read(0)


async def test_a_block_that_was_written_to_the_wrong_place_is_noticed(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    for _ in range(4):
        await append(engine.partition("orders", 0), [b"same"])
    await engine.close()
    [path] = segment_files(data_dir)
    data = path.read_bytes()
    size = BlockHeader(data).size_bytes
    assert len(data) == 4 * size
    path.write_bytes(data[:size] + data[2 * size : 3 * size] + data[2 * size :])
    engine = await open_engine()
    assert [block.base_offset for block in await engine.partition("orders", 0).read(0)] == [0]
    with pytest.raises(Exception, match=f"{path} at byte {size}: it belongs to another file or another place"):
        await engine.partition("orders", 0).read(1)
    assert [block.base_offset for block in await engine.partition("orders", 0).read(2)] == [2, 3]


async def test_no_salt_leaves_the_engine(open_engine: OpenEngine, data_dir: Path) -> None:
    """A client that knew a file's salt could forge its blocks, so what is read and sent must not tell it."""
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    for number in range(3):
        await append(engine.partition("orders", 0), [b"%d" % number])
    [path] = segment_files(data_dir)
    salt = salt_beside(path)
    stored = path.read_bytes()
    assert int.from_bytes(stored[SEAL_AT:SUMMED_AT], "little") == salt
    partition_of(engine).tail.forget()
    for blocks in (await engine.partition("orders", 0).read(0), await engine.partition("orders", 0).read(1)):
        for block in blocks:
            assert block.data[SEAL_AT:SUMMED_AT] == b"".join(block.pieces)[SEAL_AT:SUMMED_AT] == bytes(8)


async def test_each_file_has_a_salt_of_its_own(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    for topic in ("orders", "other"):
        await engine.create_topic(topic, TopicConfig(partitions=2, segment_bytes=300))
        for index in (0, 1):
            for _ in range(4):
                await append(engine.partition(topic, index), [random.Random(1).randbytes(100)])
    paths = list(data_dir.rglob("*.log"))
    assert len(paths) == 8
    assert len({salt_beside(path) for path in paths}) == len(paths)
