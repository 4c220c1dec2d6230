from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.testing.crashing import CRASHED, CrashAt, CrashDisk, file_kind


class Ended(Exception):
    pass


def end(code: int) -> None:
    assert code == CRASHED
    raise Ended


@pytest.mark.parametrize("text", ["commit write segment:3:half", "* journal:1:before", "*:12:after"])
def test_an_operation_is_written_as_it_is_read(text: str) -> None:
    assert str(CrashAt.parse(text)) == text


def test_the_first_operation_is_meant_and_the_moment_before_it_unless_told() -> None:
    assert CrashAt.parse("commit flush journal") == CrashAt("commit flush journal", 1, "before")


@pytest.mark.parametrize("text", ["", ":1", "write:0", "write:x", "write:-1", "write:1:never"])
def test_text_that_names_no_operation_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names no operation"):
        CrashAt.parse(text)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("topics/orders.1/0/00000000000000000000.log", "segment"),
        ("topics/orders.1/0/00000000000000000000.log (deleted)", "segment"),
        ("topics/orders.1/0/00000000000000000000.index.tmp", "index"),
        ("topics/orders.1/0/00000000000000000000.torn-at-17.tmp", "torn"),
        ("topics/orders.1/topic.json.copy.tmp", "metadata"),
        ("topics/orders.1.deleted", "topic"),
        ("journal/00000007.journal", "journal"),
        ("clean-shutdown.tmp", "marker"),
        ("topics/orders.1/0", "directory"),
    ],
)
def test_files_have_a_kind(path: str, kind: str) -> None:
    assert file_kind(Path("/data") / path) == kind


@pytest.mark.parametrize(
    ("moment", "content"), [("before", b"one"), ("half", b"onetw"), ("after", b"onetwo!")], ids=str
)
def test_the_process_ends_at_the_nth_operation_of_the_kind(tmp_path: Path, moment: str, content: bytes) -> None:
    disk = CrashDisk(CrashAt.parse(f"other write segment:2:{moment}"), end)
    path = tmp_path / "0.log"
    fd = disk.open_append(path, create=True)
    disk.write_all(fd, b"one", 0)
    disk.fdatasync(fd)
    with pytest.raises(Ended):
        disk.write_all(fd, b"two!", 3)
    os.close(fd)
    assert path.read_bytes() == content
    assert disk.operations == {"other create segment": 1, "other write segment": 2, "other flush segment": 1}


def test_a_pattern_takes_operations_of_several_kinds(tmp_path: Path) -> None:
    disk = CrashDisk(CrashAt("*", 4), end)
    disk.write_file(tmp_path / "a.index", b"x", sync=False)  # create, write, rename
    with pytest.raises(Ended):
        disk.unlink(tmp_path / "a.index")
    assert (tmp_path / "a.index").exists()


def test_a_directory_can_be_removed_by_half(tmp_path: Path) -> None:
    doomed = tmp_path / "topics" / "orders.1.deleted"
    doomed.mkdir(parents=True)
    for name in "abcd":
        (doomed / name).touch()
    with pytest.raises(Ended):
        CrashDisk(CrashAt("other remove topic", 1, "half"), end).remove_tree(doomed)
    assert {path.name for path in doomed.iterdir()} == {"b", "d"}
