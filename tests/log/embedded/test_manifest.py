"""Manifests that come from elsewhere: damaged, of another format, or naming files that are none of theirs."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec
import pytest

from penstock.errors import CorruptMetadata, DataDirectoryInUse, UnsupportedFormat
from penstock.log.embedded.manifest import FileEntry, Manifest, TopicEntry, encode_manifest, holding, read_manifest

MANIFEST = Manifest(1, "id", 5, [TopicEntry("orders", "ab", [0], [3])], [FileEntry("topics/a/0/b.log", 7, 8, "ff")])


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    (tmp_path / "manifest.json").write_bytes(encode_manifest(MANIFEST))
    assert read_manifest(tmp_path) == MANIFEST
    assert MANIFEST.size_bytes == 7


@pytest.mark.parametrize("path", ["../x", "topics/../../x", "/etc/passwd", "LOCK", "", "topics/a/../../../x"])
def test_a_path_that_leads_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    manifest = msgspec.structs.replace(MANIFEST, files=[FileEntry(path, 1)])
    (tmp_path / "manifest.json").write_bytes(encode_manifest(manifest))
    with pytest.raises(CorruptMetadata, match="not a log file"):
        read_manifest(tmp_path)


def test_another_format_and_damage_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(encode_manifest(msgspec.structs.replace(MANIFEST, format=2)))
    with pytest.raises(UnsupportedFormat, match="has format 2"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_bytes(encode_manifest(MANIFEST)[:-9])
    with pytest.raises(CorruptMetadata, match="is damaged"):
        read_manifest(tmp_path)


def test_readers_share_a_directory_and_a_broker_has_it_alone(tmp_path: Path) -> None:
    with holding(tmp_path, "stop it"):
        pass  # there is nothing to lock
    (tmp_path / "LOCK").touch()
    with holding(tmp_path, "stop it"), holding(tmp_path, "stop it"):
        pass
    fd = os.open(tmp_path / "LOCK", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with pytest.raises(DataDirectoryInUse, match="stop it"), holding(tmp_path, "stop it"):
            pass
    finally:
        os.close(fd)
