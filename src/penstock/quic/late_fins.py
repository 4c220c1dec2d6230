"""Ends of streams that come after their data was sent, held back until that data is acknowledged.

The library loses the end of a stream for good if the packet that carries it, and nothing else of the stream, is declared lost while data
before it is not acknowledged: it fails to note a lost frame of zero length that is not the first thing to be sent again. The peer then
has everything but the end, and waits for it. An end that travels with data is not affected.

So an end that would travel alone waits until nothing of the connection is in flight or to be sent again, and a little while at most: by
then the data has been acknowledged, or has been lost more than once. Data that was declared lost is not in flight before it is sent again.

This module can go once the library notes lost frames of zero length: a test in `tests/quic/test_late_fins.py` fails then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.quic.outbox import INITIAL_RTT_S

if TYPE_CHECKING:
    from qh3._hazmat import QuicConnectionCore

HOLD_S_MIN: Final = 0.2
HOLD_ROUND_TRIPS: Final = 4
"""Enough for data to be declared lost, sent again and acknowledged."""


class LateFins:
    """For one connection."""

    __slots__ = ("_has_new", "due_s", "held_since_s")

    def __init__(self) -> None:
        self.held_since_s: dict[int, float | None] = {}
        """By stream, the oldest first; None until `send_due` has seen it."""
        self._has_new = False
        self.due_s: float | None = None
        """When to call `send_due` at the latest."""

    def hold(self, core: QuicConnectionCore, stream_id: int) -> bool:
        """Hold back the end of a stream; False if it may be sent at once, with data."""
        if core.get_send_buffer_size(stream_id) or not core.can_send_stream(stream_id):
            return False
        self.held_since_s.setdefault(stream_id)
        self._has_new = True
        return True

    def send_due(self, core: QuicConnectionCore, now_s: float, *, is_quiet: bool) -> bool:
        """Give the core the ends that need not wait any longer; returns whether there are any.

        `is_quiet`: nothing is in flight, and the core has just said that it has nothing to send.
        """
        hold_s = 0.0 if is_quiet else max(HOLD_S_MIN, HOLD_ROUND_TRIPS * (core.smoothed_rtt or INITIAL_RTT_S))
        sent = False
        self.due_s = None
        if self._has_new:
            self._has_new = False
            self.held_since_s = {
                stream_id: now_s if since_s is None else since_s for stream_id, since_s in self.held_since_s.items()
            }
        while self.held_since_s:
            stream_id, since_s = next(iter(self.held_since_s.items()))
            assert since_s is not None
            if now_s < since_s + hold_s:
                self.due_s = since_s + hold_s
                break
            del self.held_since_s[stream_id]
            try:
                core.send_stream(stream_id, b"", True)
                sent = True
            except (RuntimeError, ValueError):
                pass  # the peer takes no more of it, of which an event will tell
        return sent

    def drop(self, stream_id: int) -> None:
        """Forget a stream that was reset."""
        self.held_since_s.pop(stream_id, None)
        if not self.held_since_s:
            self.due_s = None  # nobody would call `send_due` any more, and a time that has passed would be due forever
