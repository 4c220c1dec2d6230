"""Producing: a run of records is routed to partitions, appended, and reported once when every part of it is settled.

A run is what one read of one session brought for one topic. It usually goes to a single partition, and then costs one Batch, one
closure and one list whatever its length. Otherwise it is split, each part is appended at once, and `done` waits for the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from penstock.broker.keys import ALL_ROWS, Rows, Share, split_by_key, split_by_turn
from penstock.broker.limits import BrokerLimits
from penstock.errors import InvalidRequest, PartitionNotFound, PenstockError, RecordTooLarge, TopicNotFound
from penstock.log.api import Appended, Batch, Engine, OnAppended, TopicInfo

ANY_PARTITION: Final = -1

_Cell = TypeVar("_Cell")


class Placement(NamedTuple):
    """Where the records `values[rows]` of one call went, or why they did not."""

    partition: int
    rows: Rows
    result: Appended | PenstockError


OnPlaced = Callable[[list[Placement]], None]


class Producer:
    def __init__(self, engine: Engine, limits: BrokerLimits) -> None:
        self._engine = engine
        self._limits = limits
        self._turns: dict[str, int] = {}
        """By topic: the partition whose turn it is for a record without a key. Entries go with their topic."""

    def produce(
        self,
        topic: str,
        partition: int,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[bytes | None] | None,
        expiries: Sequence[int] | None,
        done: OnPlaced,
    ) -> None:
        info = self._engine.topics().get(topic)
        if info is None:
            raise TopicNotFound(f"topic not found: {topic}")
        for column in (keys, headers, expiries):
            if column is not None and len(column) != len(values):
                raise InvalidRequest(
                    f"{len(values)} values came with {len(column)} keys, headers or expiries: send as many"
                )
        if not values:
            raise InvalidRequest("no records to write: send at least one")
        if info.config.cleanup == "compact" and (keys is None or None in keys):
            raise InvalidRequest(f"topic {topic} keeps the latest record of each key: give every record a key")
        count = info.config.partitions
        if partition == ANY_PARTITION and count > 1:
            self._spread(info, values, keys, headers, expiries, done)
            return
        index = 0 if partition == ANY_PARTITION else partition
        if not 0 <= index < count:
            raise PartitionNotFound(f"partition {index} not found: topic {topic} has partitions 0 to {count - 1}")
        batch = Batch(values, keys, headers, expiries)
        self._check_sizes(batch)
        self._engine.partition(topic, index).append(batch, lambda result: done([Placement(index, ALL_ROWS, result)]))

    def forget_topic(self, topic: str) -> None:
        self._turns.pop(topic, None)

    def _spread(
        self,
        info: TopicInfo,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[bytes | None] | None,
        expiries: Sequence[int] | None,
        done: OnPlaced,
    ) -> None:
        topic, count = info.name, info.config.partitions
        turn = self._turns.get(topic, 0)
        if keys is None:
            shares = split_by_turn(len(values), turn, count)
            turn += len(values)
        else:
            self._check_keys(keys)
            shares, turn = split_by_key(keys, turn, count)
        # Everything that may refuse comes before the first append: a run is refused whole or not at all.
        parts = []
        for share in shares:
            batch = Batch(
                _take(values, share.rows),
                None if keys is None else _take(keys, share.rows),
                None if headers is None else _take(headers, share.rows),
                None if expiries is None else _take(expiries, share.rows),
            )
            self._check_sizes(batch)
            parts.append((self._engine.partition(topic, share.partition), batch))
        self._turns[topic] = turn % count
        gathering = _Gathering(shares, done)
        for position, (partition, batch) in enumerate(parts):
            partition.append(batch, gathering.part(position))

    def _check_sizes(self, batch: Batch) -> None:
        # One comparison settles almost every run: no record is larger than all of them together.
        if batch.size_bytes > self._limits.record_bytes_max:
            for row in range(len(batch)):
                size = sum(
                    len(column[row] or b"")
                    for column in (batch.values, batch.keys, batch.headers)
                    if column is not None
                )
                if size > self._limits.record_bytes_max:
                    raise RecordTooLarge(
                        f"record {row} has {size} bytes with its key and headers: at most {self._limits.record_bytes_max} are allowed"
                    )
        if batch.keys is not None and batch.size_bytes > self._limits.key_bytes_max:
            self._check_keys(batch.keys)

    def _check_keys(self, keys: Sequence[bytes | None]) -> None:
        longest = max(map(len, filter(None, keys)), default=0)
        if longest > self._limits.key_bytes_max:
            raise RecordTooLarge(f"a key has {longest} bytes: at most {self._limits.key_bytes_max} are allowed")


class _Gathering:
    """Collects the results of a split run; calls `done` with all of them after the last."""

    __slots__ = ("_done", "_left", "_placements", "_shares")

    def __init__(self, shares: list[Share], done: OnPlaced) -> None:
        self._shares = shares
        self._done = done
        self._left = len(shares)
        self._placements: list[Placement | None] = [None] * len(shares)

    def part(self, position: int) -> OnAppended:
        def appended(result: Appended | PenstockError) -> None:
            share = self._shares[position]
            self._placements[position] = Placement(share.partition, share.rows, result)
            self._left -= 1
            if not self._left:
                self._done([placement for placement in self._placements if placement is not None])

        return appended


def _take(column: Sequence[_Cell], rows: Rows) -> Sequence[_Cell]:
    return column[rows] if isinstance(rows, slice) else [column[row] for row in rows]
