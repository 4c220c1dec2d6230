"""A reader's side of a stream: records of a group's subscription, pushed or fetched, and their settling.

All readers of a group on a topic share one subscription: a record goes to one of them. What a reader has and has not settled goes back
when its stream ends; what it refuses (NACK) comes again after a moment, and after the last of its deliveries becomes a dead letter, as
does what it leaves alone for too long.

Of what goes back, the first counts as a delivery: the reader was at work on it, and a record that crashes its readers must not be
redelivered forever. Later ones were sent ahead, and may come as if for the first time.

With auto commit a record is settled when the client's QUIC has acknowledged the bytes it was sent in. That is as much as can be known
here: a client that crashes with records in its buffers loses them.

Deployed readers queue a thousand messages and then stop taking answers, so no more than a few hundred are pushed without
being acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import structlog

from penstock.broker.deliveries.cursor import NotInMemory
from penstock.broker.deliveries.subscription import ALWAYS_AT_LEAST_ONCE, Delivery, Subscription
from penstock.errors import PenstockError
from penstock.protocols.fujin.codec import reply_encoding
from penstock.protocols.fujin.codec.messages import BadCommand, Command, ConnectReader, Disconnect, Fetch, Settle
from penstock.protocols.fujin.server.settling import Settling
from penstock.protocols.fujin.server.stream import FujinStream, Timer
from penstock.protocols.fujin.server.unconfirmed import Unconfirmed
from penstock.protocols.fujin.wire import (
    EMPTY_FETCH,
    EMPTY_READER_TOPIC,
    INVALID_AUTO_COMMIT,
    INVALID_READER_TYPE,
    NOTHING_TO_FETCH,
    PUSHED_BYTES_DEPLOYED_MAX,
    READER_NOT_FOUND,
    STOPPING,
    ReaderKind,
    Reply,
    Request,
)

PUSH_RECORDS_MAX: Final = 64
PUSH_BYTES_MAX: Final = 64 << 10
"""What one reader takes in one turn of the loop, so that the readers of a group take turns."""
FETCH_RECORDS_MAX: Final = 4096
FETCH_BYTES_MAX: Final = 1 << 20
"""About how large the reply to one FETCH may be."""
FAREWELL_S: Final = 0.1
"""Deployed clients lose the reason of a refused CONNECT READER when the end of the stream comes with it."""
UNCONFIRMED_MAX: Final = 4096
"""Records on their way to a reader with auto commit."""

log = structlog.get_logger(__name__)


class _HeldFetch(NamedTuple):
    command: Fetch
    held_bytes: int
    timer: Timer


class Reader:
    """Implements `Role`."""

    __slots__ = (
        "_auto_commit",
        "_expired",
        "_fetches",
        "_loading",
        "_outstanding",
        "_pull",
        "_refused",
        "_session",
        "_settling",
        "_stop_watching",
        "_stopping",
        "_subscription",
        "_unconfirmed",
        "_work_scheduled",
    )

    def __init__(self, session: FujinStream, command: ConnectReader, held_bytes: int) -> None:
        self._session = session
        self._pull = command.kind == ReaderKind.PULL
        self._auto_commit = command.auto_commit == 1
        self._subscription: Subscription | None = None
        self._stop_watching: Callable[[], None] | None = None
        self._outstanding: dict[int, int] = {}
        """What was sent and is not settled, in that order: how many times it had been delivered then, by its tag."""
        self._expired = 0
        """How many deliveries the subscription had taken back when those of this reader were last looked for."""
        # With auto commit a client is given no ids, and can settle none.
        self._settling = Settling(session, {} if self._auto_commit else self._outstanding, self._work_soon)
        self._unconfirmed = Unconfirmed(session, self._arrived, self._work_soon)
        self._fetches: deque[_HeldFetch] = deque()
        self._loading = False
        self._work_scheduled = False
        self._stopping = False
        self._refused = False
        session.stats.requests[Request.CONNECT_READER] += 1
        session.in_background(self._connect(command, held_bytes))

    # -- connecting -------------------------------------------------------------------------------------------------------

    async def _connect(self, command: ConnectReader, held_bytes: int) -> None:
        session = self._session
        try:
            refusal = await self._subscribe(command)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            refusal = session.reason(error)
        session.stream.release(held_bytes)
        subscription = self._subscription
        if refusal is None and subscription is not None:
            if not session.over:
                session.send_alone(reply_encoding.CONNECTED)
                self._stop_watching = subscription.watch(self._work_soon)
                session.stats.subscribers += 1
                self._work_soon()
        else:
            self._refused = True
            session.send(reply_encoding.refused_reader(refusal or ""))
            session.call_later(FAREWELL_S, self._end_refused)

    async def _subscribe(self, command: ConnectReader) -> str | None:
        """Join the group; returns why not."""
        session = self._session
        fault = _fault(command)
        if fault is not None:
            session.stats.errors += 1
            return fault
        assert command.topic is not None
        try:
            alias = session.settings.find(command.topic.decode())
        except UnicodeDecodeError:
            session.stats.errors += 1
            return READER_NOT_FOUND
        if not session.broker.topics.exists(alias.topic):
            await session.broker.leading.catch_up()  # another node may have created it
        if not session.settings.auto_create and not session.broker.topics.exists(alias.topic):
            session.stats.errors += 1
            return READER_NOT_FOUND
        self._subscription = await session.broker.subscriptions.subscribe(
            session.principal,
            alias.topic,
            ALWAYS_AT_LEAST_ONCE,
            name=alias.group,
            start=alias.start,
            ack_ms=session.settings.ack_ms_max,
        )
        return None

    def _end_refused(self) -> None:
        if not self._session.over:
            self._session.stream.end()
            self._session.stream.stop_receiving()
            self._session.end()

    # -- what the session calls ----------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        # One that was refused ends by itself, without DISCONNECT: it was never connected.
        return not self._settling.unanswered and not self._refused

    def may_start(self, command: Command) -> bool:
        return not self._refused

    def handle(self, command: Command, held_bytes: int) -> None:
        session = self._session
        stats = session.stats
        if isinstance(command, Fetch):
            stats.requests[Request.FETCH] += 1
            self._fetch(command, held_bytes)
        elif isinstance(command, Settle):
            stats.requests[command.request] += 1
            assert self._subscription is not None
            self._settling.settle(self._subscription, command, held_bytes)
        else:
            assert isinstance(command, Disconnect | BadCommand)
            stats.requests[Request.DISCONNECT if isinstance(command, Disconnect) else 0] += 1
            session.stream.release(held_bytes)
            session.disconnect()

    def resume(self) -> None:
        self._work_soon()
        self._session.advance()

    def stopping(self) -> None:
        self._stopping = True
        for held in self._take_fetches():
            self._refuse_fetch(held.command, STOPPING, held.held_bytes)

    def ended(self) -> None:
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None
            self._session.stats.subscribers -= 1
        for held in self._take_fetches():
            self._session.stream.release(held.held_bytes)
        if self._subscription is not None:
            self._unconfirmed.stop()
            # With auto commit what is left has not arrived.
            self._session.broker.subscriptions.requeue(
                self._subscription, list(self._outstanding.items()), first_counts=not self._auto_commit
            )
            self._outstanding.clear()

    # -- taking -----------------------------------------------------------------------------------------------------------

    def _work_soon(self) -> None:
        if not self._work_scheduled and not self._loading:
            self._work_scheduled = True
            self._session.call_soon(self._work)

    def _work(self) -> None:
        """There may be records: push them, or answer fetches."""
        self._work_scheduled = False
        session, subscription = self._session, self._subscription
        if session.over or subscription is None or self._loading:
            return
        if subscription.deleted:
            self._give_up("another node has it now" if subscription.is_elsewhere else "the topic was deleted")
            return
        self._unconfirmed.look()
        try:
            if self._pull:
                more = self._answer_fetches(subscription)
            else:
                more = self._push(subscription)
        except Exception as error:  # noqa: BLE001  reported to the client if that is still possible
            reason = session.reason(error)
            self._give_up(reason)
            return
        if more:
            self._work_soon()
        elif (
            self._unconfirmed.records >= UNCONFIRMED_MAX or subscription.in_flight >= subscription.policy.in_flight_max
        ):
            self._unconfirmed.look_soon()

    def _give_up(self, reason: str) -> None:
        """Records cannot be read: say so where something waits for an answer, and end where nothing can be read any more."""
        log.warning(
            "reader_failed", listener=self._session.stream.listener, peer=self._session.stream.peer, reason=reason
        )
        if self._pull:
            for held in self._take_fetches():
                self._refuse_fetch(held.command, reason, held.held_bytes)
        if not self._pull or (self._subscription is not None and self._subscription.deleted):
            self._session.disconnect()

    def _take(self, subscription: Subscription, records_max: int, bytes_max: int) -> list[Delivery] | None:
        """The next records; None if the log has to be read first, which is begun."""
        session = self._session
        taken = session.broker.subscriptions.take_many(
            session.principal, subscription.topic, subscription, records_max, bytes_max
        )
        if isinstance(taken, NotInMemory):
            self._loading = True
            session.run(self._load(subscription))
            return None
        return taken

    async def _load(self, subscription: Subscription) -> None:
        session = self._session
        try:
            await session.broker.subscriptions.load(session.principal, subscription.topic, subscription)
        except Exception as error:  # noqa: BLE001  reported to the client if that is still possible
            self._loading = False
            if not session.over:
                self._give_up(session.reason(error))
            return
        self._loading = False
        self._work_soon()

    def _fit(self, subscription: Subscription, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Those that a reader can take. What is empty is settled; what is too large can never arrive."""
        settings, fit = self._session.settings, []
        skipped: list[int] = []
        subscriptions = self._session.broker.subscriptions
        bytes_max, rule = settings.body_bytes_max, "listeners.fujin.body_bytes_max allows"
        if not self._pull and self._session.is_deployed and bytes_max > PUSHED_BYTES_DEPLOYED_MAX:
            bytes_max, rule = PUSHED_BYTES_DEPLOYED_MAX, "a deployed client survives, see listeners.fujin.dialect"
        for delivery in deliveries:
            value_bytes = len(delivery.value or b"")
            if value_bytes > bytes_max:
                reason = f"{value_bytes} bytes are more than the {bytes_max} that {rule}"
                self._session.stats.oversized_events += 1
                subscriptions.dead_letter(
                    self._session.principal, subscription.topic, subscription, delivery.tag, reason
                )
            elif not value_bytes and settings.empty_values == "skip":
                skipped.append(delivery.tag)
            else:
                fit.append(delivery)
        if skipped:
            self._session.stats.skipped_events += len(skipped)
            subscriptions.acknowledge_many(self._session.principal, subscription.topic, subscription, skipped)
        return fit

    # -- pushing ----------------------------------------------------------------------------------------------------------

    def _push(self, subscription: Subscription) -> bool:
        """Push what is available, up to a turn's share; returns whether there may be more."""
        session = self._session
        if session.quiet or self._stopping or not session.stream.writable:
            return False
        room = UNCONFIRMED_MAX - self._unconfirmed.records
        if not self._auto_commit:
            if len(self._outstanding) >= session.settings.unacknowledged_max:
                self._forget_taken_back(subscription)
            room = session.settings.unacknowledged_max - len(self._outstanding)
        if room <= 0:
            return False
        records_max = min(room, PUSH_RECORDS_MAX)
        deliveries = self._take(subscription, records_max, PUSH_BYTES_MAX)
        if not deliveries:
            return False
        fit = self._fit(subscription, deliveries)
        parts: list[bytes] = []
        for delivery in fit:
            parts += reply_encoding.message(delivery.value or b"", None if self._auto_commit else delivery.tag)
        self._deliver(b"".join(parts), fit)
        return True

    def _deliver(self, data: bytes, deliveries: Sequence[Delivery]) -> None:
        """Send records, and remember that they are on their way."""
        self._session.send(data)
        stats = self._session.stats
        stats.sent_records += len(deliveries)
        stats.encoded_events += len(deliveries)
        for delivery in deliveries:
            if delivery.deliveries > 1:
                self._outstanding.pop(delivery.tag, None)  # the last now, not where it was
        self._outstanding.update([(delivery.tag, delivery.deliveries) for delivery in deliveries])
        subscription = self._subscription
        if subscription is not None and len(self._outstanding) > subscription.policy.in_flight_max:
            self._forget_taken_back(subscription)
        if self._auto_commit and deliveries:
            self._unconfirmed.add([delivery.tag for delivery in deliveries])

    def _forget_taken_back(self, subscription: Subscription) -> None:
        """What was left alone for too long is not with this reader any more, and takes no room."""
        if self._expired == subscription.expired:
            return
        self._expired = subscription.expired
        for tag, deliveries in list(self._outstanding.items()):
            if not subscription.is_with_reader(tag, deliveries):
                del self._outstanding[tag]

    def _arrived(self, tags: list[int]) -> None:
        """With auto commit that is all a record needs."""
        subscription, session = self._subscription, self._session
        assert subscription is not None
        for tag in tags:
            self._outstanding.pop(tag, None)
        try:
            session.broker.subscriptions.acknowledge_many(session.principal, subscription.topic, subscription, tags)
        except PenstockError as error:
            log.warning("auto_commit_refused", topic=subscription.topic, reason=str(error))

    # -- fetching ---------------------------------------------------------------------------------------------------------

    def _fetch(self, command: Fetch, held_bytes: int) -> None:
        if not self._pull:
            self._refuse_fetch(command, INVALID_READER_TYPE, held_bytes)
        elif not command.records_max:
            self._refuse_fetch(command, EMPTY_FETCH, held_bytes)
        elif self._stopping:
            self._refuse_fetch(command, STOPPING, held_bytes)
        elif len(self._fetches) >= self._session.settings.fetches_max:
            refusal = f"{len(self._fetches)} fetches wait for records already: send fewer, or raise listeners.fujin.fetches_max"
            self._refuse_fetch(command, refusal, held_bytes)
        else:
            timer = self._session.call_later(self._session.settings.fetch_wait_s, partial(self._nothing_came, command))
            self._fetches.append(_HeldFetch(command, held_bytes, timer))
            self._work_soon()

    def _answer_fetches(self, subscription: Subscription) -> bool:
        """Answer the fetch that has waited longest; returns whether another may be answered."""
        if not self._fetches or self._session.alone or not self._session.stream.writable:
            return False
        held = self._fetches[0]
        records_max = min(held.command.records_max, FETCH_RECORDS_MAX)
        deliveries = self._take(subscription, records_max, FETCH_BYTES_MAX)
        if not deliveries:
            return False
        if not self._session.stream.room_for(sum(len(delivery.value or b"") for delivery in deliveries)):
            taken = [(delivery.tag, delivery.deliveries) for delivery in deliveries]
            self._session.broker.subscriptions.requeue(subscription, taken)
            return False
        fit = self._fit(subscription, deliveries)
        if self._session.is_deployed:
            fit = self._leave_single_bytes_alone(subscription, fit)
        if not fit:
            return True
        self._fetches.popleft()
        held.timer.cancel()
        values = [delivery.value or b"" for delivery in fit]
        tags = [delivery.tag for delivery in fit]
        reply = reply_encoding.fetched(held.command.correlation_id, values, None if self._auto_commit else tags)
        self._deliver(reply, fit)
        self._session.stream.release(held.held_bytes)
        return bool(self._fetches)

    def _leave_single_bytes_alone(self, subscription: Subscription, deliveries: list[Delivery]) -> list[Delivery]:
        """Deployed clients lose their place behind a value of one byte among others: it travels by itself."""
        count = 0
        for delivery in deliveries:
            if len(delivery.value or b"") == 1:
                count = count or 1
                break
            count += 1
        left = [(delivery.tag, delivery.deliveries) for delivery in deliveries[count:]]
        self._session.broker.subscriptions.requeue(subscription, left)
        return deliveries[:count]

    @property
    def _refuses_empty_fetch(self) -> bool:
        """An error is a reply that every client reads; an empty batch puts deployed clients out of step for good."""
        empty_fetch = self._session.settings.empty_fetch
        return empty_fetch == "error" or (empty_fetch == "auto" and self._session.is_deployed)

    def _nothing_came(self, command: Fetch) -> None:
        for held in self._fetches:
            if held.command is command:
                self._fetches.remove(held)
                if self._refuses_empty_fetch:
                    self._refuse_fetch(command, NOTHING_TO_FETCH, held.held_bytes)
                else:
                    self._session.send(reply_encoding.fetched(command.correlation_id, [], None))
                    self._session.stream.release(held.held_bytes)
                return

    def _refuse_fetch(self, command: Fetch, reason: str, held_bytes: int) -> None:
        self._session.stats.errors += 1
        self._session.send(reply_encoding.failed(Reply.FETCH, command.correlation_id, reason))
        self._session.stream.release(held_bytes)

    def _take_fetches(self) -> list[_HeldFetch]:
        fetches = list(self._fetches)
        self._fetches.clear()
        for held in fetches:
            held.timer.cancel()
        return fetches


def _fault(command: ConnectReader) -> str | None:
    """What is wrong with a CONNECT READER, whatever there is to read."""
    if command.kind not in (ReaderKind.PUSH, ReaderKind.PULL):
        return INVALID_READER_TYPE
    if command.auto_commit > 1:
        return INVALID_AUTO_COMMIT
    if command.topic is None:
        return READER_NOT_FOUND
    if not command.topic:
        return EMPTY_READER_TOPIC
    return None
