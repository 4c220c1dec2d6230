"""What one side of a QUIC connection allows the other, and how much of it may wait in our memory."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB

DATAGRAM_BYTES = 1_452
"""Fits an Ethernet frame under IPv6 and UDP."""
DATAGRAM_BYTES_LOOPBACK = 8_900
"""Costs are per packet, and loopback carries up to 64 KiB; above this size little is gained."""


@dataclass(frozen=True, slots=True)
class QuicSettings:
    idle_s_max: float = 30.0
    """A connection over which nothing is received for so long is gone; the shorter time of both sides holds."""

    datagram_bytes: int = DATAGRAM_BYTES
    """The largest datagram we send; the peer may have announced a smaller one, which then holds."""

    streams_max: int = 1_024
    """Streams the peer may have open at once, of each kind."""

    connection_window_bytes: int = 4 * MIB
    """What the peer may send before we have taken any of it, over all streams: what a connection that is not read costs at most."""

    stream_window_bytes: int = 2 * MIB
    """The same for one stream."""

    stream_backlog_bytes: int = 256 * KIB
    """What is kept for a stream that is not read while others of its connection are; above it the whole connection is not read."""

    send_high_bytes: int = 1 * MIB
    """A stream with more than this waiting to be sent is not writable."""

    send_low_bytes: int = 256 * KIB
    """Where it is writable again."""

    send_window_bytes: int = 8 * MIB
    """What may be on the way to the peer and unacknowledged, over all streams: the library keeps twice the most there ever was."""

    connection_send_high_bytes: int = 8 * MIB
    """With more than this waiting or unacknowledged on all streams together, none of the connection's streams is writable."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.send_low_bytes >= self.send_high_bytes:
            raise ValueError(
                f"send_low_bytes ({self.send_low_bytes}) must be below send_high_bytes ({self.send_high_bytes})"
            )
