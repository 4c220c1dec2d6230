"""Salvage: making what is left of a damaged log into one that a broker starts on.

- The blocks around damage stay as they are, readable as in any log. The last segment of a damaged partition is closed, because opening it
  for appends might cut it at the damage.
- Offsets that no segment covers any more are covered by an empty one, up to the end that the manifest has. So none of them is given to
  another record, and what groups have committed stays right.
- A topic without a good copy of its metadata is left out: without its salt, its blocks cannot be told from garbage.
"""

from __future__ import annotations

from pathlib import Path

from penstock.log.embedded.disk import Disk
from penstock.log.embedded.findings import Report
from penstock.log.embedded.index import SegmentIndex
from penstock.log.embedded.manifest import TOPICS_DIRECTORY, Manifest
from penstock.log.embedded.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment, load_index, offset_range
from penstock.log.embedded.topicfiles import TopicFiles
from penstock.log.salts import PartitionSalts


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
            _cover_gaps(disk, files.partition_directory(topic.info, index), topic.salts(index), end)
        found[topic.info.name].ends = list(ends)


def _cover_gaps(disk: Disk, directory: Path, salts: PartitionSalts, end_offset: int) -> None:
    """Put an empty segment where offsets are missing, and one at the end of the partition."""
    reached: int | None = None
    for path in sorted(directory.glob(f"*{LOG_SUFFIX}")):
        begins = offset_range(path)[0]
        ends = _end_of(disk, path, salts)
        if ends == begins:
            disk.unlink(
                path
            )  # nothing in it can be read, and the segment that covers its offsets would stand before it
            continue
        if reached is not None and reached < begins:
            _write_empty(disk, directory, reached, begins)
        reached = ends
    for orphan in directory.glob(f"*{INDEX_SUFFIX}"):
        if not orphan.with_suffix(LOG_SUFFIX).exists():
            disk.unlink(orphan)
    if reached is None:
        reached = end_offset
    _write_empty(disk, directory, reached, max(reached, end_offset))


def _end_of(disk: Disk, path: Path, salts: PartitionSalts) -> int:
    """Return the offset at which a start finds that a segment ends; that at which it begins if it holds no block of its own."""
    base_offset, end_offset = offset_range(path)
    size = path.stat().st_size
    index = load_index(path, size, disk, salts.of(path.stem))
    segment = Segment(disk, path, base_offset, index or SegmentIndex(base_offset), size, salts)
    try:
        if index is None and size and segment.holds_blocks_of_another_file():
            return base_offset
        if end_offset is not None:
            return end_offset
        if index is None or not index.sealed:
            segment.rebuild_index(size)
        return segment.index.next_offset
    finally:
        segment.close()


def _write_empty(disk: Disk, directory: Path, begins: int, ends: int) -> None:
    disk.write_file(directory / f"{begins:020d}-{ends:020d}{LOG_SUFFIX}", b"")
