"""Replies in the order of their requests, for protocols that answer pipelined requests.

A request reserves its place when it is started and fills it when it is done; what stands ready at the front leaves. Replies that
become ready together leave as one send, because a send costs more than a reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

GATHERED_BYTES_MAX = 64 << 10
"""Ready replies are sent at the latest when they are this large together: more would only add a copy and hide from the connection
how full its send buffer is."""


class ReplySlot:
    """The place of one reply."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data: bytes | None = None


class ReplyQueue:
    __slots__ = ("_call_soon", "_flush_scheduled", "_ready", "_ready_bytes", "_send", "_slots")

    def __init__(self, send: Callable[[bytes], None], call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._send = send
        self._call_soon = call_soon
        self._slots: deque[ReplySlot] = deque()
        self._flush_scheduled = False
        self._ready: list[bytes] = []
        self._ready_bytes = 0

    def reserve(self) -> ReplySlot:
        slot = ReplySlot()
        self._slots.append(slot)
        return slot

    def fill(self, slot: ReplySlot, data: bytes) -> None:
        """The reply is ready; it leaves with the next `flush` after everything in front of it is ready too."""
        slot.data = data
        slots = self._slots
        while slots and (front := slots[0].data) is not None:
            slots.popleft()
            self._ready.append(front)
            self._ready_bytes += len(front)
        if self._ready_bytes >= GATHERED_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Send what is ready."""
        ready = self._ready
        if ready:
            data = ready[0] if len(ready) == 1 else b"".join(ready)
            ready.clear()
            self._ready_bytes = 0
            self._send(data)

    def flush_soon(self) -> None:
        """Send what is ready at the end of this turn of the loop, with what else becomes ready until then."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._call_soon(self._flush_scheduled_replies)

    def _flush_scheduled_replies(self) -> None:
        self._flush_scheduled = False
        self.flush()
