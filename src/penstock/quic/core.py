"""One QUIC connection without I/O and without a clock: datagrams and times in, datagrams, events and timers out.

This is the seam to the QUIC library (qh3, whose packet core is compiled). Six things differ from how the library drives its core:

- Events stay inside the core until they are asked for. The core grants the peer credit for stream data when the event that carries it is
  taken, so whoever does not ask for events holds the peer back, and what waits is bounded by the windows that were granted before.
- The numbers of streams and the transport parameters are ours; the library has them as constants.
- The TLS side is `penstock.quic.tls`, which chooses the application protocol per connection and can ask for client certificates.
- Nothing is resumed: no session tickets, no 0-RTT, whose data an attacker could send twice.
- Stream data is given to the core as it can be sent: see `penstock.quic.outbox`.
- Events wait while frames of streams that finish may be made up and not on the wire: see `penstock.quic.kept_frames`.

An event is a tuple: its kind first, then what the kind says:

    (STREAM_DATA, stream id, data, ended)      (STREAM_RESET, stream id, code)      (STOP_SENDING, stream id, code)
    (STREAM_FINISHED, stream id)               both sides ended and everything acknowledged
    (CID_ISSUED, cid)                          (CID_RETIRED, cid)
    (PING_ACKNOWLEDGED, number)

That it has ended says `over`; who ended it, `end_code` and `end_reason`.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Final, NamedTuple

from qh3._hazmat import QuicConnectionCore
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection, QuicConnectionState
from qh3.quic.events import ConnectionTerminated
from qh3.quic.tls_bridge import QuicTlsBridgeError
from qh3.tls import Epoch

from penstock.quic.kept_frames import FramesUnderWay
from penstock.quic.outbox import INITIAL_RTT_S, PACING, Data, Outbox
from penstock.quic.packets import CID_BYTES, VERSION
from penstock.quic.settings import QuicSettings
from penstock.quic.tls import (
    ACK_DELAY_EXPONENT,
    CONNECTION_IDS_MAX,
    MAX_ACK_DELAY_S,
    TlsBridge,
    TlsSettings,
    reset_token,
)

Address = tuple[Any, ...]
"""What a socket gives and takes: (host, port), or with flow information and scope for IPv6."""
Event = tuple[Any, ...]

STREAM_DATA: Final = "stream_data"
STREAM_RESET: Final = "stream_reset"
STOP_SENDING: Final = "stop_sending"
STREAM_FINISHED: Final = "stream_finished"
STREAMS_AVAILABLE: Final = "streams_available"
CID_ISSUED: Final = "connection_id_issued"
CID_RETIRED: Final = "connection_id_retired"
PING_ACKNOWLEDGED: Final = "ping_acknowledged"
TERMINATED: Final = "connection_terminated"
REPORTED: Final = frozenset(
    {
        STREAM_DATA,
        STREAM_RESET,
        STOP_SENDING,
        STREAM_FINISHED,
        STREAMS_AVAILABLE,
        CID_ISSUED,
        CID_RETIRED,
        PING_ACKNOWLEDGED,
    }
)
ENDED_STATES: Final = frozenset({"closing", "draining", "terminated"})

ACCEPTED: Final = 2
"""Where the core's report on datagrams says how many packets it took."""
PANIC: Final = "PanicException"
"""The name of a panic's class, which cannot be imported."""
NO_ROOM_FOR_A_PACKET: Final = "packet builder capacity exhausted"
PATH_DATAGRAM_BYTES: Final = 5
"""Where its description of a path says how large a datagram may be."""
CONNECTION_REFUSED: Final = 2
DATAGRAMS_PER_KEY_MAX: Final = 1 << 22
"""Half of what may be encrypted with one AES key (RFC 9001, section 6.6); the library does not count."""
UNEXPECTED_MESSAGE: Final = 0x10A
"""The TLS alert of that name, as QUIC says it."""
CRYPTO_FRAME: Final = 6
IDLE_REASON: Final = "Idle timeout"


