"""Upkeep of tables in a thread of the process that runs the pipeline, alongside the queries that write them.

Each table is examined once a minute. One with many small files is compacted; once a day files are deleted that no version of the table
needs any more, and files of failed attempts. Both are commits like any other, so neither stops writers or readers. A failure is reported
and tried again; it never ends the run.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from penstock.errors import PenstockError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.model import Pipeline, path_name
from penstock.spark.pipelines.opening import open_table
from penstock.spark.pipelines.tables.table import Table

LOOK_EVERY_S: Final = 60.0
SMALL_FILE_BYTES: Final = 32 << 20
SMALL_FILES_MAX: Final = 50
FILE_BYTES: Final = 128 << 20
VACUUM_EVERY_S: Final = 24 * 3600.0
END_S_MAX: Final = 120.0
"""How long the end of a run waits for a compaction under way. One that is abandoned has changed nothing."""

REASON_CHARS_MAX: Final = 300

TableName = tuple[str, str]
"""Stage and name, as in ("bronze", "orders")."""


class Upkeep:
    def __init__(
        self,
        pipeline: Pipeline,
        files: Files,
        tables: Callable[[], Iterable[TableName]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pipeline = pipeline
        self._files = files
        self._tables = tables
        self._clock = clock
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-upkeep", daemon=True)
        self._problems: dict[TableName, str] = {}

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End after the table that is being worked on."""
        self._ended.set()
        self._thread.join(END_S_MAX)

    @property
    def note(self) -> str:
        """What is wrong with the tables; empty if nothing is."""
        problems = self._problems.copy()
        return "; ".join(f"upkeep of {stage}/{name} failed: {why}" for (stage, name), why in problems.items())

    def _run(self) -> None:
        while not self._ended.is_set():
            self.look_at_all()
            self._ended.wait(LOOK_EVERY_S)

    def look_at_all(self) -> None:
        """Do what is due, table by table."""
        for each in list(self._tables()):
            if self._ended.is_set():
                return
            try:
                self._look_at(each)
            except Exception as error:  # noqa: BLE001 - whatever it is, the pipeline must continue, and people must know
                self._problems[each] = _reason(error)
            else:
                self._problems.pop(each, None)

    def _look_at(self, each: TableName) -> None:
        # Its own instance: those of the queries belong to other threads.
        table = open_table(self._pipeline, *each)
        if not table.exists():
            return
        if needs_compaction(table):
            table.compact(FILE_BYTES)
        note = f"{self._pipeline.notes}/_upkeep/{each[0]}/{path_name(each[1])}.json"
        found = self._files.read(note)
        if found is None or self._clock() - json.loads(found)["vacuumed_s"] >= VACUUM_EVERY_S:
            table.vacuum(self._pipeline.keep_ms / 1000)
            self._files.write(note, json.dumps({"vacuumed_s": self._clock()}))


def needs_compaction(table: Table) -> bool:
    return sum(size < SMALL_FILE_BYTES for size in table.file_sizes()) > SMALL_FILES_MAX


def _reason(error: Exception) -> str:
    """Return one line, for people."""
    text = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:REASON_CHARS_MAX]
