"""The log of Spark's file sink, `_spark_metadata`: which files of a directory are the table.

One file a batch, named by its number, with a first line `v1` and a line of JSON for each file of the batch. Every so many batches a file
`<number>.compact` repeats everything before it, and readers begin at the newest of those. Batches without one begin at the lowest number.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from penstock.errors import ConfigError

LOG: Final = "_spark_metadata"
VERSION: Final = "v1"
BLOCK_BYTES: Final = 32 << 20
_COMPACT: Final = ".compact"
_NAME: Final = re.compile(r"(\d+)(\.compact)?")
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


class Entry(NamedTuple):
    """One file of the table, and the line that says so."""

    path: Path
    size_bytes: int
    line: str


def names_of(log: Path) -> list[str]:
    """The files of a log that readers look at, in their order: the newest `.compact` first, and the batches after it."""
    numbers = sorted(
        (int(found[1]), bool(found[2]), each.name) for each in log.iterdir() if (found := _NAME.fullmatch(each.name))
    )
    newest = max((number for number, compact, _ in numbers if compact), default=-1)
    return [name for number, compact, name in numbers if number > newest or (number == newest and compact)]


def compact_names(log: Path) -> list[str]:
    """Every `.compact`: their distance is how Spark finds out when the next one is due."""
    return [each.name for each in log.iterdir() if _NAME.fullmatch(each.name) and each.name.endswith(_COMPACT)]


def entries_of(log: Path) -> list[Entry]:
    """Every file of the table, in the order in which they came."""
    entries = []
    for name in names_of(log):
        lines = (log / name).read_text().splitlines()
        if not lines or lines[0] != VERSION:
            raise ConfigError(f"{log / name} is not a log of Spark's file sink that this release knows")
        entries += [_entry(line) for line in lines[1:] if line]
    return entries


def entry_for(path: Path) -> Entry:
    """The entry of a file that is there."""
    stat = path.stat()
    fields = {
        "path": f"file://{quote(str(path))}",
        "size": stat.st_size,
        "isDir": False,
        "modificationTime": int(stat.st_mtime * 1000),
        "blockReplication": 1,
        "blockSize": BLOCK_BYTES,
        "action": "add",
    }
    return Entry(path, stat.st_size, json.dumps(fields, separators=(",", ":")))


def write_log(log: Path, like: Path, entries: Sequence[Entry]) -> None:
    """A new log with these entries, which goes on after the same batch as the one it is like."""
    log.mkdir()
    first, *others = names_of(like)
    _write(log / first, [VERSION, *(entry.line for entry in entries)])
    for name in {*others, *compact_names(like)} - {first}:
        _write(log / name, [VERSION])
    sync_directory(log)


def exchange(one: Path, other: Path) -> None:
    """Give each of two directories the other's name, in one step."""
    libc = ctypes.CDLL(None, use_errno=True)
    renameat2: Any = getattr(libc, "renameat2", None)
    if renameat2 is None:
        raise ConfigError(
            "this system cannot exchange two directories in one step, without which compacting is not safe"
        )
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise ConfigError(
            f"{one.parent}: its file system cannot exchange two directories in one step ({os.strerror(number)}), without which "
            "compacting is not safe: move the tables to another one, such as ext4 or xfs"
        )
    sync_directory(one.parent)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entry(line: str) -> Entry:
    fields = json.loads(line)
    parts = urlsplit(fields["path"])
    if parts.scheme not in ("", "file"):
        raise ConfigError(
            f"{fields['path']} is not on this machine: Parquet tables elsewhere cannot be compacted, use Delta there"
        )
    return Entry(Path(unquote(parts.path)), fields["size"], line)


def _write(path: Path, lines: Sequence[str]) -> None:
    with path.open("w") as stream:
        stream.write("\n".join(lines))
        stream.flush()
        os.fsync(stream.fileno())
