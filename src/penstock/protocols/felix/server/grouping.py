"""Consumer groups: records are polled, and acknowledged or handed back one by one.

A group is a named subscription of the broker (`penstock.broker.deliveries.subscriptions`): durable, shared with readers of other
protocols that use the same name, with redelivery and dead letters as its policy says. A record is known by its offset, so a stream
must have one partition. A poll that finds nothing waits as long as it asks to, up to `WAIT_MS_MAX`.

In a log that lost its tail an offset may have been that of another record, and a client may still hold its claim on that one. There a
record is settled only over the connection that polled it (`Claims`): no connection outlives the crash.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Final

from penstock.broker.deliveries.cursor import NotInMemory
from penstock.broker.deliveries.subscription import ALWAYS_AT_LEAST_ONCE, Delivery, Subscription
from penstock.errors import (
    AuthenticationFailed,
    EntryNotFound,
    GroupNotFound,
    InvalidRequest,
    NotLeading,
    TopicNotFound,
)
from penstock.futures import set_outcome
from penstock.protocols.felix.codec.frames import encode_message
from penstock.protocols.felix.codec.messages import (
    CacheOk,
    GroupAck,
    GroupNack,
    GroupPoll,
    GroupRecord,
    GroupRecords,
    GroupRequest,
)
from penstock.protocols.felix.codec.scopes import Scope, check_shard
from penstock.protocols.felix.server.caching import VALUE_BYTES_MAX
from penstock.protocols.felix.server.identities import Identity
from penstock.protocols.felix.server.shared import Shared

POLL_RECORDS_MAX: Final = 512
POLL_BYTES_MAX: Final = 1 << 20
"""About how much one poll takes; a record that is larger travels alone."""
WAIT_MS_MAX: Final = 30_000
ACK_MS: Final = 30_000
"""How long a record may be worked on before it is owed to the group again."""
CLAIMS_MAX: Final = 1 << 14
"""Per connection; the oldest ones beyond that are stale."""


class Claims:
    """Records that one connection has polled and not settled, of those whose offset may have been another record's before."""

    def __init__(self) -> None:
        self._claimed: OrderedDict[tuple[int, int], None] = OrderedDict()

    def add(self, subscription: Subscription, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            if subscription.is_reused(delivery.partition, delivery.offset):
                self._claimed[subscription.id, delivery.offset] = None
        while len(self._claimed) > CLAIMS_MAX:
            self._claimed.popitem(last=False)

    def take(self, subscription: Subscription, offset: int) -> bool:
        """Remove a claim that is being settled. Return False if the client may hold a claim on another record with this offset."""
        place = subscription.id, offset
        if place not in self._claimed:
            return not subscription.is_reused(0, offset)
        del self._claimed[place]
        return True


class Poll:
    """One poll, from the request to its answer."""

    def __init__(self, shared: Shared, identity: Identity, claims: Claims, request: GroupPoll) -> None:
        self._shared = shared
        self._identity = identity
        self._claims = claims
        self._request = request
        self._stopped = False
        self._late = False
        self._woken = asyncio.Event()

    def stop(self) -> None:
        """Nobody waits for it any more, or the broker stops: it takes nothing more."""
        self._stopped = True
        self._woken.set()

    async def answer(self) -> bytes:
        """The records that were claimed; none where none came in time. Raises what the access check does, and TopicNotFound."""
        request = self._request
        if isinstance(request.consumer, str):
            raise InvalidRequest("claims are not recorded by consumer: poll without one")
        if request.visibility_ms:
            raise InvalidRequest(f"claims stand for {ACK_MS} ms: poll without visibility_ms")
        if not request.max_records:
            raise InvalidRequest("max_records is 0: ask for at least one record")
        topic = _topic(self._shared, self._identity, request)
        subscription = await self._subscription(topic)
        deliveries = await self._take_in_time(topic, subscription)
        self._claims.add(subscription, deliveries)
        deliveries.sort(key=lambda each: each.offset)  # what comes again comes in the order in which it was due
        records = [GroupRecord(each.offset, each.value or b"", each.deliveries) for each in deliveries]
        reply = encode_message(GroupRecords(records=records, request_id=request.request_id))
        self._shared.stats.sent_records += len(records)
        return reply

    async def _subscription(self, topic: str) -> Subscription:
        shared, principal = self._shared, self._identity.principal
        if shared.auto_create and not shared.broker.topics.exists(topic):
            await shared.broker.topics.ensure(principal, topic)
        _check_readable(shared, self._identity, topic)
        found = shared.broker.subscriptions.find_named(topic, self._request.group)
        if found is not None and found.ack_ms:
            return found  # readers of another protocol may have been given another time
        return await shared.broker.subscriptions.subscribe(
            principal, topic, ALWAYS_AT_LEAST_ONCE, name=self._request.group, start="earliest", ack_ms=ACK_MS
        )

    async def _take_in_time(self, topic: str, subscription: Subscription) -> list[Delivery]:
        """What may be claimed, as soon as there is something; nothing if that takes longer than the poll waits."""
        wait_s = min(self._request.wait_ms, WAIT_MS_MAX) / 1000
        self._late = not wait_s
        timer = asyncio.get_running_loop().call_later(wait_s, self._time_is_over)
        stop_watching = subscription.watch(self._woken.set)
        try:
            while True:
                self._woken.clear()
                deliveries = await self._take(topic, subscription)
                if deliveries or self._late or self._stopped:
                    return deliveries
                await self._woken.wait()
        finally:
            timer.cancel()
            stop_watching()

    def _time_is_over(self) -> None:
        self._late = True
        self._woken.set()

    async def _take(self, topic: str, subscription: Subscription) -> list[Delivery]:
        """What may be claimed now."""
        subscriptions, principal = self._shared.broker.subscriptions, self._identity.principal
        records_max = min(self._request.max_records, POLL_RECORDS_MAX)
        while not self._stopped:
            if subscription.is_elsewhere:
                raise NotLeading("another node delivers this stream now: ask again")
            if subscription.deleted:
                raise TopicNotFound(f"topic not found: {topic} was deleted")
            if not self._shared.identities.holds(self._identity):
                raise AuthenticationFailed("auth failed: the API key was revoked")
            _check_readable(self._shared, self._identity, topic)  # partitions may have been added while it waited
            taken = subscriptions.take_many(principal, topic, subscription, records_max, POLL_BYTES_MAX)
            if isinstance(taken, NotInMemory):
                await subscriptions.load(principal, topic, subscription)
                continue
            fit = self._fit(topic, subscription, taken)
            if fit or not taken:
                return fit
        return []

    def _fit(self, topic: str, subscription: Subscription, taken: Sequence[Delivery]) -> list[Delivery]:
        """Those that fit into one frame. What is too large for any can never arrive, and becomes a dead letter."""
        fit: list[Delivery] = []
        left: list[Delivery] = []
        room_bytes = VALUE_BYTES_MAX
        for delivery in taken:
            value_bytes = len(delivery.value or b"")
            if value_bytes > VALUE_BYTES_MAX:
                reason = f"{value_bytes} bytes are more than fit into a frame of Felix, which takes {VALUE_BYTES_MAX}"
                self._shared.stats.oversized_events += 1
                self._shared.broker.subscriptions.dead_letter(
                    self._identity.principal, topic, subscription, delivery.tag, reason
                )
            elif left or value_bytes > room_bytes:
                left.append(delivery)
            else:
                room_bytes -= value_bytes
                fit.append(delivery)
        self._shared.broker.subscriptions.requeue(subscription, [(each.tag, each.deliveries) for each in left])
        return fit


async def settle(shared: Shared, identity: Identity, claims: Claims, request: GroupAck | GroupNack) -> bytes:
    """Finish a record, once that is on disk, or hand it back. Raises EntryNotFound if it is with no member."""
    topic = _topic(shared, identity, request)
    _check_readable(shared, identity, topic)
    subscriptions = shared.broker.subscriptions
    subscription = subscriptions.find_named(topic, request.group)
    if subscription is None:
        raise GroupNotFound(f"group not found: {request.group} has never polled {topic}")
    tag = subscription.tag(0, request.offset)
    if isinstance(request, GroupNack):
        if request.delay_ms:
            raise InvalidRequest(
                "a record is owed again after the delay of its delivery: hand it back without delay_ms"
            )
        if not claims.take(subscription, request.offset):
            raise _stale(request)
        if request.attempts and not subscription.is_with_reader(tag, request.attempts):
            raise _stale(request)
        if not subscriptions.refuse(identity.principal, topic, subscription, tag):
            raise _stale(request)
    else:
        claimed = claims.take(subscription, request.offset)
        acknowledged = claimed and subscriptions.acknowledge(identity.principal, topic, subscription, tag)
        if not acknowledged and not subscription.is_settled(tag):
            raise _stale(request)
    await _durable(shared)
    return encode_message(CacheOk(request_id=request.request_id))


async def _durable(shared: Shared) -> None:
    """Wait until what was settled is on disk."""
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    shared.broker.subscriptions.when_durable(partial(set_outcome, written))
    await written


def _topic(shared: Shared, identity: Identity, request: GroupRequest) -> str:
    check_shard(request.shard)
    return shared.topic(identity, Scope(request.tenant_id, request.namespace, request.stream))


def _check_readable(shared: Shared, identity: Identity, topic: str) -> None:
    """Raises what the access check does, TopicNotFound, and InvalidRequest where offsets do not tell records apart."""
    partitions = len(shared.broker.records.readable_topic(identity.principal, topic).partitions)
    if partitions > 1:
        raise InvalidRequest(
            f"a group needs a stream with one partition, whose offsets tell records apart; this one has {partitions}"
        )


def _stale(request: GroupAck | GroupNack) -> EntryNotFound:
    return EntryNotFound(
        f"stale claim: offset {request.offset} is not with a member of group {request.group}; it may be delivered again"
    )