class StreamRefused(Exception):
    """The core would not do it: the stream has ended, or the peer allows no more of them."""


class Agreed(NamedTuple):
    """What is left of a handshake."""

    alpn: str | None = None
    peer_certificate_der: bytes | None = None
    peer_idle_s_max: float = math.inf


class LibraryPanicked(Exception):
    """The library found itself in a state that it thinks impossible."""


def _tell_panic(error: BaseException) -> None:
    """A panic of the library's is no Exception, and would get past everybody who is there to end one connection and no other."""
    if type(error).__name__ == PANIC:
        raise LibraryPanicked(str(error)) from None


class QuicCore(QuicConnection):
    """The library's connection, driven as the module's docstring says."""

    def __init__(
        self,
        settings: QuicSettings,
        tls: TlsSettings,
        *,
        is_client: bool,
        original_destination_cid: bytes | None = None,
        retry_source_cid: bytes | None = None,
    ) -> None:
        configuration = QuicConfiguration(
            is_client=is_client,
            connection_id_length=CID_BYTES,
            idle_timeout=settings.idle_s_max,
            max_data=settings.connection_window_bytes,
            max_stream_data=settings.stream_window_bytes,
            max_datagram_size=settings.datagram_bytes,
            probe_datagram_size=False,
            supported_versions=[VERSION],
            initial_rtt=INITIAL_RTT_S,
        )
        tls.fill(configuration)
        super().__init__(
            configuration=configuration,
            original_destination_connection_id=original_destination_cid,
            retry_source_connection_id=retry_source_cid,
        )
        self._settings = settings
        self._tls_settings = tls
        self._early: deque[Event] = deque()
        self._agreed = Agreed()
        self._under_key = 0
        """Datagrams that were sent since we last changed the key."""
        self._outbox = Outbox(settings.datagram_bytes)
        self._room_bytes = -1
        """What may be given to the core before datagrams are next made; -1 where that is not known."""
        self._datagrams_max = 1
        """How many could be made the last time."""
        self.frames = FramesUnderWay(settings.datagram_bytes)

    # -- what a connection is ---------------------------------------------------------------------------------------------

    @property
    def established(self) -> bool:
        """Whether the handshake is complete."""
        return self._handshake_complete

    @property
    def over(self) -> bool:
        """Whether the connection has ended on either side; the events that say so may still wait."""
        return self._close_event is not None or (self._core is not None and self._core.state in ENDED_STATES)

    @property
    def alpn(self) -> str | None:
        """The application protocol that was agreed on."""
        return self._agreed.alpn

    @property
    def peer_certificate_der(self) -> bytes | None:
        """The peer's certificate; a server has it only where it asked for one and found it good."""
        return self._agreed.peer_certificate_der

    @property
    def idle_s_max(self) -> float:
        """After how long without a sign of life the connection is gone: the shorter time of both sides."""
        return min(self._settings.idle_s_max, self._agreed.peer_idle_s_max)

    @property
    def believable(self) -> bool:
        """Whether anything came that was encrypted as it should be."""
        return self._core is not None and self._core.received_authenticated_packet

    @property
    def peer_address(self) -> Address:
        """Where the peer is now."""
        address: Address = self._require_core().active_path[2]
        return address

    @property
    def in_flight_bytes(self) -> int:
        """Sent and not acknowledged."""
        return 0 if self._core is None else self._core.bytes_in_flight

    @property
    def losses(self) -> int:
        """Datagrams of ours that were found to be lost, over the connection's life."""
        return 0 if self._core is None else self._core.loss_total

    @property
    def is_quiet(self) -> bool:
        """Whether all that was sent has arrived, and nothing is left to send."""
        core = self._require_core()
        if core.bytes_in_flight or self.unsent_bytes():
            return False
        timer = core.get_timer()
        return timer is None or timer[0] != PACING

    @property
    def fell_silent(self) -> bool:
        """Whether it ended because nothing was heard of the peer for too long."""
        return self.end_reason == IDLE_REASON

    @property
    def end_code(self) -> int:
        """The error code the connection ended with."""
        return 0 if self._close_event is None else self._close_event.error_code

    @property
    def end_reason(self) -> str:
        """Why the connection ended, in the words of whoever ended it; empty where nobody said."""
        return "" if self._close_event is None else self._close_event.reason_phrase

    # -- in ---------------------------------------------------------------------------------------------------------------

    def receive(self, buffer: bytes, segment_bytes: int, address: Address, now_s: float) -> int:
        """Take datagrams that came in one go: all of `segment_bytes`, the last one maybe shorter.

        Returns how many packets in them were the peer's and new, once the handshake is complete.
        """
        try:
            if self._handshake_complete:
                assert self._core is not None
                return self._core.receive_gro_buffer(buffer, segment_bytes, address, now_s)[ACCEPTED]
            self.receive_gro_buffer(buffer, segment_bytes, address, now_s)
        except BaseException as error:
            _tell_panic(error)
            raise
        if self.established:
            self._conclude_handshake()
        return 0

    def take_event(self) -> Event | None:
        """The next event; taking one that carries data lets the peer send as much again."""
        if self._early:
            return self._early.popleft()
        core = self._core
        if core is None or (self.frames.hold_events and not self.over):
            return None
        while (event := core.next_event()) is not None:
            if event[0] == STREAM_DATA or self._is_for_the_owner(event):
                return event
        self.frames.events_taken()
        return None

    def refuse(self, datagram: bytes, destination_cid: bytes, address: Address, now_s: float) -> None:
        """Answer the first datagram of a connection by closing it, which costs no key exchange."""
        self._version = VERSION
        self._create_core(address, destination_cid, now_s)
        core = self._require_core()
        core.receive_datagram(datagram, address, now_s)
        core.close(CONNECTION_REFUSED, 0, b"")

    # -- out --------------------------------------------------------------------------------------------------------------

    def take_datagrams(self, now_s: float, datagrams_max: int) -> list[tuple[bytes, Address]]:
        """What to send now, `datagrams_max` at most."""
        core = self._core
        if core is None:
            return []
        self.frames.before_sending(core)
        poll = core.poll_transmit if self._handshake_complete else self._poll_early
        outbox = self._outbox
        taken: list[tuple[bytes, Address]] = []
        if outbox.waiting and datagrams_max:
            outbox.feed(core, now_s, datagrams_max, is_idle=False)
        try:
            while (left := datagrams_max - len(taken)) > 0:
                transmit = poll(now_s)
                if transmit is not None:
                    taken.append(transmit[:2])
                elif not (outbox.waiting and outbox.feed(core, now_s, left, is_idle=True)):
                    break
        except BaseException as error:
            _tell_panic(error)
            raise
        self.frames.after_sending(core, taken, is_all=len(taken) < datagrams_max)
        self._room_bytes, self._datagrams_max = -1, datagrams_max
        self._under_key += len(taken)
        if self._under_key >= DATAGRAMS_PER_KEY_MAX and self._handshake_confirmed:
            self._change_key(core)
        return taken

    def _change_key(self, core: QuicConnectionCore) -> None:
        try:
            core.request_key_update()
        except (RuntimeError, ValueError):
            return  # the one before is not acknowledged yet, or the peer is about to
        self._under_key = 0

    def _poll_early(self, now_s: float) -> tuple[Any, ...] | None:
        """The next datagram of a handshake. What a peer may be sent that has not shown its address can be too little for a packet,
        which the library takes for a fault; it goes on when the peer is heard again."""
        try:
            return self._require_core().poll_transmit(now_s)
        except RuntimeError as error:
            if str(error) != NO_ROOM_FOR_A_PACKET:
                raise
            return None

    def unsent_bytes(self, stream_id: int | None = None) -> int:
        """What was given to `send` and is not on the wire yet; of all streams where none is named."""
        if self._core is None:
            return 0
        waiting_bytes = self._outbox.size_bytes if stream_id is None else self._outbox.size_of(stream_id)
        return waiting_bytes + self._core.get_send_buffer_size(stream_id)

    def get_timer(self) -> float | None:
        """When to call `handle_timer`."""
        timer = None if self._core is None else self._core.get_timer()
        at_s = None if timer is None else timer[1]
        again_s = self._outbox.look_again_s
        return again_s if again_s is not None and (at_s is None or again_s < at_s) else at_s

    def handle_timer(self, now: float) -> None:
        self._outbox.look_again_s = None
        try:
            super().handle_timer(now)
        except BaseException as error:
            _tell_panic(error)
            raise

    def open_stream(self, *, one_way: bool) -> int:
        """Raises StreamRefused where the peer allows no more streams now."""
        try:
            return self._require_core().open_stream(one_way)
        except (RuntimeError, ValueError) as error:
            raise StreamRefused(str(error)) from None

    def send(self, stream_id: int, data: Data, end: bool) -> None:
        """Queue data, which must not be changed any more. Raises StreamRefused where our side of the stream has ended."""
        core, outbox = self._core, self._outbox
        assert core is not None
        if not outbox.waiting:
            if self._room_bytes < 0:
                self._room_bytes = max(outbox.room(core, core.get_send_buffer_size(None), self._datagrams_max), 0)
            if len(data) <= self._room_bytes:
                self._room_bytes -= len(data)
                try:
                    core.send_stream(stream_id, data, end)
                except (RuntimeError, ValueError) as error:
                    raise StreamRefused(str(error)) from None
                return
        if outbox.ends(stream_id) or not core.can_send_stream(stream_id):
            raise StreamRefused("our side of the stream has ended")
        outbox.add(stream_id, data, end)

    def reset(self, stream_id: int, code: int) -> None:
        """End our side of a stream at once. One that has ended is left as it is."""
        self._outbox.drop(stream_id)
        try:
            self._require_core().reset_stream(stream_id, code)
        except (RuntimeError, ValueError):
            return
        self.frames.reset_asked_for()

    def stop(self, stream_id: int, code: int) -> None:
        """Ask the peer to end its side of a stream. One that has ended is left as it is."""
        try:
            self._require_core().stop_sending(stream_id, code)
        except (RuntimeError, ValueError):
            return
        self.frames.stop_asked_for()

    def ping(self, number: int = 0) -> None:
        """Make the peer answer, which keeps the connection from being taken for idle. One that is lost is not sent again."""
        self.send_ping(number)

    # -- what the library calls -------------------------------------------------------------------------------------------

    def _drain_core(self) -> None:
        """Let the handshake see its messages between two packets; once it is complete events wait until they are taken."""
        assert self._core is not None
        while not self._handshake_complete:
            event = self._core.next_event()
            if event is None:
                return
            if self._is_for_the_owner(event):
                self._early.append(event)

    def _is_for_the_owner(self, event: Event) -> bool:
        """Do what the library does with an event of its own; False for those."""
        kind = event[0]
        if kind == "crypto_data":
            self._receive_crypto(event)
        elif kind == "handshake_done":
            self._handshake_confirmed = True
            self._require_core().handshake_confirmed()
        elif kind == "peer_closed":
            self._close_event = ConnectionTerminated(event[2], event[3], event[4].decode("utf8", "replace"))
        elif kind == "protocol_error":
            self._close_event = ConnectionTerminated(event[1], event[2], event[3])
        elif kind == STOP_SENDING:
            self._outbox.drop(event[1])
            self.frames.peer_stopped()
        elif kind == TERMINATED:
            self._state = QuicConnectionState.TERMINATED
            self._close_event = ConnectionTerminated(event[1], event[2], event[3].decode("utf8", "replace"))
        return kind in REPORTED

    def _conclude_handshake(self) -> None:
        """Note what was agreed on. A server then has no more use for the handshake, which is a fifth of what a connection costs."""
        assert self._tls is not None
        certificate = self.get_peercert()
        theirs = self._tls.remote_transport_parameters
        self._agreed = Agreed(
            self._tls.tls.alpn_negotiated,
            None if certificate is None else certificate.public_bytes(),
            (theirs.max_idle_timeout / 1000) if theirs is not None and theirs.max_idle_timeout else math.inf,
        )
        # The peer may take smaller datagrams than we would send, and the way to it may.
        datagram_bytes = self._require_core().active_path[PATH_DATAGRAM_BYTES]
        self._outbox.datagram_bytes = self.frames.datagram_bytes = datagram_bytes
        if not self._is_client:
            self._tls = None

    def _receive_crypto(self, event: Event) -> None:
        core = self._require_core()
        if self._tls is None:
            core.close(UNEXPECTED_MESSAGE, CRYPTO_FRAME, b"")
            self._close_event = ConnectionTerminated(UNEXPECTED_MESSAGE, CRYPTO_FRAME, "a message after the handshake")
            return
        try:
            self._tls.receive_crypto(Epoch(event[1]), event[3], event[2], version=core.version)
            self._drain_tls()
        except QuicTlsBridgeError as error:
            core.close(error.error_code, int(error.frame_type), error.reason_phrase.encode())
            self._close_event = ConnectionTerminated(error.error_code, error.frame_type, error.reason_phrase)

    def _create_core(self, remote_addr: Address, initial_dcid: bytes, now: float) -> None:
        settings = self._settings
        self._core = QuicConnectionCore(
            is_client=self._is_client,
            version=VERSION,
            local_addr=("0.0.0.0", 0),  # noqa: S104 - not bound to; the core wants some address of its own
            remote_addr=remote_addr,
            source_cid=self.host_cid,
            destination_cid=initial_dcid,
            peer_address_validated=self._is_client or self._retry_source_connection_id is not None,
            active_connection_id_limit=CONNECTION_IDS_MAX,
            max_datagram_size=settings.datagram_bytes,
            probe_datagram_size=False,
            idle_timeout=settings.idle_s_max,
            ack_delay_exponent=ACK_DELAY_EXPONENT,
            max_datagram_frame_size=None,
            peer_max_datagram_frame_size=None,
            connection_receive_window=settings.connection_window_bytes,
            connection_send_limit=0,
            stream_receive_window=settings.stream_window_bytes,
            stream_send_limit_bidi_local=0,
            stream_send_limit_bidi_remote=0,
            stream_send_limit_uni=0,
            max_stream_reassembly=settings.stream_window_bytes,
            local_max_streams_bidi=settings.streams_max,
            local_max_streams_uni=settings.streams_max,
            peer_max_streams_bidi=0,
            peer_max_streams_uni=0,
            initial_rtt=INITIAL_RTT_S,
            max_ack_delay=MAX_ACK_DELAY_S,
            initial_time=now,
        )
        self._applied_transport_parameters = None
        self._pre_handshake_state_replayed = False

    def _create_tls(self, remote_source_cid: bytes | None) -> TlsBridge:
        bridge = TlsBridge(
            self._configuration,
            self._tls_settings,
            self._settings.streams_max,
            version=self._version,
            local_initial_source_connection_id=self.host_cid,
            remote_initial_source_connection_id=remote_source_cid,
            original_destination_connection_id=self._original_destination_connection_id,
            retry_source_connection_id=self._retry_source_connection_id,
            stateless_reset_token=reset_token(self._tls_settings.reset_key, self.host_cid),
        )
        self._tls = bridge
        return bridge
