"""The windows of QUIC connections, each a share of what all have together.

The receive window is how much a peer may send before any of it is taken. What it has sent within its window stays in our memory while its
connection is not read, and a window cannot be made smaller once it is announced. So each new connection is given a part of what is left.
Few connections have large windows, which long round trips need; with many, new ones have small windows, and none is refused for it.

The send window is how much may be on the way to a peer. The QUIC library keeps buffers for it that never shrink (`penstock.quic.outbox`),
so what a connection was given it has until it is closed. Each begins with a small window, and one that fills it is given more while there
is some left. So idle connections have small ones, however many there are.
"""

from __future__ import annotations

from typing import Final

WINDOWS_LEFT: Final = 16
"""Each connection gets 1/WINDOWS_LEFT of what is left."""
WINDOW_BYTES_MIN: Final = 128 * 1024
"""What each connection gets until all of them have twice what they should: at a round trip of 1 ms still some 100 MB/s."""
WINDOW_BYTES_CROWDED: Final = 32 * 1024
"""What each connection gets after that, whatever the others have: a thousand of them have 32 MiB."""
SEND_WINDOW_BYTES_MIN: Final = 64 * 1024
"""What each connection begins with, and has whatever the others have: what one system call sends."""
SEND_WINDOWS_LEFT: Final = 8
"""A send window is widened by at most 1/SEND_WINDOWS_LEFT of what is left."""


class ReceiveWindows:
    """The receive windows of all QUIC connections together."""

    __slots__ = ("_total_bytes", "left_bytes")

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self.left_bytes = total_bytes
        """Below 0 if more connections have the smallest window than there is room for."""

    def offer(self, bytes_max: int) -> int:
        """Return the window that a new connection may have."""
        least_bytes = WINDOW_BYTES_MIN if self.left_bytes > -self._total_bytes else WINDOW_BYTES_CROWDED
        return min(max(self.left_bytes // WINDOWS_LEFT, least_bytes), bytes_max)

    def take(self, size_bytes: int) -> None:
        self.left_bytes -= size_bytes

    def give_back(self, size_bytes: int) -> None:
        self.left_bytes += size_bytes


class SendWindows:
    """What the send windows of all QUIC connections have together, beyond the least that each has."""

    __slots__ = ("left_bytes",)

    def __init__(self, total_bytes: int) -> None:
        self.left_bytes = total_bytes
        """Below 0 if connections brought more with them than there was."""

    def widen(self, window_bytes: int) -> int:
        """Return how much wider a window of this size may be from now on: it doubles, unless that would take too much of what is left."""
        if window_bytes > self.left_bytes // SEND_WINDOWS_LEFT:
            return 0
        self.left_bytes -= window_bytes
        return window_bytes

    def take(self, window_bytes: int) -> None:
        """Note that a connection with a window of this size belongs to these from now on."""
        self.left_bytes -= window_bytes - SEND_WINDOW_BYTES_MIN

    def give_back(self, window_bytes: int) -> None:
        """Note that a connection with a window of this size is closed, or belongs to others."""
        self.left_bytes += window_bytes - SEND_WINDOW_BYTES_MIN
