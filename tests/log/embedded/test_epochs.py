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
from penstock.testing.clock import START_MS, ManualClock
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import CountingDisk, crash_image, segment_files
from tests.log.records import append, read_values

LOOSE = TopicConfig(partitions=2, durability=Durability("none"))


def test_without_epochs_nothing_was_cut() -> None:
    assert Epochs().current == 0
    assert Epochs().cut_since(0, 0) is None


def test_a_reader_is_told_the_lowest_cut_since_its_epoch() -> None:
    epochs = Epochs().begun([10, 5], 1).begun([7, 50], 2).begun([30, 60], 3)
    numbers = [0, *(each.number for each in epochs.epochs)]
    assert epochs.current == numbers[-1]
    assert [epochs.cut_since(number, 0) for number in numbers] == [7, 7, 30, None]
    assert [epochs.cut_since(number, 1) for number in numbers] == [5, 50, 60, None]


def test_numbers_rise_even_if_the_clock_goes_back() -> None:
    epochs = Epochs()
    for now_ms in (START_MS, START_MS, START_MS - 3_600_000, 0):
        before = epochs.current
        epochs = epochs.begun([10], now_ms)
        assert epochs.current > before


def test_the_same_epochs_are_never_continued_with_the_same_number() -> None:
    """As when one backup is restored many times, at times that a clock distinguishes."""
    before = Epochs().begun([10], START_MS)
    numbers = [before.begun([10], START_MS + elapsed_ms).current for elapsed_ms in range(1, 100)]
    assert sorted(set(numbers)) == numbers


def test_a_clock_that_stands_still_or_is_behind_gives_different_numbers_too() -> None:
    """The digits that it leaves to chance differ sooner or later; that 20 draws of 1000 are all the same does not happen."""
    before = Epochs().begun([10], START_MS)
    for now_ms in (START_MS, START_MS - 3_600_000):
        assert len({before.begun([10], now_ms).current for _ in range(20)}) > 1


def test_a_reader_of_an_epoch_that_has_not_been_can_rely_on_nothing() -> None:
    """As when the directory was restored from a backup that is older than the reader."""
    epochs = Epochs().begun([10], START_MS)
    assert epochs.cut_since(epochs.current + 1, 0) == 0


def test_epochs_survive_being_stored() -> None:
    epochs = Epochs().begun([10, 5], START_MS).begun([7, 50], START_MS)
    assert Epochs.decode(json.loads(json.dumps(epochs.encode()))) == epochs


def test_only_so_many_are_remembered_and_no_cut_is_told_too_high() -> None:
    ends = [(number * 7919) % 1000 for number in range(3 * EPOCHS_MAX)]
    epochs = Epochs()
    numbers = [0]
    for end in ends:
        epochs = epochs.begun([end], START_MS)
        numbers.append(epochs.current)
    assert len(epochs.epochs) == EPOCHS_MAX
    for epoch in range(len(ends)):
        told = epochs.cut_since(numbers[epoch], 0)
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
    first = partition.epoch
    assert first > 0
    assert (partition.committed_end, partition.cut_since(0)) == (3, 3)
    assert (recovered.partition("loose", 1).epoch, recovered.partition("loose", 1).cut_since(0)) == (first, 0)
    assert (recovered.partition("safe", 0).epoch, recovered.partition("safe", 0).cut_since(0)) == (0, None)
    assert partition.cut_since(first) is None
    await append(partition, [b"other", b"records", b"there"])
    second = crash_image(image, tmp_path / "second")
    await recovered.close()
    again = await open_engine(second)
    partition = again.partition("loose", 0)
    assert partition.epoch > first
    assert (partition.cut_since(0), partition.cut_since(first)) == (3, 6)


async def test_a_clean_stop_begins_no_epoch_and_keeps_those_there_were(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await engine.create_topic("loose", LOOSE)
    await append(engine.partition("loose", 0), [b"x"])
    image = crash_image(data_dir, tmp_path / "image")
    epochs: set[int] = set()
    for _ in range(3):
        engine = await open_engine(image)
        partition = engine.partition("loose", 0)
        epochs.add(partition.epoch)
        assert partition.cut_since(0) == 1
        await append(partition, [b"more"])
        await engine.close()
    assert len(epochs) == 1
    assert 0 not in epochs


async def test_a_topic_that_is_made_again_begins_without_epochs(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await engine.create_topic("loose", LOOSE)
    engine = await open_engine(crash_image(data_dir, tmp_path / "image"))
    assert engine.partition("loose", 0).epoch > 0
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
    epoch = engine.partition("loose", 0).epoch
    assert epoch > 0
    assert await read_values(engine.partition("loose", 0)) == [b"x"]
    assert ("epoch_not_saved" in [line["event"] for line in lines]) is not with_reserve
    if with_reserve:
        await append(engine.partition("loose", 0), [b"y"])
    else:
        with pytest.raises(NotWritten, match="no space to save the log epoch of topic loose: free some, then restart"):
            await append(engine.partition("loose", 0), [b"y"])
    await engine.close()
    engine = await open_engine(image)
    partition = engine.partition("loose", 0)
    assert partition.epoch == (epoch if with_reserve else 0) or not with_reserve
    assert partition.cut_since(0) == 1
    assert partition.cut_since(partition.epoch) is None


async def test_two_crashes_of_the_same_directory_begin_different_epochs(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """As when the first life of an image ended, and somebody copied the image back."""
    engine = await open_engine()
    await engine.create_topic("loose", LOOSE)
    images = [crash_image(data_dir, tmp_path / name) for name in ("first", "second")]
    epochs = []
    for image in images:
        clock.advance(1)
        epochs.append((await open_engine(image)).partition("loose", 0).epoch)
    assert epochs[1] > epochs[0]
