"""Producing: a run of records is routed to partitions, appended, and reported once when every part of it is settled.

A run is what one read of one session brought for one topic. It usually goes to a single partition, and then costs one Batch, one
closure and one list whatever its length. Otherwise it joins the other runs that are to be spread over the topic (see `spreading`).

A record that cannot be appended refuses its own request (see `faults`); the rest of the run is appended without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from penstock.broker.limits import BrokerLimits
from penstock.broker.records.faults import Faults
from penstock.broker.records.keys import Partitions, partition_by_key, round_robin
from penstock.broker.records.spreading import ALL_ROWS, Lane, OnPlaced, Placement, Run, Scattered
from penstock.errors import InvalidRequest, PartitionNotFound, PenstockError, RecordTooLarge
from penstock.log.api import Appended, Batch, Engine, TopicInfo

ANY_PARTITION: Final = -1

_Cell = TypeVar("_Cell")


class Placed(NamedTuple):
    """Where records may be appended."""

    topic_id: str
    partitions: list[int]
    """For each record."""


class Accepted(msgspec.Struct, frozen=True):
    """The records of a run that may be appended, and where."""

    topic: TopicInfo
    batch: Batch
    partitions: list[int]
    """For each record of the batch."""
    faults: Faults | None
    """The rows that are not in the batch; None if all of them are."""


class Producer:
    def __init__(self, engine: Engine, limits: BrokerLimits) -> None:
        self._engine = engine
        self._limits = limits
        self._turns: dict[str, int] = {}
        """By topic: the partition whose turn it is for a record without a key. Entries go with their topic."""
        self._lanes: dict[str, Lane] = {}
        """By topic, while runs for several partitions are on their way. Entries go with the last of them."""

    def produce(
        self,
        topic: str,
        partition: int | Sequence[int],
        batch: Batch,
        units: Sequence[int] | None,
        done: OnPlaced,
        faults: Faults | None = None,
    ) -> bool:
        """Append the rows that are not in `faults` and have no fault of their own, and report all of them to `done`.

        Return whether some are refused. `done` is never called before this returns. Raises what concerns the call as a whole.
        """
        info, faults = self._check(topic, partition, batch, units, faults)
        if faults is not None:
            rows = faults.accepted(len(batch))
            done = partial(_report_refused, rows, _refused(faults), done)
            if not rows:
                asyncio.get_running_loop().call_soon(done, [])
                return True
            partition, batch = _pick_partitions(partition, rows), _pick(batch, rows)
        if partition == ANY_PARTITION and info.config.partitions == 1:
            partition = 0
        if isinstance(partition, int) and partition != ANY_PARTITION:
            if topic in self._lanes:
                self._append_in_turn(topic, partition, batch, done)
            else:
                self._append(topic, partition, batch, done)
        else:
            self._spread(topic, batch, self._route(info, partition, batch), done)
        return faults is not None

    def select(
        self, topic: str, partition: int | Sequence[int], batch: Batch, faults: Faults | None = None
    ) -> Accepted:
        """Check rows and choose the partition of each as `produce` does, but append nothing. Each row is a unit."""
        info, faults = self._check(topic, partition, batch, None, faults)
        if faults is not None:
            rows = faults.accepted(len(batch))
            partition, batch = _pick_partitions(partition, rows), _pick(batch, rows)
        if partition == ANY_PARTITION and info.config.partitions == 1:
            partition = 0
        if isinstance(partition, int) and partition != ANY_PARTITION:
            partitions = [partition] * batch.count
        else:
            partitions = self._route(info, partition, batch).tolist() if batch.count else []
        return Accepted(info, batch, partitions, faults)

    def place(self, topic: str, partition: int | Sequence[int], batch: Batch) -> Placed:
        """Do as `select`, but raise the first fault: all records are one unit."""
        info, faults = self._check(topic, partition, batch, [len(batch)], None)
        if faults is not None:
            raise faults.errors[0]
        return Placed(info.id, self._route(info, partition, batch).tolist())

    def one_partition(self, topic: str, key: bytes | None) -> int:
        """Where records that must stay together go: to the partition of their key, or to the next one in turn. Raises TopicNotFound."""
        count = self._engine.topic(topic).config.partitions
        if count == 1:
            return 0
        chosen, turn = _choose(None if key is None else [key], 1, self._turns.get(topic, 0), count)
        self._turns[topic] = turn % count
        return int(chosen[0])

    def topic_changed(self, topic: str) -> None:
        """Handle a change of a topic by any node: forget the turn of one that is gone."""
        if topic not in self._engine.topics():
            self._turns.pop(topic, None)

    def _check(
        self,
        topic: str,
        partition: int | Sequence[int],
        batch: Batch,
        units: Sequence[int] | None,
        faults: Faults | None,
    ) -> tuple[TopicInfo, Faults | None]:
        """Return the topic, and `faults` with what is wrong with rows. A sound run costs a few comparisons, whatever its length.

        Raises what concerns all rows: there is no such topic, no row, or a column of another length.
        """
        info = self._engine.topic(topic)
        keys, count, size_bytes, limits = batch.keys, batch.count, batch.size_bytes, self._limits
        if keys is not None or batch.headers is not None or batch.expiries is not None:
            _check_lengths(batch)
        if not isinstance(partition, int) and len(partition) != count:
            raise InvalidRequest(f"{count} values came with {len(partition)} partitions: send as many")
        if not count:
            raise InvalidRequest("no records to write: send at least one")
        if isinstance(partition, int):
            lowest = highest = partition
        else:
            lowest, highest = min(partition), max(partition)
        if (
            (info.config.cleanup == "compact" and (keys is None or None in keys))
            or lowest < ANY_PARTITION
            or highest >= info.config.partitions
            # No record is larger than all of them together.
            or (size_bytes > limits.record_bytes_max and max(_row_sizes(batch)) > limits.record_bytes_max)
            or (keys is not None and size_bytes > limits.key_bytes_max and _longest(keys) > limits.key_bytes_max)
        ):
            faults = faults or Faults(units)
            self._refuse_rows(info, partition, batch, faults)
        return info, faults

    def _refuse_rows(self, info: TopicInfo, partition: int | Sequence[int], batch: Batch, faults: Faults) -> None:
        limits, last = self._limits, info.config.partitions - 1
        for row, size in enumerate(_row_sizes(batch)):
            key = None if batch.keys is None else batch.keys[row]
            index = partition if isinstance(partition, int) else partition[row]
            error: PenstockError
            if key is None and info.config.cleanup == "compact":
                error = InvalidRequest(
                    f"topic {info.name} keeps the latest record of each key: give every record a key"
                )
            elif not ANY_PARTITION <= index <= last:
                error = PartitionNotFound(f"partition {index} not found: topic {info.name} has partitions 0 to {last}")
            elif size > limits.record_bytes_max:
                place = row - faults.units.of(row).start
                error = RecordTooLarge(
                    f"record {place} has {size} bytes with its key and headers: at most {limits.record_bytes_max} are allowed"
                )
            elif key is not None and len(key) > limits.key_bytes_max:
                error = RecordTooLarge(f"a key has {len(key)} bytes: at most {limits.key_bytes_max} are allowed")
            else:
                continue
            faults.refuse(row, error)

    def _append_in_turn(self, topic: str, index: int, batch: Batch, done: OnPlaced) -> None:
        """Append to one partition, behind the runs for several that wait."""
        lane = self._lanes[topic]
        if lane.gathering:
            lane.add(Run(batch, np.full(len(batch), index), partial(_placed_together, index, done)))
        else:
            self._append(topic, index, batch, done)

    def _append(self, topic: str, index: int, batch: Batch, done: OnPlaced) -> None:
        self._engine.partition(topic, index).append(batch, lambda result: done([Placement(index, ALL_ROWS, result)]))

    def _spread(self, topic: str, batch: Batch, partitions: Partitions, done: OnPlaced) -> None:
        lane = self._lanes.get(topic)
        if lane is not None:
            lane.add(Run(batch, partitions, done))
        elif len(partitions) == 1:
            self._append(topic, int(partitions[0]), batch, done)
        else:
            self._lanes[topic] = Lane(self._engine, topic, Run(batch, partitions, done), self._lanes.pop)

    def _route(self, info: TopicInfo, partition: int | Sequence[int], batch: Batch) -> Partitions:
        """Return the partition of each record: the one asked for, else by its key, else in turn."""
        topic, count = info.name, info.config.partitions
        if partition == ANY_PARTITION and count == 1:
            partition = 0
        if isinstance(partition, int) and partition != ANY_PARTITION:
            return np.full(len(batch), partition)
        turn = self._turns.get(topic, 0)
        if isinstance(partition, int):
            chosen, turn = _choose(batch.keys, len(batch), turn, count)
        else:
            chosen = np.array(partition, np.int64)
            if ANY_PARTITION not in partition:
                return chosen
            free = np.flatnonzero(chosen == ANY_PARTITION)
            keys = None if batch.keys is None else [batch.keys[row] for row in free.tolist()]
            chosen[free], turn = _choose(keys, len(free), turn, count)
        self._turns[topic] = turn % count
        return chosen


def _placed_together(index: int, done: OnPlaced, placed: list[Placement] | Scattered) -> None:
    """Report a run for one partition that was appended with others: as one placement, as if it had been appended alone."""
    if isinstance(placed, Scattered):
        # The records of a run in one partition follow one another.
        placed = [Placement(index, ALL_ROWS, Appended(int(placed.offsets[0]), int(placed.timestamps_ms[0])))]
    done(placed)


def _choose(keys: Sequence[bytes | None] | None, count: int, turn: int, partitions: int) -> tuple[Partitions, int]:
    """Partitions for records that ask for none, and the next turn."""
    if keys is None:
        return round_robin(count, turn, partitions), turn + count
    return partition_by_key(keys, turn, partitions)


# --- rows that are refused ---


def _check_lengths(batch: Batch) -> None:
    for column in (batch.keys, batch.headers, batch.expiries):
        if column is not None and len(column) != batch.count:
            raise InvalidRequest(
                f"{batch.count} values came with {len(column)} keys, headers or expiries: send as many"
            )


def _longest(keys: Sequence[bytes | None]) -> int:
    return max(map(len, filter(None, keys)), default=0)


def _row_sizes(batch: Batch) -> list[int]:
    """Return the size of each record: value, key and headers."""
    sizes = [len(value or b"") for value in batch.values]
    for column in (batch.keys, batch.headers):
        if column is not None:
            sizes = [size + len(cell or b"") for size, cell in zip(sizes, column, strict=True)]
    return sizes


def _pick(batch: Batch, rows: Sequence[int]) -> Batch:
    def cells(column: Sequence[_Cell]) -> list[_Cell]:
        return [column[row] for row in rows]

    return Batch(
        cells(batch.values),
        None if batch.keys is None else cells(batch.keys),
        None if batch.headers is None else cells(batch.headers),
        None if batch.expiries is None else cells(batch.expiries),
    )


def _pick_partitions(partition: int | Sequence[int], rows: Sequence[int]) -> int | Sequence[int]:
    return partition if isinstance(partition, int) else [partition[row] for row in rows]


def _refused(faults: Faults) -> list[Placement]:
    return [Placement(ANY_PARTITION, rows, error) for error, rows in faults.rows_by_error().items()]


def _report_refused(
    rows: list[int], refused: list[Placement], done: OnPlaced, placed: list[Placement] | Scattered
) -> None:
    """Report a run of which only `rows` were appended."""
    if isinstance(placed, Scattered):
        placed = placed.placements()
    appended = [
        Placement(
            each.partition,
            rows[each.rows] if isinstance(each.rows, slice) else [rows[row] for row in each.rows],
            each.result,
        )
        for each in placed
    ]
    done(appended + refused)
