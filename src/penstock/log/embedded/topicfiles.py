"""Topics on disk: one directory each, with its metadata in two copies.

    topics/<readable name>.<id>/topic.json, topic.json.copy      format, name, id, configuration, salt, epochs, starts, with a checksum
    topics/<readable name>.<id>/<partition>/<base offset>.log    segments

A topic exists once its metadata is in place; a directory without it is what a crash left of a creation and holds no records. Deleting
renames the directory first, so that the name is gone at once and the files may take their time. Altering or truncating a topic replaces
its metadata, which is atomic: everything else (directories of new partitions, segments that are removed) comes before or after that.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from penstock.errors import CorruptMetadata, OutcomeUnknown, UnsupportedFormat
from penstock.log.api import Durability, TopicConfig, TopicInfo
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.epochs import Epochs
from penstock.log.embedded.segment import DELETED_SUFFIX
from penstock.log.salts import (
    FORMAT,
    METADATA_COPY,
    METADATA_FILE,
    PartitionSalts,
    decode_metadata,
    encode_metadata,
)

log = structlog.get_logger(__name__)

# The directory name is for people; the id makes it unique, so the name may be shortened and its odd characters replaced.
_READABLE_MAX: Final = 80
_UNREADABLE = re.compile(r"[^A-Za-z0-9_-]")


class StoredTopic(NamedTuple):
    """What the metadata of a topic says."""

    info: TopicInfo
    salt: bytes
    epochs: Epochs
    starts: tuple[int, ...] = ()
    """Offsets that partitions were truncated to; 0 for those that were not, and those beyond the end of the list."""

    def start(self, partition: int) -> int:
        return self.starts[partition] if partition < len(self.starts) else 0

    def salts(self, partition: int) -> PartitionSalts:
        return PartitionSalts(self.salt, partition)


class TopicFiles:
    """Creates, lists and removes topic directories. Methods block."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._root = root

    def directory(self, info: TopicInfo) -> Path:
        return self._root / _directory_name(info)

    def partition_directory(self, info: TopicInfo, index: int) -> Path:
        return self._root / f"{_directory_name(info)}/{index}"

    def check_format(self) -> None:
        """Raise UnsupportedFormat if a topic has another format than this release reads. Changes nothing."""
        for directory in sorted(self._root.iterdir()):
            _check_format(directory)

    def create(self, topic: StoredTopic) -> None:
        self.make_partitions(topic.info)
        self._disk.sync_directory(self._root)
        self.save(topic)

    def make_partitions(self, info: TopicInfo) -> None:
        """Make the directories of partitions that have none."""
        directory = self.directory(info)
        for index in range(info.config.partitions):
            self._disk.make_directory(directory / str(index))
        self._disk.sync_directory(directory)

    def hide(self, info: TopicInfo) -> Path:
        """Rename the directory of a topic, after which the topic does not exist; returns what `remove_hidden` takes."""
        directory = self.directory(info)
        hidden = directory.with_name(directory.name + DELETED_SUFFIX)
        self._disk.rename(directory, hidden)
        try:
            self._disk.sync_directory(self._root)
        except OSError:
            self._disk.rename(hidden, directory)
            raise
        return hidden

    def remove_hidden(self, hidden: Path) -> None:
        """Remove the files of a deleted topic; the next start does it if this fails."""
        try:
            self._disk.remove_tree(hidden)
        except OSError as error:
            log.warning("deleted_topic_not_removed", directory=str(hidden), error=str(error))

    def discard(self, info: TopicInfo) -> None:
        """Take away what a creation that failed has left, as far as the disk lets us."""
        try:
            if self.directory(info).exists():
                self.remove_hidden(self.hide(info))
        except OSError as error:
            log.error("failed_topic_creation_not_removed", directory=str(self.directory(info)), error=str(error))

    def load_all(self) -> list[StoredTopic]:
        """Every topic there is, finishing deletions that a crash interrupted.

        Raises UnsupportedFormat, before it changes anything, if a topic has another format than this release reads.
        """
        directories = sorted(self._root.iterdir()) if self._root.exists() else []
        found: dict[Path, _Copies] = {}
        for directory in directories:
            if directory.name.endswith(DELETED_SUFFIX):
                _check_format(directory)
            else:
                found[directory] = _read_copies(directory)
        topics: list[StoredTopic] = []
        for directory in directories:
            copies = found.get(directory)
            if not (copies and copies.whole) and not directory.is_dir():
                log.warning("unexpected_file", file=str(directory))
            elif copies is None:
                self._disk.remove_tree(directory)
            elif (topic := self._mended(directory, copies)) is not None:
                topics.append(topic)
        infos: dict[str, TopicInfo] = {}
        for info in (topic.info for topic in topics):
            twin = infos.setdefault(info.name, info)
            if twin is not info:
                raise CorruptMetadata(
                    f"topic {info.name!r} is there twice, in {self.directory(twin)} and {self.directory(info)}; move one of them away"
                )
        return topics

    def read_all(self) -> list[StoredTopic]:
        """Return every topic whose metadata can be read. Changes nothing, and may be called while a broker runs."""
        topics: list[StoredTopic] = []
        for directory in sorted(self._root.iterdir()) if self._root.exists() else ():
            if directory.name.endswith(DELETED_SUFFIX):
                continue
            for path in (directory / METADATA_FILE, directory / METADATA_COPY):
                try:
                    topics.append(decode_topic(path.read_bytes()))
                except (OSError, ValueError, KeyError, TypeError, msgspec.MsgspecError):
                    continue
                break
        return topics

    def save(self, topic: StoredTopic) -> None:
        """Write both copies of the metadata. After a crash in between, the one that is not written yet counts."""
        data = _encode(topic)
        directory = self.directory(topic.info)
        self._disk.write_file(directory / METADATA_COPY, data)
        self._disk.write_file(directory / METADATA_FILE, data)

    def replace(self, before: StoredTopic, after: StoredTopic) -> None:
        """Save the metadata of a topic that exists. Raises OSError if it stays as it was, OutcomeUnknown if that cannot be told."""
        try:
            self.save(after)
        except OSError as error:
            path = self.directory(before.info) / METADATA_FILE
            try:
                kept = decode_topic(path.read_bytes()) == before
            except (OSError, ValueError):
                kept = False
            if kept:
                raise
            raise OutcomeUnknown(
                f"whether topic {before.info.name!r} was changed is unknown, because writing {path} failed: {error}; "
                "check the disk, then restart the broker"
            ) from error

    def _mended(self, directory: Path, copies: _Copies) -> StoredTopic | None:
        """Return the topic whose metadata was found, with both copies in place; None if there was none."""
        whole = copies.whole
        if whole:
            if len(whole) < 2 or whole[0] != whole[1]:
                log.warning("topic_metadata_repaired", directory=str(directory))
                try:
                    self.save(whole[0])
                except OSError as error:
                    # A full disk must not keep the log from opening; one good copy is enough for that.
                    log.warning("topic_metadata_not_repaired", directory=str(directory), error=str(error))
            return whole[0]
        if copies.damaged:
            raise CorruptMetadata(
                f"both copies of the metadata in {directory} are damaged, so the topic's name and settings are unknown; restore "
                f"{METADATA_FILE} from a backup, or move the directory away to start without this topic (nothing in it was changed)"
            )
        if any(directory.glob("*/*")):
            log.error("topic_metadata_missing", directory=str(directory))
        else:
            self._disk.remove_tree(directory)  # a creation that never finished
        return None


