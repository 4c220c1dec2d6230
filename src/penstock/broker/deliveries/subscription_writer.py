"""What subscriptions have settled, on its way to the log: acknowledgements, and records that become dead letters.

An acknowledgement counts at once in memory and is durable when the next write comes back. There is at most one write of states on its
way: what is acknowledged meanwhile, in whichever subscription, becomes the next one. So a reader never waits for the disk, many
acknowledgements cost one append, and `when_durable` calls back.

Exhausted records become dead letters apart from that, one subscription at a time: one atomic append of the dead letters and of the
state without them. A subscription whose dead letters cannot be written (there may be no room for another topic) is tried again every
second and keeps nobody else waiting. Its exhausted records count as in flight, so it stops delivering before it holds too many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from penstock.background import Background, Loop
from penstock.broker.deliveries.cursor import cells_of
from penstock.broker.deliveries.deadletter_entries import FailedRecord
from penstock.broker.deliveries.deadletters import DeadLetters
from penstock.broker.deliveries.stored import StoredSubscription
from penstock.broker.deliveries.subscription import Subscription
from penstock.broker.records.visibility import is_visible
from penstock.broker.table import Table
from penstock.clock import Clock
from penstock.errors import CorruptBlock, PenstockError, ServerError, ShuttingDown

DEAD_LETTERS_PER_APPEND_MAX: Final = 256
DEAD_LETTERS_BYTES_MAX: Final = 4 << 20
DEAD_LETTER_RETRY_S: Final = 1.0
"""How long a subscription whose dead letters could not be written waits until it is tried again."""
MANY_IN_FLIGHT: Final = 256
LINGER_S: Final = 0.01
"""How long more is gathered if a state to be stored is large: encoding 4 096 deliveries takes some 3 ms of the loop's time."""

OnDurable = Callable[[PenstockError | None], None]
Check = Callable[[Subscription], None]

log = structlog.get_logger(__name__)


class _Blocked(NamedTuple):
    """The dead letters of a subscription could not be written."""

    reason: str
    retry_s: float
    """Of the event loop's clock."""
    unexpected: bool
    """Whether the error is none that Penstock raises on purpose."""


