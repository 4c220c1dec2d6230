"""Subscriptions as they continue once their shard is loaded, after a start or from another node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from penstock.broker.deliveries.policy import DeliveryPolicy
from penstock.broker.deliveries.shards import STATES_PER_APPEND_MAX, Shard
from penstock.broker.deliveries.stored import StoredSubscription
from penstock.broker.deliveries.subscription import Subscription
from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.log.api import Engine, follow_all

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class SubscriptionStats:
    """Plain numbers, exported on scrape."""

    delivered: int = 0
    """Repetitions included."""
    acknowledged: int = 0
    truncated: int = 0
    """Cursors moved back to where the log was cut."""


async def restore(
    shard: Shard, engine: Engine, policy: DeliveryPolicy, clock: Clock, stats: SubscriptionStats
) -> list[Subscription]:
    """Load a shard; returns its subscriptions. What was not settled is delivered again, and those whose topic is gone end here."""
    await shard.load()
    await engine.catch_up()  # a topic that is not known yet is not gone
    now_ms = clock.now_ms()
    gone: list[int] = []
    changed: list[tuple[int, StoredSubscription]] = []
    restored: dict[int, Subscription] = {}
    for number, stored in shard.stored():
        info = engine.topics().get(stored.topic)
        if info is None or info.id != stored.topic_id:
            gone.append(number)
            continue
        handles = engine.partitions(info)
        await follow_all(handles)
        continued = stored.continued(handles)
        if continued != stored:
            stats.truncated += _note_truncated(number, stored, continued)
            changed.append((number, continued))
        restored[number] = Subscription(number, continued, handles, policy, shard=shard.number, restored_ms=now_ms)
    await shard.delete(gone)
    shard.writer.start()
    await _store_continued(shard, changed, restored)
    return list(restored.values())


def _note_truncated(number: int, before: StoredSubscription, after: StoredSubscription) -> int:
    """Log and return how many cursors were moved back."""
    truncated = 0
    for partition, (old, new) in enumerate(zip(before.cursors, after.cursors, strict=False)):
        if new.read_to < old.read_to:
            truncated += 1
            log.warning(
                "subscription_truncated",
                topic=before.topic,
                partition=partition,
                subscription=before.name or number,
                read_to=old.read_to,
                cut=new.read_to,
                reason="the log lost its tail after these records were delivered; the subscription continues at the cut",
            )
    return truncated


async def _store_continued(
    shard: Shard, changed: Sequence[tuple[int, StoredSubscription]], restored: Mapping[int, Subscription]
) -> None:
    """Store subscriptions whose log epochs have changed before anything is delivered: no tag may be given to two records."""
    for at in range(0, len(changed), STATES_PER_APPEND_MAX):
        chunk = changed[at : at + STATES_PER_APPEND_MAX]
        try:
            await shard.change(chunk)
        except PenstockError as error:
            log.warning("subscriptions_not_stored", count=len(chunk), error=str(error))
            for number, _ in chunk:
                shard.writer.store_soon(restored[number])
