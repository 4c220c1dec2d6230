"""The history of a table, commit by commit: which files brought rows, and which batch they are of.

Versions are numbers that rise with every commit. A library tells what a table is, not how it became that, so each format has a reader of
its own (`delta_log.py`, `iceberg_history.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from penstock.errors import ConfigError


class AddedFile(NamedTuple):
    path: str
    """As the format has it: below the table (Delta), or whole (Iceberg)."""
    size_bytes: int
    partition_values: Mapping[str, str | None]
    """Of columns that the file does not have."""
    rows: int = 0
    """As its writer says; 0 if that says nothing."""


class Commit(NamedTuple):
    version: int
    added: tuple[AddedFile, ...]
    """Files with rows that the table did not have."""
    deletes: bool
    """Whether rows went away."""
    batches: Mapping[str, int]
    """The numbers of batches by query."""
    is_rebuild: bool


class DataFiles(Protocol):
    """The data files of a table: plain data, so that it travels to Spark's processes."""

    @property
    def path(self) -> str:
        """Of the table."""

    def opener(self) -> Callable[[str], Any]:
        """Return a function that opens a file by its path. It raises FileNotFoundError."""


class History(ABC):
    path: str

    @property
    @abstractmethod
    def data(self) -> DataFiles: ...

    @abstractmethod
    def version(self) -> int | None:
        """Return the newest version, None if there is no table."""

    @abstractmethod
    def commit(self, version: int) -> Commit:
        """Raises ConfigError if the commit is no longer known."""

    @abstractmethod
    def files(self, version: int) -> list[AddedFile]:
        """Return the files of the table as it was."""

    @abstractmethod
    def has_files(self, files: Iterable[AddedFile]) -> bool:
        """Return whether all of these are still there; those that the table no longer needs go with a vacuum."""

    @abstractmethod
    def newest_batch(self, query: str) -> tuple[int, int | None]:
        """Return the newest version, and the number of the last batch of a query in it. The table exists."""

    def version_of_batch(self, query: str, batch_id: int) -> int:
        """Return the version in which the table has the batches of a query up to this one, and no more."""
        newest, done = self.newest_batch(query)
        if done is not None and done <= batch_id:
            return newest
        for version in range(newest, -1, -1):
            done = self.commit(version).batches.get(query)
            if done is not None and done <= batch_id:
                return newest
            if done is not None:
                newest = version - 1
        raise ConfigError(f"batch {batch_id} is not in table {self.path}: let the pipeline run first")


def total_bytes(files: Iterable[AddedFile]) -> int:
    return sum(each.size_bytes for each in files)


def total_rows(files: Iterable[AddedFile]) -> int:
    return sum(each.rows for each in files)