class SubscriptionWriter:
    def __init__(
        self,
        table: Table[int, StoredSubscription],
        dead_letters: DeadLetters,
        background: Background,
        clock: Clock,
    ) -> None:
        self._table = table
        self._dead_letters = dead_letters
        self._background = background
        self._clock = clock
        self._health = background.health("dead_letter_records")
        self._dirty: dict[int, Subscription] = {}
        """Settled something that no write has taken along yet."""
        self._writing = False
        self._await_current: list[OnDurable] = []
        self._await_next: list[OnDurable] = []
        self._state_write = asyncio.Lock()
        """Held during a write of states, so that an older state of a subscription is never written after a newer one."""
        self._exhausted: dict[int, Subscription] = {}
        """Those with records that are to become dead letters."""
        self._blocked: dict[int, _Blocked] = {}
        """Those of them that could not be written when last tried."""
        self._dead_lettering = asyncio.Lock()
        self._storing: Loop | None = None
        self._dead_letter_loop: Loop | None = None

    def start(self) -> None:
        self._storing = self._background.loop("subscription_states", self._store_dirty, first_s=None)
        self._dead_letter_loop = self._background.loop(
            "subscription_dead_letters", self.dead_letter_exhausted, first_s=None
        )

    async def close(self) -> None:
        """Write what is left, once, and no more."""
        for loop in (self._dead_letter_loop, self._storing):
            if loop is not None:
                await loop.stop()
                await loop.run_once()

    @property
    def exhausted(self) -> int:
        """Records that are to become dead letters."""
        return sum(subscription.exhausted for subscription in self._exhausted.values())

    @property
    def unwritten(self) -> bool:
        """Whether something was settled that no write has taken along."""
        return bool(self._dirty)

    @property
    def is_durable(self) -> bool:
        """Whether everything acknowledged so far is on disk."""
        return not self._dirty and not self._writing

    def forget(self, subscription: Subscription) -> None:
        """The subscription has ended: there is nothing left to write."""
        for kept in (self._dirty, self._exhausted, self._blocked):
            kept.pop(subscription.id, None)

    def when_durable(self, done: OnDurable) -> None:
        """Call `done` once everything acknowledged so far is on disk, at once if it is; with the error if it cannot be."""
        if self._dirty:
            self._await_next.append(done)
        elif self._writing:
            self._await_current.append(done)
        else:
            done(None)

    # -- storing acknowledgements -----------------------------------------------------------------------------------------

    def store_soon(self, subscription: Subscription) -> None:
        self._dirty[subscription.id] = subscription
        if self._storing is not None:
            self._storing.wake()

    async def _store_dirty(self) -> float | None:
        """Store the state of every subscription that has settled something; returns None, to wait for the next to do so."""
        large = any(subscription.in_flight > MANY_IN_FLIGHT for subscription in self._dirty.values())
        if large and not self._await_next:
            await asyncio.sleep(LINGER_S)
        dirty, self._dirty = self._dirty, {}
        self._await_current, self._await_next = self._await_next, []
        self._writing = True
        error: PenstockError | None = ShuttingDown("the broker stopped before the acknowledgements were stored")
        try:
            await self._write_states(list(dirty.values()), relaxed=not self._await_current)
            error = None
        except Exception as failure:
            self._dirty = {**dirty, **self._dirty}
            error = failure if isinstance(failure, PenstockError) else ServerError(f"internal error: {failure!r}")
            raise
        finally:
            self._writing = False
            awaiting, self._await_current = self._await_current, []
            for done in awaiting:
                self._tell(done, error)
        return None

    def _tell(self, done: OnDurable, error: PenstockError | None) -> None:
        try:
            done(error)
        except Exception:
            log.exception("durability_callback_failed")

    async def _write_states(self, subscriptions: Sequence[Subscription], *, relaxed: bool) -> None:
        async with self._state_write:
            changes = [(each.id, each.stored()) for each in subscriptions if not each.deleted]
            if changes:
                await self._table.change(changes, relaxed=relaxed)

    async def move(self, subscription: Subscription, offsets: Mapping[int, int], check: Check) -> None:
        """Store that a subscription continues at these offsets, by partition, and have it do so. `check` raises why it may not now."""
        async with self._state_write:
            check(subscription)
            moved = subscription.stored().moved(offsets)
            subscription.is_moving = True
            try:
                await self._table.change([(subscription.id, moved)])
                subscription.move(moved, offsets.keys())
            finally:
                subscription.is_moving = False
                subscription.wake()

    # -- dead letters -----------------------------------------------------------------------------------------------------

    def dead_letter_soon(self, subscription: Subscription) -> None:
        if subscription.deleted:
            return
        self._exhausted[subscription.id] = subscription
        if self._dead_letter_loop is not None and subscription.id not in self._blocked:
            self._dead_letter_loop.wake()

    async def dead_letter_exhausted(self) -> float | None:
        """Write a batch of dead letters of every subscription that has some; returns the seconds until there is more to do."""
        async with self._dead_lettering:
            for subscription in list(self._exhausted.values()):
                blocked = self._blocked.get(subscription.id)
                if blocked is not None and asyncio.get_running_loop().time() < blocked.retry_s:
                    continue
                try:
                    await self._dead_letter(subscription)
                except Exception as error:  # noqa: BLE001  it must not keep others from writing theirs
                    self._block(subscription, error)
                else:
                    self._blocked.pop(subscription.id, None)
                    if subscription.deleted or not subscription.exhausted:
                        self._exhausted.pop(subscription.id, None)
        if not any(blocked.unexpected for blocked in self._blocked.values()):
            self._health.succeeded()
        if not self._exhausted:
            return None
        return DEAD_LETTER_RETRY_S if self._exhausted.keys() <= self._blocked.keys() else 0

    def _block(self, subscription: Subscription, error: Exception) -> None:
        if subscription.deleted:
            return
        unexpected = not isinstance(error, PenstockError)
        if unexpected:
            self._health.failed(error)
        reason = f"{type(error).__name__}: {error}"
        before = self._blocked.get(subscription.id)
        retry_s = asyncio.get_running_loop().time() + DEAD_LETTER_RETRY_S
        self._blocked[subscription.id] = _Blocked(reason, retry_s, unexpected)
        if before is None or before.reason != reason:
            log.warning(
                "dead_letters_not_written",
                topic=subscription.topic,
                subscription=subscription.name or subscription.id,
                records=subscription.exhausted,
                reason=reason,
                consequence="tried again every second; at subscriptions.in_flight_max records its deliveries stop",
            )

    async def _dead_letter(self, subscription: Subscription) -> None:
        """Write one batch of a subscription's dead letters, together with its state without them."""
        tags, letters = await self._letters(subscription)
        if letters:
            await self._dead_letters.ensure_topics(letters)
        async with self._state_write:
            # From here to the append nothing is awaited that lets anyone settle more, so state and letters belong together.
            if subscription.deleted:
                return
            changes = [(subscription.id, subscription.stored(without=frozenset(tags)))]
            if letters:
                await self._dead_letters.append(letters, [self._table.prepare(changes)])
            else:
                await self._table.change(changes)
            subscription.dead_lettered(tags)

    async def _letters(self, subscription: Subscription) -> tuple[list[int], list[FailedRecord]]:
        """The tags of a batch of exhausted records, and the records that are left of them."""
        tags: list[int] = []
        letters: list[FailedRecord] = []
        size_bytes = 0
        for exhausted in subscription.first_exhausted(DEAD_LETTERS_PER_APPEND_MAX):
            if size_bytes > DEAD_LETTERS_BYTES_MAX:
                break
            try:
                found = await subscription.record(exhausted.tag)
            except CorruptBlock as error:
                log.warning("dead_letter_lost", topic=subscription.topic, reason=str(error))
                found = None
            tags.append(exhausted.tag)
            now_ms = self._clock.now_ms()
            if found is None or not is_visible(found.block, found.row, now_ms):
                continue
            value, headers = cells_of(found)
            keys = found.block.keys(found.row, found.row + 1)
            partition, offset = subscription.place(exhausted.tag)
            letters.append(
                FailedRecord(
                    subscription.topic,
                    partition,
                    offset,
                    value,
                    None if keys is None else keys[0],
                    headers,
                    exhausted.reason,
                    exhausted.deliveries,
                    exhausted.first_ms,
                    now_ms,
                )
            )
            size_bytes += len(value or b"")
        return tags, letters
