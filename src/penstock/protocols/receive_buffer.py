"""Bytes that were received and are not decoded yet: the start of an incomplete frame, or frames that a decoder left for its next turn.

An incomplete frame is examined again only once as many bytes are here as it needs at least. So a peer that drips its frames costs no
more than one that sends them whole, and nothing is allocated by a length that is only announced. The bytes are kept in a BytesIO, which
returns them without a copy: 32 MiB more would take 20 ms in the turn that completes a frame.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from io import BytesIO
from typing import Final, Generic, TypeVar

from penstock.errors import ProtocolViolation

Message = TypeVar("Message")

UNBOUNDED: Final = sys.maxsize
"""For decoders that may decode everything at once: those of clients, who know what they asked for."""


class ReceiveBuffer:
    """For one direction of one conversation."""

    __slots__ = ("_kept", "kept_bytes", "needed_bytes")

    def __init__(self) -> None:
        self._kept: BytesIO | None = None
        self.kept_bytes = 0
        self.needed_bytes = 0
        """Counted from the start of the buffer; with fewer there is nothing to decode."""

    def join(self, data: bytes) -> bytes | None:
        """Return everything that is to be decoded now, kept bytes first; None if more must come before, and all of it is kept."""
        kept = self._kept
        if kept is None:
            return data
        kept.write(data)
        self.kept_bytes += len(data)
        if self.kept_bytes < self.needed_bytes:
            return None
        self.forget()
        return kept.getvalue()

    def keep(self, data: bytes, position: int) -> None:
        """Keep what follows a position, if anything does."""
        if position < len(data):
            if self._kept is None:
                self._kept = BytesIO()
            self.kept_bytes += self._kept.write(memoryview(data)[position:])

    def forget(self) -> None:
        """Free what is kept."""
        self._kept = None
        self.kept_bytes = 0


class BufferingDecoder(ABC, Generic[Message]):
    """Bytes to messages, for one direction of one conversation. A protocol decodes what is complete in a buffer."""

    __slots__ = ("_buffer", "_messages_max", "more", "partial", "violation")

    def __init__(self, messages_max: int) -> None:
        """Decode at most `messages_max` messages in one `feed`."""
        self._messages_max = messages_max
        self.more = False
        """Whether frames were left undecoded because of that bound: `feed(b"")` continues with them."""
        self.partial = False
        """Whether a frame has begun that is not complete."""
        self._buffer = ReceiveBuffer()
        self.violation: ProtocolViolation | None = None

    @property
    def kept_bytes(self) -> int:
        """Bytes received and not decoded."""
        return self._buffer.kept_bytes

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete. Raises ProtocolViolation if none precedes it."""
        if self.violation is not None:
            raise self.violation
        buffer = self._buffer
        whole = buffer.join(data) if buffer.kept_bytes else data
        if whole is None:
            return []
        self.partial = False
        messages: list[Message] = []
        try:
            position = self._decode(whole, messages)
        except ProtocolViolation as violation:
            self.violation = violation
            if not messages:
                raise
            return messages
        if position < len(whole):
            buffer.keep(whole, position)
            self.partial = True
        return messages

    def forget(self) -> None:
        """Free what is kept: nothing is decoded any more."""
        self._buffer.forget()
        self.partial = False

    @abstractmethod
    def _decode(self, data: bytes, messages: list[Message]) -> int:
        """Append what is complete to `messages`; return where the incomplete rest begins."""
