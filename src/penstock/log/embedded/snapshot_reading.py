"""Reads a snapshot of a running broker, block by block and by offset. The broker continues, and keeps the snapshot while it is held."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.errors import CorruptMetadata, TopicNotFound
from penstock.log.api import READ_BYTES_DEFAULT, TopicInfo
from penstock.log.block import Block
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.index import SegmentIndex
from penstock.log.embedded.manifest import MANIFEST_FILE, TOPICS_DIRECTORY, read_manifest
from penstock.log.embedded.segment import Segment, load_index, offset_range, segment_paths
from penstock.log.embedded.topicfiles import StoredTopic, TopicFiles


class SnapshotReader:
    """The topics of one snapshot. The caller holds it (`manifest.holding`)."""

    def __init__(self, directory: Path, disk: Disk | None = None) -> None:
        """Raises CorruptMetadata if the snapshot is not whole."""
        self._disk = disk or Disk()
        manifest = read_manifest(directory)
        if manifest is None:
            raise CorruptMetadata(f"{directory / MANIFEST_FILE} is missing: the broker has removed the snapshot")
        self._directory = directory
        self._files = TopicFiles(self._disk, directory / TOPICS_DIRECTORY)
        self._bytes = {directory / file.path: file.bytes for file in manifest.files}
        self._bounds = {topic.name: list(zip(topic.starts, topic.ends, strict=True)) for topic in manifest.topics}
        self._stored = {topic.info.name: topic for topic in self._files.read_all()}
        missing = self._bounds.keys() - self._stored.keys()
        if missing:
            raise CorruptMetadata(f"the metadata of topic {min(missing)!r} cannot be read in {directory}")
        self._segments: dict[tuple[str, int], list[Segment]] = {}

    def topics(self) -> Mapping[str, TopicInfo]:
        return {name: self._stored[name].info for name in self._bounds}

    async def bounds(self, topic: str, index: int) -> tuple[int, int]:
        if topic not in self._bounds:
            raise TopicNotFound(f"topic {topic!r} is not in the snapshot")
        return self._bounds[topic][index]

    async def read(self, topic: str, index: int, offset: int) -> Sequence[Block]:
        return await asyncio.get_running_loop().run_in_executor(None, self._read, topic, index, offset)

    def _read(self, topic: str, index: int, offset: int) -> Sequence[Block]:
        segments = self._opened(topic, index)
        first = max(bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1, 0)
        blocks: list[Block] = []
        size = 0
        for segment in segments[first:]:
            for _, block in segment.blocks_from(segment.position_of(offset), segment.end):
                if block.next_offset > offset:
                    blocks.append(block)
                    size += block.decoded_bytes
                    if size >= READ_BYTES_DEFAULT:
                        return blocks
        return blocks

    def _opened(self, topic: str, index: int) -> list[Segment]:
        if (topic, index) not in self._segments:
            stored = self._stored[topic]
            directory = self._files.partition_directory(stored.info, index)
            self._segments[topic, index] = [
                self._open(stored, index, path) for path in segment_paths(directory) if self._bytes.get(path)
            ]
        return self._segments[topic, index]

    def _open(self, stored: StoredTopic, index: int, path: Path) -> Segment:
        salts, size = stored.salts(index), self._bytes[path]
        base_offset, _ = offset_range(path)
        saved = load_index(path, size, self._disk, salts.of(path.stem))
        if saved is not None and saved.covers == size:
            return Segment(self._disk, path, base_offset, saved, size, salts)
        segment = Segment(self._disk, path, base_offset, SegmentIndex(base_offset, 0), size, salts)
        damage = segment.rebuild_index(size)
        if damage is not None:
            raise damage
        return segment
