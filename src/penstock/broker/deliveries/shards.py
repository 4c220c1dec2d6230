"""Subscriptions in shards, each of which has one owner among the nodes of a cluster: what a shard is made of, and how a log is divided.

A shard is a partition of the table `__subscriptions`. The shard of a named subscription follows from its topic, that of an unnamed one
from its number, so any node can tell who owns it. A broker that does not share its log owns all shards.

A log that was not divided before has one partition. The node that leads adds the others, moves what has a name to where it belongs, and
creates `__shards` when that is done: nobody owns a shard before. What was in a log without shards and has no name stays in the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final
from zlib import crc32

import msgspec

from penstock.background import Background
from penstock.broker.deliveries.deadletters import DeadLetters
from penstock.broker.deliveries.stored import StoredCursor, StoredSubscription
from penstock.broker.deliveries.subscription_writer import OnDurable, SubscriptionWriter
from penstock.broker.table import TABLE_CONFIG, Table, appended_together, ensure_internal_topic, read_state
from penstock.clock import Clock
from penstock.errors import InvalidRequest, PenstockError, TopicExists
from penstock.log.api import Batch, BatchFor, Engine, TopicConfig

SUBSCRIPTIONS_TOPIC: Final = "__subscriptions"
SHARDS_TOPIC: Final = "__shards"
"""It has a partition for each shard, and no records: that it exists says that the log is divided."""
NUMBERS_PER_SHARD: Final = 10**12
NUMBER_CHARACTERS_MAX: Final = 20
"""Of # and the number of a subscription, which is an int64."""
DELETES_PER_APPEND_MAX: Final = 4096
STATES_PER_APPEND_MAX: Final = 64
"""Stored together; each takes up to 1 MiB."""
_NUMBERS: Final = 0
"""The key of the entry that holds the next number, as the start of its only cursor: numbers are never given twice."""


def shard_of_topic(topic: str, count: int) -> int:
    """Return which of `count` shards the named subscriptions of a topic belong to. Stable across releases."""
    return crc32(topic.encode()) % count


def number_in(name: str) -> int | None:
    """Return the number of a subscription that is named by # and its number, None if this is a name."""
    is_number = name.startswith("#") and len(name) <= NUMBER_CHARACTERS_MAX and name[1:].isdecimal()
    return int(name[1:]) if is_number else None


def shard_of_number(number: int, count: int) -> int:
    """Return the shard of a subscription without a name; some shard for a number that was never given."""
    return number // NUMBERS_PER_SHARD % count


def shard_of(number: int, stored: StoredSubscription, count: int) -> int:
    return shard_of_topic(stored.topic, count) if stored.name else shard_of_number(number, count)


class Shard:
    """One shard on the node that owns it: the states of its subscriptions, and what writes them."""

    def __init__(
        self,
        number: int,
        engine: Engine,
        dead_letters: DeadLetters,
        background: Background,
        clock: Clock,
        entries_max: int,
    ) -> None:
        self.number = number
        self._table = Table(
            engine,
            SUBSCRIPTIONS_TOPIC,
            int,
            StoredSubscription,
            entries_max=entries_max + 1,
            limit="limits.subscriptions_max",
            partition=number,
            background=background,
        )
        self.writer = SubscriptionWriter(self._table, dead_letters, background, clock)
        self._next_number = 0

    async def load(self) -> None:
        await self._table.load()
        numbers = self._table.get(_NUMBERS)
        self._next_number = self.number * NUMBERS_PER_SHARD + 1 if numbers is None else numbers.cursors[0].start

    def stored(self) -> Iterator[tuple[int, StoredSubscription]]:
        """Iterate over the subscriptions that are stored, by number."""
        return ((number, stored) for number, stored in list(self._table.items()) if number != _NUMBERS)

    async def add(self, stored: StoredSubscription) -> int:
        """Store a new subscription; returns its number."""
        number = self._next_number
        self._next_number += 1
        numbers = StoredSubscription("", "", 0, (StoredCursor(self._next_number, 0),))
        await self._table.change([(_NUMBERS, numbers), (number, stored)])
        return number

    async def change(self, changed: Sequence[tuple[int, StoredSubscription]]) -> None:
        await self._table.change(changed)

    async def delete(self, numbers: Sequence[int]) -> None:
        for at in range(0, len(numbers), DELETES_PER_APPEND_MAX):
            await self._table.change([(each, None) for each in numbers[at : at + DELETES_PER_APPEND_MAX]])

    async def close(self) -> None:
        """Store what was acknowledged, and take no more."""
        await self.writer.close()
        await self._table.close()


