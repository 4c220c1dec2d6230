"""One QUIC connection without I/O and without a clock: datagrams and times in, datagrams, events and timers out.

Drives the packet core of the QUIC library (qh3, compiled) directly. The library's own driver is not used, because:

- Events stay inside the core until they are asked for. The core grants the peer credit for stream data when the event that carries it is
  taken, so not asking for events holds the peer back, and what waits is bounded by the windows granted before.
- Stream limits and transport parameters are ours; the library has them as constants. Its driver can be used once it has settings.
- TLS is `penstock.quic.tls`, which chooses the application protocol per connection and can ask for client certificates.
- Peers with zero-length connection ids are served: see `penstock.quic.handshake`.
- Data is handed out in larger pieces than the library's: see `penstock.quic.joined_data`.
- Nothing is resumed: no session tickets, no 0-RTT, whose data an attacker could replay.
- Stream data is given to the core as it can be sent: see `penstock.quic.outbox`.
- Events wait while frames of streams that finish may be built and not yet sent: see `penstock.quic.kept_frames`.
- The end of a stream is held back until the stream's data is acknowledged: see `penstock.quic.late_fins`.
- The core is asked for datagrams only if there may be some: each question costs its pacer a datagram (`must_send`). An acknowledgement
  that is due soon travels with data that is sent before. A test in `tests/quic/test_library.py` fails once asking is free.
- The pacer lets one RTT's worth of datagrams pass at once, but timers are coarser than short RTTs. So the core's clock may be ahead by what
  a timer takes at least (`CLOCK_AHEAD_S_MAX`): datagrams whose time comes within that leave now. Can go once the pacer does that.

`is_closed` says that the connection has ended; `close_code` and `close_reason` say why.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, Final, Self

from qh3.quic.tls_bridge import QuicTlsBridgeError

from penstock.quic.events import REPORTED, STOP_SENDING, STREAM_DATA, Closed, Event
from penstock.quic.handshake import Agreed, ConnectionIds, Handshake, make_packet_core
from penstock.quic.joined_data import join_data
from penstock.quic.kept_frames import PendingFrames
from penstock.quic.late_fins import LateFins
from penstock.quic.library import (
    ACK_TIMER,
    CLOSED_STATES,
    CRYPTO_DATA,
    FIRST_FLIGHT,
    HANDSHAKE_DONE,
    IDLE_REASON,
    NO_ROOM_FOR_A_PACKET,
    PACING_TIMER,
    PACKET_NUMBER,
    PATH_DATAGRAM_BYTES,
    PATH_REMOTE,
    PEER_CLOSED,
    PROTOCOL_ERROR,
    REPORT_ACCEPTED,
    REPORT_EVENTS,
    TERMINATED,
    raise_panic,
)
from penstock.quic.outbox import Data, Outbox, StreamRefused
from penstock.quic.packets import CID_BYTES, VERSION, Address, LongHeader, next_packet, read_retry, read_versions
from penstock.quic.released import released_core
from penstock.quic.settings import QuicSettings
from penstock.quic.tls import TlsSettings

CONNECTION_REFUSED: Final = 2
INTERNAL_ERROR: Final = 1
DATAGRAMS_PER_KEY_MAX: Final = 1 << 22
"""Half of what may be encrypted with one AES key (RFC 9001, section 6.6); the library does not count."""
UNEXPECTED_MESSAGE: Final = 0x10A
"""The TLS alert of that name, as QUIC says it."""
CRYPTO_FRAME: Final = 6
CLOCK_AHEAD_S_MAX: Final = 0.001
"""How far the clock of the core may be ahead: event loops count in milliseconds."""
NEVER_S: Final = math.inf
MANY: Final = 2
"""Frames, or frames of a kind of which there may be many."""


class QuicCore:
    """One connection, driven as the module's docstring says."""

    def __init__(
        self,
        settings: QuicSettings,
        tls: TlsSettings,
        ids: ConnectionIds,
        *,
        is_client: bool,
        address: Address,
        now_s: float,
    ) -> None:
        """For `connect` and `accept`."""
        self._settings = settings
        self._tls = tls
        self.ids = ids
        self.is_client = is_client
        self._core = make_packet_core(settings, ids, is_client=is_client, address=address, now_s=now_s)
        self._handshake: Handshake | None = Handshake(self._core, settings, tls, ids, is_client=is_client)
        self.is_established = False
        """Whether the handshake is complete."""
        self._is_confirmed = not is_client
        """Whether the peer is known to have completed the handshake too, which a server knows by completing it."""
        self._agreed = Agreed()
        self.closed: Closed | None = None
        """Why the connection ended, once the event that says so was taken."""
        self._early: list[Event] = []
        """Events of the handshake, which are taken from the core between packets."""
        self._next: Event | None = None
        """An event that was taken from the core with the one before it."""
        self._under_key = 0
        """Datagrams sent since we last updated the key."""
        self.outbox = Outbox(settings.datagram_bytes, settings.send_window_bytes)
        self._room_bytes = -1
        """What may be given to the core before datagrams are next made; -1 while that is not known."""
        self._datagrams_max = 1
        """How many could be made the last time."""
        self.waiting_events = 0
        """About how many wait to be taken. Flow control bounds only data: what other frames bring waits too."""
        self._fins = LateFins()
        self.frames = PendingFrames(settings.datagram_bytes)
        self._core_s = now_s
        """The time that the core was told last, which may be ahead."""
        self.has_news = True
        """Whether events may wait to be taken."""
        self.may_send = True
        """Whether there may be something to send besides acknowledgements, and what is due by a timer."""
        self._took_data = False
        """Whether stream data was taken since datagrams were last made: credit may be due to the peer."""
        self._given = MANY
        """Frames that the core was given since datagrams were last made: 1 if that was some data of one stream, else MANY."""
        self.is_sure = True
        """Whether the core has nothing to send for now: it said so, or left room in the last datagram."""
        self._cuts = False
        """Whether a RESET_STREAM or STOP_SENDING may be in flight: its acknowledgement lets the other one of its stream be sent."""
        self._losses_noted = 0
        self.deadline_s = NEVER_S
        """When the next timer is due, as of the last check."""

    @classmethod
    def connect(cls, settings: QuicSettings, tls: TlsSettings, address: Address, now_s: float) -> Self:
        """Return a client's connection, with its first flight ready to be taken."""
        destination = os.urandom(CID_BYTES)
        ids = ConnectionIds(os.urandom(CID_BYTES), destination, destination)
        core = cls(settings, tls, ids, is_client=True, address=address, now_s=now_s)
        assert core._handshake is not None
        core._handshake.start()
        return core

    @classmethod
    def accept(
        cls,
        settings: QuicSettings,
        tls: TlsSettings,
        header: LongHeader,
        address: Address,
        now_s: float,
        *,
        local_cid: bytes,
        original_destination_cid: bytes | None = None,
    ) -> Self:
        """Return a server's connection for a client whose first packet has this header; the packet itself is yet to be received.

        After a Retry `local_cid` is the id that it gave the client, and `original_destination_cid` the one the client used before it.
        """
        initial = header.destination_cid
        ids = ConnectionIds(local_cid, initial, original_destination=initial, peer=header.source_cid)
        if original_destination_cid is not None:
            ids = ids._replace(original_destination=original_destination_cid, retry_source=initial)
        return cls(settings, tls, ids, is_client=False, address=address, now_s=now_s)

    # -- state ------------------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether either side has closed the connection; the events that say so may still wait."""
        return self.closed is not None or self._core.state in CLOSED_STATES

    @property
    def timed_out(self) -> bool:
        """Whether it was closed because nothing was received for too long."""
        return self.close_reason == IDLE_REASON

    @property
    def close_code(self) -> int:
        return 0 if self.closed is None else self.closed.code

    @property
    def close_reason(self) -> str:
        """The reason phrase of the side that closed the connection; may be empty."""
        return "" if self.closed is None else self.closed.reason

    @property
    def alpn(self) -> str | None:
        """The application protocol that was agreed on."""
        return self._agreed.alpn

    @property
    def peer_certificate_der(self) -> bytes | None:
        """The peer's certificate; a server has it only if it asked for one and accepted it."""
        return self._agreed.peer_certificate_der

    @property
    def idle_s_max(self) -> float:
        """The idle timeout in force: the shorter one of both sides."""
        return min(self._settings.idle_s_max, self._agreed.peer_idle_s_max)

    @property
    def has_authenticated_packet(self) -> bool:
        """Whether any packet was received that decrypted."""
        return self._core.received_authenticated_packet

    @property
    def peer_address(self) -> Address:
        address: Address = self._core.active_path[PATH_REMOTE]
        return address

    @property
    def in_flight_bytes(self) -> int:
        """Sent and not acknowledged."""
        return self._core.bytes_in_flight

    @property
    def losses(self) -> int:
        """Our datagrams that were declared lost over the connection's life."""
        return self._core.loss_total

    @property
    def newest_in_flight(self) -> int:
        """The highest packet number sent and neither acknowledged nor lost; -1 if there is none.

        Only an acknowledgement of that packet or of a later one removes it: a packet is not declared lost before a later one is
        acknowledged (RFC 9002, section 6.1).
        """
        packets = self._core.outstanding_application_packets
        return packets[-1][PACKET_NUMBER] if packets else -1

    @property
    def is_idle(self) -> bool:
        """Whether everything sent was acknowledged and nothing is left to send."""
        if self._core.bytes_in_flight or self.unsent_bytes() or self._fins.held_since_s:
            return False
        timer = self._core.get_timer()
        return timer is None or timer[0] != PACING_TIMER

    # -- in ---------------------------------------------------------------------------------------------------------------

    def receive(self, buffer: bytes, segment_bytes: int, address: Address, now_s: float) -> int:
        """Receive datagrams that arrived together: all of `segment_bytes`, the last one maybe shorter.

        Returns how many packets in them were authentic and new, once the handshake is complete.
        """
        now_s = max(now_s, self._core_s)
        try:
            if self.is_established:
                report = self._core.receive_gro_buffer(buffer, segment_bytes, address, now_s)
                if report[REPORT_EVENTS]:
                    self.waiting_events += report[REPORT_EVENTS]
                    self.has_news = True
                return report[REPORT_ACCEPTED]
            self.has_news = self.may_send = True
            self._given = MANY
            for start in range(0, len(buffer), segment_bytes):
                self._receive_early(buffer[start : start + segment_bytes], address, now_s)
        except BaseException as error:
            raise_panic(error)
            raise
        if self._handshake is not None and self._handshake.complete and not self.is_established:
            self._conclude_handshake()
        return 0

    def _receive_early(self, datagram: bytes, address: Address, now_s: float) -> None:
        """Receive a datagram of the handshake, packet by packet: keys for the second may come from the first."""
        if self.is_client and self._receive_unprotected(datagram, address, now_s):
            return
        start = 0
        while start < len(datagram):
            end, source_cid = next_packet(datagram, start)
            report = self._core.receive_datagram(datagram[start:end], address, now_s, len(datagram))
            if self.ids.peer is None and report[REPORT_ACCEPTED] and source_cid is not None:
                self._learn_peer_cid(source_cid)
            self._take_early_events()
            start = end

    def _learn_peer_cid(self, cid: bytes) -> None:
        assert self._handshake is not None
        self.ids = self.ids._replace(peer=cid)
        self._handshake.learn_peer_cid(cid)

    def _receive_unprotected(self, datagram: bytes, address: Address, now_s: float) -> bool:
        """Receive a Retry or a Version Negotiation packet, which a server may answer the first flight with; False for anything else."""
        if self._core.state != FIRST_FLIGHT or self._core.received_authenticated_packet:
            return False
        versions = read_versions(datagram, self.ids.local, self.ids.initial)
        if versions is not None:
            if VERSION not in versions:
                self.closed = Closed(INTERNAL_ERROR, "the server does not speak QUIC version 1")
            return True
        retry = read_retry(datagram, self.ids.local, self.ids.initial)
        if retry is None or self.ids.retry_source is not None:
            return False
        self.ids = self.ids._replace(initial=retry.source_cid, retry_source=retry.source_cid)
        self._core = make_packet_core(self._settings, self.ids, is_client=True, address=address, now_s=now_s)
        self._core.set_initial_token(retry.token)
        self._handshake = Handshake(self._core, self._settings, self._tls, self.ids, is_client=True)
        self._handshake.start()
        return True

    def take_event(self) -> Event | None:
        """Return the next event; taking one that carries data lets the peer send as much again."""
        if self._early:
            return self._early.pop(0)
        core = self._core
        if self.frames.hold_events and not self.is_closed:
            return None
        while (event := self._next or core.next_event()) is not None:
            self._next = None
            self.waiting_events -= 1
            if event[0] == STREAM_DATA:
                self._took_data = True
                if core.has_events:
                    event, more_events, self._next = join_data(core, event)
                    self.waiting_events -= more_events
                break
            self.may_send, self._given = True, MANY
            if self._is_reported(event):
                break
        if self._next is None and not core.has_events:
            self.waiting_events = 0
            self.has_news = self.frames.events_waited = False
        return event

    def refuse(self, datagram: bytes, address: Address, now_s: float) -> None:
        """Answer the first datagram of a connection by closing it, which costs no key exchange."""
        self._core.receive_datagram(datagram, address, now_s)
        self._core.close(CONNECTION_REFUSED, 0, b"")

    # -- out --------------------------------------------------------------------------------------------------------------

    def must_send(self, now_s: float) -> bool:
        """Return whether `take_datagrams` has to be called now. If not, `deadline_s` is up to date.

        Whatever comes but acknowledgements is itself to be acknowledged. So what it makes the core send waits until that is due, which
        is a millisecond at most and at once for the second of two datagrams.
        """
        core = self._core
        losses = core.loss_total
        if losses != self._losses_noted:
            self._losses_noted = losses
            self.may_send, self._given = True, MANY
        if self.may_send:
            return True
        timer = core.get_timer()
        if timer is None:
            self.deadline_s = NEVER_S
            return self._took_data
        self.deadline_s = timer[1]
        return timer[1] <= now_s or (self._took_data and timer[0] != ACK_TIMER)

    def take_datagrams(self, now_s: float, datagrams_max: int) -> list[tuple[bytes, Address]]:
        """Return what to send now, `datagrams_max` at most."""
        core, outbox, frames, fins = self._core, self.outbox, self.frames, self._fins
        latest_s = now_s + CLOCK_AHEAD_S_MAX
        if now_s < self._core_s:
            now_s = self._core_s
        if fins.held_since_s:
            fins.send_due(core, now_s, is_quiet=False)
        if core.has_events or self._next is not None:
            frames.events_waited = True
        if core.pto_total + core.loss_total != frames.repairs:
            frames.note_repairs(core)
        taken: list[tuple[bytes, Address]] = []
        is_sure = True
        poll: Callable[[float], tuple[Any, ...] | None] = self._poll_early
        if outbox.waiting and datagrams_max:
            outbox.feed(core, now_s, datagrams_max, is_idle=False)
        try:
            if self.is_established:
                poll = core.poll_transmit
                if self._room_bytes > 0:  # data was given to the core, and there is room for it
                    timer = core.get_timer()
                    if timer is not None and timer[0] == ACK_TIMER and timer[1] > now_s:
                        core.handle_timer(timer[1])
            while (left := datagrams_max - len(taken)) > 0:
                transmit = poll(now_s)
                if transmit is not None:
                    taken.append(transmit[:2])
                    if self._given == 1 and not outbox.waiting and not core.get_send_buffer_size(None):
                        is_sure = 2 * len(transmit[0]) < outbox.datagram_bytes
                        break
                    continue
                if outbox.waiting and outbox.feed(core, now_s, left, is_idle=True):
                    continue
                timer = core.get_timer()
                if timer is not None and timer[0] == PACING_TIMER:
                    if not now_s < timer[1] <= latest_s:
                        break
                    now_s = timer[1]
                elif core.bytes_in_flight or not (fins.held_since_s and fins.send_due(core, now_s, is_quiet=True)):
                    break
        except BaseException as error:
            raise_panic(error)
            raise
        self._core_s = now_s
        congestion_room_bytes = core.congestion_window - core.bytes_in_flight
        frames.cut_short = len(taken) >= datagrams_max or congestion_room_bytes < outbox.datagram_bytes
        if frames.datagrams_until_sent:
            frames.after_sending(core, taken)
        self._took_data, self._given, self.is_sure = False, 0, is_sure
        self._room_bytes, self._datagrams_max = -1, datagrams_max
        if outbox.waiting or fins.held_since_s:
            self.may_send = True
            self.get_timer()
        else:
            timer = core.get_timer()
            self.deadline_s = NEVER_S if timer is None else timer[1]
            self.may_send = frames.cut_short or (timer is not None and timer[0] == PACING_TIMER)
        if self._cuts:
            self._cuts = core.bytes_in_flight > 0
            self.may_send |= self._cuts
        self._under_key += len(taken)
        if self._under_key >= DATAGRAMS_PER_KEY_MAX and self._is_confirmed:
            self._update_key()
        return taken

    def _update_key(self) -> None:
        try:
            self._core.request_key_update()
        except (RuntimeError, ValueError):
            return  # the previous update is not acknowledged yet, or the peer has just begun one
        self._under_key = 0

    def _poll_early(self, now_s: float) -> tuple[Any, ...] | None:
        """Return the next datagram of a handshake, or None if the anti-amplification limit leaves no room for one."""
        try:
            return self._core.poll_transmit(now_s)
        except RuntimeError as error:
            if str(error) != NO_ROOM_FOR_A_PACKET:
                raise
            return None

    def unsent_bytes(self, stream_id: int | None = None) -> int:
        """Return how much of what was given to `send` is not on the wire yet; on all streams if none is named."""
        waiting_bytes = self.outbox.size_bytes if stream_id is None else self.outbox.size_of(stream_id)
        return waiting_bytes + self._core.get_send_buffer_size(stream_id)

    def get_timer(self) -> float | None:
        """Return when to call `handle_timer`."""
        timer = self._core.get_timer()
        self.deadline_s = at_s = NEVER_S if timer is None else timer[1]
        for ours_s in (self.outbox.look_again_s, self._fins.due_s):
            if ours_s is not None and ours_s < at_s:
                self.deadline_s = at_s = ours_s
        return None if at_s == NEVER_S else at_s

    def ask_again(self) -> None:
        """Let the core be asked for datagrams until it has none; for when that is not known."""
        self.may_send, self._given, self.is_sure = True, MANY, True

    def handle_timer(self, now_s: float) -> None:
        self.outbox.look_again_s = None
        self.may_send, self._given = True, MANY
        try:
            self._core.handle_timer(max(now_s, self._core_s))
            if self._handshake is not None:
                self._take_early_events()
            if self._early or self._core.has_events:
                self.has_news = True
        except BaseException as error:
            raise_panic(error)
            raise

    def open_stream(self, *, one_way: bool) -> int:
        """Raises StreamRefused if the peer allows no more streams now."""
        try:
            return self._core.open_stream(one_way)
        except (RuntimeError, ValueError) as error:
            raise StreamRefused(str(error)) from None

    def send(self, stream_id: int, data: Data, end: bool) -> None:
        """Queue data, which must not be changed any more. Raises StreamRefused if our side of the stream has ended."""
        core, outbox = self._core, self.outbox
        if stream_id in self._fins.held_since_s:
            raise StreamRefused("our side of the stream has ended")
        self.may_send = True
        self._given += 1 if data else MANY
        is_end_alone = end and not data and stream_id not in outbox.waiting
        if is_end_alone and self._fins.hold(core, stream_id):
            return
        if is_end_alone or not outbox.waiting:
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
        self.outbox.drop(stream_id)
        self._fins.drop(stream_id)
        try:
            self._core.reset_stream(stream_id, code)
        except (RuntimeError, ValueError):
            return
        self.may_send, self._given, self._cuts = True, MANY, True
        self.frames.reset_requested()

    def stop(self, stream_id: int, code: int) -> None:
        """Ask the peer to end its side of a stream. One that has ended is left as it is."""
        try:
            self._core.stop_sending(stream_id, code)
        except (RuntimeError, ValueError):
            return
        self.may_send, self._given, self._cuts = True, MANY, True
        self.frames.stop_requested()

    def ping(self) -> None:
        """Make the peer send an acknowledgement, which restarts both idle timers. A lost PING is not sent again."""
        self._core.send_ping(0)
        self.may_send, self._given = True, MANY

    def close(self, code: int = 0, reason: str = "") -> None:
        """Close the connection with an application error code."""
        if self.closed is None:
            self._core.close(code, None, reason.encode())
            self.closed = Closed(code, reason)
            self.may_send = True

    def release(self) -> None:
        """Free what the library and the outbox keep for a connection that has ended, and take no more.

        Connections, streams and sessions refer to each other, so that else a garbage collection would free it, maybe minutes later.
        """
        if self.closed is None:
            self.closed = Closed(0, "")
        self.outbox = Outbox(self._settings.datagram_bytes, self.outbox.window_bytes)
        self._fins = LateFins()
        self._handshake = None
        self._early.clear()
        self._next = None
        self.has_news = self.may_send = False
        self._core = released_core(self._core)

    # -- events -----------------------------------------------------------------------------------------------------------

    def _take_early_events(self) -> None:
        """Let the handshake see its messages between two packets; once it is complete, events wait until they are taken."""
        while self._handshake is not None and not self._handshake.complete:
            event = self._core.next_event()
            if event is None:
                return
            if self._is_reported(event):
                self._early.append(event)

    def _is_reported(self, event: Event) -> bool:
        """Handle an event that is the connection's own; return whether it is for its owner."""
        kind = event[0]
        if kind == CRYPTO_DATA:
            self._receive_crypto(*event[1:])
        elif kind == HANDSHAKE_DONE:
            self._is_confirmed = True
            self._core.handshake_confirmed()
        elif kind == PEER_CLOSED:
            self.closed = Closed(event[2], event[4].decode("utf8", "replace"))
        elif kind == PROTOCOL_ERROR:
            self.closed = Closed(event[1], event[3])
        elif kind == STOP_SENDING:
            self.outbox.drop(event[1])
            self._fins.drop(event[1])
            self._cuts = True
            self.frames.peer_stopped()
        elif kind == TERMINATED:
            self.closed = Closed(event[1], event[3].decode("utf8", "replace"))
        return kind in REPORTED

    def _conclude_handshake(self) -> None:
        """Keep what was agreed on. A server then drops its TLS state, which is a fifth of what a connection costs."""
        assert self._handshake is not None
        self.is_established = True
        self._agreed = self._handshake.agreed()
        # The peer may take smaller datagrams than we would send, and the path may.
        datagram_bytes = self._core.active_path[PATH_DATAGRAM_BYTES]
        self.outbox.datagram_bytes = self.frames.datagram_bytes = datagram_bytes
        if not self.is_client:
            self._handshake.release()
            self._handshake = None

    def _receive_crypto(self, epoch: int, offset: int, data: bytes) -> None:
        if self._handshake is None:
            self._core.close(UNEXPECTED_MESSAGE, CRYPTO_FRAME, b"")
            self.closed = Closed(UNEXPECTED_MESSAGE, "a message after the handshake")
            return
        try:
            self._handshake.receive_crypto(epoch, offset, data)
        except QuicTlsBridgeError as error:
            self._core.close(error.error_code, int(error.frame_type), error.reason_phrase.encode())
            self.closed = Closed(error.error_code, error.reason_phrase)
