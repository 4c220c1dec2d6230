"""What can be tuned in the embedded engine, with the reason for each number."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineOptions:
    block_bytes_target: int = 1 << 20
    """A commit is cut into blocks of about this size: a reader from the middle of one decodes no more than that."""

    journal_bytes: int = 64 << 20
    """A journal this large is retired by a checkpoint. At most two exist, which bounds what a restart has to redo."""

    checkpoint_bytes: int = 32 << 20
    """A segment's index is saved each time it has grown by this much, which bounds what a restart has to scan."""

    tail_bytes_per_partition: int = 4 << 20
    """How much of each partition's end is kept in memory for readers, and of what was lately read further back for each of them."""

    tail_bytes_max: int = 256 << 20
    """The same for all partitions together."""

    write_files_max: int = 512
    """Segment files kept open for writing; when there are more, the one written longest ago is synced, if need be, and closed. A
    checkpoint opens those it syncs once more."""

    reader_threads: int = 4
    """Reads that need the disk are done by these."""

    maintenance_interval_s: float = 30.0
    """How often retention, merging and compaction look for work."""

    tombstone_ms: int = 24 * 3600 * 1000
    """How long compaction keeps the record that deletes a key, so that every reader can see it."""

    merge_block_bytes: int = 64 << 10
    """A sealed segment whose blocks are smaller than this on average is rewritten with larger ones."""

    compact_dirty_ratio: float = 0.5
    """A compacted partition is rewritten when this part of its sealed bytes came since the last time."""

    compact_keys_max: int = 5_000_000
    """How many keys one compaction pass holds in memory (about 100 bytes each); more are left for the next pass."""

    reserve_bytes: int = 8 << 20
    """Disk space held back so that internal topics (group offsets) can still be written when the disk is full."""

    accept_gaps: bool = False
    """Start although segment files are missing or cut, or internal topics are damaged."""
