"""The bounds a listener keeps, in one dataclass, each with where its number comes from."""

from __future__ import annotations

from dataclasses import dataclass, fields

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    connections_max: int = 10_000
    """Sockets held at once, handshakes included. One more is closed at once and counted as refused."""

    in_flight_bytes_max: int = 16 * MIB
    """Request bytes one connection may have waiting for their answer before its socket is no longer read. Reading starts again
    at half of it. One request may be larger: it is taken whole, and the next is not read until it is answered."""

    in_flight_total_bytes_max: int = 256 * MIB
    """The same bound for everything that shares one budget, normally the whole server, with the bytes of frames that are not received
    whole yet. A connection that was being read when it was crossed overshoots by one read at most."""

    idle_s_max: float = 300.0
    """A connection over which nothing moved in either direction for this long is closed, unless the next step is ours. A peer
    that leaves answers unread for this long is closed too. Five minutes is what clients with a keep-alive expect to survive."""

    under_pressure_s_max: float = 10.0
    """How long a peer may take nothing of its answers, or send nothing of a frame, while all connections together have more than their
    bound of requests, unsent answers or partial frames: others wait for what it holds."""

    under_pressure_bytes_min: int = 64 * KIB
    """How much of its answers a peer must take in that time. Less is no way to read, but one to hold memory by dripping."""

    header_s_max: float = 30.0
    """How long a frame may stay partial. Long enough for the largest frame over a slow line (32 MiB at 10 Mbit/s take
    27 s), short enough that dripping bytes does not hold a connection."""

    handshake_s_max: float = 10.0
    """How long a TLS handshake may take."""

    linger_s_max: float = 1.0
    """How long a connection we end is kept for the peer to take the last answers. Closing with unread input at once would make
    the kernel send a reset, and a reset may overtake an answer."""

    send_buffer_high_bytes: int = 1 * MIB
    """Answers waiting in our memory for a slow reader. Above it the session starts no more work and the socket is not read, so
    one connection costs at most this and one answer."""

    send_buffer_low_bytes: int = 256 * KIB
    """Where work goes on again; below the high mark, so that a steady reader does not toggle with every packet."""

    backlog: int = 1024
    """Connections the kernel holds for us between two turns of the loop; the kernel may lower it (net.core.somaxconn)."""

    accepts_per_turn_max: int = 16
    """Connections accepted in one turn of the loop, so that a flood of them cannot starve those that are open: each takes some 0.1 ms,
    for which everybody else waits."""

    descriptors_reserved: int = 64
    """File descriptors left to the log when connections have used up the rest; at most a quarter of what the process may open."""

    sweep_s: float = 1.0
    """How often deadlines are looked at. One pass costs a fraction of a microsecond per connection; deadlines are late by at most
    two passes."""

    def frame_s_max(self, *, stalled: bool) -> float:
        """How long a frame may stay half received; `stalled`: it makes no progress, and others wait because of such frames."""
        return min(self.under_pressure_s_max, self.header_s_max) if stalled else self.header_s_max

    def __post_init__(self) -> None:
        for name in (each.name for each in fields(self)):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.send_buffer_low_bytes >= self.send_buffer_high_bytes:
            raise ValueError(
                f"send_buffer_low_bytes ({self.send_buffer_low_bytes}) must be below send_buffer_high_bytes"
                f" ({self.send_buffer_high_bytes})"
            )


@dataclass(frozen=True, slots=True)
class QuicLimits(ListenerLimits):
    """What a QUIC listener keeps besides. Bytes in flight are counted per connection; a stream has its share of them."""

    connections_max: int = 4_000
    """Connections at once, handshakes included. One more is refused at once, and counted."""

    idle_s_max: float = 30.0
    """A connection from which nothing is received for so long is gone; also how long a peer may take nothing of what waits for it."""

    streams_max: int = 1_024
    """Streams that the peer may have open at once, of each kind."""

    handshakes_max: int = 1_000
    """Handshakes under way at once. Each costs some 30 KiB and a key exchange, and anyone can begin one."""

    retry_above: int = 100
    """With more handshakes than this under way, a client must first show that its address is its own."""

    datagram_bytes: int = 1_452
    """The largest datagram to send."""

    stream_in_flight_bytes_max: int = 4 * MIB
    """Request bytes of one stream that wait for their answer before the stream is no longer read, so that one does not use up what
    all streams of its connection may have."""

    partial_frames_bytes_max: int = 64 * MIB
    """What the partial frames of one connection's streams may hold together. A stream for each of many large frames, none of which
    is ever finished, would otherwise cost a frame each."""
