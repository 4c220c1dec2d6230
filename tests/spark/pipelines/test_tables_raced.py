"""A table that everybody writes at once, two runs of a query, a compaction, a rebuild: every row is there once. Without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from penstock.spark.pipelines.tables import delta, iceberg
from penstock.spark.pipelines.tables.table import Table
from tests.spark.pipelines.rows_by_hand import ids_from
from tests.spark.pipelines.table_formats import QUERY, Made

ROWS = 10
WAIT_S_MAX = 60
COLUMNS = pa.schema([("id", pa.int64())])


class Race:
    def __init__(self, made: Made, batches: int) -> None:
        self._made = made
        self._batches = batches
        self._over = threading.Event()
        self._compacted = threading.Event()
        self._rebuilt = threading.Event()
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

    def _table(self) -> Table:
        return self._made.claimed()

    def _write(self) -> None:
        """A run of the query; each batch twice, as if a crash had come before its checkpoint. Half way it lets the others win for once."""
        table = self._table()
        for batch in range(self._batches):
            if batch == self._batches // 2:
                assert self._rebuilt.wait(WAIT_S_MAX)
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
        assert self._compacted.wait(WAIT_S_MAX)
        while not self._over.is_set():
            handle = table.handle()
            assert handle is not None
            batch = table.batch_of(handle, QUERY)
            assert batch is not None
            files = self._made.files(ids_from(0, ROWS * (batch + 1)))
            if table.replace(handle, QUERY, batch, files, COLUMNS):
                self.rebuilds += 1
                self._rebuilt.set()
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


def test_every_row_is_there_once_despite_other_writers(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody waits here, as queries do, so anybody may lose many races in a row.
    for module in (delta, iceberg):
        monkeypatch.setattr(module, "COMMIT_ATTEMPTS_MAX", 1000)
    batches = 40 if made.format == "delta" else 15
    race = Race(made, batches)
    race.run()
    assert sorted(row["id"] for row in made.rows()) == list(range(batches * ROWS))
    assert made.open().last_batch(QUERY) == batches - 1
    assert race.rebuilds
    assert race.compactions
