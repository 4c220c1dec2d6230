"""The embedded engine: segments on a local disk. docs/format.md describes the files.

engine.py        topics and partitions of a data directory  partition.py     append to and read from one
commit.py        group commit                               layout.py        batches to blocks: offsets are assigned here
atomic.py        appends that span partitions               journal.py, journaled.py   commits that span partitions
checkpoint.py    what leans on the journal, late records    write_files.py   open files of writers
segment.py, index.py, read_files.py                         segment files, their indexes, and open files of readers
recovery.py      what happens after a crash                 epochs.py        partitions that lost their tail
maintenance.py   retention and compaction                   rewrite.py       rewriting segments
snapshot.py, backup.py, restore.py, salvage.py              backup and restore
importing.py     filling a directory with another log       snapshot_reading.py   reading a snapshot by offset
verify.py, verify_segment.py, findings.py                   checking every file
disk.py          the only way to the disk, and where tests inject faults
"""

from penstock.log.embedded.engine import EmbeddedEngine
from penstock.log.embedded.options import EngineOptions

__all__ = ["EmbeddedEngine", "EngineOptions"]
