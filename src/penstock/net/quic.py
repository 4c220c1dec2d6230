"""A QUIC listener: one UDP socket, many connections; admits, bounds and stops them.

Datagrams are told apart by the connection id they begin with. One that belongs to nobody may open a connection, which costs us a key
exchange before we know whether anybody is there; so what is under way is bounded, and above a threshold a client must first come back
with a token that it can only have received at its address. Everything else is counted and dropped without an answer.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Callable

import structlog

from penstock.clock import Clock, SystemClock
from penstock.errors import ConfigError
from penstock.net.deadlines import Sweep
from penstock.net.flow import InFlightBudget
from penstock.net.limits import QuicLimits
from penstock.net.quic_connection import Code, QuicServerConnection
from penstock.net.quic_session import QuicSessionFactory
from penstock.net.retry_tokens import Admitted, RetryTokens
from penstock.net.stats import QuicListenerStats
from penstock.net.tcp import BIND_ADVICE, STOP_GRACE_S, within
from penstock.quic.core import Address, QuicCore
from penstock.quic.packets import (
    CID_BYTES,
    INITIAL_BYTES_MIN,
    VERSION,
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
from penstock.units import parse_address

CONNECTION_SEND_BUFFERS = 8
"""What one connection may have waiting to be sent, in streams' worth."""

FAREWELLS_MAX = 1_024
FAREWELL_REPEATS_MAX = 3
RESETS_PER_SWEEP_MAX = 200
"""Garbage is answered no more often than this between two sweeps: each answer costs a hash and a datagram."""
FAILURE_LINES_PER_SWEEP_MAX = 20
"""Handshakes that fail are worth a line each, but anyone can begin one: a flood must not fill the log."""

log = structlog.get_logger("penstock.net")


