"""Names for what the QUIC library (qh3) returns by position or as text, each checked by `tests/quic/test_library.py`.

The library's compiled packet core (`QuicConnectionCore`) is driven directly: it has no I/O, no clock and no TLS. It reports in tuples whose
meaning is fixed by position, and some of its errors can only be distinguished by their text. Everything of that kind is named here.
"""

from __future__ import annotations

from typing import Final

# -- the report of `receive_datagram` and `receive_gro_buffer` ---------------------------------------------------------------------------

REPORT_ACCEPTED: Final = 2
"""How many packets were decrypted and new."""
REPORT_EVENTS: Final = 5
"""How many events were added to those that wait. Data that continues that of the last one is added to it."""

# -- the tuple of `active_path` ----------------------------------------------------------------------------------------------------------

PATH_REMOTE: Final = 2
PATH_DATAGRAM_BYTES: Final = 5

# -- packets in flight, in the order they were sent --------------------------------------------------------------------------------------

PACKET_NUMBER: Final = 0

# -- timers, as (kind, deadline) ---------------------------------------------------------------------------------------------------------

PACING_TIMER: Final = "pacing"
"""The pacer allows no datagram before that time. Each call of `poll_transmit` costs it a datagram, also if there is nothing to send."""
ACK_TIMER: Final = "ack_application"
"""An acknowledgement is due then. It is not part of datagrams that are made before, unless `handle_timer` is told of that time first."""

# -- states ------------------------------------------------------------------------------------------------------------------------------

FIRST_FLIGHT: Final = "first_flight"
CLOSED_STATES: Final = frozenset({"closing", "draining", "terminated"})

# -- events: the kind first, then its fields ---------------------------------------------------------------------------------------------

CRYPTO_DATA: Final = "crypto_data"
"""(epoch, offset, data)"""
HANDSHAKE_DONE: Final = "handshake_done"
PEER_CLOSED: Final = "peer_closed"
"""(is application close, code, frame type, reason in UTF-8)"""
PROTOCOL_ERROR: Final = "protocol_error"
"""(code, frame type, reason as text)"""
TERMINATED: Final = "connection_terminated"
"""(code, frame type, reason in UTF-8)"""

# -- texts -------------------------------------------------------------------------------------------------------------------------------

IDLE_REASON: Final = "Idle timeout"
"""The reason of a connection that was terminated because it was idle."""
NO_ROOM_FOR_A_PACKET: Final = "packet builder capacity exhausted"
"""The RuntimeError of `poll_transmit` when the anti-amplification limit leaves too few bytes for a packet; the core continues once the
peer is heard again."""
PANIC: Final = "PanicException"
"""The name of the class of a panic, which derives from BaseException and cannot be imported."""

# -- packet keys -------------------------------------------------------------------------------------------------------------------------

INITIAL_CIPHERS: Final = ("aes-128-gcm", "aes-128-ecb")
"""AEAD and header protection of Initial packets, as `install_packet_key` names them."""


class LibraryPanicked(Exception):
    """The library found itself in a state that it thinks impossible."""


def raise_panic(error: BaseException) -> None:
    """Turn a panic of the library, which is no Exception, into one, so that it ends one connection and no other."""
    if type(error).__name__ == PANIC:
        raise LibraryPanicked(str(error)) from None