def _directory_name(info: TopicInfo) -> str:
    return f"{_UNREADABLE.sub('_', info.name)[:_READABLE_MAX]}.{info.id}"


class _Copies(NamedTuple):
    """The copies of a topic's metadata that are there."""

    whole: list[StoredTopic]
    damaged: bool
    """Whether one is damaged, or the disk cannot read it."""


def _read_copies(directory: Path) -> _Copies:
    """Read both copies, and decode the second only if it differs. Raises UnsupportedFormat."""
    copies = _Copies([], damaged=False)
    first = b""
    for name in (METADATA_FILE, METADATA_COPY):
        try:
            with open(f"{directory}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - as `file_names` says
                data = file.read()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            copies = copies._replace(damaged=True)
            continue
        if copies.whole and data == first:
            copies.whole.append(copies.whole[0])
            continue
        first = data
        try:
            metadata = decode_metadata(data)
            _check_version(directory, metadata)
            copies.whole.append(_stored(metadata))
        except (ValueError, KeyError, TypeError, msgspec.MsgspecError):
            copies = copies._replace(damaged=True)
    return copies


def _check_format(directory: Path) -> None:
    for name in (METADATA_FILE, METADATA_COPY):
        try:
            metadata = decode_metadata((directory / name).read_bytes())
        except (OSError, ValueError):
            continue  # missing or damaged; loading the topic tells
        _check_version(directory, metadata)


def _check_version(directory: Path, metadata: Mapping[str, Any]) -> None:
    found = metadata["version"]
    if found != FORMAT:
        raise UnsupportedFormat(
            f"{directory} has log format {found}, and this release reads and writes format {FORMAT}: {_remedy(found)}; "
            "nothing was changed"
        )


def _remedy(found: int) -> str:
    if found > FORMAT:
        return "start the release that wrote it, or a later one"
    return "alpha formats are not upgraded; read what you need with the release that wrote it, then start this one with an empty --data-dir"


def _encode(topic: StoredTopic) -> bytes:
    info, config = topic.info, topic.info.config
    metadata: dict[str, Any] = {
        "version": FORMAT,
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
        "salt": topic.salt.hex(),
        "epochs": topic.epochs.encode(),
    }
    if any(topic.starts):
        metadata["starts"] = list(topic.starts)
    return encode_metadata(metadata)


def decode_topic(data: bytes) -> StoredTopic:
    return _stored(decode_metadata(data))


def _stored(metadata: Mapping[str, Any]) -> StoredTopic:
    config = dict(metadata["config"])
    config["durability"] = Durability.parse(config["durability"])
    info = TopicInfo(metadata["name"], metadata["id"], TopicConfig(**config), metadata["created_ms"])
    epochs = Epochs.decode(metadata["epochs"])
    return StoredTopic(info, bytes.fromhex(metadata["salt"]), epochs, tuple(metadata.get("starts", ())))
