"""Bytes that were received and are not decoded yet: the start of an incomplete frame, or frames that a decoder left for its next turn.

An incomplete frame is looked at again only once as many bytes are here as it needs at least. So a peer that drips its frames costs no
more than one that sends them whole, and nothing is allocated by a length that is only announced. The bytes are kept in a BytesIO, which
returns them without a copy: 32 MiB more would take 20 ms in the turn that completes a frame.
"""

from __future__ import annotations

import sys
from io import BytesIO
from typing import Final

UNBOUNDED: Final = sys.maxsize
"""For decoders that may decode everything at once: those of clients, who know what they asked for."""


class ReceiveBuffer:
    """Of one direction of one conversation."""

    __slots__ = ("_kept", "kept_bytes", "needed_bytes")

    def __init__(self) -> None:
        self._kept = BytesIO()
        self.kept_bytes = 0
        self.needed_bytes = 0
        """Counted from the start of the buffer; with fewer there is nothing to decode."""

    def join(self, data: bytes) -> bytes | None:
        """Return everything that is to be decoded now, kept bytes first; None if more must come before, and all of it is kept."""
        if not self.kept_bytes:
            return data
        kept = self._kept
        kept.write(data)
        self.kept_bytes += len(data)
        if self.kept_bytes < self.needed_bytes:
            return None
        self._kept = BytesIO()
        self.kept_bytes = 0
        return kept.getvalue()

    def keep(self, data: bytes, position: int) -> None:
        """Keep what follows a position, if anything does."""
        if position < len(data):
            self.kept_bytes += self._kept.write(memoryview(data)[position:])
