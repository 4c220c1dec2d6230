from __future__ import annotations

import errno
import os
from pathlib import Path

import google_crc32c
import pytest
from structlog.testing import capture_logs

from penstock.errors import CorruptMetadata, NoSpace, UnsupportedFormat
from penstock.log.api import Durability, TopicConfig, TopicInfo
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.epochs import Epochs
from penstock.log.embedded.topicfiles import StoredTopic, TopicFiles
from penstock.testing.faults import FaultyDisk
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import files
from tests.log.records import append, read_values

CONFIG = TopicConfig(
    partitions=2,
    durability=Durability("interval", 100),
    retention_ms=1,
    retention_bytes=2,
    cleanup="compact",
    compression="zstd",
    segment_bytes=3,
    segment_ms=4,
)
INFO = TopicInfo("größe/of things", "0" * 31 + "1", CONFIG, 17)
TOPIC = StoredTopic(INFO, bytes(range(16)), Epochs().begun([5, 6], 1).begun([1, 70], 1))


@pytest.fixture
def topics(tmp_path: Path) -> TopicFiles:
    return TopicFiles(Disk(), tmp_path)


def test_a_topic_is_there_with_all_its_settings_once_it_is_created(topics: TopicFiles, tmp_path: Path) -> None:
    topics.create(TOPIC)
    assert topics.load_all() == [TOPIC]
    directory = topics.directory(INFO)
    assert directory.parent == tmp_path
    assert directory.name == "gr__e_of_things." + INFO.id
    assert (directory / "topic.json").read_bytes() == (directory / "topic.json.copy").read_bytes()
    assert topics.partition_directory(INFO, 1).is_dir()
    hidden = topics.hide(INFO)
    assert topics.load_all() == []
    topics.create(TOPIC)
    hidden = topics.hide(INFO)
    topics.remove_hidden(hidden)
    assert topics.load_all() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["..", "a/../../b", "x" * 249, "\N{SNOWMAN}" * 83, ".", "a\\b"])
def test_no_name_leads_out_of_the_directory_or_is_too_long_for_it(
    topics: TopicFiles, tmp_path: Path, name: str
) -> None:
    info = TopicInfo(name, INFO.id, CONFIG, 0)
    topics.create(TOPIC._replace(info=info))
    assert topics.directory(info).resolve().parent == tmp_path.resolve()
    assert [topic.info.name for topic in topics.load_all()] == [name]


@pytest.mark.parametrize("damaged", ["topic.json", "topic.json.copy"])
@pytest.mark.parametrize("damage", ["gone", "empty", "garbage", "changed"])
def test_one_good_copy_is_enough_and_mends_the_other(topics: TopicFiles, damaged: str, damage: str) -> None:
    topics.create(TOPIC)
    path = topics.directory(INFO) / damaged
    good = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "garbage": b"\xff\x00", "changed": good.replace(b"17", b"18")}[damage])
    with capture_logs() as lines:
        assert topics.load_all() == [TOPIC]
    assert [line["log_level"] for line in lines] == ["warning"]
    assert path.read_bytes() == good
    with capture_logs() as lines:
        assert topics.load_all() == [TOPIC]
    assert lines == []


@pytest.mark.parametrize("unreadable", ["topic.json", "topic.json.copy"])
def test_a_copy_that_the_disk_cannot_read_is_replaced(
    topics: TopicFiles, monkeypatch: pytest.MonkeyPatch, unreadable: str
) -> None:
    topics.create(TOPIC)
    before = (topics.directory(INFO) / unreadable).stat().st_ino
    read_bytes = Path.read_bytes

    def read_what_can_be(path: Path) -> bytes:
        if path.name == unreadable and path.stat().st_ino == before:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read_what_can_be)
    assert topics.load_all() == [TOPIC]
    with capture_logs() as lines:
        assert topics.load_all() == [TOPIC]
    assert lines == []


def test_a_copy_that_cannot_be_mended_on_a_full_disk_stops_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    topics = TopicFiles(disk, tmp_path)
    topics.create(TOPIC)
    (topics.directory(INFO) / "topic.json").write_bytes(b"garbage")
    disk.disk_full()
    assert topics.load_all() == [TOPIC]


