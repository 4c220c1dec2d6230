"""One QUIC connection on an event loop: its core, its streams and its timers, over an endpoint that it may share.

Everything a connection does, it does in `run`, once per turn of the loop at most: take the events that have come, then make the
datagrams there are to send, then look at the time; each only if there is something to do. A change only touches it.

Subclasses say what happens: `stream_opened`, `established`, `lost`, and which connection ids are its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Self

from penstock.quic.core import NEVER_S, QuicCore
from penstock.quic.events import (
    CID_ISSUED,
    CID_RETIRED,
    STOP_SENDING,
    STREAM_DATA,
    STREAM_FINISHED,
    STREAM_RESET,
    STREAMS_AVAILABLE,
    Event,
)
from penstock.quic.packets import Address
from penstock.quic.settings import QuicSettings
from penstock.quic.stream import Stream
from penstock.quic.udp import SEGMENTED_BYTES_MAX, UdpEndpoint

SENDS_PER_TURN_MAX: Final = 4
"""System calls' worth of datagrams that one connection sends before others have their turn: about 256 KiB."""
LOOK_BYTES_MIN: Final = 16 * 1024
"""No stream is kept from sending for less, whatever else waits. While no more than this does, it is not looked at in each turn."""
TIMER_RESOLUTION_S: Final = 0.001
"""A timer that is due within this is due now; event loops count in milliseconds."""


