"""The bounds that listeners keep. Each is a setting: those of flow control of `[limits]`, all others of each listener."""

from __future__ import annotations

from pydantic import Field

from penstock.settings import Seconds, Section, Size

KIB = 1024
MIB = 1024 * KIB
DEPLOYED_STOP_S = 60.0
"""What the service managers in `deploy/` give a broker to stop, before they kill it."""


class FlowLimits(Section):
    """What connections may occupy."""

    # One request may be larger: it is taken whole, and the next is not read until it is answered. Reading resumes at half of it.
    in_flight_bytes_max: Size = Field(16 * MIB, ge=64 * KIB)
    """Requests of one connection that are in flight. Above it the connection is not read (back-pressure)."""
    # A connection that was being read when it was exceeded overshoots by one read at most.
    in_flight_total_bytes_max: Size = Field(256 * MIB, ge=MIB)
    """The same, of all connections, including the bytes of incomplete frames. Those may use a quarter of it; above that only the oldest
    incomplete frame, and frames below 64 KiB, are received. Clients that must authenticate and have not yet share a quarter of this size,
    on top of it, and so do the flow-control windows of QUIC connections: the more connections there are, the smaller the window of a new
    one. What is on its way to clients over QUIC has an eighth on top of it, and 64 KiB a connection."""
    stream_in_flight_bytes_max: Size = Field(4 * MIB, ge=64 * KIB)
    """Requests of one QUIC stream that are in flight. Above it the stream is not read, so that it leaves room for others of its
    connection."""
    # A stream for each of many large frames, none of which is ever finished, would otherwise cost a frame each.
    partial_frames_bytes_max: Size = Field(64 * MIB, ge=64 * KIB)
    """Incomplete frames on all streams of one QUIC connection."""
    send_buffer_bytes_max: Size = Field(MIB, ge=16 * KIB)
    """Send buffer of one connection: replies that the client has not read. Above it no further requests of that client are handled. While
    all send buffers together exceed `in_flight_total_bytes_max` the bound is 64 KiB, and a larger reply waits until there is room for
    it."""
    under_pressure_s_max: Seconds = Field(10.0, ge=0.1)
    """While connections together exceed `in_flight_total_bytes_max`, and so others wait: a client is disconnected that makes no progress
    with an incomplete frame, or reads less than `under_pressure_bytes_min`, for this long."""
    under_pressure_bytes_min: Size = Field(64 * KIB, ge=1)
    """What a client must read of its replies in `under_pressure_s_max` while others wait."""
    stop_grace_s: Seconds = Field(5.0, ge=0.01)
    """How long a broker that stops waits for requests in flight to be answered and read, before it closes their connections. Pipelines that
    the broker started end first. `penstock config check` notes when a stop may take longer than the files in `deploy/` allow."""
    descriptors_reserved: int = Field(64, ge=1)
    """File descriptors that connections leave to the log, at most a quarter of what the process may open."""

    @property
    def send_buffer_low_bytes(self) -> int:
        """Where handling requests resumes: so far below the bound that a steady reader does not toggle with every packet."""
        return self.send_buffer_bytes_max // 4


class ConnectionLimits(Section):
    """What one listener does with its connections."""

    max_connections: int = Field(10_000, ge=1, le=1_000_000)
    """Open connections. Further ones are refused."""
    # Five minutes is what clients with a keep-alive expect to survive.
    idle_s_max: Seconds = Field(300.0, ge=1)
    """Idle timeout: a connection without traffic for this long is closed, and so is one whose client leaves replies unread for as long."""
    # The largest frame (32 MiB) takes 27 s at 10 Mbit/s.
    header_s_max: Seconds = Field(30.0, ge=0.1)
    """Frame timeout: a frame that has begun must be complete within this time."""
    handshake_s_max: Seconds = Field(10.0, ge=0.1)
    """TLS handshake timeout."""
    # OpenSSL takes about 128 KiB. QUIC's library keeps what comes out of order at nineteen times its size.
    handshake_bytes_max: Size = Field(64 * KIB, ge=8 * KIB, le=128 * KIB)
    """What a client may send for a TLS handshake: a few KiB, and its certificate with its chain; over QUIC, repetitions too."""


