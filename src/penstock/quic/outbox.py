"""What streams have to send, kept here until the congestion window has room for it.

The library makes up frames for sixteen streams at once, more after a timeout. Those that the congestion window has no room for are kept,
and whatever is to be sent later waits for them: acknowledgements too, although the window is not for them. Two ends that both have much
to send on many streams would wait for each other's acknowledgements until a timeout lets two frames pass, then until one of twice the
length, and so on: with sixteen streams and some loss, or with sixty and none, hardly anything moves.

So the library is given no more than it can send at once. What fits goes straight to it; else the streams have turns, and each
gives an equal share of the room, but a whole frame at least. One whose share stays inside waits for credit, and is passed over.

Nor is it given more than the send window, which bounds what it has been given and is not acknowledged. The library copies what it is given
into a buffer of the stream, which grows to more than twice the most that was ever unacknowledged, and does not shrink before the stream
ends: a stream over which 1 MiB was read from loopback keeps 0.6 MiB, however idle it is.

Both can go once the library builds no frames ahead of the window and frees its buffers: tests in `tests/quic/test_outbox.py` and
`tests/quic/test_library.py` fail then.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qh3._hazmat import QuicConnectionCore

Data = bytes | bytearray | memoryview

FRAME_OVERHEAD_BYTES: Final = 64
"""The library leaves so much of a datagram to headers."""
INITIAL_RTT_S: Final = 0.1
"""Assumed until the first measurement. The standard's third of a second makes a lost first packet cost a second on a local network."""
WIRE_SHARE: Final = 16
"""At most one of this many bytes on the wire is not stream data."""


class StreamRefused(Exception):
    """The core would not do it: the stream has ended, or the peer allows no more of them."""


class Waiting:
    """What one stream has to send."""

    __slots__ = ("chunks", "end", "size_bytes")

    def __init__(self) -> None:
        self.chunks: deque[Data] = deque()
        self.size_bytes = 0
        self.end = False
        """The stream ends with it."""

    def add(self, data: Data, end: bool) -> None:
        self.chunks.append(data)
        self.size_bytes += len(data)
        self.end = end

    def take(self, bytes_max: int) -> Data:
        """The first bytes, `bytes_max` at most."""
        chunks = self.chunks
        if self.size_bytes <= bytes_max:
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            chunks.clear()
            self.size_bytes = 0
            return data
        self.size_bytes -= bytes_max
        taken: list[Data] = []
        left = bytes_max
        while left:
            chunk = chunks.popleft()
            if len(chunk) > left:
                view = memoryview(chunk)
                chunks.appendleft(view[left:])
                chunk = view[:left]
            taken.append(chunk)
            left -= len(chunk)
        return taken[0] if len(taken) == 1 else b"".join(taken)


