"""The records of one open transaction, gathered by partition as columns, ready to become batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from penstock.log.api import Batch

_Cell = TypeVar("_Cell")


class Destination(NamedTuple):
    topic: str
    topic_id: str
    """Of the topic that bore the name when the records were added."""
    partition: int


class TransactionRecords:
    __slots__ = ("_columns",)

    def __init__(self) -> None:
        self._columns: dict[Destination, _Columns] = {}

    def add(self, topic: str, topic_id: str, partitions: list[int], batch: Batch) -> None:
        """A batch, with the partition of each record."""
        for partition, rows in _rows_by_partition(partitions):
            destination = Destination(topic, topic_id, partition)
            columns = self._columns.get(destination)
            if columns is None:
                columns = self._columns[destination] = _Columns()
            columns.add(batch, rows)

    def topics(self) -> set[str]:
        """Return the topics that records were added for."""
        return {destination.topic for destination in self._columns}

    def batches(self) -> Iterator[tuple[Destination, Batch]]:
        """Everything, in the order in which it was added, one batch a partition."""
        for destination, columns in self._columns.items():
            yield destination, columns.batch()


class _Columns:
    __slots__ = ("expiries", "headers", "keys", "values")

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.headers: list[bytes | None] = []
        self.expiries: list[int] = []

    def add(self, batch: Batch, rows: list[int] | None) -> None:
        count = len(batch) if rows is None else len(rows)
        self.values += _taken(batch.values, rows)
        self.keys += [None] * count if batch.keys is None else _taken(batch.keys, rows)
        self.headers += [None] * count if batch.headers is None else _taken(batch.headers, rows)
        self.expiries += [0] * count if batch.expiries is None else _taken(batch.expiries, rows)

    def batch(self) -> Batch:
        return Batch(
            self.values,
            None if self.keys.count(None) == len(self.keys) else self.keys,
            None if self.headers.count(None) == len(self.headers) else self.headers,
            self.expiries if any(self.expiries) else None,
        )


def _rows_by_partition(partitions: list[int]) -> Iterable[tuple[int, list[int] | None]]:
    """Which rows go to each partition; None stands for all of them, which is usual and quick."""
    if partitions.count(partitions[0]) == len(partitions):
        return ((partitions[0], None),)
    rows: defaultdict[int, list[int]] = defaultdict(list)
    for row, partition in enumerate(partitions):
        rows[partition].append(row)
    return rows.items()


def _taken(column: Sequence[_Cell], rows: list[int] | None) -> Sequence[_Cell]:
    return column if rows is None else [column[row] for row in rows]
