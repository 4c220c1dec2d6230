"""Topics on disk: one directory each, with its metadata in two copies.

    topics/<readable name>.<id>/topic.json, topic.json.copy      name, id, configuration, with a checksum
    topics/<readable name>.<id>/<partition>/<base offset>.log    segments

A topic exists once its metadata is in place; a directory without it is what a crash left of a creation and holds no records. Deleting
renames the directory first, so that the name is gone at once and the files may take their time.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import google_crc32c
import msgspec
import structlog

from penstock.errors import CorruptMetadata
from penstock.log.api import Durability, TopicConfig, TopicInfo
from penstock.log.embedded.crashpoints import Site
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.segment import DELETED_SUFFIX

_log = structlog.get_logger(__name__)

_VERSION: Final = 1
_FILE: Final = "topic.json"
_COPY: Final = "topic.json.copy"
# The directory name is for people; the id makes it unique, so the name may be shortened and its odd characters replaced.
_READABLE_MAX: Final = 80
_UNREADABLE = re.compile(r"[^A-Za-z0-9_-]")


class TopicFiles:
    """Creates, lists and removes topic directories. Methods block."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._root = root

    def directory(self, info: TopicInfo) -> Path:
        return self._root / f"{_UNREADABLE.sub('_', info.name)[:_READABLE_MAX]}.{info.id}"

    def partition_directory(self, info: TopicInfo, index: int) -> Path:
        return self.directory(info) / str(index)

    def create(self, info: TopicInfo) -> None:
        directory = self.directory(info)
        for index in range(info.config.partitions):
            (directory / str(index)).mkdir(parents=True)
        self._disk.sync_directory(directory)
        self._disk.sync_directory(self._root)
        self._disk.crash_point(Site.TOPIC_LAID_OUT)
        self._save(directory, info)
        self._disk.crash_point(Site.TOPIC_CREATED)

    def remove(self, info: TopicInfo) -> None:
        directory = self.directory(info)
        doomed = directory.with_name(directory.name + DELETED_SUFFIX)
        self._disk.rename(directory, doomed)
        self._disk.sync_directory(self._root)
        self._disk.crash_point(Site.TOPIC_RENAMED)
        self._disk.remove_tree(doomed)
        self._disk.crash_point(Site.TOPIC_REMOVED)

    def discard(self, info: TopicInfo) -> None:
        """Take away what a creation that failed has left, as far as the disk lets us."""
        try:
            if self.directory(info).exists():
                self.remove(info)
        except OSError as error:
            _log.error(
                "a topic that was not created leaves files", directory=str(self.directory(info)), error=str(error)
            )

    def load_all(self) -> list[TopicInfo]:
        """Every topic there is, finishing deletions that a crash interrupted."""
        topics: list[TopicInfo] = []
        for directory in sorted(self._root.iterdir()):
            if directory.name.endswith(DELETED_SUFFIX):
                self._disk.remove_tree(directory)
            elif directory.is_dir() and (info := self._load(directory)) is not None:
                topics.append(info)
        directories: dict[str, Path] = {}
        for info in topics:
            twin = directories.setdefault(info.name, self.directory(info))
            if twin != self.directory(info):
                raise CorruptMetadata(
                    f"topic {info.name!r} is there twice, in {twin} and {self.directory(info)}; move one of them away"
                )
        return topics

    def _save(self, directory: Path, info: TopicInfo) -> None:
        data = _encode(info)
        self._disk.write_file(directory / _COPY, data)
        self._disk.write_file(directory / _FILE, data)

    def _load(self, directory: Path) -> TopicInfo | None:
        found: list[TopicInfo] = []
        damaged: list[Path] = []
        for path in (directory / _FILE, directory / _COPY):
            try:
                found.append(_decode(path.read_bytes()))
            except FileNotFoundError:
                continue
            except (ValueError, msgspec.MsgspecError):
                damaged.append(path)
        if found:
            if len(found) < 2:
                _log.warning("topic metadata had only one good copy; both are written again", directory=str(directory))
                try:
                    self._save(directory, found[0])
                except OSError as error:
                    # A full disk must not keep the log from opening; one good copy is enough for that.
                    _log.warning("topic metadata not written again", directory=str(directory), error=str(error))
            return found[0]
        if damaged:
            raise CorruptMetadata(
                f"both copies of the metadata in {directory} are damaged, so the topic's name and settings are unknown; restore "
                f"{_FILE} from a backup, or move the directory away to start without this topic (nothing in it was changed)"
            )
        if any(directory.glob("*/*")):
            _log.error("directory holds files but no topic metadata; left as it is", directory=str(directory))
        else:
            self._disk.remove_tree(directory)  # a creation that never finished
        return None


def _encode(info: TopicInfo) -> bytes:
    config = info.config
    topic: dict[str, Any] = {
        "version": _VERSION,
        "name": info.name,
        "id": info.id,
        "created_ms": info.created_ms,
        "config": {
            "partitions": config.partitions,
            "durability": str(config.durability),
            "retention_ms": config.retention_ms,
            "retention_bytes": config.retention_bytes,
            "cleanup": config.cleanup,
            "compression": config.compression,
            "segment_bytes": config.segment_bytes,
            "segment_ms": config.segment_ms,
        },
    }
    body = msgspec.json.format(msgspec.json.encode(topic))
    return b"%08x\n%s\n" % (google_crc32c.value(body), body)


def _decode(data: bytes) -> TopicInfo:
    checksum, _, body = data.rstrip(b"\n").partition(b"\n")
    if checksum != b"%08x" % google_crc32c.value(body):
        raise ValueError("checksum does not match")
    topic = msgspec.json.decode(body)
    if topic["version"] != _VERSION:
        raise CorruptMetadata(
            f"topic {topic['name']!r} was written by a later release (format {topic['version']}); use that release"
        )
    config = dict(topic["config"])
    config["durability"] = Durability.parse(config["durability"])
    return TopicInfo(topic["name"], topic["id"], TopicConfig(**config), topic["created_ms"])
