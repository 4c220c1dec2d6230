from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.errors import NotWritten
from penstock.log.api import Durability, TopicConfig
from penstock.log.embedded.epochs import EPOCHS_MAX, Epochs
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import CountingDisk, crash_image, segment_files
from tests.log.records import append, read_values

LOOSE = TopicConfig(partitions=2, durability=Durability("none"))


def test_without_epochs_nothing_was_cut() -> None:
    assert Epochs().current == 0
    assert Epochs().cut_since(0, 0) is None


def test_a_reader_is_told_the_lowest_cut_since_its_epoch() -> None:
    epochs = Epochs().begun([10, 5]).begun([7, 50]).begun([30, 60])
    assert epochs.current == 3
    assert [epochs.cut_since(epoch, 0) for epoch in range(4)] == [7, 7, 30, None]
    assert [epochs.cut_since(epoch, 1) for epoch in range(4)] == [5, 50, 60, None]


def test_a_reader_of_an_epoch_that_has_not_been_can_rely_on_nothing() -> None:
    """As when the directory was restored from a backup that is older than the reader."""
    assert Epochs().begun([10]).cut_since(2, 0) == 0


def test_epochs_survive_being_stored() -> None:
    epochs = Epochs().begun([10, 5]).begun([7, 50])
    assert Epochs.decode(json.loads(json.dumps(epochs.encode()))) == epochs


def test_only_so_many_are_remembered_and_no_cut_is_told_too_high() -> None:
    ends = [(number * 7919) % 1000 for number in range(3 * EPOCHS_MAX)]
    epochs = Epochs()
    for end in ends:
        epochs = epochs.begun([end])
    assert len(epochs.epochs) == EPOCHS_MAX
    assert epochs.current == len(ends)
    for epoch in range(len(ends)):
        told = epochs.cut_since(epoch, 0)
        assert told is not None
        assert told <= min(ends[epoch:])
        if epoch >= len(ends) - EPOCHS_MAX + 1:
            assert told == min(ends[epoch:])


# -- in the engine --------------------------------------------------------------------------------------------------------


async def test_a_crash_begins_an_epoch_of_topics_without_fsync_and_tells_where_they_end(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await engine.create_topic("loose", LOOSE)
    await engine.create_topic("safe", TopicConfig())
    for number in range(5):
        await append(engine.partition("loose", 0), [b"%d" % number])
        await append(engine.partition("safe", 0), [b"%d" % number])
    assert engine.partition("loose", 0).epoch == 0
    image = crash_image(data_dir, tmp_path / "image")
    [path] = segment_files(image, "loose")
    path.write_bytes(
        path.read_bytes()[: engine.partition("loose", 0).size_bytes * 3 // 5]
    )  # the power cut took the rest
    recovered = await open_engine(image)
    partition = recovered.partition("loose", 0)
    assert (partition.committed_end, partition.epoch, partition.cut_since(0)) == (3, 1, 3)
    assert (recovered.partition("loose", 1).epoch, recovered.partition("loose", 1).cut_since(0)) == (1, 0)
    assert (recovered.partition("safe", 0).epoch, recovered.partition("safe", 0).cut_since(0)) == (0, None)
    assert partition.cut_since(1) is None
    await append(partition, [b"other", b"records", b"there"])
    second = crash_image(image, tmp_path / "second")
    await recovered.close()
    again = await open_engine(second)
    partition = again.partition("loose", 0)
    assert (partition.epoch, partition.cut_since(0), partition.cut_since(1)) == (2, 3, 6)


async def test_a_clean_stop_begins_no_epoch_and_keeps_those_there_were(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await engine.create_topic("loose", LOOSE)
    await append(engine.partition("loose", 0), [b"x"])
    image = crash_image(data_dir, tmp_path / "image")
    for epoch in (1, 1, 1):
        engine = await open_engine(image)
        partition = engine.partition("loose", 0)
        assert (partition.epoch, partition.cut_since(0)) == (epoch, 1)
        await append(partition, [b"more"])
        await engine.close()


async def test_a_topic_that_is_made_again_begins_without_epochs(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await engine.create_topic("loose", LOOSE)
    engine = await open_engine(crash_image(data_dir, tmp_path / "image"))
    assert engine.partition("loose", 0).epoch == 1
    await engine.delete_topic("loose")
    await engine.create_topic("loose", LOOSE)
    assert engine.partition("loose", 0).epoch == 0


class FullFor(CountingDisk):
    """A disk that has no space for metadata until the reserve is given up, or none at all."""

    def __init__(self, reserve: Path | None) -> None:
        super().__init__()
        self._reserve = reserve

    def write_file(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        if path.name.startswith("topic.json") and (self._reserve is None or self._reserve.exists()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write_file(path, data, sync=sync)


@pytest.mark.parametrize("with_reserve", [True, False])
async def test_a_full_disk_keeps_no_log_from_opening_with_a_new_epoch(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, with_reserve: bool
) -> None:
    engine = await open_engine()
    await engine.create_topic("loose", LOOSE)
    await append(engine.partition("loose", 0), [b"x"])
    image = crash_image(data_dir, tmp_path / "image")
    with capture_logs() as lines:
        engine = await open_engine(image, disk=FullFor(image / "reserve" if with_reserve else None))
    assert engine.partition("loose", 0).epoch == 1
    assert await read_values(engine.partition("loose", 0)) == [b"x"]
    assert ("no space to save the epoch of a topic" in [line["event"] for line in lines]) is not with_reserve
    if with_reserve:
        await append(engine.partition("loose", 0), [b"y"])
    else:
        with pytest.raises(NotWritten, match="no space to save the log epoch of topic loose: free some, then restart"):
            await append(engine.partition("loose", 0), [b"y"])
    await engine.close()
    engine = await open_engine(image)
    partition = engine.partition("loose", 0)
    assert (partition.epoch, partition.cut_since(0), partition.cut_since(1)) == (1, 1, None)
