"""The commits of a Delta table one by one, straight from its log: the library tells what a table is, not how it became that.

A commit is a file of one JSON object a line. Files are added with `dataChange` when rows come in, and without when a compaction has only
moved them. A commit that replaces every row with the same records, decoded again, says so (`REBUILD`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from penstock.errors import ConfigError
from penstock.spark.pipelines.files import is_url
from penstock.spark.pipelines.tables.data_files import partition_text
from penstock.spark.pipelines.tables.history import AddedFile, Commit, History

LOG: Final = "_delta_log"
LOG_CHECKPOINT_COMMITS: Final = 100
REBUILD: Final = "penstock.rebuild"
"""In the information of a commit."""
UNREADABLE_FEATURES: Final = frozenset({"columnMapping", "deletionVectors"})
"""Of the Delta protocol: with them the rows of a table are not simply those of its Parquet files."""


class Newest(NamedTuple):
    version: int
    table_id: str
    """Which the table was given when it was made, and keeps."""


class DeltaLog(History):
    """Plain data, so that it travels to Spark's processes; it opens what it needs."""

    def __init__(self, path: str, storage_options: Mapping[str, str]) -> None:
        self.path = path
        self._options = dict(storage_options)

    @property
    def data(self) -> DeltaLog:
        return self

    def opener(self) -> Callable[[str], Any]:
        opener: Callable[[str], Any] = self.file_system().open_input_file
        return opener

    def version(self) -> int | None:
        found = self.newest()
        return None if found is None else found.version

    def newest(self) -> Newest | None:
        """Return what the table is now, None if there is none."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            table = DeltaTable(self.path, storage_options=self._options)
        except TableNotFoundError:
            return None
        return Newest(int(table.version()), str(table.metadata().id))

    def has(self, version: int) -> bool:
        """Return whether there is a commit; cheaper than `version`."""
        name = f"{LOG}/{version:020d}.json"
        if not is_url(self.path):
            return Path(self.path, name).exists()
        from pyarrow.fs import FileType

        return bool(self.file_system().get_file_info(name).type != FileType.NotFound)

    def commit(self, version: int) -> Commit:
        try:
            text = self._read(f"{LOG}/{version:020d}.json")
        except FileNotFoundError:
            raise ConfigError(
                f"version {version} of table {self.path} is no longer in its log, so what came after it cannot be told: begin anew with "
                "the table as it is, by removing the checkpoint and the results"
            ) from None
        return parse_commit(version, text)

    def files(self, version: int) -> list[AddedFile]:
        import pyarrow as pa
        from deltalake import DeltaTable

        table = DeltaTable(self.path, version=version, storage_options=self._options)
        check_readable(table, self.path)
        return [
            AddedFile(
                unquote(each["path"]),
                each["size_bytes"],
                {name: partition_text(value) for name, value in (each.get("partition") or {}).items()},
                each.get("num_records") or 0,
            )
            for each in pa.table(table.get_add_actions()).to_pylist()
        ]

    def has_files(self, files: Iterable[AddedFile]) -> bool:
        from pyarrow.fs import FileType

        found = self.file_system().get_file_info([file.path for file in files])
        return all(each.type != FileType.NotFound for each in found)

    def newest_batch(self, query: str) -> tuple[int, int | None]:
        from deltalake import DeltaTable

        table = DeltaTable(self.path, storage_options=self._options)
        return table.version(), table.transaction_version(query)

    def file_system(self) -> Any:
        """Return the table as a file system of pyarrow."""
        from pyarrow import fs

        if not is_url(self.path):
            return fs.SubTreeFileSystem(self.path, fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self.path, self._options))

    def _read(self, name: str) -> str:
        with self.file_system().open_input_stream(name) as stream:
            return bytes(stream.read()).decode()


def parse_commit(version: int, text: str) -> Commit:
    added: list[AddedFile] = []
    deletes = is_rebuild = False
    batches: dict[str, int] = {}
    for line in text.splitlines():
        action = json.loads(line)
        if "add" in action and action["add"].get("dataChange", True):
            add = action["add"]
            # Rows of the file that do not count; such a file comes with the removal of the one without.
            deletes |= add.get("deletionVector") is not None
            added.append(AddedFile(unquote(add["path"]), add["size"], _partition_values(add), _rows(add)))
        elif "remove" in action:
            deletes |= action["remove"].get("dataChange", True)
        elif "txn" in action:
            batches[action["txn"]["appId"]] = action["txn"]["version"]
        elif "commitInfo" in action:
            is_rebuild = REBUILD in action["commitInfo"]
    return Commit(version, tuple(added), deletes, batches, is_rebuild)


def _partition_values(add: Mapping[str, Any]) -> dict[str, str | None]:
    """An empty text is null by the protocol, whatever the type of the column."""
    return {name: text or None for name, text in (add.get("partitionValues") or {}).items()}


def _rows(add: Mapping[str, Any]) -> int:
    statistics = json.loads(add.get("stats") or "{}")
    return int(statistics.get("numRecords") or 0)


def commit_hooks(table: Any) -> Any:
    """What the library does after a commit of a batch to this table. It looks for commits that are old enough to be deleted when it writes
    a checkpoint: after each commit, as is its default, it would list the whole log, which is soon most of the cost of a batch."""
    from deltalake import PostCommitHookProperties

    next_version = int(table.version()) + 1
    return PostCommitHookProperties(cleanup_expired_logs=(next_version + 1) % LOG_CHECKPOINT_COMMITS == 0)


def check_readable(table: Any, path: str) -> None:
    """Raises ConfigError if another writer has made the files of a table something else than its rows."""
    hidden = sorted(UNREADABLE_FEATURES & set(table.protocol().reader_features or ()))
    if hidden:
        raise ConfigError(
            f"table {path} uses {', '.join(hidden)}, which another writer turned on: read it with Spark and the Delta jar"
        )
