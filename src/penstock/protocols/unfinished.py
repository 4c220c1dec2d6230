"""What has come of a frame that is not whole: kept as it came, and looked at again only once as many bytes are here as it needs at least.

So a peer that drips its frames costs no more than one that pours them, and nothing is allocated by a length that is only announced.
The bytes are kept in a BytesIO, which hands them out without a copy: 32 MiB more would take 20 ms in the turn that completes a frame.
"""

from __future__ import annotations

from io import BytesIO


class Unfinished:
    """Of one direction of one conversation. False while there is nothing."""

    __slots__ = ("_kept", "needed_bytes")

    def __init__(self) -> None:
        self._kept = BytesIO()
        self.needed_bytes = 0
        """Counted from where the frame begins; with fewer it is not worth a look."""

    def __len__(self) -> int:
        return self._kept.tell()

    def join(self, data: bytes) -> bytes | None:
        """Everything that is to be looked at now, what was kept first; None where more must come before, and all of it is kept."""
        kept = self._kept
        if not kept.tell():
            return data
        kept.write(data)
        if kept.tell() < self.needed_bytes:
            return None
        self._kept = BytesIO()
        return kept.getvalue()

    def keep(self, data: bytes, position: int) -> None:
        """Keep what stands behind a position, if anything does."""
        if position < len(data):
            self._kept.write(memoryview(data)[position:])