class TcpConnectionLimits(ConnectionLimits):
    """What a TCP listener does with its connections."""

    # Closing with unread input at once would make the kernel send a reset, which may overtake a reply.
    linger_s_max: Seconds = Field(1.0, ge=0.01)
    """How long a connection that the broker closes stays open for the client to read the last replies."""
    backlog: int = Field(1024, ge=1, le=65_535)
    """Connections that wait to be accepted. The kernel may lower it (`net.core.somaxconn`)."""
    # Each takes some 0.1 ms, for which everybody else waits.
    accepts_per_turn_max: int = Field(16, ge=1)
    """Connections accepted in one iteration of the event loop, so that a flood of them does not starve those that are open."""
    # A client that vanished without a word is noticed after about two minutes, well before connections pile up.
    keepalive_idle_s: Seconds = Field(60.0, ge=1, le=32_767)
    """TCP keepalive: the kernel probes a connection without traffic for this long, in whole seconds."""
    keepalive_interval_s: Seconds = Field(15.0, ge=1, le=32_767)
    """Interval of these probes. After four without an answer the connection is closed."""


class QuicConnectionLimits(ConnectionLimits):
    """What a QUIC listener does with its connections."""

    max_connections: int = Field(4_000, ge=1, le=1_000_000)
    """Open connections. Further ones are refused."""
    # More milliseconds than a QUIC varint holds would end every handshake.
    idle_s_max: Seconds = Field(30.0, ge=1, le=365 * 24 * 3600)
    """Idle timeout: a connection without traffic for this long is closed. The shorter one of both sides' timeouts applies."""
    streams_max: int = Field(1_024, ge=1, le=65_536)
    """Streams that a client may have open on one connection, bidirectional and unidirectional each."""
    # Each costs some 30 KiB and a key exchange, and anyone can begin one.
    handshakes_max: int = Field(1_000, ge=1, le=1_000_000)
    """Handshakes in progress. One more, from a client with a validated address, replaces the oldest one of the host that has the most."""
    retry_above: int = Field(100, ge=1)
    """With this many handshakes in progress, clients must validate their address (Retry), which costs them a round trip. Clients
    without a connection ID of their own always must."""


class ListenerLimits(ConnectionLimits, FlowLimits):
    """All that a listener keeps."""

    sweep_s: float = Field(1.0, gt=0)
    """How often deadlines are checked. One pass costs a fraction of a microsecond per connection; deadlines are late by at most
    two passes."""

    def frame_s_max(self, *, stalled: bool) -> float:
        """How long a frame may stay half received; `stalled`: it makes no progress, and others wait because of such frames."""
        return min(self.under_pressure_s_max, self.header_s_max) if stalled else self.header_s_max


class TcpLimits(TcpConnectionLimits, ListenerLimits):
    """All that a TCP listener keeps."""


class QuicLimits(QuicConnectionLimits, ListenerLimits):
    """All that a QUIC listener keeps. Bytes in flight are counted per connection; a stream has its share of them."""

    datagram_bytes: int = Field(1_452, gt=0)
    """The largest datagram to send."""


class AdminLimits(Section):
    """What the admin address keeps."""

    max_connections: int = Field(64, ge=1, le=10_000)
    """Open connections. A further one replaces the one whose next request has been awaited longest."""
    response_s_max: Seconds = Field(40.0, ge=1)
    """How long a connection may take for one request and its response."""
    body_bytes_max: Size = Field(8 * MIB, ge=KIB, le=32 * MIB)
    """The body of one request. Clients that have not logged in may send 16 KiB."""
    request_rate_max: float = Field(200.0, gt=0)
    """Requests a second from one source address. As many as in five seconds may come at once."""
    session_idle_s_max: Seconds = Field(30 * 60.0, ge=1)
    """A session that is not used for this long ends."""
    session_s_max: Seconds = Field(12 * 3600.0, ge=1)
    """The longest session. Then its user must log in again."""
    sessions_max: int = Field(1_000, ge=1, le=100_000)
    """Sessions. A further one replaces the one that was used longest ago."""
    # So that nobody ends the sessions of others by logging in again and again.
    sessions_per_user_max: int = Field(50, ge=1, le=100_000)
    """Sessions of one user or API key, in the same way."""
    # Each keeps up to 4 MiB of what was sent and received.
    inspections_max: int = Field(8, ge=1, le=64)
    """Connections that the protocol inspector follows at the same time."""
    handshake_s_max: Seconds = Field(10.0, ge=0.1)
    """TLS handshake timeout."""
    # Longer than the usual scrape interval of 15 s, so that a scraper keeps its connection.
    keep_alive_s: Seconds = Field(20.0, ge=1, le=3600)
    """Idle timeout: a connection without a request for this long is closed, in whole seconds."""
