"""A QUIC listener: one UDP socket, many connections; admits, bounds and stops them.

Datagrams are distinguished by the connection id they begin with. One that belongs to nobody may open a connection, which costs us a key
exchange before we know whether anybody is there; so what is under way is bounded, and above a threshold a client must first come back
with a token that it can only have received at its address. Everything else is counted and dropped without an answer.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import structlog

from penstock.clock import Clock
from penstock.net.flow import InFlightBudget
from penstock.net.limits import QuicLimits
from penstock.net.listener import Listener
from penstock.net.quic_connection import Code, QuicServerConnection
from penstock.net.quic_session import QuicSessionFactory
from penstock.net.retry_tokens import Admitted, RetryTokens
from penstock.net.stats import QuicListenerStats
from penstock.net.windows import SEND_WINDOW_BYTES_MIN
from penstock.quic.core import QuicCore
from penstock.quic.packets import (
    CID_BYTES,
    FIXED_BIT,
    INITIAL_BYTES_MIN,
    LONG_HEADER,
    SHORT_HEADER_BYTES_MIN,
    VERSION,
    Address,
    LongHeader,
    long_header,
    retry,
    short_destination,
    stateless_reset,
    version_negotiation,
)
from penstock.quic.settings import QuicSettings
from penstock.quic.tls import TlsSettings, reset_token
from penstock.quic.udp import UdpEndpoint, open_socket
from penstock.units import Address as HostAndPort

CONNECTION_SEND_BUFFERS = 8
"""What one connection may have waiting to be sent, in streams' worth."""

CLOSE_PACKETS_KEPT_MAX = 1_024
CLOSE_REPEATS_MAX = 3
RESETS_PER_SWEEP_MAX = 200
"""Garbage is answered no more often than this between two sweeps: each answer costs a hash and a datagram."""
FAILURE_LINES_PER_SWEEP_MAX = 20
"""Handshakes that fail are worth a line each, but anyone can begin one: a flood must not fill the log."""

log = structlog.get_logger(__name__)


