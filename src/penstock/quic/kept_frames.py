"""Hold events back while frames of their streams are built but not sent.

The library builds frames for several datagrams at once, of up to sixteen streams in turn; those that the congestion window has no room
for are kept. It forgets a stream when the event that it has finished is taken. A stream can finish while a frame of its own is kept: a
STOP_SENDING that the peer's end has overtaken, a RESET_STREAM (also one that answers the peer's STOP_SENDING) after our last data was
acknowledged, a copy of what was acknowledged late. The library fails when it comes to send a frame of a stream that it has forgotten: the
datagram is lost, and with it the connection.

So no event is taken while that may be: after a turn of sending that the congestion window cut short, until everything is sent, or so much
that the frames in question must have been part of it. Streams have their turns in order, so that is soon, however much there is to send.

This module can go once the library keeps a stream until its frames are sent: a test in `tests/quic/test_kept_frames.py` fails then.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from penstock.quic.library import PACING_TIMER

if TYPE_CHECKING:
    from qh3._hazmat import QuicConnectionCore

FRAMES_AHEAD: Final = 16
"""Built at once by the library."""


class PendingFrames:
    """See the module."""

    __slots__ = (
        "_stops",
        "_timeouts",
        "cut_short",
        "datagram_bytes",
        "datagrams_until_sent",
        "events_waited",
        "hold_events",
        "repairs",
        "streams",
    )

    def __init__(self, datagram_bytes: int) -> None:
        self.datagram_bytes = datagram_bytes
        self.cut_short = False
        """Frames may be kept."""
        self.events_waited = False
        """Events that are yet to be taken came before the last turn of sending."""
        self.repairs = 0
        """Timeouts and losses that were noted, over the connection's life."""
        self._timeouts = 0
        self._stops = False
        """Some stream was to be stopped, ever."""
        self.datagrams_until_sent = 0
        """Once this many more are sent, the frames in question are on the wire; 0 if there are none."""
        self.hold_events = False
        """Only while `datagrams_until_sent`."""
        self.streams: Collection[object] = ()
        """Those of the connection, which have their turns."""

    def reset_requested(self) -> None:
        # In one turn each stream may have a frame kept and another one waiting, and a frame may begin a datagram because the one before
        # it had too little room left.
        self.datagrams_until_sent = 2 * (2 * len(self.streams) + FRAMES_AHEAD)

    def stop_requested(self) -> None:
        self._stops = True
        self.reset_requested()

    def peer_stopped(self) -> None:
        """The event was taken; the core has answered with a reset by itself, when the frame came."""
        self.reset_requested()
        self.hold_events = self.cut_short and self.events_waited

    def note_repairs(self, core: QuicConnectionCore) -> None:
        """Note timeouts and losses: frames of packets that may be lost are copied.

        Of those that are lost only a STOP_SENDING is not needed for its stream to finish.
        """
        timeouts = core.pto_total
        if self._stops or timeouts != self._timeouts:
            self.reset_requested()
        self._timeouts = timeouts
        self.repairs = timeouts + core.loss_total

    def after_sending(self, core: QuicConnectionCore, sent: list[tuple[bytes, Any]]) -> None:
        """Find out whether the frames in question were among what was sent; to be called while `datagrams_until_sent`."""
        if not self.cut_short:
            timer = core.get_timer()
            if not core.get_send_buffer_size(None) and (timer is None or timer[0] != PACING_TIMER):
                self.datagrams_until_sent = 0
        else:
            # Small ones may hold acknowledgements only, for which there is always room.
            large = sum(2 * len(datagram) >= self.datagram_bytes for datagram, _ in sent)
            self.datagrams_until_sent = max(0, self.datagrams_until_sent - large)
        self.hold_events = self.cut_short and self.datagrams_until_sent > 0
