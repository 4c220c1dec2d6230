"""Every subscription of the broker: creating and finding them, reading from them, and ending those that nobody uses.

Their state lives in the table `__subscriptions`, one entry each; entry 0 keeps the numbers that were given away. What was settled is
written to it by `subscription_writer`.

Deliveries are taken back when somebody reads; the sweep does the same for subscriptions that nobody reads, a few times a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Final, Literal

import structlog

from penstock.background import Loop, run_to_completion
from penstock.broker.access.checks import Operation, Principal, on_topic_group
from penstock.broker.deliveries.cursor import NOT_IN_MEMORY, NotInMemory
from penstock.broker.deliveries.deadletters import DeadLetters
from penstock.broker.deliveries.policy import DeliveryPolicy
from penstock.broker.deliveries.stored import StoredCursor, StoredSubscription
from penstock.broker.deliveries.subscription import (
    ALWAYS_AT_LEAST_ONCE,
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    Delivery,
    Subscription,
)
from penstock.broker.deliveries.subscription_writer import OnDurable, SubscriptionWriter
from penstock.broker.groups.offsets import GroupInfo, GroupOffset
from penstock.broker.keyed_locks import KeyedLocks
from penstock.broker.part import Context, Part
from penstock.broker.table import Table
from penstock.errors import (
    AccessDenied,
    GroupNotFound,
    InvalidRequest,
    LimitExceeded,
    PenstockError,
    TopicNotFound,
)
from penstock.log.api import Partition, follow_all
from penstock.names import validate_group_name

SUBSCRIPTIONS_TOPIC: Final = "__subscriptions"
SWEEP_S: Final = 0.2
FORGET_S: Final = 1.0
"""Blocks of a subscription that nobody has read for so long are let go."""
DELETES_PER_APPEND_MAX: Final = 4096
STATES_PER_APPEND_MAX: Final = 64
"""Stored at start; each takes up to 1 MiB."""
NUMBER_CHARACTERS_MAX: Final = 20
"""Of # and the number of a subscription, which is an int64."""
_NUMBERS: Final = 0
"""The key of the entry that holds the next number, as the start of its only cursor: numbers are never given twice."""

