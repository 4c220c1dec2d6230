"""One run of a pipeline at a time in one directory: two would write each other's tables and checkpoints.

The system takes the lock back when the process ends, however it ends. Directories on other machines have no such lock; there the broker's
answer to a report ends the older of two runs.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.errors import ConfigError

LOCK_FILE: Final = "_lock"


class DirectoryLock:
    def __init__(self, directory: Path, advice: str = "stop that run first (penstock pipeline stop NAME)") -> None:
        self._advice = advice
        self._path = directory / LOCK_FILE
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 100).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise ConfigError(f"{self._path.parent} is in use by process {holder}: {self._advice}") from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