def when_all_durable(writers: Sequence[SubscriptionWriter], done: OnDurable) -> None:
    """Call `done` once everything acknowledged so far is on disk, at once where it is; with an error if it cannot be."""
    waiting = [writer for writer in writers if not writer.is_durable]
    if not waiting:
        done(None)
        return
    left = len(waiting)
    failure: PenstockError | None = None

    def durable(error: PenstockError | None) -> None:
        nonlocal left, failure
        left -= 1
        failure = failure or error
        if not left:
            done(failure)

    for writer in waiting:
        writer.when_durable(durable)


async def is_divided(engine: Engine, count: int) -> bool:
    """Whether the node that leads has divided the log. Raises InvalidRequest if it is divided into another number of shards."""
    if SHARDS_TOPIC not in engine.topics():
        await engine.catch_up()
    info = engine.topics().get(SHARDS_TOPIC)
    if info is not None and info.config.partitions != count:
        raise InvalidRequest(
            f"cluster.shards is {count}, and the log is divided into {info.config.partitions}: set that number, which stays as it is"
        )
    return info is not None


async def divide(engine: Engine) -> int:
    """Divide the log unless it is, for the node that leads; returns the number of shards."""
    await ensure_internal_topic(engine, SUBSCRIPTIONS_TOPIC, replace(TABLE_CONFIG, partitions=engine.shards or 1))
    info = engine.topic(SUBSCRIPTIONS_TOPIC)
    count = engine.shards
    if count is None:
        return info.config.partitions
    if not await is_divided(engine, count):
        if info.config.partitions not in (1, count):
            raise InvalidRequest(
                f"cluster.shards is {count}, and subscriptions lie in {info.config.partitions} partitions: set that number"
            )
        if info.config.partitions < count:
            await engine.alter_topic(SUBSCRIPTIONS_TOPIC, replace(info.config, partitions=count))
        await _move_named(engine, count)
        with suppress(TopicExists):
            await engine.create_topic(SHARDS_TOPIC, TopicConfig(partitions=count))
    return count


async def _move_named(engine: Engine, count: int) -> None:
    """Move subscriptions with a name from the first partition to that of their shard: some at a time, each in one piece."""
    decode_key, decode = msgspec.msgpack.Decoder(int).decode, msgspec.msgpack.Decoder(StoredSubscription).decode
    found: dict[bytes, bytes | None] = {}
    async for block in read_state(engine, SUBSCRIPTIONS_TOPIC):
        found.update((key or b"", value) for key, value in zip(block.keys() or (), block.values(), strict=False))
    moving: dict[int, list[tuple[bytes, bytes]]] = {}
    for key, value in found.items():
        if value is not None and decode_key(key) != _NUMBERS:
            moving.setdefault(shard_of(decode_key(key), decode(value), count), []).append((key, value))
    first = engine.partition(SUBSCRIPTIONS_TOPIC, 0)
    moving.pop(0, None)
    for shard, entries in moving.items():
        target = engine.partition(SUBSCRIPTIONS_TOPIC, shard)
        for at in range(0, len(entries), STATES_PER_APPEND_MAX):
            keys, values = zip(*entries[at : at + STATES_PER_APPEND_MAX], strict=True)
            parts = [BatchFor(target, Batch(values, keys)), BatchFor(first, Batch([None] * len(keys), keys))]
            await appended_together(engine, parts)