_GROUP_OF: Final = attrgetter("name")
"""The group that a subscription is: readers of a named one share its position."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class SubscriptionStats:
    """Plain numbers, exported on scrape."""

    delivered: int = 0
    """Repetitions included."""
    acknowledged: int = 0
    truncated: int = 0
    """Cursors moved back to where the log was cut."""


class Subscriptions(Part):
    def __init__(
        self,
        context: Context,
        dead_letters: DeadLetters,
        *,
        policy: DeliveryPolicy,
        ensure_topic: Callable[[Principal, str], Awaitable[None]],
    ) -> None:
        super().__init__(context)
        self.stats = SubscriptionStats()
        self._policy = policy
        self._ensure_topic = ensure_topic
        self._table = Table(
            self._engine,
            SUBSCRIPTIONS_TOPIC,
            int,
            StoredSubscription,
            entries_max=self._limits.subscriptions_max + 1,
            limit="limits.subscriptions_max",
            background=self.background,
        )
        self._by_id: dict[int, Subscription] = {}
        self._by_name: dict[tuple[str, str], Subscription] = {}
        self._naming: KeyedLocks[tuple[str, str]] = KeyedLocks()
        """By topic and name: two who ask for the same one at once get the same subscription."""
        self._arriving = 0
        self._owned: Counter[str] = Counter()
        """Subscriptions by owner, those that are being created among them."""
        self._subscribed: Counter[str] = Counter()
        """Subscriptions by topic."""
        self._next_id = 1
        self._reading: dict[int, Subscription] = {}
        """Those that may have something in flight or blocks in memory: what the sweep looks at."""
        self._writer = SubscriptionWriter(self._table, dead_letters, self.background, self._clock)
        self._sweeping: Loop | None = None
        self._idle_checked_s = 0.0

    async def start(self) -> None:
        """Load every subscription. What was not settled is delivered again; those whose topic is gone end here."""
        await self._table.load()
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic()
        gone: list[int] = []
        changed: list[tuple[int, StoredSubscription]] = []
        for subscription_id, stored in list(self._table.items()):
            if subscription_id == _NUMBERS:
                self._next_id = stored.cursors[0].start
                continue
            info = self._engine.topics().get(stored.topic)
            if info is None or info.id != stored.topic_id:
                gone.append(subscription_id)
                continue
            handles = self._engine.partitions(info)
            await follow_all(handles)
            continued = stored.continued(handles)
            if continued != stored:
                self._note_truncated(subscription_id, stored, continued)
                changed.append((subscription_id, continued))
            self._add(Subscription(subscription_id, continued, handles, self._policy, restored_ms=now_ms), now_s)
        await self._delete(gone)
        self._idle_checked_s = now_s
        self._writer.start()
        await self._store_continued(changed)
        self._sweeping = self.background.loop("subscription_sweep", self._sweep_step, first_s=SWEEP_S)

    async def close(self) -> None:
        """Store what was acknowledged, then take no more."""
        if self._sweeping is not None:
            await self._sweeping.stop()
            await self._writer.close()
        await self._table.close()

    # -- operations -------------------------------------------------------------------------------------------------------

    @on_topic_group(Operation.COMMIT, "name")
    @run_to_completion
    async def subscribe(
        self,
        principal: Principal,
        topic: str,
        qos: int,
        *,
        name: str = "",
        start: Literal["earliest", "latest"] = "latest",
        ack_ms: int | None = None,
    ) -> Subscription:
        """A new subscription, stored before this returns; or, where a name is given, the one of this name on this topic.

        Creates a topic that is missing, with the rights of the principal and in its name. A name is that of a group. "latest" begins
        with the first record after this call. `ack_ms`: how long a delivery waits for its acknowledgement, from now on; as the policy
        says if it is not given.
        """
        if qos not in (AT_MOST_ONCE, AT_LEAST_ONCE, ALWAYS_AT_LEAST_ONCE):
            raise InvalidRequest(f"QoS {qos} does not exist: use 0 or 1")
        if not name:
            subscription = await self._create(principal, topic, qos, name, start)
        else:
            validate_group_name(name, self._limits.group_name_bytes_max)
            async with self._naming.of((topic, name)):
                known = self._by_name.get((topic, name))
                subscription = known or await self._create(principal, topic, qos, name, start)
        if ack_ms is not None:
            subscription.ack_ms = ack_ms
        return subscription

    @on_topic_group(Operation.COMMIT, "subscription", _GROUP_OF)
    def take_many(
        self, principal: Principal, topic: str, subscription: Subscription, records_max: int, bytes_max: int
    ) -> list[Delivery] | NotInMemory:
        """The next records of a subscription: as many as there are, until either bound is reached.

        If they are not in memory, await `load` and take again. If the one after them cannot be read, a request for it gets the error.
        """
        subscription.used_s = self._clock.monotonic()
        if not subscription.deleted:
            self._reading[subscription.id] = subscription
        now_ms = self._clock.now_ms()
        deliveries: list[Delivery] = []
        size_bytes = 0
        while len(deliveries) < records_max and size_bytes < bytes_max:
            try:
                taken = subscription.take(now_ms)
            except PenstockError:
                if not deliveries:
                    raise
                break
            if not isinstance(taken, Delivery):
                if taken is NOT_IN_MEMORY and not deliveries:
                    return NOT_IN_MEMORY
                break
            deliveries.append(taken)
            size_bytes += len(taken.value or b"")
        self.stats.delivered += len(deliveries)
        if self._tracing is not None and deliveries:
            headers = [delivery.headers for delivery in deliveries]
            self._tracing.deliver(topic, headers, group=subscription.name)
        return deliveries

    @on_topic_group(Operation.COMMIT, "subscription", _GROUP_OF)
    async def load(self, principal: Principal, topic: str, subscription: Subscription) -> None:
        """Read from disk what `take` needs next."""
        await subscription.load()

    @on_topic_group(Operation.COMMIT, "subscription", _GROUP_OF)
    def acknowledge(self, principal: Principal, topic: str, subscription: Subscription, tag: int) -> bool:
        """Settle a delivery; False if it is not in flight."""
        subscription.used_s = self._clock.monotonic()
        acknowledged = subscription.acknowledge(tag, self._clock.now_ms())
        if acknowledged:
            self.stats.acknowledged += 1
            self._writer.store_soon(subscription)
        return acknowledged

    @on_topic_group(Operation.COMMIT, "subscription", _GROUP_OF)
    def acknowledge_many(
        self, principal: Principal, topic: str, subscription: Subscription, tags: Sequence[int]
    ) -> list[bool]:
        """Settle deliveries; False for each that is not in flight."""
        subscription.used_s = self._clock.monotonic()
        now_ms = self._clock.now_ms()
        acknowledged = [subscription.acknowledge(tag, now_ms) for tag in tags]
        count = acknowledged.count(True)
        if count:
            self.stats.acknowledged += count
            self._writer.store_soon(subscription)
        return acknowledged

    @on_topic_group(Operation.COMMIT, "subscription", _GROUP_OF)
    def refuse(self, principal: Principal, topic: str, subscription: Subscription, tag: int) -> bool:
        """Have a delivery repeated, or made a dead letter if that was its last; False if it is not in flight."""
        refused = subscription.refuse(tag, self._clock.now_ms())
        if subscription.exhausted:
            self._writer.dead_letter_soon(subscription)
        return refused

    @on_topic_group(Operation.COMMIT, "subscription", _GROUP_OF)
    def dead_letter(self, principal: Principal, topic: str, subscription: Subscription, tag: int, reason: str) -> None:
        """Make a delivery's record a dead letter, because it can never arrive."""
        subscription.dead_letter(tag, reason)
        if subscription.exhausted:
            self._writer.dead_letter_soon(subscription)

    # -- for sessions and the broker --------------------------------------------------------------------------------------

    def find(self, subscription_id: int) -> Subscription | None:
        """To know the topic, for which an operation is then asked."""
        return self._by_id.get(subscription_id)

    def find_named(self, topic: str, name: str) -> Subscription | None:
        """The same for one that has a name."""
        return self._by_name.get((topic, name))

    def requeue(
        self, subscription: Subscription, delivered: Sequence[tuple[int, int]], *, first_counts: bool = False
    ) -> None:
        """A reader has gone: what it had is for others, or for itself when it comes again. Never fails; it was the reader's own.

        `delivered`: tags, and the number of each one's delivery, in the order in which the reader got them. `first_counts`: the reader
        may have been at work on the first of them, so for that one it was a delivery; a record that nobody survives must become a dead
        letter some day. The others behind it perhaps nobody examined.
        """
        had = (tag for tag, deliveries in delivered if subscription.is_with_reader(tag, deliveries))
        at_work_on = next(had, None) if first_counts else None
        for tag, deliveries in sorted(delivered, reverse=True):  # so that the first of them ends up in front
            subscription.requeue(tag, deliveries, counts=tag == at_work_on)
        if subscription.exhausted:
            self._writer.dead_letter_soon(subscription)
        if delivered:
            subscription.wake()

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def exhausted(self) -> int:
        """Records that are to become dead letters."""
        return self._writer.exhausted

    @property
    def in_flight(self) -> int:
        return sum(subscription.in_flight for subscription in self._reading.values())

    def all(self) -> Iterator[Subscription]:
        """Iterate over every subscription, those with a name first. To be taken without waiting in between."""
        return chain(self._by_name.values(), (each for each in self._by_id.values() if not each.name))

    def when_durable(self, done: OnDurable) -> None:
        """Call `done` once everything acknowledged so far is on disk, at once where it is; with the error if it cannot be."""
        self._writer.when_durable(done)

    def find_in_topic(self, topic: str, name: str) -> Subscription:
        """Return the subscription of a topic by its name, or by # and its number. Raises GroupNotFound."""
        found = self._by_name.get((topic, name))
        if found is None and name.startswith("#") and len(name) <= NUMBER_CHARACTERS_MAX and name[1:].isdecimal():
            found = self._by_id.get(int(name[1:]))
        if found is None or found.topic != topic or name != group_name(found):
            raise GroupNotFound(f"subscription not found: {name} in topic {topic}")
        return found

    def check_unused(self, subscription: Subscription) -> None:
        """Raise InvalidRequest if a subscription cannot be moved now, because of its readers or of what they have left."""
        name = group_name(subscription)
        if subscription.deleted:
            raise GroupNotFound(f"subscription not found: {name} in topic {subscription.topic}")
        subscription.expire_deliveries(self._clock.now_ms())
        if subscription.watched or subscription.with_readers:
            raise InvalidRequest(
                f"subscription {name} has readers (deliveries that are not acknowledged: {subscription.with_readers}): "
                "stop them, or wait until their deliveries are due again, to reset it"
            )
        if subscription.exhausted:
            self._writer.dead_letter_soon(subscription)
            raise InvalidRequest(
                f"subscription {name} has records that wait to become dead letters ({subscription.exhausted}): "
                "wait until they are written, to reset it"
            )

    async def move(self, subscription: Subscription, offsets: Mapping[int, int]) -> None:
        """Continue at these offsets, by partition, once that is stored. Raises what `check_unused` does."""
        await self._writer.move(subscription, offsets, self.check_unused)

    def group_infos(self, group: str | None = None, topic: str | None = None) -> list[GroupInfo]:
        """Return subscriptions as groups, all or those of one name or topic."""
        return [
            GroupInfo(
                each.topic,
                group_name(each),
                (),
                tuple(GroupOffset(index, offset, each.created_ms) for index, offset in enumerate(each.positions)),
            )
            for each in self._of_group(group, topic)
        ]

    async def delete_group(self, group: str, topic: str | None) -> bool:
        """Delete the subscriptions of a group, in one topic or in all; return whether there were any."""
        ended = self._of_group(group, topic)
        self._forget(ended)
        await self._delete([subscription.id for subscription in ended])
        return bool(ended)

    def _of_group(self, group: str | None, topic: str | None) -> list[Subscription]:
        return [
            each for each in self._by_id.values() if group in (None, group_name(each)) and topic in (None, each.topic)
        ]

    def topic_changed(self, name: str) -> None:
        """Handle a change of a topic by any node: subscriptions read added partitions from their start, and end if the topic is gone.

        What is stored of those that end is deleted by `forget_topic`, or at the next start.
        """
        if name not in self._subscribed:
            return
        info = self._engine.topics().get(name)
        of_topic = [each for each in self._by_id.values() if each.topic == name]
        self._forget([each for each in of_topic if info is None or each.topic_id != info.id])
        if info is not None:
            handles = self._engine.partitions(info)
            for subscription in of_topic:
                if not subscription.deleted:
                    self._extend(subscription, handles)

    def _extend(self, subscription: Subscription, handles: Sequence[Partition]) -> None:
        """Make a subscription read partitions that it does not read yet."""
        added = handles[len(subscription.positions) :]
        if added:
            subscription.add_partitions(added)
            self._writer.store_soon(subscription)

    async def forget_topic(self, topic: str) -> None:
        """A topic was deleted (see `topic_changed`): delete what is stored of its subscriptions."""
        info = self._engine.topics().get(topic)
        await self._delete_leftovers(
            [
                subscription_id
                for subscription_id, stored in self._table.items()
                if stored.topic == topic and (info is None or stored.topic_id != info.id)
            ]
        )

    def sweep(self) -> None:
        """Take back what is due, let go of blocks that nobody reads, and end what nobody uses."""
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic()
        for subscription in list(self._reading.values()):
            subscription.expire_deliveries(now_ms)
            if subscription.exhausted:
                self._writer.dead_letter_soon(subscription)
            if now_s - subscription.used_s >= FORGET_S:
                subscription.forget_blocks()
                if not subscription.in_flight:
                    self._reading.pop(subscription.id, None)

    # -- keeping ----------------------------------------------------------------------------------------------------------

    async def _create(
        self, principal: Principal, topic: str, qos: int, name: str, start: Literal["earliest", "latest"]
    ) -> Subscription:
        owner = "" if principal.trusted else principal.name
        self._check_room(owner)
        self._arriving += 1
        self._owned[owner] += 1
        try:
            if topic not in self._engine.topics():
                await self._create_topic(principal, topic)
            info = self._engine.topic(topic)
            handles = self._engine.partitions(info)
            await follow_all(handles)
            starts = [handle.start_offset if start == "earliest" else handle.committed_end for handle in handles]
            stored = StoredSubscription(
                topic,
                info.id,
                qos,
                tuple(
                    StoredCursor(offset, offset, epoch=handle.epoch)
                    for offset, handle in zip(starts, handles, strict=True)
                ),
                name,
                self._clock.now_ms(),
                owner,
            )
            subscription_id = self._next_id
            self._next_id += 1
            numbers = StoredSubscription("", "", 0, (StoredCursor(self._next_id, 0),))
            await self._table.change([(_NUMBERS, numbers), (subscription_id, stored)])
        finally:
            self._arriving -= 1
            self._disown(owner)
        now = self._engine.topics().get(topic)
        if now is None or now.id != info.id:
            await self._delete_leftovers([subscription_id])
            raise TopicNotFound(f"topic not found: {topic} was deleted while it was being subscribed to")
        subscription = Subscription(subscription_id, stored, handles, self._policy)
        self._add(subscription, self._clock.monotonic())
        self._extend(subscription, self._engine.partitions(now))
        return subscription

    def _check_room(self, owner: str) -> None:
        advice = (
            "delete some with penstock group delete, or lower subscriptions.idle_ms_max, after which unused ones end"
        )
        if len(self._by_id) + self._arriving >= self._limits.subscriptions_max:
            raise LimitExceeded(
                f"there are {len(self._by_id)} subscriptions, the most allowed: raise limits.subscriptions_max, {advice}"
            )
        if owner and self._owned[owner] >= self._limits.subscriptions_per_principal_max:
            raise LimitExceeded(
                f"{owner} has {self._owned[owner]} subscriptions, the most of one principal: "
                f"raise limits.subscriptions_per_principal_max, {advice}"
            )

    def _disown(self, owner: str) -> None:
        self._owned[owner] -= 1
        if not self._owned[owner]:
            del self._owned[owner]

    async def _create_topic(self, principal: Principal, topic: str) -> None:
        """Create a topic for its first reader, with that reader's rights."""
        try:
            await self._ensure_topic(principal, topic)
        except AccessDenied as error:
            raise AccessDenied(
                f"unauthorized: topic {topic} does not exist, and {principal.name} may not create it; "
                "create it first, or allow them to write to it"
            ) from error

    def _note_truncated(self, subscription_id: int, before: StoredSubscription, after: StoredSubscription) -> None:
        for partition, (old, new) in enumerate(zip(before.cursors, after.cursors, strict=False)):
            if new.read_to < old.read_to:
                self.stats.truncated += 1
                log.warning(
                    "subscription_truncated",
                    topic=before.topic,
                    partition=partition,
                    subscription=before.name or subscription_id,
                    read_to=old.read_to,
                    cut=new.read_to,
                    reason="the log lost its tail after these records were delivered; the subscription continues at the cut",
                )

    async def _store_continued(self, changed: Sequence[tuple[int, StoredSubscription]]) -> None:
        """Store subscriptions whose log epochs have changed before anything is delivered: no tag may be given to two records."""
        for at in range(0, len(changed), STATES_PER_APPEND_MAX):
            chunk = changed[at : at + STATES_PER_APPEND_MAX]
            try:
                await self._table.change(chunk)
            except PenstockError as error:
                log.warning("subscriptions_not_stored", count=len(chunk), error=str(error))
                for subscription_id, _ in chunk:
                    self._writer.store_soon(self._by_id[subscription_id])

    def _add(self, subscription: Subscription, now_s: float) -> None:
        subscription.used_s = now_s
        self._by_id[subscription.id] = subscription
        self._owned[subscription.owner] += 1
        self._subscribed[subscription.topic] += 1
        if subscription.name:
            self._by_name[subscription.topic, subscription.name] = subscription

    async def _end(self, subscriptions: Sequence[Subscription]) -> None:
        self._forget(subscriptions)
        await self._delete_leftovers([subscription.id for subscription in subscriptions])

    def _forget(self, subscriptions: Sequence[Subscription]) -> None:
        for subscription in subscriptions:
            subscription.deleted = True
            subscription.wake()
            del self._by_id[subscription.id]
            self._disown(subscription.owner)
            self._subscribed[subscription.topic] -= 1
            if not self._subscribed[subscription.topic]:
                del self._subscribed[subscription.topic]
            if subscription.name:
                del self._by_name[subscription.topic, subscription.name]
            self._reading.pop(subscription.id, None)
            self._writer.forget(subscription)

    async def _delete_leftovers(self, ids: Sequence[int]) -> None:
        # What cannot be deleted now is found again at the next start: its topic is gone, or nobody uses it.
        with suppress(PenstockError):
            await self._delete(ids)

    async def _delete(self, ids: Sequence[int]) -> None:
        for at in range(0, len(ids), DELETES_PER_APPEND_MAX):
            await self._table.change([(each, None) for each in ids[at : at + DELETES_PER_APPEND_MAX]])

    async def end_idle(self) -> None:
        now_s, idle_s_max = self._clock.monotonic(), self._policy.idle_ms_max / 1000
        if now_s - self._idle_checked_s < min(idle_s_max, 60.0):
            return
        self._idle_checked_s = now_s
        for each in self._by_id.values():
            if each.watched:
                each.used_s = now_s  # however quiet its topic is
        idle = [each for each in self._by_id.values() if now_s - each.used_s >= idle_s_max]
        if idle:
            log.info("subscriptions_ended", count=len(idle), reason="nobody used them", idle_s_max=idle_s_max)
            await self._end(idle)

    async def _sweep_step(self) -> float:
        self.sweep()
        await self.end_idle()
        return SWEEP_S


def group_name(subscription: Subscription) -> str:
    """Return the name of a group; a subscription without one is known by its number."""
    return subscription.name or f"#{subscription.id}"
