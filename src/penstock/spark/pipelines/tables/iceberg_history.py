"""The snapshots of an Iceberg table one by one. The version of one is its sequence number, which rises with every snapshot of the table.

The snapshot of a batch says which one it is, so that the batches of a version are known as long as its snapshot is kept. A compaction only
moves rows: it is one that says so itself, or that another writer calls a replacement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.spark.pipelines.tables.history import AddedFile, Commit, History

BATCH: Final = "penstock.batch"
QUERY: Final = "penstock.query"
"""Properties of the table, of its last batch, and of each snapshot that is one."""
COMPACTION: Final = "penstock.compaction"
REBUILD: Final = "penstock.rebuild"
"""Of a snapshot."""


@dataclass(frozen=True)
class IcebergFiles:
    path: str
    """Of the table, as it is shown."""
    properties: Mapping[str, str] = field(repr=False)
    """Of the file system, with credentials and the like."""

    def opener(self) -> Callable[[str], Any]:
        from pyiceberg.io import load_file_io

        io = load_file_io(dict(self.properties), self.path)
        return lambda path: io.new_input(path).open()


class IcebergHistory(History):
    def __init__(self, path: str, load: Callable[[], Any], properties: Mapping[str, str]) -> None:
        """`load` returns the table as it is now, None if there is none; `properties` are those of the file system."""
        self.path = path
        self._load = load
        self._properties = properties
        self._table: Any = None
        """As it was when it was last looked at."""
        self._snapshots: dict[int, Any] = {}
        """Those of the table, by version."""

    @property
    def data(self) -> IcebergFiles:
        return IcebergFiles(self.path, self._properties)

    def version(self) -> int | None:
        return max(self._snapshots, default=0) if self._looked() else None

    def newest_batch(self, query: str) -> tuple[int, int | None]:
        self._looked()
        return max(self._snapshots, default=0), last_batch(self._table, query)

    def commit(self, version: int) -> Commit:
        snapshot = self._snapshot(version)
        if snapshot is None:
            return Commit(version, (), deletes=False, batches={}, is_rebuild=False)
        summary = snapshot.summary.additional_properties
        batches = {summary[QUERY]: int(summary[BATCH])} if BATCH in summary else {}
        added: list[AddedFile] = []
        deletes = False
        if COMPACTION not in summary and snapshot.summary.operation.value != "replace":
            for entry in _changes(self._table, snapshot):
                file = entry.data_file
                if entry.status.name == "ADDED" and file.content.name == "DATA":
                    added.append(AddedFile(file.file_path, file.file_size_in_bytes, {}, file.record_count))
                else:
                    deletes = True
        return Commit(version, tuple(added), deletes, batches, REBUILD in summary)

    def files(self, version: int) -> list[AddedFile]:
        snapshot = self._snapshot(version)
        tasks = [] if snapshot is None else list(self._table.scan(snapshot_id=snapshot.snapshot_id).plan_files())
        check_readable(tasks, self.path)
        return [
            AddedFile(each.file.file_path, each.file.file_size_in_bytes, {}, each.file.record_count) for each in tasks
        ]

    def has_files(self, files: Iterable[AddedFile]) -> bool:
        self._looked()
        return all(self._table.io.new_input(file.path).exists() for file in files)

    def _looked(self) -> bool:
        """Look at the table as it is now. Return whether there is one."""
        table = self._table = self._load()
        self._snapshots = {}
        if table is None:
            return False
        if table.format_version < 2:
            raise ConfigError(
                f"table {self.path} has version 1 of the Iceberg format, which does not number its snapshots: upgrade it to version 2"
            )
        snapshot = table.current_snapshot()
        while snapshot is not None:
            self._snapshots[int(snapshot.sequence_number)] = snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        return True

    def _snapshot(self, version: int) -> Any | None:
        """The snapshot of a version. A number that went to another branch is a version without changes; so is 0, of an empty table.

        The first is 1. The library does not keep that a snapshot had a parent which has expired.
        """
        if version > max(self._snapshots, default=-1):
            self._looked()
        first = min(self._snapshots, default=0)
        if version < first and first > 1:
            raise ConfigError(
                f"version {version} of table {self.path} is no longer in its history, so what came after it cannot be told"
            )
        return self._snapshots.get(version)


def last_batch(table: Any, query: str) -> int | None:
    """The number of the last batch of a query in a table, None if it was not written by that query."""
    return int(table.properties.get(BATCH, -1)) if table.properties.get(QUERY) == query else None


def check_readable(tasks: Iterable[Any], path: str) -> None:
    """Raises ConfigError if another writer has made the files of a table something else than its rows."""
    if any(task.delete_files for task in tasks):
        raise ConfigError(f"rows of table {path} were deleted by another writer: read it with an Iceberg reader")


def _changes(table: Any, snapshot: Any) -> list[Any]:
    """The entries of manifests that a snapshot has made."""
    return [
        entry
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        if entry.snapshot_id == snapshot.snapshot_id and entry.status.name != "EXISTING"
    ]
