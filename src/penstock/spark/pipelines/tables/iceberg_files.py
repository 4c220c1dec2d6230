"""Files of Iceberg tables on this machine, durable when they are closed.

pyiceberg leaves metadata and manifests to the operating system, while the catalog, a SQLite file, syncs what it commits: after a power cut
it could name metadata that is an empty file, and the table would be unreadable. A catalog loads this class by its name (`FILE_IO`).
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Final

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from penstock.spark.pipelines.files import make_directory, sync_directory


class DurableFileIO(PyArrowFileIO):
    def new_output(self, location: str) -> PyArrowFile:
        scheme, host, path = self.parse_location(location, self.properties)
        return _DurableFile(location, path, self.fs_by_scheme(scheme, host))


class _DurableFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        path = Path(self._path)
        make_directory(path.parent)
        return io.BufferedWriter(_SyncedWhenClosed(path, "wb" if overwrite else "xb"))


class _SyncedWhenClosed(io.FileIO):
    def close(self) -> None:
        try:
            if not self.closed:
                os.fsync(self.fileno())
                sync_directory(Path(os.fsdecode(self.name)).parent)
        finally:
            super().close()


FILE_IO: Final = f"{DurableFileIO.__module__}.{DurableFileIO.__qualname__}"