class QuicListener(Listener[QuicServerConnection]):
    """See the module."""

    limits: QuicLimits
    stats: QuicListenerStats

    def __init__(
        self,
        name: str,
        bind: str,
        factory: QuicSessionFactory,
        tls: TlsSettings,
        limits: QuicLimits | None = None,
        stats: QuicListenerStats | None = None,
        *,
        clock: Clock | None = None,
        budget: InFlightBudget | None = None,
        now_s: Callable[[], float] | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """`clock` is for deadlines that we set; `now_s` for the timers of the protocol, which no test should stop."""
        limits = limits or QuicLimits()
        super().__init__(name, bind, limits, stats or QuicListenerStats(), clock, budget)
        self.factory = factory
        self._tls = tls
        self._now_s = now_s or time.monotonic
        self._random_bytes = random_bytes
        self._tokens = RetryTokens(random_bytes)
        self._settings = _settings(limits)
        self._endpoint: UdpEndpoint | None = None
        self._by_cid: dict[bytes, QuicServerConnection] = {}
        self._half_open: dict[QuicServerConnection, None] = {}
        """Whose handshake is not over, the oldest first."""
        self._close_packets: dict[bytes, tuple[list[tuple[bytes, Address]], int]] = {}
        """What to repeat to peers that have not heard that their connection is closed, and how often still; oldest first."""
        self._resets_left = RESETS_PER_SWEEP_MAX
        self._failure_lines_left = FAILURE_LINES_PER_SWEEP_MAX

    async def stop(self, grace_s: float | None = None) -> None:
        """Accept no more connections, let every session finish for at most `grace_s`, then close all connections."""
        if self._stopping:
            return
        grace_s = self.limits.stop_grace_s if grace_s is None else grace_s
        self._stopping = True
        for connection in list(self._connections):
            if not connection.is_established:
                connection.close(Code.NO_ERROR, "the server stops")
        await self._let_finish(grace_s)
        self.stats.closed_unanswered += sum(connection.unanswered for connection in self._unanswered)
        for connection in list(self._connections):
            connection.close(Code.NO_ERROR, "the server stops")
        self._sweep.stop()
        if self._endpoint is not None:
            self._endpoint.close()

    # What connections call.

    def add_cid(self, cid: bytes, connection: QuicServerConnection) -> None:
        self._by_cid[cid] = connection
        if cid not in connection.cids:
            connection.cids.append(cid)

    def drop_cid(self, cid: bytes) -> None:
        connection = self._by_cid.pop(cid, None)
        if connection is not None:
            connection.cids.remove(cid)

    def established(self, connection: QuicServerConnection) -> None:
        self._half_open.pop(connection, None)
        self.stats.handshakes_open -= 1
        self.stats.connections_total += 1
        if self.on_opened is not None:
            self.on_opened(connection)

    def handshake_failed(self, connection: QuicServerConnection, reason: str) -> None:
        self.stats.handshake_failures += 1
        if reason and self._failure_lines_left > 0:
            self._failure_lines_left -= 1
            log.warning("quic_handshake_failed", listener=self.name, peer=connection.peer, reason=reason)

    def lost(self, connection: QuicServerConnection) -> None:
        for cid in connection.cids:
            self._by_cid.pop(cid, None)
            if connection.close_packets:
                self._remember_close(cid, connection.close_packets)
        self._connections.pop(connection, None)
        self.budget.windows.give_back(connection.settings.connection_window_bytes)
        connection.send_windows.give_back(connection.core.outbox.window_bytes)
        self.stats.connections_open -= 1
        if not connection.is_established:
            self._half_open.pop(connection, None)
            self.stats.handshakes_open -= 1
        self._full = False
        self.answered(connection)

    # Datagrams.

    def _received(self, buffer: bytes, segment_bytes: int, address: Address) -> QuicServerConnection | None:
        """Hand datagrams to whom they are for, and return it if that is one established connection."""
        if segment_bytes >= SHORT_HEADER_BYTES_MIN and buffer[0] & (LONG_HEADER | FIXED_BIT) == FIXED_BIT:
            cid = buffer[1 : 1 + CID_BYTES]
            for start in range(segment_bytes, len(buffer), segment_bytes):
                if buffer[start + 1 : start + 1 + CID_BYTES] != cid:
                    break  # two connections of one client, in one buffer
            else:
                connection = self._by_cid.get(cid)
                if connection is not None:
                    return connection.take_datagrams(buffer, segment_bytes, address)
                if not self._resend_close(cid):
                    self.stats.datagrams_dropped += -(-len(buffer) // segment_bytes)
                    self._send_stateless_reset(cid, buffer[:segment_bytes], address)
                return None
        for start in range(0, len(buffer), segment_bytes):
            self._received_alone(buffer[start : start + segment_bytes], address)
        return None

    def _received_alone(self, datagram: bytes, address: Address) -> None:
        cid = short_destination(datagram)
        header = None if cid is not None else long_header(datagram)
        if header is not None:
            cid = header.destination_cid
        connection = None if cid is None else self._by_cid.get(cid)
        if connection is not None:
            connection.take_datagrams(datagram, len(datagram), address)
            connection.touch()
        elif cid is not None and self._resend_close(cid):
            pass
        elif header is None and cid is not None:
            self.stats.datagrams_dropped += 1
            self._send_stateless_reset(cid, datagram, address)
        elif header is None or len(datagram) < INITIAL_BYTES_MIN or self._stopping:
            self.stats.datagrams_dropped += 1
        elif header.version != VERSION:
            self._answer(version_negotiation(header), address)
        elif header.is_initial:
            self._begin(header, datagram, address)
        else:
            self.stats.datagrams_dropped += 1

    def _begin(self, header: LongHeader, datagram: bytes, address: Address) -> None:
        """The first datagram of a connection."""
        if self.stats.connections_open >= self.limits.max_connections:
            self._refuse(header, datagram, address)
            return
        admitted = None
        if header.token:
            admitted = self._tokens.admit(address, header.token, self._now_s())
            if admitted is not None and admitted.retry_source_cid != header.destination_cid:
                admitted = None
        if admitted is None and self._must_retry(header):
            self._send_retry(header, address)
            return
        if len(self._half_open) >= self.limits.handshakes_max:
            self.stats.handshakes_dropped += 1
            if admitted is None:
                return
            self._evict_handshake()
        self._admit(header, admitted, datagram, address)

    def _evict_handshake(self) -> None:
        """Abandon the oldest handshake of the network that has the most: one peer cannot crowd out the others.

        A network is one IPv4 address, or an IPv6 /64, all addresses of which a single host may use.

        A client that means it is done in a few round trips, so the oldest is the one least likely to be missed.
        """
        networks = Counter(connection.network for connection in self._half_open)
        most = max(networks.values())
        next(connection for connection in self._half_open if networks[connection.network] == most).abandon("")

    def _must_retry(self, header: LongHeader) -> bool:
        """Whether a client must begin again under an id that we give it, and so prove its address: under load, every client must.

        One without a connection id of its own always must: the library can serve it only under an id that it already addresses
        (`penstock.quic.handshake`). So must one whose choice of an id for us is too short to be unique (RFC 9000, section 7.2).
        """
        return (
            not header.source_cid
            or len(header.destination_cid) < CID_BYTES
            or self.stats.handshakes_open >= self.limits.retry_above
        )

    def _admit(self, header: LongHeader, admitted: Admitted | None, datagram: bytes, address: Address) -> None:
        assert self._endpoint is not None
        settings = self._settings_of_next()
        core = QuicCore.accept(
            settings,
            self._tls,
            header,
            address,
            self._now_s(),
            local_cid=self._random_bytes(CID_BYTES) if admitted is None else admitted.retry_source_cid,
            original_destination_cid=None if admitted is None else admitted.original_destination_cid,
        )
        connection = QuicServerConnection(self, self._endpoint, core, settings, address, self._now_s)
        self.budget.windows.take(settings.connection_window_bytes)
        self._connections[connection] = None
        self.stats.connections_open += 1
        self.stats.handshakes_open += 1
        self._half_open[connection] = None
        self.add_cid(header.destination_cid, connection)
        self.add_cid(core.ids.local, connection)
        connection.take_datagrams(datagram, len(datagram), address)
        connection.touch()
        if not core.has_authenticated_packet and not connection.is_lost:
            connection.abandon("")

    def _settings_of_next(self) -> QuicSettings:
        """Return the settings of a new connection, with the windows that there is room for."""
        settings = self._settings
        window_bytes = self.budget.windows.offer(settings.connection_window_bytes)
        if window_bytes == settings.connection_window_bytes:
            return settings
        stream_window_bytes = settings.stream_window_bytes * window_bytes // settings.connection_window_bytes
        return replace(settings, connection_window_bytes=window_bytes, stream_window_bytes=stream_window_bytes)

    def _send_retry(self, header: LongHeader, address: Address) -> None:
        self.stats.retries_sent += 1
        source_cid = self._random_bytes(CID_BYTES)
        token = self._tokens.issue(address, header.destination_cid, source_cid, self._now_s())
        self._answer(retry(header, source_cid, token), address)

    def _answer(self, datagram: bytes, address: Address) -> None:
        assert self._endpoint is not None
        if not self._endpoint.blocked:  # what cannot be sent now need not be sent at all: the client asks again
            self._endpoint.send([(datagram, address)], self._endpoint.arrived_at)

    def _refuse(self, header: LongHeader, datagram: bytes, address: Address) -> None:
        self._refused()
        now_s = self._now_s()
        core = QuicCore.accept(self._settings, self._tls, header, address, now_s, local_cid=header.destination_cid)
        core.refuse(datagram, address, now_s)
        for refusal, _ in core.take_datagrams(now_s, 1):
            self._answer(refusal, address)

    def _remember_close(self, cid: bytes, close_packets: list[tuple[bytes, Address]]) -> None:
        if len(self._close_packets) >= CLOSE_PACKETS_KEPT_MAX:
            del self._close_packets[next(iter(self._close_packets))]
        self._close_packets[cid] = (close_packets, CLOSE_REPEATS_MAX)

    def _resend_close(self, cid: bytes) -> bool:
        """Tell a peer again that its connection is closed; False if there was none, or it was told often enough."""
        close_packets, repeats = self._close_packets.pop(cid, ([], 0))
        if not repeats:
            return False
        self._close_packets[cid] = (close_packets, repeats - 1)
        for datagram, address in close_packets:
            self._answer(datagram, address)
        return True

    def _send_stateless_reset(self, cid: bytes, datagram: bytes, address: Address) -> None:
        """Send a stateless reset for a connection of an earlier run, so that the client need not wait for its idle timeout."""
        token = reset_token(self._tls.reset_key, cid)
        if token is None or self._resets_left <= 0 or self._stopping:
            return
        reset = stateless_reset(datagram, token, self._random_bytes)
        if reset is not None:
            self._resets_left -= 1
            self._answer(reset, address)

    async def _listen(self, address: HostAndPort) -> Address:
        family, where = await self._resolve(address, socket.SOCK_DGRAM)
        try:
            own = open_socket(family, bind=where)
        except OSError as error:
            raise self._cannot_listen(f"{address}/udp", error) from None
        self._endpoint = UdpEndpoint(own, self._now_s)
        self._endpoint.received = self._received
        return self._endpoint.address

    def _swept(self) -> list[QuicServerConnection]:
        self._resets_left = RESETS_PER_SWEEP_MAX
        self._failure_lines_left = FAILURE_LINES_PER_SWEEP_MAX
        return list(self._connections)


def _settings(limits: QuicLimits) -> QuicSettings:
    return QuicSettings(
        idle_s_max=limits.idle_s_max,
        datagram_bytes=limits.datagram_bytes,
        streams_max=limits.streams_max,
        send_high_bytes=limits.send_buffer_bytes_max,
        send_low_bytes=limits.send_buffer_low_bytes,
        send_window_bytes=SEND_WINDOW_BYTES_MIN,
        connection_send_high_bytes=CONNECTION_SEND_BUFFERS * limits.send_buffer_bytes_max,
    )