class Connection:
    """See the module."""

    __slots__ = (
        "_concluding",
        "_datagrams_per_turn",
        "_full",
        "_is_redirected",
        "_loop",
        "_losses_repaired",
        "_not_writable",
        "_now_s",
        "_origin",
        "_own_bit",
        "_paused",
        "_sent_since_look_bytes",
        "_taking",
        "_timer",
        "_timer_at_s",
        "close_packets",
        "congested",
        "core",
        "endpoint",
        "is_established",
        "is_lost",
        "is_stopping",
        "sent_bytes",
        "settings",
        "streams",
        "waiting_bytes",
    )

    def __init__(
        self, endpoint: UdpEndpoint, core: QuicCore, settings: QuicSettings, now_s: Callable[[], float]
    ) -> None:
        self.endpoint = endpoint
        self.core = core
        self.settings = settings
        self.streams: dict[int, Stream] = {}
        core.frames.streams = self.streams
        self.congested = False
        """Too much waits on all streams together: none of them is writable."""
        self.is_established = False
        self.is_lost = False
        self.close_packets: list[tuple[bytes, Address]] = []
        """The datagrams that told the peer that we closed the connection, should it not have received them."""
        self.sent_bytes = 0
        """Of stream data, over the connection's life, whether it is on the wire yet or not."""
        self._losses_repaired = 0
        self.waiting_bytes = 0
        """What waited to be sent or was in flight, on all streams together, when that was last examined."""
        self._sent_since_look_bytes = 0
        self._origin = b""
        """Which address of ours the peer uses, where there are several."""
        self._now_s = now_s
        self._loop = asyncio.get_running_loop()
        self._own_bit = 0 if core.is_client else 1
        self._is_redirected = False
        """Datagrams go to another address than the core thinks, or only some may be sent: `addressed` and `datagrams_allowed` are asked."""
        self.is_stopping = False
        """`has_run` is called after every turn, not only after those that leave events behind."""
        self._concluding: dict[Stream, None] = {}
        """Streams that may end before the next datagrams are made: `before_sending` is called."""
        self._paused = False
        self._taking = False
        """Events are being taken; pending data is sent after that."""
        self._full: dict[Stream, None] = {}
        self._not_writable: dict[Stream, None] = {}
        """Streams on which too much waits to be sent."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._datagrams_per_turn = SENDS_PER_TURN_MAX * (SEGMENTED_BYTES_MAX // settings.datagram_bytes)

    # -- what happens; for subclasses --------------------------------------------------------------------------------------

    def stream_opened(self, stream_id: int) -> Stream | None:
        """The peer opened a stream; None refuses it."""
        return None

    def established(self) -> None:
        """The handshake is complete."""

    def streams_available(self) -> None:
        """The peer allows more streams than before."""

    def congestion_changed(self) -> None:
        """`congested` is not what it was."""

    def waiting_changed(self) -> None:
        """`waiting_bytes` is known again."""

    def send_high_bytes(self) -> int:
        """Return how much may wait or be unacknowledged: above it none of the streams is writable, until half of it is left."""
        return self.settings.connection_send_high_bytes

    def send_window_filled(self) -> None:
        """Data waits because of the send window alone."""

    def before_sending(self) -> None:
        """Events were taken; pending data is sent next. Called if streams are `_concluding`."""

    def has_run(self) -> None:
        """Events were taken, and what there was to send was sent. Called if events are left, and if the connection `is_stopping`."""

    def cid_issued(self, cid: bytes) -> None:
        """The peer may address us by this id from now on."""

    def cid_retired(self, cid: bytes) -> None:
        """The peer will not use this id any more."""

    def failed(self, error: Exception) -> None:
        """Something that should not happen: the connection cannot continue."""
        raise error

    def losing(self, code: int, reason: str) -> None:
        """The connection is over; its streams are told next."""

    def lost(self, code: int, reason: str) -> None:
        """The connection is over; every stream was closed before."""

    def addressed(self, datagrams: list[tuple[bytes, Address]]) -> list[tuple[bytes, Address]]:
        """What is sent, with where it is sent to."""
        return datagrams

    def datagrams_allowed(self) -> int:
        """How many datagrams may be sent now."""
        return self._datagrams_per_turn

    # -- use ---------------------------------------------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """Stream data that is not on the wire yet."""
        return self.core.unsent_bytes()

    @property
    def may_have_losses(self) -> bool:
        """Whether something was lost on the way that may not have been sent again yet."""
        return self.core.losses != self._losses_repaired

    @property
    def reading(self) -> bool:
        """Whether what comes is heard of at once."""
        return not (self._paused or self._full or self.core.frames.hold_events)

    def touch(self) -> None:
        """Something is to be done: in the next turn of the loop, unless it is done in this one anyway."""
        if not self._taking:
            self.endpoint.touch(self)

    def pause_receiving(self) -> None:
        """Take no more events, so that the peer is granted no more credit."""
        self._paused = True

    def resume_receiving(self) -> None:
        self._paused = False
        self.touch()

    def close(self, code: int = 0, reason: str = "") -> None:
        """End every stream and the connection; the peer is told."""
        if not self.is_lost:
            self.core.close(code, reason)
            self.close_packets = self.addressed(self.core.take_datagrams(self._now_s(), self._datagrams_per_turn))
            self.endpoint.send(self.close_packets, self._origin)
            self._lose(code, reason)

    def abandon(self, reason: str) -> None:
        """End it on our side without a word to the peer."""
        self._lose(0, reason)

    # -- what the endpoint calls -------------------------------------------------------------------------------------------

    def take_datagrams(self, buffer: bytes, segment_bytes: int, address: Address) -> Self:
        """Receive datagrams; the connection is to run after that."""
        self._origin = self.endpoint.arrived_at
        self.core.receive(buffer, segment_bytes, address, self._now_s())
        return self

    def run(self, now_s: float) -> None:
        core = self.core
        if self.is_lost:
            return
        try:
            if (core.has_news or self._concluding) and not self._take_news(now_s):
                return
            if core.may_send or core.must_send(now_s):
                self._send(now_s)
            waits = self._not_writable or self.congested or core.outbox.waiting or self.waiting_bytes > LOOK_BYTES_MIN
            if (waits or core.losses != self._losses_repaired) and not self._look_at_streams():
                return
            if self._timer is None or core.deadline_s < self._timer_at_s:
                self._arm_timer(now_s)
            if core.has_news or self.is_stopping:
                self.has_run()
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this connection and no other
            self.failed(error)

    def _take_news(self, now_s: float) -> bool:
        """Take events, as far as they are wanted now; returns whether the connection continues."""
        core, streams = self.core, self.streams
        self._taking = True
        try:
            if not self.is_established and core.is_established:
                self.is_established = True
                self.established()
            while core.has_news and not self.is_lost and (not (self._paused or self._full) or core.is_closed):
                event = core.take_event()
                if event is None:
                    break
                if event[0] == STREAM_DATA:
                    stream_id = event[1]
                    stream = streams.get(stream_id) or self._new_stream(stream_id)
                    if stream is not None:
                        stream.take_data(event[2], event[3])
                else:
                    self._take_rare(event)
            if self._concluding:
                self.before_sending()
        finally:
            self._taking = False
        if self.is_lost:
            return False
        if core.closed is None and not (core.has_news and core.is_closed):
            return True
        self.close_packets = self.addressed(core.take_datagrams(now_s, self._datagrams_per_turn))
        self.endpoint.send(self.close_packets, self._origin)
        self._lose(core.close_code, core.close_reason)
        return False

    # -- what streams call -------------------------------------------------------------------------------------------------

    def stream_sent(self, size_bytes: int) -> None:
        self.sent_bytes += size_bytes
        sent_bytes = self._sent_since_look_bytes = self._sent_since_look_bytes + size_bytes
        if sent_bytes > LOOK_BYTES_MIN and sent_bytes > self.send_high_bytes() // 4:
            self.look_at_congestion()
        if not self._taking:
            self.endpoint.touch(self)

    def stream_is_not_writable(self, stream: Stream) -> None:
        self._not_writable[stream] = None

    def stream_is_full(self, stream: Stream) -> None:
        self._full[stream] = None

    def stream_has_room(self, stream: Stream) -> None:
        if stream in self._full:
            del self._full[stream]
            self.touch()

    def stream_closed(self, stream: Stream) -> None:
        """It is kept until QUIC has finished with it, so that what still comes for it is not taken for a new one."""
        if stream.is_finished:
            self.streams.pop(stream.id, None)
        self._not_writable.pop(stream, None)
        if self._full.pop(stream, self) is None:
            self.touch()

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _take_rare(self, event: Event) -> None:
        kind = event[0]
        if kind in (STREAM_RESET, STOP_SENDING, STREAM_FINISHED):
            stream = self.streams.get(event[1]) or (self._new_stream(event[1]) if kind != STREAM_FINISHED else None)
            if stream is None:
                return
            if kind == STREAM_RESET:
                stream.take_reset(event[2])
            elif kind == STOP_SENDING:
                stream.take_stop(event[2])
            else:
                stream.take_finished()
        elif kind == STREAMS_AVAILABLE:
            self.streams_available()
        elif kind == CID_ISSUED:
            self.cid_issued(event[1])
        elif kind == CID_RETIRED:
            self.cid_retired(event[1])

    def _new_stream(self, stream_id: int) -> Stream | None:
        """A stream of the peer's that is not known yet; None for one of ours that is gone, and for one that is refused."""
        if stream_id & 1 == self._own_bit or not self.is_established:
            return None
        stream = self.stream_opened(stream_id)
        if stream is not None and not self.is_lost:
            self.streams[stream_id] = stream
        return stream

    def _send(self, now_s: float) -> None:
        endpoint = self.endpoint
        if endpoint.blocked:
            endpoint.touch_when_writable(self)
            return
        core = self.core
        held = core.frames.hold_events
        if self._is_redirected:
            datagrams = self.addressed(core.take_datagrams(now_s, self.datagrams_allowed()))
        else:
            datagrams = core.take_datagrams(now_s, self._datagrams_per_turn)
        if datagrams:
            endpoint.send(datagrams, self._origin)
        if core.outbox.waiting and core.outbox.is_window_full:
            self.send_window_filled()
        if len(datagrams) == self._datagrams_per_turn or (held and not core.frames.hold_events):
            endpoint.touch(self)  # for more, and for the events that waited

    def _look_at_streams(self) -> bool:
        """Which streams have drained, and whether there is too much on all of them together; returns whether the connection continues."""
        for stream in list(self._not_writable):
            if stream.check_writable():
                self._not_writable.pop(stream, None)
        self.update_congestion()
        if self.core.losses != self._losses_repaired and not self.endpoint.blocked and self.core.is_idle:
            self._losses_repaired = self.core.losses
        return not self.is_lost

    def look_at_congestion(self) -> None:
        """Find out whether there is too much on all streams together."""
        self._sent_since_look_bytes = 0
        self.waiting_bytes = self.core.unsent_bytes() + self.core.in_flight_bytes
        self.waiting_changed()
        if not self.congested and self.waiting_bytes > self.send_high_bytes():
            self.congested = True
            self.congestion_changed()

    def update_congestion(self) -> None:
        """Find out the same, and let streams send again if little enough is left. Not while a stream sends."""
        self.look_at_congestion()
        if self.congested and self.waiting_bytes <= self.send_high_bytes() // 2:
            self.congested = False
            self.congestion_changed()
            for stream in list(self.streams.values()):
                if stream.writable:
                    stream.drained()

    def _arm_timer(self, now_s: float) -> None:
        """Let one timer of the loop fire when the core's next one is due. It is moved only if it is late: most deadlines move away."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at_s = at_s = self.core.deadline_s
        if at_s != NEVER_S:
            self._timer = self._loop.call_later(max(at_s - now_s, 0), self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        now_s = self._now_s()
        core = self.core
        at_s = core.get_timer()
        try:
            if at_s is not None and at_s <= now_s + TIMER_RESOLUTION_S:
                core.handle_timer(max(now_s, at_s))
            elif core.is_sure:
                self._arm_timer(now_s)
                return
            else:
                core.ask_again()
        except Exception as error:  # noqa: BLE001 - as in `run`
            self.failed(error)
        else:
            self.run(now_s)

    def _lose(self, code: int, reason: str) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.endpoint.forget(self)
        self.losing(code, reason)
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            stream.close_now()
        self.lost(code, reason)
        self.core.release()
