"""Every subscription of the broker: creating and finding them, reading from them, and ending those that nobody uses.

Their state lives in the table `__subscriptions`, one entry each. It is divided into shards (`shards`), of which a node has those that it
owns. What was settled is written by `subscription_writer`. The node that leads follows what the others write, for lists (`elsewhere`).

Deliveries are taken back when somebody reads; the sweep does the same for subscriptions that nobody reads, a few times a second.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import attrgetter
from typing import Final, Literal

import structlog

from penstock.background import Loop, Tasks, run_to_completion
from penstock.broker.access.checks import Operation, Principal, on_topic_group
from penstock.broker.deliveries.cursor import NOT_IN_MEMORY, NotInMemory
from penstock.broker.deliveries.deadletters import DeadLetters
from penstock.broker.deliveries.elsewhere import Elsewhere, Owners
from penstock.broker.deliveries.policy import DeliveryPolicy
from penstock.broker.deliveries.restoring import SubscriptionStats, restore
from penstock.broker.deliveries.shards import (
    SUBSCRIPTIONS_TOPIC,
    Shard,
    divide,
    is_divided,
    number_in,
    shard_of_number,
    shard_of_topic,
    when_all_durable,
)
from penstock.broker.deliveries.stored import StoredCursor, StoredSubscription
from penstock.broker.deliveries.subscription import (
    ALWAYS_AT_LEAST_ONCE,
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    Delivery,
    Subscription,
)
from penstock.broker.deliveries.subscription_writer import OnDurable
from penstock.broker.groups.offsets import GroupInfo, GroupOffset
from penstock.broker.keyed_locks import KeyedLocks
from penstock.broker.part import Context, Part
from penstock.errors import (
    AccessDenied,
    GroupNotFound,
    InvalidRequest,
    LimitExceeded,
    NotLeading,
    NotWritten,
    PenstockError,
    TopicNotFound,
)
from penstock.log.api import Partition, follow_all
from penstock.names import validate_group_name

SWEEP_S: Final = 0.2
ARRIVING_S: Final = 0.01
FORGET_S: Final = 1.0
"""Blocks of a subscription that nobody has read for so long are let go."""
_GROUP_OF: Final = attrgetter("name")
"""The group that a subscription is: readers of a named one share its position."""

log = structlog.get_logger(__name__)


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
        self._dead_letters = dead_letters
        self._shards: dict[int, Shard] = {}
        """Those that this node owns."""
        self._shard_count = self._engine.shards or 1
        self._is_divided, self._was_heard = self._engine.shards is not None, True
        self._leaving: set[int] = set()
        """Those that are about to go to another node."""
        self.owners: Owners | None = None
        """Where there are several nodes; given by who knows how to reach them."""
        self._elsewhere: Elsewhere | None = None
        self._ending = Tasks()
        self._by_id: dict[int, Subscription] = {}
        self._by_name: dict[tuple[str, str], Subscription] = {}
        self._naming: KeyedLocks[tuple[str, str]] = KeyedLocks()
        """By topic and name: two who ask for the same one at once get the same subscription."""
        self._arriving: Counter[int] = Counter()
        """Subscriptions by shard that are being created."""
        self._owned: Counter[str] = Counter()
        """Subscriptions by owner, those that are being created among them."""
        self._subscribed: Counter[str] = Counter()
        """Subscriptions by topic."""
        self._reading: dict[int, Subscription] = {}
        """Those that may have something in flight or blocks in memory: what the sweep looks at."""
        self._sweeping: Loop | None = None
        self._idle_checked_s = 0.0

    async def start(self) -> None:
        self._idle_checked_s = self._clock.monotonic()
        self._sweeping = self.background.loop("subscription_sweep", self._sweep_step, first_s=SWEEP_S)

    async def close(self) -> None:
        """Store what was acknowledged, then take no more."""
        if self._sweeping is not None:
            await self._sweeping.stop()
        await self._ending.finish()
        if self._elsewhere is not None:
            await self._elsewhere.close()
        for shard in self._shards.values():
            await shard.close()

    # -- shards -----------------------------------------------------------------------------------------------------------

    async def divide(self) -> int:
        """Divide the log into shards unless it is, for the node that leads; returns how many there are."""
        self._shard_count = await divide(self._engine)
        if self._engine.shards is not None:
            self._engine.divide(SUBSCRIPTIONS_TOPIC)
            if self._elsewhere is not None:
                await self._elsewhere.close()  # its loading has failed
            self._elsewhere = Elsewhere(self._engine, self._shard_count, self._policy, self._clock, self.background)
            await self._elsewhere.load()
        return self._shard_count

    async def is_divided(self) -> bool:
        """Whether shards can be owned."""
        divided = await is_divided(self._engine, self._shard_count)
        if divided:
            self._engine.divide(SUBSCRIPTIONS_TOPIC)
        return divided

    async def gain(self, number: int) -> None:
        """Load a shard. What was not settled is delivered again; subscriptions whose topic is gone end here."""
        entries_max = self._limits.subscriptions_max
        shard = Shard(number, self._engine, self._dead_letters, self.background, self._clock, entries_max)
        now_s = self._clock.monotonic()
        try:
            loaded = await restore(shard, self._engine, self._policy, self._clock, self.stats)
        except BaseException:
            await shard.close()
            raise
        for each in loaded:
            self._add(each, now_s)
        self._shards[number] = shard
        for topic in {each.topic for each in loaded}:
            self.topic_changed(topic)  # which may have happened meanwhile

    async def lose(self, number: int) -> None:
        """Give a shard up: nothing more of it is delivered or acknowledged here, and what was is stored. Raises if that fails."""
        shard = self._shards.get(number)
        if shard is None:
            return
        self._leaving.add(number)
        while self._arriving[number]:  # noqa: ASYNC110  rarely, and not for long
            await asyncio.sleep(ARRIVING_S)
        leaving = [each for each in self._by_id.values() if each.shard == number]
        for each in leaving:
            each.leave()
        await shard.writer.close()
        if shard.writer.unwritten:
            raise NotWritten(f"acknowledgements of shard {number} could not be stored, so it cannot go elsewhere")
        await shard.close()
        self._forget([each for each in leaving if not each.deleted])
        del self._shards[number]
        self._leaving.discard(number)

    def shard_of(self, topic: str, name: str = "") -> int:
        """Return the shard of a subscription by its name, or by # and its number; of new ones if there is no name."""
        number = number_in(name)
        return shard_of_topic(topic, self._shard_count) if number is None else self.shard_of_number(number)

    def shard_of_number(self, number: int) -> int:
        """Return the shard of a subscription without a name."""
        return shard_of_number(number, self._shard_count)

    def owns(self, shard: int) -> bool:
        """Whether this node delivers the records of a shard."""
        return shard in self._shards and shard not in self._leaving

    @property
    def owned(self) -> Collection[int]:
        return self._shards.keys() - self._leaving

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

        If they are not in memory, await `load` and take again. If the one after them cannot be read, a request for it gets the error. None
        while others may take this node for gone, and deliver them.
        """
        subscription.used_s = self._clock.monotonic()
        if not subscription.deleted:
            self._reading[subscription.id] = subscription
        now_ms = self._clock.now_ms()
        deliveries: list[Delivery] = []
        size_bytes = 0
        if self._is_divided and not self._engine.is_heard:
            return deliveries
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
            self._store_soon(subscription)
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
            self._store_soon(subscription)
        return acknowledged

    @on_topic_group(Operation.COMMIT, "subscription", _GROUP_OF)
    def refuse(self, principal: Principal, topic: str, subscription: Subscription, tag: int) -> bool:
        """Have a delivery repeated, or made a dead letter if that was its last; False if it is not in flight."""
        refused = subscription.refuse(tag, self._clock.now_ms())
        self._dead_letter_exhausted(subscription)
        return refused

    @on_topic_group(Operation.COMMIT, "subscription", _GROUP_OF)
    def dead_letter(self, principal: Principal, topic: str, subscription: Subscription, tag: int, reason: str) -> None:
        """Make a delivery's record a dead letter, because it can never arrive."""
        subscription.dead_letter(tag, reason)
        self._dead_letter_exhausted(subscription)

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
        self._dead_letter_exhausted(subscription)
        if delivered:
            subscription.wake()

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def count(self) -> int:
        """How many there are, on the node that leads with about those of other nodes."""
        return len(self) + (0 if self._elsewhere is None else self._elsewhere.count(self._shards))

    @property
    def exhausted(self) -> int:
        """Records that are to become dead letters."""
        return sum(shard.writer.exhausted for shard in self._shards.values())

    @property
    def in_flight(self) -> int:
        return sum(subscription.in_flight for subscription in self._reading.values())

    def here(self) -> Iterator[Subscription]:
        """Iterate over the subscriptions of this node, those with a name first. To be taken without waiting in between."""
        return chain(self._by_name.values(), (each for each in self._by_id.values() if not each.name))

    def when_durable(self, done: OnDurable) -> None:
        """Call `done` once everything acknowledged so far is on disk, at once where it is; with the error if it cannot be."""
        when_all_durable([shard.writer for shard in self._shards.values()], done)

    def _store_soon(self, subscription: Subscription) -> None:
        if (shard := self._shards.get(subscription.shard)) is not None:
            shard.writer.store_soon(subscription)

    def _dead_letter_exhausted(self, subscription: Subscription) -> None:
        if subscription.exhausted and self.owns(subscription.shard):
            self._shards[subscription.shard].writer.dead_letter_soon(subscription)

    def find_in_topic(self, topic: str, name: str) -> Subscription:
        """Return the subscription of a topic by its name, or by # and its number. Raises GroupNotFound."""
        found = self._by_name.get((topic, name))
        number = number_in(name)
        if found is None and number is not None:
            found = self._by_id.get(number)
        if found is None or found.topic != topic or name != found.group:
            raise GroupNotFound(f"subscription not found: {name} in topic {topic}")
        return found

    def check_unused(self, subscription: Subscription) -> None:
        """Raise InvalidRequest if a subscription cannot be moved now, because of its readers or of what they have left."""
        name = subscription.group
        if subscription.deleted:
            raise GroupNotFound(f"subscription not found: {name} in topic {subscription.topic}")
        subscription.expire_deliveries(self._clock.now_ms())
        if subscription.watched or subscription.with_readers:
            raise InvalidRequest(
                f"subscription {name} has readers (deliveries that are not acknowledged: {subscription.with_readers}): "
                "stop them, or wait until their deliveries are due again, to reset it"
            )
        if subscription.exhausted:
            self._dead_letter_exhausted(subscription)
            raise InvalidRequest(
                f"subscription {name} has records that wait to become dead letters ({subscription.exhausted}): "
                "wait until they are written, to reset it"
            )

    async def move(self, subscription: Subscription, offsets: Mapping[int, int]) -> None:
        """Continue at these offsets, by partition, once that is stored. Raises what `check_unused` does."""
        await self._shards[subscription.shard].writer.move(subscription, offsets, self.check_unused)

    async def catch_up(self, group: str | None, topic: str | None) -> None:
        """Show the same of other nodes as `of_group` as they were stored before the call, on the node that leads."""
        if self._elsewhere is not None:
            await self._elsewhere.catch_up(group, topic)

    def of_group(self, group: str | None, topic: str | None) -> list[Subscription]:
        """Return the subscriptions of a group, or of all, in a topic or in all: on the node that leads those of other nodes too, as they
        are stored."""
        found = [each for each in self.here() if group in (None, each.group) and topic in (None, each.topic)]
        if self._elsewhere is not None:
            found += self._elsewhere.subscriptions(self._shards, group, topic)
        return found

    def group_infos(self, group: str | None = None, topic: str | None = None) -> list[GroupInfo]:
        """Return subscriptions as groups, all or those of one name or topic."""
        return [
            GroupInfo(
                each.topic,
                each.group,
                (),
                tuple(GroupOffset(index, offset, each.created_ms) for index, offset in enumerate(each.positions)),
            )
            for each in self.of_group(group, topic)
        ]

    async def delete_group(self, group: str, topic: str | None) -> bool:
        """Delete the subscriptions of a group on this node, in one topic or in all; return whether there were any."""
        ended = [each for each in self._by_id.values() if group == each.group and topic in (None, each.topic)]
        self._forget(ended)
        await self._delete(ended)
        return bool(ended)

    def topic_changed(self, name: str) -> None:
        """Handle a change of a topic by any node: subscriptions read added partitions from their start, and end if the topic is gone.

        What is stored of those that end is deleted in the background (`forget_topic` waits for that), or when the shard is loaded again.
        """
        if name not in self._subscribed:
            return
        info = self._engine.topics().get(name)
        of_topic = [each for each in self._by_id.values() if each.topic == name]
        ended = [each for each in of_topic if info is None or each.topic_id != info.id]
        self._forget(ended)
        _ = self._ending.run(self._delete_leftovers(ended))
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
            self._store_soon(subscription)

    async def forget_topic(self, topic: str) -> None:
        """A topic was deleted (see `topic_changed`): wait until what is stored of its subscriptions here is, too."""
        await self._ending.finish()

    def sweep(self) -> None:
        """Take back what is due, let go of blocks that nobody reads, and end what nobody uses."""
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic()
        for subscription in list(self._reading.values()):
            subscription.expire_deliveries(now_ms)
            self._dead_letter_exhausted(subscription)
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
        number = self.shard_of(topic)
        if not self.owns(number):
            raise NotLeading(f"this node does not own shard {number}, in which topic {topic} is: ask again")
        self._arriving[number] += 1  # which keeps the shard here
        self._owned[owner] += 1
        try:
            if topic not in self._engine.topics():
                await self._engine.catch_up()  # another node may have created it
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
            subscription_id = await self._shards[number].add(stored)
        finally:
            self._arriving[number] -= 1
            self._disown(owner)
        now = self._engine.topics().get(topic)
        subscription = Subscription(subscription_id, stored, handles, self._policy, shard=number)
        if now is None or now.id != info.id:
            await self._delete_leftovers([subscription])
            raise TopicNotFound(f"topic not found: {topic} was deleted while it was being subscribed to")
        self._add(subscription, self._clock.monotonic())
        self._extend(subscription, self._engine.partitions(now))
        return subscription

    def _check_room(self, owner: str) -> None:
        advice = "delete some with penstock group delete, or lower subscriptions.idle_ms_max, which ends unused ones"
        if len(self._by_id) + self._arriving.total() >= self._limits.subscriptions_max:
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

    def _add(self, subscription: Subscription, now_s: float) -> None:
        subscription.used_s = now_s
        self._by_id[subscription.id] = subscription
        self._owned[subscription.owner] += 1
        self._subscribed[subscription.topic] += 1
        if subscription.name:
            self._by_name[subscription.topic, subscription.name] = subscription

    async def _end(self, subscriptions: Sequence[Subscription]) -> None:
        self._forget(subscriptions)
        await self._delete_leftovers(subscriptions)

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
            self._shards[subscription.shard].writer.forget(subscription)

    async def _delete_leftovers(self, subscriptions: Sequence[Subscription]) -> None:
        # What cannot be deleted now is found again when the shard is loaded: its topic is gone, or nobody uses it.
        with suppress(PenstockError):
            await self._delete(subscriptions)

    async def _delete(self, subscriptions: Sequence[Subscription]) -> None:
        for number in {each.shard for each in subscriptions} & self._shards.keys():
            await self._shards[number].delete([each.id for each in subscriptions if each.shard == number])

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
        was_heard, self._was_heard = self._was_heard, self._engine.is_heard
        for each in self.here() if self._was_heard and not was_heard else ():
            each.wake()  # its readers got nothing meanwhile
        self.sweep()
        await self.end_idle()
        return SWEEP_S
