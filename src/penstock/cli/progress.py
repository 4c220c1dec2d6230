"""A progress bar on standard error for work that takes long enough to need one, and only where a person watches."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SHOWN_AFTER_S = 0.5


class ProgressBar:
    """Counts bytes and records, one of them against a total (None if it is unknown); appears after half a second."""

    def __init__(self, what: str, total: int | None = None, *, by: Literal["bytes", "records"] = "bytes") -> None:
        self._what = what
        self.total = total
        self._by = by
        self._done_bytes = 0
        self._records = 0
        self._began = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, size_bytes: int, records: int) -> None:
        self._done_bytes += size_bytes
        self._records += records
        if self._bar is None and sys.stderr.isatty() and time.monotonic() - self._began > SHOWN_AFTER_S:
            self._show()
        if self._bar is not None and self._task is not None:
            completed = self._done_bytes if self._by == "bytes" else self._records
            self._bar.update(self._task, total=self.total, completed=completed, records=self._records)

    def _show(self) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        from penstock.cli import terminal

        counted = (
            (TextColumn("{task.fields[records]} records"), DownloadColumn(binary_units=True), TransferSpeedColumn())
            if self._by == "bytes"
            else (MofNCompleteColumn(), TextColumn("records"))
        )
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            *counted,
            TimeRemainingColumn(),
            console=terminal.console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(self._what, total=self.total, records=self._records)
        self._bar.start()
