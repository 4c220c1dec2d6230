"""A Delta table that everybody writes at once, two runs of a query, a compaction, a rebuild: every row is there once. Without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.spark.pipelines.tables import delta
from penstock.spark.pipelines.tables.data_files import write_data_files
from penstock.spark.pipelines.tables.delta import DeltaLakeTable
from penstock.spark.pipelines.tables.stores import LocalStore
from tests.spark.pipelines.rows_by_hand import ids_from

BATCHES, ROWS = 40, 10
QUERY = "query-1"
COLUMNS = pa.schema([("id", pa.int64())])


class Race:
    def __init__(self, path: str) -> None:
        self._path = path
        self._over = threading.Event()
        self._compacted = threading.Event()
        self._failures: list[BaseException] = []
        self.compactions = 0
        self.rebuilds = 0

    def run(self) -> None:
        self._table().append(ids_from(0), 0, small=True)
        writers = [threading.Thread(target=self._guarded(self._write)) for _ in range(2)]
        others = [threading.Thread(target=self._guarded(each)) for each in (self._compact, self._rebuild)]
        for thread in (*writers, *others):
            thread.start()
        for thread in writers:
            thread.join()
        self._over.set()
        for thread in others:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _table(self) -> DeltaLakeTable:
        table = DeltaLakeTable(None, self._path)
        table.claim(QUERY, 0, "checkpoint")
        return table

    def _write(self) -> None:
        """A run of the query; each batch twice, as if a crash had come before its checkpoint."""
        table = self._table()
        for batch in range(BATCHES):
            for _ in range(2):
                table.append(ids_from(ROWS * batch, ROWS), batch, small=True)

    def _compact(self) -> None:
        while not self._over.is_set():
            done = self._table().compact(1 << 20)
            if done.files_after < done.files_before:
                self.compactions += 1
                self._compacted.set()

    def _rebuild(self) -> None:
        """Rebuilds end every compaction they meet, so one waits for a compaction before the next."""
        table = self._table()
        while not self._over.is_set():
            handle = table.handle()
            assert handle is not None
            batch = handle.transaction_version(QUERY)
            files = write_data_files(ids_from(0, ROWS * (batch + 1)), LocalStore(self._path), small=True)
            if table.replace(handle, QUERY, batch, files, COLUMNS):
                self.rebuilds += 1
                self._compacted.clear()
                while not (self._over.is_set() or self._compacted.wait(0.01)):
                    pass

    def _guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised again where the test sees it
                self._failures.append(error)

        return guarded


def test_every_row_is_there_once_despite_other_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody waits here, as queries do, so anybody may lose many races in a row.
    monkeypatch.setattr(delta, "COMMIT_ATTEMPTS_MAX", 1000)
    race = Race(str(tmp_path / "silver" / "orders"))
    race.run()
    table = DeltaTable(tmp_path / "silver" / "orders")
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == list(range(BATCHES * ROWS))
    assert table.transaction_version(QUERY) == BATCHES - 1
    assert race.rebuilds
    assert race.compactions
