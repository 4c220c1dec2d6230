"""Where the data files of a table go. A store is pickled into tasks, so that executors write with the driver's credentials."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from penstock.spark.pipelines.files import make_directory, sync_directories


class Store(Protocol):
    def create(self, name: str) -> Any:
        """Return a context manager of a binary stream. When it exits, the file is durable under its name."""


@dataclass(frozen=True)
class LocalStore:
    """A directory that the driver and all executors share as a path."""

    directory: str

    @contextmanager
    def create(self, name: str) -> Iterator[Any]:
        top = Path(self.directory)
        make_directory(top)
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        sync_directories([path.parent], top)


@dataclass(frozen=True)
class DeltaStore:
    """An object store, through the library that writes the table's log."""

    url: str
    options: Mapping[str, str] = field(repr=False)
    """Credentials and the like, in the library's names."""

    def create(self, name: str) -> Any:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        return PyFileSystem(DeltaStorageHandler(self.url, dict(self.options))).open_output_stream(name)


@dataclass(frozen=True)
class IcebergStore:
    """An object store, through pyiceberg and the properties of the catalog."""

    url: str
    properties: Mapping[str, str] = field(repr=False)

    def create(self, name: str) -> Any:
        from pyiceberg.io import load_file_io

        path = f"{self.url}/{name}"
        return load_file_io(dict(self.properties), path).new_output(path).create()