class QuicListener:
    """One protocol on one address. Not reusable: once stopped, make another."""

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
        now_s: Callable[[], float] = time.monotonic,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """`clock` is for deadlines that we set; `now_s` for the timers of the protocol, which no test should stop."""
        self.name = name
        self.bind = bind
        self.factory = factory
        self.limits = limits or QuicLimits()
        self.stats = stats or QuicListenerStats()
        self.clock = clock or SystemClock()
        self._tls = tls
        self._given_budget = budget
        self._now_s = now_s
        self._random_bytes = random_bytes
        self._tokens = RetryTokens(random_bytes)
        self._settings = _settings(self.limits)
        self._sweep = Sweep(self._swept, self.clock, self.limits.sweep_s)
        self._endpoint: UdpEndpoint | None = None
        self._address: HostAndPort | None = None
        self._stopping = False
        self._full = False
        self._by_cid: dict[bytes, QuicServerConnection] = {}
        # Keyed by themselves: ordered, unlike a set, so that what happens to all of them happens in the same order every time.
        self._connections: dict[QuicServerConnection, None] = {}
        self._half_open: dict[QuicServerConnection, None] = {}
        """Whose handshake is not over, the oldest first."""
        self._farewells: dict[bytes, tuple[list[tuple[bytes, Address]], int]] = {}
        """What to repeat to peers that have not heard that their connection is closed, and how often still; oldest first."""
        self._resets_left = RESETS_PER_SWEEP_MAX
        self._failure_lines_left = FAILURE_LINES_PER_SWEEP_MAX
        self._unanswered: set[QuicServerConnection] = set()
        self._all_answered = asyncio.Event()

    @property
    def address(self) -> str:
        """Where it listens, with the port that was picked where `bind` says 0."""
        if self._address is None:
            raise RuntimeError(f"listener {self.name} is not started, so it has no address yet")
        return str(self._address)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.budget = self._given_budget or InFlightBudget(self.limits.in_flight_total_bytes_max, loop.call_soon)
        self._endpoint = UdpEndpoint(await self._bind(parse_address(self.bind)), self._now_s)
        self._endpoint.received = self._received
        self._address = HostAndPort(*self._endpoint.address[:2])
        self._sweep.start()

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Admit nobody any more, let every session say goodbye and finish for at most `grace_s`, then close every connection."""
        if self._stopping:
            return
        self._stopping = True
        for connection in list(self._connections):
            if not connection.is_established:
                connection.close(Code.NO_ERROR, "the server stops")
        self._unanswered = set(self._connections)
        self._all_answered.clear()  # connections that ended before have set it
        for connection in list(self._connections):
            connection.stop()
        if self._unanswered:
            await within(grace_s, self._all_answered)
        self.stats.closed_unanswered += sum(connection.unanswered for connection in self._unanswered)
        for connection in list(self._connections):
            connection.close(Code.NO_ERROR, "the server stops")
        self._sweep.stop()
        if self._endpoint is not None:
            self._endpoint.close()

    def sweep(self) -> None:
        """Look at every deadline now."""
        self._sweep.run()

    # What connections call.

    def add_cid(self, cid: bytes, connection: QuicServerConnection) -> None:
        self._by_cid[cid] = connection
        connection.cids.add(cid)

    def drop_cid(self, cid: bytes) -> None:
        connection = self._by_cid.pop(cid, None)
        if connection is not None:
            connection.cids.discard(cid)

    def established(self, connection: QuicServerConnection) -> None:
        self._half_open.pop(connection, None)
        self.stats.handshakes_open -= 1
        self.stats.connections_total += 1

    def handshake_failed(self, connection: QuicServerConnection, reason: str) -> None:
        self.stats.handshake_failures += 1
        if reason and self._failure_lines_left > 0:
            self._failure_lines_left -= 1
            log.warning("quic_handshake_failed", listener=self.name, peer=connection.peer, reason=reason)

    def answered(self, connection: QuicServerConnection) -> None:
        self._unanswered.discard(connection)
        if not self._unanswered:
            self._all_answered.set()

    def lost(self, connection: QuicServerConnection) -> None:
        for cid in connection.cids:
            self._by_cid.pop(cid, None)
            if connection.farewell:
                self._remember_farewell(cid, connection.farewell)
        self._connections.pop(connection, None)
        self.stats.connections_open -= 1
        if not connection.is_established:
            self._half_open.pop(connection, None)
            self.stats.handshakes_open -= 1
        self._full = False
        self.answered(connection)

    # Datagrams.

    def _received(self, buffer: bytes, segment_bytes: int, address: Address) -> None:
        cid = short_destination(buffer)
        if cid is None:
            for start in range(0, len(buffer), segment_bytes):
                self._received_alone(buffer[start : start + segment_bytes], address)
            return
        for start in range(segment_bytes, len(buffer), segment_bytes):
            if buffer[start + 1 : start + 1 + CID_BYTES] != cid:  # two connections of one client, in one buffer
                for start in range(0, len(buffer), segment_bytes):
                    self._received_alone(buffer[start : start + segment_bytes], address)
                return
        connection = self._by_cid.get(cid)
        if connection is None:
            if not self._say_farewell(cid):
                self.stats.datagrams_dropped += -(-len(buffer) // segment_bytes)
                self._say_forgotten(cid, buffer[:segment_bytes], address)
            return
        self._deliver(connection, buffer, segment_bytes, address)

    def _received_alone(self, datagram: bytes, address: Address) -> None:
        cid = short_destination(datagram)
        header = None if cid is not None else long_header(datagram)
        if header is not None:
            cid = header.destination_cid
        connection = None if cid is None else self._by_cid.get(cid)
        if connection is not None:
            self._deliver(connection, datagram, len(datagram), address)
        elif cid is not None and self._say_farewell(cid):
            pass
        elif header is None and cid is not None:
            self.stats.datagrams_dropped += 1
            self._say_forgotten(cid, datagram, address)
        elif header is None or len(datagram) < INITIAL_BYTES_MIN or self._stopping:
            self.stats.datagrams_dropped += 1
        elif header.version != VERSION:
            self._answer(version_negotiation(header), address)
        elif header.is_initial:
            self._begin(header, datagram, address)
        else:
            self.stats.datagrams_dropped += 1

    def _deliver(self, connection: QuicServerConnection, buffer: bytes, segment_bytes: int, address: Address) -> None:
        try:
            connection.take_datagrams(buffer, segment_bytes, address)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this connection and no other
            if connection.is_established:
                connection.failed(error)
            else:  # the library raises all kinds of errors over handshakes that make no sense
                connection.abandon(f"a handshake that makes no sense: {error}")

    def _begin(self, header: LongHeader, datagram: bytes, address: Address) -> None:
        """The first datagram of a connection."""
        if self.stats.connections_open >= self.limits.connections_max:
            self._refuse(header, datagram, address)
            return
        admitted = None
        if header.token:
            admitted = self._tokens.admit(address, header.token, self._now_s())
            if admitted is not None and admitted.retry_source_cid != header.destination_cid:
                admitted = None
        if admitted is None and self.stats.handshakes_open >= self.limits.retry_above:
            self._send_retry(header, address)
            return
        if len(self._half_open) >= self.limits.handshakes_max:
            self.stats.handshakes_dropped += 1
            if admitted is None:
                return
            # Whoever means it is done in a few round trips, so the oldest is the one least likely to be missed.
            next(iter(self._half_open)).abandon("")
        self._admit(header, admitted, datagram, address)

    def _admit(self, header: LongHeader, admitted: Admitted | None, datagram: bytes, address: Address) -> None:
        assert self._endpoint is not None
        core = QuicCore(
            self._settings,
            self._tls,
            is_client=False,
            original_destination_cid=(
                header.destination_cid if admitted is None else admitted.original_destination_cid
            ),
            retry_source_cid=None if admitted is None else admitted.retry_source_cid,
        )
        connection = QuicServerConnection(self, self._endpoint, core, self._settings, address, self._now_s)
        self._connections[connection] = None
        self.stats.connections_open += 1
        self.stats.handshakes_open += 1
        self._half_open[connection] = None
        self.add_cid(header.destination_cid, connection)
        self.add_cid(core.host_cid, connection)
        self._deliver(connection, datagram, len(datagram), address)
        if not core.believable and not connection.is_lost:
            connection.abandon("")

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
        self.stats.connections_refused += 1
        core = QuicCore(self._settings, self._tls, is_client=False, original_destination_cid=header.destination_cid)
        core.refuse(datagram, header.destination_cid, address, self._now_s())
        for refusal, _ in core.take_datagrams(self._now_s(), 1):
            self._answer(refusal, address)
        if not self._full:  # one line when the bound is reached, not one per refusal: a flood must not fill the log
            self._full = True
            log.warning("connections_refused", listener=self.name, connections_max=self.limits.connections_max)

    def _remember_farewell(self, cid: bytes, farewell: list[tuple[bytes, Address]]) -> None:
        if len(self._farewells) >= FAREWELLS_MAX:
            del self._farewells[next(iter(self._farewells))]
        self._farewells[cid] = (farewell, FAREWELL_REPEATS_MAX)

    def _say_farewell(self, cid: bytes) -> bool:
        """Tell a peer again that its connection is closed; False where there was none, or it was told often enough."""
        farewell, repeats = self._farewells.pop(cid, ([], 0))
        if not repeats:
            return False
        self._farewells[cid] = (farewell, repeats - 1)
        for datagram, address in farewell:
            self._answer(datagram, address)
        return True

    def _say_forgotten(self, cid: bytes, datagram: bytes, address: Address) -> None:
        """Tell a client of a run before that its connection is no more, so that it need not wait until it has had enough of the silence."""
        token = reset_token(self._tls.reset_key, cid)
        if token is None or self._resets_left <= 0 or self._stopping:
            return
        reset = stateless_reset(datagram, token, self._random_bytes)
        if reset is not None:
            self._resets_left -= 1
            self._answer(reset, address)

    async def _bind(self, address: HostAndPort) -> socket.socket:
        setting = f"listeners.{self.name}.bind"
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                address.host, address.port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
            )
        except OSError as error:
            raise ConfigError(
                f"{setting}: {address.host!r} cannot be resolved ({error.strerror}): use an IP address"
            ) from None
        # A name with addresses of both kinds (localhost) is taken as the IPv4 one, which every client tries.
        family, _, _, _, where = min(found, key=lambda info: info[0] != socket.AF_INET)
        try:
            return open_socket(family, bind=where)
        except OSError as error:
            advice = BIND_ADVICE.get(error.errno or 0, "choose another address")
            raise ConfigError(f"{setting}: cannot listen on {address}/udp ({error.strerror}): {advice}") from None

    def _swept(self) -> list[QuicServerConnection]:
        self._resets_left = RESETS_PER_SWEEP_MAX
        self._failure_lines_left = FAILURE_LINES_PER_SWEEP_MAX
        return list(self._connections)


def _settings(limits: QuicLimits) -> QuicSettings:
    return QuicSettings(
        idle_s_max=limits.idle_s_max,
        datagram_bytes=limits.datagram_bytes,
        streams_max=limits.streams_max,
        send_high_bytes=limits.send_buffer_high_bytes,
        send_low_bytes=limits.send_buffer_low_bytes,
        connection_send_high_bytes=CONNECTION_SEND_BUFFERS * limits.send_buffer_high_bytes,
    )
