"""What can be tuned in the embedded engine: settings of `[log]`."""

from __future__ import annotations

from pydantic import Field

from penstock.settings import DurationMs, Seconds, Section, Size


class EngineOptions(Section):
    block_bytes_target: Size = Field(1 << 20, ge=4 << 10, le=32 << 20)
    """A commit is cut into blocks of about this size. A read from the middle of a block decodes all of it; small blocks compress less."""
    journal_bytes: Size = Field(64 << 20, ge=1 << 20, le=1 << 32)
    """A journal of this size is replaced by a checkpoint. There are at most two, which bounds what recovery has to replay."""
    checkpoint_bytes: Size = Field(32 << 20, ge=1 << 20)
    """A segment's index is saved each time the segment has grown by this much, which bounds what recovery has to scan."""
    # As much again is kept of what was recently read further back, for each partition.
    tail_bytes_per_partition: Size = Field(4 << 20, ge=0)
    """How much of the end of each partition is cached in memory for readers."""
    tail_bytes_max: Size = Field(256 << 20, ge=0)
    """The same, for all partitions together."""
    # One that leans on the journal is synced before it is closed; a checkpoint opens those it syncs once more.
    write_files_max: int = Field(512, ge=1, le=1 << 20)
    """Segment files kept open for writing. When there are more, the one written longest ago is closed until its next write. Files that
    nobody writes to are closed too."""
    reader_threads: int = Field(4, ge=1, le=64)
    """Threads for reads from disk."""
    maintenance_interval_s: Seconds = Field(30.0, ge=0.1)
    """Interval of retention, merging of small blocks, and compaction."""
    tombstone_ms: DurationMs = 24 * 3600 * 1000
    """How long compaction keeps tombstones, so that every reader sees them."""
    merge_block_bytes: Size = Field(64 << 10, ge=1, le=1 << 20)
    """A sealed segment whose blocks are smaller than this on average is rewritten with larger ones. At most half of
    `block_bytes_target`."""
    compact_dirty_ratio: float = Field(0.5, gt=0, le=1)
    """A compacted partition is rewritten when this fraction of its sealed bytes is new."""
    compact_keys_max: int = Field(5_000_000, ge=1_000)
    """Keys that one pass of compaction holds in memory, about 75 bytes each. More are left for the next pass."""
    # Each may keep files that would otherwise be gone.
    snapshots_max: int = Field(8, ge=1, le=1_000)
    """Snapshots at the same time, of which each backup and each check of a running broker needs one."""
    reserve_bytes: Size = 8 << 20
    """Disk space reserved so that group offsets can be committed when the disk is full."""
    accept_gaps: bool = False
    """Start although segment files are missing or cut, or internal topics are damaged. What they held is lost."""
