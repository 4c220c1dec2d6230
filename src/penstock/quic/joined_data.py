"""Data of a stream that several events of the library carry one after the other, taken as one.

An event of the library carries up to 64 KiB. What a session does with data costs a small piece about as much as a large one, and what is
complete in a larger piece need not be kept until its rest is there. This module can go once events of the library carry more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.quic.events import STREAM_DATA, Event

if TYPE_CHECKING:
    from qh3._hazmat import QuicConnectionCore

JOINED_BYTES_MAX: Final = 256 * 1024
"""Nothing more is joined to this much."""


def join_data(core: QuicConnectionCore, event: Event) -> tuple[Event, int, Event | None]:
    """Return an event with the data that follows on its stream, how many events that was in, and an event behind it if one was taken."""
    kind, stream_id, data, end = event
    pieces, size_bytes = [data], len(data)
    following: Event | None = None
    while not end and size_bytes < JOINED_BYTES_MAX:
        following = core.next_event()
        if following is None or following[0] != STREAM_DATA or following[1] != stream_id:
            break
        _, _, data, end = following
        following = None
        pieces.append(data)
        size_bytes += len(data)
    joined = (kind, stream_id, b"".join(pieces), end) if len(pieces) > 1 else event
    return joined, len(pieces) - 1, following
