"""One QUIC connection on an event loop: its core, its streams and its timers, over an endpoint that it may share.

Everything a connection does, it does in `run`, once per turn of the loop at most: take the events that have come, then make the
datagrams there are to send, then look at the time. Whoever changes something only touches it.

Subclasses say what happens: `stream_opened`, `established`, `lost`, and which connection ids are its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.quic.core import (
    CID_ISSUED,
    CID_RETIRED,
    STOP_SENDING,
    STREAM_DATA,
    STREAM_FINISHED,
    STREAM_RESET,
    STREAMS_AVAILABLE,
    Event,
    QuicCore,
)
from penstock.quic.packets import Address
from penstock.quic.settings import QuicSettings
from penstock.quic.stream import Stream
from penstock.quic.udp import SEGMENTED_BYTES_MAX, UdpEndpoint

SENDS_PER_TURN_MAX: Final = 4
"""System calls' worth of datagrams that one connection sends before others have their turn: about 256 KiB."""
TIMER_RESOLUTION_S: Final = 0.001
"""A timer that is due within this is due now; event loops count in milliseconds."""


class Connection:
    """See the module."""

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
        self.farewell: list[tuple[bytes, Address]] = []
        """The datagrams that told the peer that we closed the connection, should it not have received them."""
        self.sent_bytes = 0
        """Of stream data, over the connection's life, whether it is on the wire yet or not."""
        self._losses_repaired = 0
        self.waiting_bytes = 0
        """What waited to be sent or was in flight, on all streams together, when that was last looked at."""
        self._sent_since_look_bytes = 0
        self._origin = b""
        """Which address of ours the peer uses, where there are several."""
        self._now_s = now_s
        self._own_bit = 0 if core.is_client else 1
        self._paused = False
        self._taking = False
        """Events are being taken; what there is to send is sent after that."""
        self._full: dict[Stream, None] = {}
        self._sending: dict[Stream, None] = {}
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
        """`waiting_bytes` is known anew."""

    def send_high_bytes(self) -> int:
        """Return how much may wait or be unacknowledged: above it none of the streams is writable, until half of it is left."""
        return self.settings.connection_send_high_bytes

    def before_sending(self) -> None:
        """Events were taken; what there is to send is sent next."""

    def has_run(self) -> None:
        """Events were taken, and what there was to send was sent."""

    def cid_issued(self, cid: bytes) -> None:
        """The peer may address us by this id from now on."""

    def cid_retired(self, cid: bytes) -> None:
        """The peer will not use this id any more."""

    def failed(self, error: Exception) -> None:
        """Something that should not happen: the connection cannot go on."""
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
            self.farewell = self.addressed(self.core.take_datagrams(self._now_s(), self._datagrams_per_turn))
            self.endpoint.send(self.farewell, self._origin)
            self._lose(code, reason)

    def abandon(self, reason: str) -> None:
        """End it on our side without a word to the peer."""
        self._lose(0, reason)

    # -- what the endpoint calls -------------------------------------------------------------------------------------------

    def take_datagrams(self, buffer: bytes, segment_bytes: int, address: Address) -> None:
        self._origin = self.endpoint.arrived_at
        self.core.receive(buffer, segment_bytes, address, self._now_s())
        self.endpoint.touch(self)

    def run(self, now_s: float) -> None:
        try:
            self._run(now_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this connection and no other
            self.failed(error)

    def _run(self, now_s: float) -> None:
        self._taking = True
        try:
            if self._is_there() and (self.reading or self.core.is_closed):
                self._take_events()
            self.before_sending()
        finally:
            self._taking = False
        if self._is_there():
            if self.core.is_closed:
                self.farewell = self.addressed(self.core.take_datagrams(now_s, self._datagrams_per_turn))
                self.endpoint.send(self.farewell, self._origin)
                self._lose(self.core.close_code, self.core.close_reason)
            else:
                held = self.core.frames.hold_events
                self._send(now_s)
                self._look_at_streams()
                if held and not self.core.frames.hold_events:
                    self.endpoint.touch(self)  # for the events that waited
        if self._is_there():
            self._arm_timer(now_s)
            self.has_run()

    # -- what streams call -------------------------------------------------------------------------------------------------

    def stream_sent(self, stream: Stream, size_bytes: int) -> None:
        self.sent_bytes += size_bytes
        self._sending[stream] = None
        self._sent_since_look_bytes += size_bytes
        if self._sent_since_look_bytes > self.send_high_bytes() // 4:
            self.look_at_congestion()
        if not self._taking:
            self.endpoint.touch(self)

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
        self._sending.pop(stream, None)
        if self._full.pop(stream, self) is None:
            self.touch()

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _is_there(self) -> bool:
        return not self.is_lost

    def _take_events(self) -> None:
        core = self.core
        if not self.is_established and core.is_established:
            self.is_established = True
            self.established()
        take = core.take_event
        while (self.reading or core.is_closed) and (event := take()) is not None:
            if event[0] == STREAM_DATA:
                stream_id = event[1]
                stream = self.streams.get(stream_id) or self._new_stream(stream_id)
                if stream is not None:
                    stream.take_data(event[2], event[3])
            else:
                self._take_rare(event)
            if self.is_lost:
                return

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
        datagrams = self.addressed(self.core.take_datagrams(now_s, self.datagrams_allowed()))
        if datagrams:
            endpoint.send(datagrams, self._origin)
            if len(datagrams) == self._datagrams_per_turn:
                endpoint.touch(self)

    def _look_at_streams(self) -> None:
        """Which streams have drained, and whether there is too much on all of them together."""
        if self._sending:
            for stream in list(self._sending):
                if not stream.sent_some():
                    self._sending.pop(stream, None)
        if self.congested or self._sending:
            self.update_congestion()
        if self.may_have_losses and not self.endpoint.blocked and self.core.is_idle:
            self._losses_repaired = self.core.losses

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
        """One timer of the loop, moved only when it would be late; most deadlines move away from it."""
        at_s = self.core.get_timer()
        if at_s is None:
            return
        if self._timer is not None:
            if self._timer_at_s <= at_s:
                return
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = asyncio.get_running_loop().call_later(max(at_s - now_s, 0), self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        now_s = self._now_s()
        at_s = self.core.get_timer()
        if at_s is None or at_s > now_s + TIMER_RESOLUTION_S:
            self._arm_timer(now_s)
            return
        try:
            self.core.handle_timer(max(now_s, at_s))
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
