"""One connection of a QUIC listener: its streams' sessions, its share of the bounds, and its deadlines."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol, Self

import structlog

from penstock.clock import Clock
from penstock.errors import LimitExceeded
from penstock.net.deadlines import ConnectionWatch, Expiry
from penstock.net.flow import PARTIAL_FRAMES, SEND_BUFFER, UNSENT_BYTES_FREE, InFlightBudget, ReadFlow
from penstock.net.limits import QuicLimits
from penstock.net.quic_session import QuicSession, QuicSessionFactory, Stream, StreamSession
from penstock.net.quic_stream import QuicServerStream
from penstock.net.quic_tls import subject_of_der
from penstock.net.stats import QuicListenerStats
from penstock.net.tap import Tap
from penstock.quic.connection import Connection
from penstock.quic.core import QuicCore
from penstock.quic.outbox import StreamRefused
from penstock.quic.packets import LONG_HEADER, Address
from penstock.quic.settings import QuicSettings
from penstock.quic.udp import UdpEndpoint
from penstock.units import Address as HostAndPort
from penstock.units import network_of

REBINDING_DELAY_S: Final = 0.2
"""A peer is taken to have another port once nothing has come from its old one for so long: copies of its datagrams that somebody else
sends ahead of them look like a change of port too."""
VALIDATION_INTERVAL_S: Final = 0.2
"""How often a peer with a new port is sent a PING until it acknowledges something that was sent there."""
WAITING_EVENTS_FREE: Final = 1_024
"""What may wait besides stream data while a connection is not read: a peer that reads grants us credit every few hundred KiB. Each event
costs the library some 60 to 90 bytes, and a frame of 2 bytes makes one."""
WAITING_EVENT_BYTES_MIN: Final = 16
"""The shortest pieces that a peer may send its window in, while the connection is not read."""
ANTI_AMPLIFICATION_FACTOR: Final = 3
"""How many times the bytes received from an address that is not validated may be sent there (RFC 9000, section 8)."""

log = structlog.get_logger(__name__)


class Code(IntEnum):
    """What a connection is closed with, besides what a protocol has of its own."""

    NO_ERROR = 0
    TOO_MUCH = 0x100
    TOO_SLOW = 0x101
    FAILED = 0x102


class QuicOwner(Protocol):
    """The listener, as its connections see it."""

    name: str
    limits: QuicLimits
    stats: QuicListenerStats
    clock: Clock
    budget: InFlightBudget
    factory: QuicSessionFactory

    def add_cid(self, cid: bytes, connection: QuicServerConnection) -> None: ...

    def drop_cid(self, cid: bytes) -> None: ...

    def established(self, connection: QuicServerConnection) -> None: ...

    def handshake_failed(self, connection: QuicServerConnection, reason: str) -> None:
        """It is over before it was established; `reason` is empty if nobody said why."""
        ...

    def answered(self, connection: QuicServerConnection) -> None:
        """A connection that was told to stop owes its peer no more answers."""
        ...

    def lost(self, connection: QuicServerConnection) -> None: ...


class QuicServerConnection(Connection):
    """Implements `penstock.net.quic_session.QuicConnection` for its session."""

    __slots__ = (
        "_address",
        "_allowance_bytes",
        "_before_rebinding",
        "_early_bytes",
        "_first_address",
        "_heard_s",
        "_is_authenticated",
        "_owner",
        "_pinged_s",
        "_session",
        "_waiting_events_max",
        "_waits_for_room",
        "_watch",
        "begun_s",
        "cids",
        "flow",
        "limits",
        "listener",
        "network",
        "partial_frames",
        "peer",
        "principal_hint",
        "send_windows",
        "stats",
        "tap",
    )

    def __init__(
        self,
        owner: QuicOwner,
        endpoint: UdpEndpoint,
        core: QuicCore,
        settings: QuicSettings,
        address: Address,
        now_s: Callable[[], float],
    ) -> None:
        super().__init__(endpoint, core, settings, now_s)
        self._owner = owner
        self._session: QuicSession | None = None
        self._watch = ConnectionWatch(owner.clock.monotonic())
        self.begun_s = owner.clock.monotonic()
        self.cids: list[bytes] = []
        """Those it is known by, some ten; kept by the listener."""
        self.flow = ReadFlow(self, owner.limits.in_flight_bytes_max, owner.budget, owner.stats, self._room_granted)
        self._waits_for_room = False
        self._is_authenticated = False
        self.send_windows = owner.budget.send_windows
        """Those that its send window is one of: until it authenticates, it takes none of what others need."""
        self.partial_frames: dict[QuicServerStream, None] = {}
        self.limits = owner.limits
        self.stats = owner.stats
        self.listener = owner.name
        self.peer = _host_and_port(address)
        self._address = self._first_address = address
        self.network = network_of(str(address[0]))
        """What its share of the handshakes is counted by; the peer may change its port, but not its host."""
        self._heard_s = now_s()
        self._early_bytes = 0
        self._waiting_events_max = WAITING_EVENTS_FREE + settings.connection_window_bytes // WAITING_EVENT_BYTES_MIN
        self._pinged_s = 0.0
        self._allowance_bytes: int | None = None
        """What may be sent to an address that is not validated; None once it is."""
        self._before_rebinding = -1
        """The highest packet number in flight when the port changed: only later packets were sent to the new one."""
        self.principal_hint: str | None = None
        self.tap: Tap | None = None

    # -- what the session sees ---------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The peer's, without its port."""
        return str(self._address[0])

    @property
    def alpn(self) -> str | None:
        return self.core.alpn

    def open_stream(self, begin: Callable[[Stream], StreamSession], *, one_way: bool = False) -> Stream:
        if self.is_lost:
            raise LimitExceeded("the connection is gone, so no stream can be opened on it")
        try:
            stream_id = self.core.open_stream(one_way=one_way)
        except StreamRefused:
            raise LimitExceeded(f"{self.peer} allows no more streams of this kind now") from None
        stream = QuicServerStream(self, stream_id, is_ours=True)
        self.streams[stream_id] = stream
        stream.open(begin)
        return stream

    # -- what the endpoint calls -------------------------------------------------------------------------------------------

    def take_datagrams(self, buffer: bytes, segment_bytes: int, address: Address) -> Self:
        """Follow a peer whose port changes, as behind a NAT; drop what comes from another host.

        We announce that we do not support migration (`penstock.quic.tls`). The library is told that the peer stays where it was: it
        follows three changes at most, and behind queued stream data its PATH_CHALLENGE goes to the old path, and then nothing goes
        anywhere. An acknowledged packet is a weaker proof, because a peer can acknowledge what it did not receive; so it is accepted
        only within one host, where a peer could point the connection at nobody but itself. The proof is no event, because events may
        have to wait until more is sent (`penstock.quic.kept_frames`).
        """
        now_s = self._now_s()
        if address == self._address:
            self._heard_s = now_s
        elif not self._may_be_rebinding(address, now_s):
            self.stats.datagrams_dropped += -(-len(buffer) // segment_bytes)
            return self
        if buffer[0] & LONG_HEADER and not self.core.is_established:
            self._early_bytes += len(buffer)
            if self._early_bytes > self.limits.handshake_bytes_max:
                self.close(
                    Code.TOO_MUCH,
                    f"the handshake has more than handshake_bytes_max = {self.limits.handshake_bytes_max} bytes",
                )
                return self
        newest = self.core.newest_in_flight if self._allowance_bytes is not None else -1
        try:
            accepted = self.core.receive(buffer, segment_bytes, self._first_address, now_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this connection and no other
            if self.is_established:
                self.failed(error)
            else:  # the library raises all kinds of errors over malformed handshakes
                self.abandon(f"malformed handshake: {error}")
            return self
        if accepted and address != self._address:
            self._rebind(address, now_s)
        elif newest > self._before_rebinding and newest != self.core.newest_in_flight:
            self._allowance_bytes = None
        if self._allowance_bytes is not None and address == self._address:
            self._allowance_bytes += ANTI_AMPLIFICATION_FACTOR * len(buffer)
            self._validate_address(now_s)
        self._origin = self.endpoint.arrived_at
        return self

    def addressed(self, datagrams: list[tuple[bytes, Address]]) -> list[tuple[bytes, Address]]:
        if self._allowance_bytes is not None:
            self._allowance_bytes -= sum(len(datagram) for datagram, _ in datagrams)
        if self._address == self._first_address:
            return datagrams
        return [(datagram, self._address) for datagram, _ in datagrams]

    def datagrams_allowed(self) -> int:
        allowed = super().datagrams_allowed()
        if self._allowance_bytes is None:
            return allowed
        # The last one may be larger than what is left; what comes after it makes up for that.
        return min(allowed, max(-(-self._allowance_bytes // self.settings.datagram_bytes), 0))

    # -- what flow control calls -------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self.pause_receiving()

    def resume_reading(self) -> None:
        self.resume_receiving()

    # -- what happens ------------------------------------------------------------------------------------------------------

    def established(self) -> None:
        certificate = self.core.peer_certificate_der
        self.principal_hint = None if certificate is None else subject_of_der(certificate)
        self._owner.established(self)
        self._guarded(self._begin)

    def stream_opened(self, stream_id: int) -> QuicServerStream | None:
        if self._session is None:
            return None
        stream = QuicServerStream(self, stream_id, is_ours=False)
        self.streams[stream_id] = stream
        stream.open(self._session.stream_opened)
        return stream

    def waiting_changed(self) -> None:
        self.flow.update_unsent(self.waiting_bytes)

    def room_for(self, size_bytes: int) -> bool:
        """Return whether there is room for a reply on a stream. If not, no stream is writable until there is."""
        self.look_at_congestion()
        if self.flow.room_for(size_bytes):
            return True
        self._waits_for_room = True
        self.look_at_congestion()
        return False

    def _room_granted(self) -> None:
        self._waits_for_room = False
        self.update_congestion()
        if not self.flow.held_bytes:
            self.flow.give_up_promise()  # what waited was answered otherwise meanwhile

    def send_high_bytes(self) -> int:
        if self._waits_for_room:
            return -1  # anything is too much
        return UNSENT_BYTES_FREE if self.flow.is_server_under_pressure else self.settings.connection_send_high_bytes

    def send_window_filled(self) -> None:
        outbox = self.core.outbox
        more_bytes = self.send_windows.widen(outbox.window_bytes)
        if more_bytes:
            outbox.window_bytes += more_bytes
            self.touch()

    def congestion_changed(self) -> None:
        if self.congested:
            self.flow.block(SEND_BUFFER)
        else:
            self.flow.unblock(SEND_BUFFER)

    def before_sending(self) -> None:
        while self._concluding:
            stream, _ = self._concluding.popitem()
            assert isinstance(stream, QuicServerStream)
            stream.conclude()

    def has_run(self) -> None:
        if self.core.waiting_events > self._waiting_events_max:
            self.stats.protocol_errors += 1
            log.info("connection_closed", listener=self.listener, peer=self.peer, reason="too many frames wait")
            self.close(Code.TOO_MUCH, "too many frames while the connection is not read")
        if self.is_stopping:
            self.answered()

    def _may_be_rebinding(self, address: Address, now_s: float) -> bool:
        is_same_host = address[0] == self._address[0]
        return self.is_established and is_same_host and now_s - self._heard_s >= REBINDING_DELAY_S

    def _rebind(self, address: Address, now_s: float) -> None:
        self._address = address
        self._is_redirected = True
        self._heard_s = now_s
        self._allowance_bytes = 0
        self._before_rebinding = self.core.newest_in_flight
        self.stats.rebindings += 1
        before, self.peer = self.peer, _host_and_port(address)
        log.info("peer_port_changed", listener=self.listener, peer=self.peer, before=before)

    def _validate_address(self, now_s: float) -> None:
        """Ask for an acknowledgement from an address that is not validated, unless one was asked for just now."""
        if now_s - self._pinged_s >= VALIDATION_INTERVAL_S and not self.core.is_closed:
            self._pinged_s = now_s
            self.core.ping()

    def cid_issued(self, cid: bytes) -> None:
        self._owner.add_cid(cid, self)

    def cid_retired(self, cid: bytes) -> None:
        self._owner.drop_cid(cid)

    def failed(self, error: Exception) -> None:
        log.error("quic_connection_failed", listener=self.listener, peer=self.peer, exc_info=error)
        self.stats.session_errors += 1
        self.abandon(f"{type(error).__name__}: {error}")

    def lost(self, code: int, reason: str) -> None:
        self.flow.lost()
        if self.is_established and self.core.timed_out:
            self.stats.closed_idle += 1
        session, self._session = self._session, None
        if session is not None:
            self._guarded(session.closed)
        elif not self.is_established:
            self._owner.handshake_failed(self, reason)
        if self.tap is not None:
            self.tap.closed()
        self._owner.lost(self)

    def set_authenticated(self, authenticated: bool) -> None:
        """One stream that has authenticated speaks for its connection: the client holds the credentials."""
        self._is_authenticated |= authenticated
        budget = self._owner.budget if self._is_authenticated else self._owner.budget.unauthenticated
        self.flow.use(budget)
        if not self.is_lost:  # then its window was given back
            window_bytes = self.core.outbox.window_bytes
            self.send_windows.give_back(window_bytes)
            self.send_windows = budget.send_windows
            self.send_windows.take(window_bytes)

    # -- what streams call -------------------------------------------------------------------------------------------------

    def conclude_later(self, stream: QuicServerStream) -> None:
        """Conclude a stream before the next datagrams are made, so that its end travels with its last data."""
        self._concluding[stream] = None
        self.touch()

    def answered(self) -> None:
        """A stream may have ended, or been answered whole."""
        if self.is_stopping and not self.owes:
            self._owner.answered(self)

    def check_partial_frames(self) -> None:
        if self.flow.partial_bytes > self.limits.partial_frames_bytes_max and len(self.partial_frames) > 1:
            self.stats.closed_header += 1
            log.info("connection_closed", listener=self.listener, peer=self.peer, reason="too much in partial frames")
            self.close(
                Code.TOO_MUCH,
                f"the partial frames of all streams have more than partial_frames_bytes_max = {self.limits.partial_frames_bytes_max} bytes",
            )

    # -- what the listener calls -------------------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Whether a stream is still to say something, or what was said may not have arrived."""
        return not self.core.is_idle or any(
            isinstance(stream, QuicServerStream) and stream.owes for stream in self.streams.values()
        )

    @property
    def unanswered(self) -> bool:
        """Whether requests wait for their answer."""
        return self.flow.held_bytes > 0

    def stop(self) -> None:
        """The server stops: let the session announce it."""
        self.is_stopping = True
        if self._session is not None:
            self._guarded(self._session.stopping)
        self.answered()

    def sweep(self, now_s: float) -> None:
        """Look at the deadlines."""
        if self.is_lost:
            return
        if not self.is_established:
            if now_s - self.begun_s >= self.limits.handshake_s_max:
                self.abandon("")
            return
        if self._allowance_bytes is not None:
            # What was sent there may be lost, and the peer may have no reason to send anything itself: let one datagram pass.
            self._allowance_bytes = max(self._allowance_bytes, 1)
            self._validate_address(self._now_s())
            self.touch()
        for stream in list(self.partial_frames):
            self._check_partial(stream, now_s)
        self.update_congestion()  # whether the server is under pressure may have changed
        if self._session is None:
            return  # the connection is gone
        unsent_bytes = self.unsent_bytes
        expiry = self._watch.judge(
            now_s,
            self.limits,
            reading=True,
            frame_waits=False,
            frames_wait=False,
            owed=True,
            unsent_bytes=unsent_bytes,
            delivered_bytes=self.sent_bytes - unsent_bytes,
            under_pressure=self.flow.is_under_pressure or self.flow.keeps_others_waiting,
        )
        if expiry is Expiry.UNREAD:
            self.stats.closed_unread += 1
            log.info("connection_expired", listener=self.listener, peer=self.peer, reason=expiry.value)
            self.close(Code.TOO_SLOW, expiry.value)

    def _check_partial(self, stream: QuicServerStream, now_s: float) -> None:
        frame_s_max = self.limits.frame_s_max(stalled=self.flow.frames_wait and not self.flow.reading)
        if not self.flow.is_blocked_at_most_by(PARTIAL_FRAMES) or stream.is_paused:
            stream.partial_since_s = None  # we stopped listening, so that it stays incomplete is no fault of the peer's
        elif stream.partial_since_s is None:
            stream.partial_since_s = now_s
        elif now_s - stream.partial_since_s >= frame_s_max:
            self.stats.closed_header += 1
            log.info(
                "stream_expired",
                listener=self.listener,
                peer=self.peer,
                stream=stream.id,
                reason=Expiry.PARTIAL_FRAME.value,
            )
            stream.expire()

    def _begin(self) -> None:
        self._session = self._owner.factory(self)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step of the session. Whatever it raises ends this connection and no other."""
        try:
            step()
        except Exception:
            self.stats.session_errors += 1
            log.exception("session_failed", listener=self.listener, peer=self.peer)
            self.close(Code.FAILED, "the server failed")


def _host_and_port(address: Address) -> str:
    return str(HostAndPort(address[0], address[1]))
