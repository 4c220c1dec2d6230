"""What a listener counts. Plain ints, read on scrape."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ListenerStats:
    connections_open: int = 0
    connections_total: int = 0
    connections_refused: int = 0
    """Closed at once because max_connections was reached."""
    accept_pauses: int = 0
    """Times accepting stopped because file descriptors (or kernel memory) ran out."""
    handshake_failures: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    read_pauses: int = 0
    """Times a socket was no longer read: too many bytes in flight, or a reader that does not keep up."""
    protocol_errors: int = 0
    session_errors: int = 0
    """Connections ended by an unexpected exception: each is a bug of ours."""
    closed_idle: int = 0
    closed_header: int = 0
    closed_unread: int = 0
    """Peers that left answers unread for too long."""
    closed_unanswered: int = 0
    """Connections that still waited for answers when the grace period of a stop ended."""
    resets: int = 0


@dataclass(slots=True)
class QuicListenerStats(ListenerStats):
    """What a QUIC listener counts besides."""

    handshakes_open: int = 0
    """Handshakes that are under way."""
    handshakes_dropped: int = 0
    """First datagrams that were not answered because handshakes_max was reached."""
    retries_sent: int = 0
    """Clients that were asked to show that their address is their own."""
    datagrams_dropped: int = 0
    """Datagrams that belong to no connection: garbage, late ones, and those of a broker that ran here before."""
    streams_open: int = 0
    streams_total: int = 0
    streams_aborted: int = 0
    """Streams that a peer reset or refused."""
    rebindings: int = 0
    """Times a peer continued from another port."""
