"""Salvage: making what is left of a damaged log into one that a broker starts on.

- Damaged blocks are dropped: a segment that has some is rewritten without them. Offsets that no segment covers any more, because a file is
  missing or cut, are covered by an empty segment, up to the end that the manifest has. To readers both are gaps, as compaction leaves
  them. None of these offsets is given to another record, so what groups have committed stays right.
- A topic without a good copy of its metadata is left out: without its salt, its blocks cannot be told from garbage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from penstock.errors import CorruptBlock
from penstock.log.block import Block, BlockHeader
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.findings import Report
from penstock.log.embedded.index import SegmentIndex
from penstock.log.embedded.manifest import TOPICS_DIRECTORY, Manifest
from penstock.log.embedded.rewrite import Rewriter
from penstock.log.embedded.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment, load_index, offset_range
from penstock.log.embedded.topicfiles import StoredTopic, TopicFiles
from penstock.log.salts import PartitionSalts

_BLOCK_BYTES_TARGET: Final = 1 << 20


def salvage(disk: Disk, data_dir: Path, manifest: Manifest, report: Report) -> None:
    """Salvage the topics in which a check has found damage, and correct the ends in its report."""
    files = TopicFiles(disk, data_dir / TOPICS_DIRECTORY)
    found = {topic.topic: topic for topic in report.topics}
    entries = {entry.id: entry for entry in manifest.topics if entry.name in found}
    for directory in sorted((data_dir / TOPICS_DIRECTORY).iterdir()):
        if directory.name.rpartition(".")[2] not in entries:
            disk.remove_tree(directory)
    for topic in files.load_all():
        if not found[topic.info.name].damage:
            continue
        ends = entries[topic.info.id].ends
        for index, end in enumerate(ends):
            _salvage_partition(disk, topic, files.partition_directory(topic.info, index), topic.salts(index), end)
        found[topic.info.name].ends = list(ends)


def _salvage_partition(disk: Disk, topic: StoredTopic, directory: Path, salts: PartitionSalts, end_offset: int) -> None:
    """Drop damaged blocks, and put an empty segment where offsets are missing."""
    rewriter = Rewriter(disk, _BLOCK_BYTES_TARGET)
    reached: int | None = None
    for path in sorted(directory.glob(f"*{LOG_SUFFIX}")):
        segment = _open(disk, path, salts)
        begins, ends = segment.base_offset, segment.index.next_offset
        if segment.is_damaged() and begins < ends:
            rewriter.replace([segment], compress=topic.info.config.compression == "zstd")
        elif begins == ends:
            disk.unlink(path)  # nothing in it can be read
        segment.close()
        if begins == ends:
            continue
        if reached is not None and reached < begins:
            _cover(disk, directory, reached, begins)
        reached = ends
    for orphan in directory.glob(f"*{INDEX_SUFFIX}"):
        if not orphan.with_suffix(LOG_SUFFIX).exists():
            disk.unlink(orphan)
    if reached is None:
        _cover(disk, directory, end_offset, end_offset)  # says that offsets do not begin at 0
    elif reached < end_offset:
        _cover(disk, directory, reached, end_offset)


class _WholeBlocks(Segment):
    """A segment that is read without its damaged blocks."""

    __slots__ = ()

    def blocks_from(
        self, position: int, end: int, wanted: Callable[[BlockHeader], bool] | None = None
    ) -> Iterator[tuple[int, Block]]:
        least_offset = self.base_offset
        while position < end:
            try:
                for at, block in super().blocks_from(position, end, wanted):
                    yield at, block
                    position = at + block.size_bytes
                    least_offset = block.next_offset
                return
            except CorruptBlock:
                following = self.next_whole_block(position, end, least_offset)
                if following is None:
                    return
                position = following[0]

    def is_damaged(self) -> bool:
        position = 0
        for at, block in self.blocks_from(0, self.end):
            if at != position:
                return True
            position = at + block.size_bytes
        return position != self.end


def _open(disk: Disk, path: Path, salts: PartitionSalts) -> _WholeBlocks:
    """Open a segment with an index, which tells where it ends as far as that can be known."""
    base_offset, end_offset = offset_range(path)
    size = path.stat().st_size
    index = load_index(path, size, disk, salts.of(path.stem))
    segment = Segment(disk, path, base_offset, index or SegmentIndex(base_offset), size, salts)
    if index is None or not index.sealed:
        segment.rebuild_index(size)
    if end_offset is not None:
        segment.index.next_offset = end_offset
    segment.close()
    return _WholeBlocks(disk, path, base_offset, segment.index, size, salts)


def _cover(disk: Disk, directory: Path, begins: int, ends: int) -> None:
    """Write an empty segment of these offsets."""
    disk.write_file(directory / f"{begins:020d}-{ends:020d}{LOG_SUFFIX}", b"")