def test_a_topic_with_both_copies_damaged_is_not_guessed_at(topics: TopicFiles) -> None:
    topics.create(TOPIC)
    directory = topics.directory(INFO)
    for name in ("topic.json", "topic.json.copy"):
        (directory / name).write_bytes(b"garbage")
    with pytest.raises(CorruptMetadata, match=str(directory)):
        topics.load_all()
    assert (directory / "topic.json").read_bytes() == b"garbage"


@pytest.mark.parametrize(
    ("version", "remedy"),
    [(1, "the release that wrote it, then start this one with an empty --data-dir"), (3, "a later")],
)
@pytest.mark.parametrize("copies", [["topic.json", "topic.json.copy"], ["topic.json"], ["topic.json.copy"]])
async def test_another_format_is_refused_by_its_number_and_left_as_it_is(
    data_dir: Path, open_engine: OpenEngine, version: int, remedy: str, copies: list[str]
) -> None:
    topics = TopicFiles(Disk(), data_dir / "topics")
    (data_dir / "topics").mkdir(parents=True)
    (data_dir / "LOCK").touch()
    topics.create(TOPIC)
    (data_dir / "topics" / "old.1.deleted").mkdir()
    directory = topics.directory(INFO)
    body = (directory / "topic.json").read_bytes().split(b"\n", 1)[1].rstrip(b"\n")
    body = body.replace(b'"version": 2', b'"version": %d' % version).replace(b'"salt"', b'"pepper"')
    for name in ("topic.json", "topic.json.copy"):
        (directory / name).unlink()
    for name in copies:
        (directory / name).write_bytes(b"%08x\n%s\n" % (google_crc32c.value(body), body))
    before = sorted(data_dir.rglob("*")), files(data_dir)
    with pytest.raises(UnsupportedFormat, match=f"{directory}.* format {version}, .* format 2: .*{remedy}"):
        await open_engine()
    assert (sorted(data_dir.rglob("*")), files(data_dir)) == before


def test_what_a_crash_left_of_a_creation_goes_and_what_holds_records_stays(topics: TopicFiles, tmp_path: Path) -> None:
    (tmp_path / "begun.1" / "0").mkdir(parents=True)
    (tmp_path / "odd.2" / "0").mkdir(parents=True)
    (tmp_path / "odd.2" / "0" / "00000000000000000000.log").write_bytes(b"records")
    (tmp_path / "notes.deleted").write_bytes(b"a file, and topics are directories")
    with capture_logs() as lines:
        assert topics.load_all() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.deleted", "odd.2"]
    assert [line["log_level"] for line in lines] == ["warning", "error"]
    assert lines[0]["file"] == str(tmp_path / "notes.deleted")


def test_two_directories_of_one_topic_are_not_chosen_between(topics: TopicFiles) -> None:
    twin = TopicInfo(INFO.name, "0" * 31 + "2", CONFIG, 18)
    topics.create(TOPIC)
    topics.create(TOPIC._replace(info=twin))
    with pytest.raises(CorruptMetadata, match=f"{topics.directory(INFO)}.*{topics.directory(twin)}"):
        topics.load_all()


@pytest.mark.parametrize("failing", ["topic.json.copy", "topic.json"])
async def test_a_topic_whose_creation_failed_does_not_come_back(
    open_engine: OpenEngine, data_dir: Path, failing: str
) -> None:
    class FullOnce(FaultyDisk):
        full = True

        def write_file(self, path: Path, data: bytes, *, sync: bool = True) -> None:
            if path.name == failing and self.full:
                self.full = False
                raise OSError(28, "No space left on device")
            super().write_file(path, data, sync=sync)

    engine = await open_engine(disk=FullOnce())
    with pytest.raises(NoSpace, match="orders"):
        await engine.create_topic("orders", CONFIG)
    assert "orders" not in engine.topics()
    assert list((data_dir / "topics").iterdir()) == []
    await engine.create_topic("orders", CONFIG)
    await append(engine.partition("orders", 0), [b"x"])
    await engine.close()
    engine = await open_engine()
    assert await read_values(engine.partition("orders", 0)) == [b"x"]
