"""Data directories that were written once, by this version or an earlier one, are opened, read, checked and written to."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest

from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.format_fixture import FIXTURES, OPTIONS, STOPS, archive_of, as_json
from tests.log.embedded.storage import everything, files
from tests.log.records import append, read_values

ARCHIVES = sorted(FIXTURES.glob("*.tar.gz"))


def unpacked(archive: Path, target: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="data")
    return target


def test_there_is_a_directory_of_the_present_format_after_each_way_to_stop() -> None:
    assert {archive_of(stop) for stop in STOPS} <= set(ARCHIVES)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
async def test_a_directory_that_was_written_once_is_opened_read_and_written_to(
    open_engine: OpenEngine, tmp_path: Path, archive: Path
) -> None:
    data_dir = unpacked(archive, tmp_path / "data")
    expected = (data_dir / "expected.json").read_text()
    crashed = "crashed" in archive.name
    engine = await open_engine(data_dir, options=OPTIONS)
    found = await everything(engine)
    assert as_json(found) == expected
    assert engine.stats.corrupt_blocks == 0
    assert engine.stats.torn_tails == crashed
    assert (engine.partition("loose", 0).epoch > 0) == crashed
    for topic, index in found:
        end = engine.partition(topic, index).committed_end
        assert (await append(engine.partition(topic, index), [b"more"], [b"new key"])).base_offset == end
    await engine.maintain()
    await engine.close()
    engine = await open_engine(data_dir, options=OPTIONS)
    for topic, index in found:
        values = [record.value for record in found[topic, index]]
        assert (await read_values(engine.partition(topic, index)))[-3:] == [*values, b"more"][-3:]
    unchanged = [place for place in found if place[0] != "table"]  # which is compacted further
    again = await everything(engine)
    assert {place: again[place][:-1] for place in unchanged} == {place: found[place] for place in unchanged}


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
async def test_it_holds_every_kind_of_file(tmp_path: Path, archive: Path) -> None:
    """A fixture that lacks a kind would not show that a later version cannot read it."""
    names = [re.sub(r"\d{20}", "N", Path(name).name) for name in files(unpacked(archive, tmp_path / "data"))]
    kinds = {"topic.json", "topic.json.copy", "N.log", "N-N.log", "N.index", "N-N.index", "LOCK"}
    kinds |= {"N.journal"} if "crashed" in archive.name else {"clean-shutdown"}
    assert kinds <= set(names)