class Outbox:
    """See the module."""

    __slots__ = (
        "_inside_bytes",
        "_inside_since_s",
        "_stuck_bytes",
        "_window_limits",
        "datagram_bytes",
        "look_again_s",
        "size_bytes",
        "waiting",
        "window_bytes",
    )

    def __init__(self, datagram_bytes: int, window_bytes: int) -> None:
        self.datagram_bytes = datagram_bytes
        self.window_bytes = window_bytes
        """What the core may have that is not acknowledged, besides what waits for credit of the peer's."""
        self._window_limits = False
        """Whether there was less room than the network has for that reason, when somebody last asked."""
        self.waiting: dict[int, Waiting] = {}
        """By stream; whose turn is next comes first."""
        self.size_bytes = 0
        """For all streams together."""
        self.look_again_s: float | None = None
        """When to ask again whether there is something to feed, should nothing else happen."""
        self._inside_bytes = 0
        """What the core did not send of what it was given, when it was last asked."""
        self._inside_since_s = 0.0
        self._stuck_bytes = 0
        """How much of it waits for credit of the peer's."""

    @property
    def is_window_full(self) -> bool:
        """Whether data waits because of the send window alone."""
        return self._window_limits and bool(self.waiting)

    def size_of(self, stream_id: int) -> int:
        waiting = self.waiting.get(stream_id)
        return 0 if waiting is None else waiting.size_bytes

    def ends(self, stream_id: int) -> bool:
        """Whether the last bytes of a stream are among what waits."""
        waiting = self.waiting.get(stream_id)
        return waiting is not None and waiting.end

    def add(self, stream_id: int, data: Data, end: bool) -> None:
        waiting = self.waiting.get(stream_id)
        if waiting is None:
            waiting = self.waiting[stream_id] = Waiting()
        waiting.add(data, end)
        self.size_bytes += len(data)

    def drop(self, stream_id: int) -> None:
        """The stream was cut off."""
        waiting = self.waiting.pop(stream_id, None)
        if waiting is not None:
            self.size_bytes -= waiting.size_bytes

    def feed(self, core: QuicConnectionCore, now_s: float, datagrams_max: int, *, is_idle: bool) -> bool:
        """Give the core what it can send at once, in `datagrams_max` datagrams; False if that is nothing.

        `is_idle`: it has just said that it has nothing to send.
        """
        inside_bytes = core.get_send_buffer_size(None)
        self.look_again_s = None
        if is_idle:
            self._look_for_stuck(core, inside_bytes, now_s)
        room = self.room(core, inside_bytes, datagrams_max)
        if room <= 0:
            return False
        share = max(self.datagram_bytes - FRAME_OVERHEAD_BYTES, room // len(self.waiting))
        fed = False
        for stream_id in list(self.waiting):
            if inside_bytes and core.get_send_buffer_size(stream_id):
                continue
            waiting = self.waiting.pop(stream_id)
            data = waiting.take(min(share, room))
            self.size_bytes -= len(data)
            if waiting.size_bytes:
                self.waiting[stream_id] = waiting
            try:
                core.send_stream(stream_id, data, waiting.end and not waiting.size_bytes)
            except (RuntimeError, ValueError):  # the peer takes no more of it, of which an event will tell
                self.drop(stream_id)
                continue
            fed = True
            room -= len(data)
            if room <= 0:
                break
        return fed

    def room(self, core: QuicConnectionCore, inside_bytes: int, datagrams_max: int) -> int:
        """Stream data that the core can send at once, in `datagrams_max` datagrams, besides the `inside_bytes` that it has."""
        in_flight_bytes = core.bytes_in_flight
        congestion_room_bytes = core.congestion_window - in_flight_bytes
        self._stuck_bytes = min(self._stuck_bytes, inside_bytes)
        self._window_limits = False
        if congestion_room_bytes < self.datagram_bytes:
            return 0
        # The core wants room for a whole datagram, however small the last one turns out.
        room_bytes = congestion_room_bytes - congestion_room_bytes // WIRE_SHARE - self.datagram_bytes
        frame_bytes = self.datagram_bytes - FRAME_OVERHEAD_BYTES
        moving_bytes = inside_bytes - self._stuck_bytes
        room_bytes = max(min(room_bytes, datagrams_max * frame_bytes), frame_bytes) - moving_bytes
        window_room_bytes = self.window_bytes - in_flight_bytes - moving_bytes
        if room_bytes <= window_room_bytes:
            return room_bytes
        self._window_limits = True
        return min(room_bytes, max(window_room_bytes, frame_bytes)) if window_room_bytes > 0 else 0

    def _look_for_stuck(self, core: QuicConnectionCore, inside_bytes: int, now_s: float) -> None:
        """What the core does not send when the time between two datagrams has passed waits for credit."""
        if inside_bytes != self._inside_bytes:
            self._inside_bytes = inside_bytes
            self._inside_since_s = now_s
        if inside_bytes <= self._stuck_bytes:
            return
        between_s = self.datagram_bytes * (core.smoothed_rtt or INITIAL_RTT_S) / core.congestion_window
        sure_s = self._inside_since_s + between_s
        if now_s >= sure_s:
            self._stuck_bytes = inside_bytes
        else:
            self.look_again_s = sure_s
