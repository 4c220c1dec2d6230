"""What has come of a frame that is not whole: kept as it came, and looked at again only once as many bytes are here as it needs at least.

So a peer that drips its frames costs no more than one that pours them, and nothing is allocated by a length that is only announced.
"""

from __future__ import annotations


class Unfinished:
    """Of one direction of one conversation. False while there is nothing."""

    __slots__ = ("_kept", "needed_bytes")

    def __init__(self) -> None:
        self._kept = bytearray()
        self.needed_bytes = 0
        """Counted from where the frame begins; with fewer it is not worth a look."""

    def __len__(self) -> int:
        return len(self._kept)

    def join(self, data: bytes) -> bytes | None:
        """Everything that is to be looked at now, what was kept first; None where more must come before, and all of it is kept."""
        if not self._kept:
            return data
        self._kept += data
        if len(self._kept) < self.needed_bytes:
            return None
        whole = bytes(self._kept)
        self._kept = bytearray()
        return whole

    def keep(self, data: bytes, position: int) -> None:
        """Keep what stands behind a position, if anything does."""
        if position < len(data):
            self._kept += memoryview(data)[position:]
