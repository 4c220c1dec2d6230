"""Producing: a run of records is routed to partitions, appended, and reported once when every part of it is settled.

A run is what one read of one session brought for one topic. It usually goes to a single partition, and then costs one Batch, one
closure and one list whatever its length. Otherwise it joins the other runs that are to be spread over the topic (see `spreading`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from penstock.broker.limits import BrokerLimits
from penstock.broker.records.keys import Partitions, follow_keys, take_turns
from penstock.broker.records.spreading import ALL_ROWS, Lane, OnPlaced, Placement, Run, Scattered
from penstock.errors import InvalidRequest, PartitionNotFound, RecordTooLarge, TopicNotFound
from penstock.log.api import Appended, Batch, Engine, TopicInfo

ANY_PARTITION: Final = -1


class Placed(NamedTuple):
    """Where records may be appended."""

    topic_id: str
    partitions: list[int]
    """Of each record."""


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
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[bytes | None] | None,
        expiries: Sequence[int] | None,
        done: OnPlaced,
    ) -> None:
        info = self._check_columns(topic, values, keys, headers, expiries)
        count = info.config.partitions
        if partition == ANY_PARTITION and count == 1:
            partition = 0
        if not isinstance(partition, int) or partition == ANY_PARTITION:
            batch = Batch(values, keys, headers, expiries)
            self._check_sizes(batch)
            self._spread(topic, batch, self._route(info, partition, batch), done)
            return
        if not 0 <= partition < count:
            raise _no_partition(info, partition)
        batch = Batch(values, keys, headers, expiries)
        self._check_sizes(batch)
        self._append(topic, partition, batch, done)

    def place(self, topic: str, partition: int | Sequence[int], batch: Batch) -> Placed:
        """Check records and choose the partition of each as `produce` does, but append nothing."""
        info = self._check_columns(topic, batch.values, batch.keys, batch.headers, batch.expiries)
        self._check_sizes(batch)
        count = info.config.partitions
        if partition == ANY_PARTITION and count == 1:
            partition = 0
        if not isinstance(partition, int) or partition == ANY_PARTITION:
            return Placed(info.id, self._route(info, partition, batch).tolist())
        if not 0 <= partition < count:
            raise _no_partition(info, partition)
        return Placed(info.id, [partition] * len(batch))

    def one_partition(self, topic: str, key: bytes | None) -> int:
        """Where records that must stay together go: to the partition of their key, or to the next one in turn. Raises TopicNotFound."""
        info = self._engine.topics().get(topic)
        if info is None:
            raise TopicNotFound(f"topic not found: {topic}")
        count = info.config.partitions
        if count == 1:
            return 0
        chosen, turn = _choose(None if key is None else [key], 1, self._turns.get(topic, 0), count)
        self._turns[topic] = turn % count
        return int(chosen[0])

    def forget_topic(self, topic: str) -> None:
        self._turns.pop(topic, None)

    def _check_columns(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[bytes | None] | None,
        expiries: Sequence[int] | None,
    ) -> TopicInfo:
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
        return info

    def _append(self, topic: str, index: int, batch: Batch, done: OnPlaced) -> None:
        lane = self._lanes.get(topic)
        if lane is not None and lane.gathering:
            lane.add(Run(batch, np.full(len(batch), index), partial(_placed_together, index, done)))
            return
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
        """The partition of each record: the one asked for, else by its key, else in turn."""
        topic, count = info.name, info.config.partitions
        asked = None if isinstance(partition, int) else np.array(partition, np.int64)
        if asked is not None and len(asked) != len(batch):
            raise InvalidRequest(f"{len(batch)} values came with {len(asked)} partitions: send as many")
        if asked is not None and ((asked < ANY_PARTITION) | (asked >= count)).any():
            raise _no_partition(info, int(asked[(asked < ANY_PARTITION) | (asked >= count)][0]))
        free = None if asked is None else asked == ANY_PARTITION
        turn = self._turns.get(topic, 0)
        if free is None or free.all():
            chosen, turn = _choose(batch.keys, len(batch), turn, count)
        elif not free.any():
            assert asked is not None
            return asked
        else:
            assert asked is not None
            keys = None if batch.keys is None else [batch.keys[row] for row in np.flatnonzero(free).tolist()]
            chosen = asked
            chosen[free], turn = _choose(keys, int(free.sum()), turn, count)
        self._turns[topic] = turn % count
        return chosen

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


def _placed_together(index: int, done: OnPlaced, placed: list[Placement] | Scattered) -> None:
    """Report a run for one partition that was appended with others: as one placement, as if it had been appended alone."""
    if isinstance(placed, Scattered):
        # The records of a run in one partition follow one another.
        placed = [Placement(index, ALL_ROWS, Appended(int(placed.offsets[0]), int(placed.timestamps_ms[0])))]
    done(placed)


def _choose(keys: Sequence[bytes | None] | None, count: int, turn: int, partitions: int) -> tuple[Partitions, int]:
    """Partitions for records that ask for none, and the next turn."""
    if keys is None:
        return take_turns(count, turn, partitions), turn + count
    return follow_keys(keys, turn, partitions)


def _no_partition(info: TopicInfo, index: int) -> PartitionNotFound:
    return PartitionNotFound(
        f"partition {index} not found: topic {info.name} has partitions 0 to {info.config.partitions - 1}"
    )
