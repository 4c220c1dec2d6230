"""Compacting a Parquet table: many small files become few large ones, and no reader at any moment sees anything but the table.

1. The rows of small files are written to new files, which no log names yet.
2. A second log is written beside the first, naming the new files instead of the small ones.
3. The two logs exchange their names in one step of the file system. Before it readers see the old files, after it the new ones.
4. The old log stays, under a name that says when it was replaced. The files that only it names are deleted by a later compaction, once
   readers that began before have had their time.

A crash anywhere leaves one log or the other in place, and files that no log names; the next compaction deletes those. Nobody may append
meanwhile: whoever calls this holds the pipeline's lock.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from penstock.errors import ConfigError
from penstock.spark.pipelines.tables.merging import SizedFile, groups_to_merge, merge_files
from penstock.spark.pipelines.tables.parquet_log import (
    LOG,
    Entry,
    entries_of,
    entry_for,
    exchange,
    sync_directory,
    write_log,
)
from penstock.spark.pipelines.tables.table import Compacted

_NEW: Final = f"{LOG}.new-"
_REPLACED: Final = f"{LOG}.replaced-"


def compact(table: Path, *, file_bytes: int, keep_s: float, now_s: float) -> Compacted:
    """`keep_s` is how long files that were replaced stay for readers that began before."""
    log = table / LOG
    if not log.is_dir():
        raise ConfigError(f"{table} is no table that a pipeline wrote: it has no {LOG}")
    for unfinished in table.glob(f"{_NEW}*"):
        # Whether the exchange was made or not: what only this log names is not needed.
        unfinished.rename(table / f"{_REPLACED}{int(now_s * 1000)}-{unfinished.name.removeprefix(_NEW)}")
    before = entries_of(log)
    after = _rewritten(table, before, file_bytes)
    if after != before:
        name = uuid.uuid4().hex
        new = table / f"{_NEW}{name}"
        write_log(new, log, after)
        sync_directory(table)
        exchange(log, new)
        new.rename(table / f"{_REPLACED}{int(now_s * 1000)}-{name}")
        sync_directory(table)
    return Compacted(len(before), len(after), _delete_unneeded(table, after, keep_s, now_s))


def _rewritten(table: Path, entries: Sequence[Entry], file_bytes: int) -> list[Entry]:
    """The entries, with those of a group of small files replaced by one of a large file, where the first of them was."""
    replacements: dict[Path, Entry | None] = {}
    for group in groups_to_merge((SizedFile(entry.path, entry.size_bytes) for entry in entries), file_bytes):
        path = table / f"part-compacted-{uuid.uuid4()}.parquet"
        merge_files(group, path)
        replacements |= dict.fromkeys((file.path for file in group), None)
        replacements[group[0].path] = entry_for(path)
    after = [replacements.get(entry.path, entry) for entry in entries]
    return [entry for entry in after if entry is not None]


def _delete_unneeded(table: Path, live: Sequence[Entry], keep_s: float, now_s: float) -> int:
    """Files that no reader can need any more: how many were deleted."""
    kept = {entry.path.name for entry in live}
    old_logs = []
    for log in table.glob(f"{_REPLACED}*"):
        replaced_s = int(log.name.removeprefix(_REPLACED).partition("-")[0]) / 1000
        if now_s - replaced_s < keep_s:
            kept |= _names_in(log)
        else:
            old_logs.append(log)
    unneeded = [
        each
        for each in _data_files(table)
        if each.name not in kept and (keep_s <= 0 or now_s - each.stat().st_mtime >= keep_s)
    ]
    for file in unneeded:
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    for log in old_logs:
        shutil.rmtree(log)
    return len(unneeded)


def _names_in(log: Path) -> set[str]:
    try:
        return {entry.path.name for entry in entries_of(log)}
    except (ConfigError, KeyError, ValueError):
        return set()  # a crash while it was written: it never was anybody's log


def _data_files(table: Path) -> Iterable[Path]:
    return table.glob("part-*.parquet")
