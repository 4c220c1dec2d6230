"""A FlyMQ session in memory: say bytes, get frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from penstock.protocols.flymq.errors import decode_error
from penstock.protocols.flymq.session import FlyMQ
from penstock.protocols.flymq.wire import HEADER, HEADER_BYTES


class Frame(NamedTuple):
    opcode: int
    payload: bytes

    @property
    def error(self) -> str:
        """The message of an ERROR frame."""
        assert self.opcode == 0xFF, f"no error but opcode {self.opcode:#x}"
        return decode_error(self.payload)


class MemoryConnection:
    """What a session sees of a connection."""

    def __init__(self, peer: str = "192.0.2.1:50000") -> None:
        self.peer = peer
        self.listener = "flymq"
        self.principal_hint: str | None = None
        self.writable = True
        self.has_room = True
        self.sends: list[bytes] = []
        self.held_bytes = 0
        self.held_bytes_peak = 0
        self.pending: list[bool] = []
        self.closing = False
        self.arrived = asyncio.Event()

    def room_for(self, size_bytes: int) -> bool:
        self.writable = self.writable and self.has_room
        return self.has_room

    def promise_room(self, size_bytes: int) -> bool:
        return self.room_for(size_bytes)

    def send(self, data: bytes) -> None:
        assert data
        self.sends.append(data)
        self.arrived.set()

    def close(self) -> None:
        self.closing = True

    def hold(self, size_bytes: int) -> None:
        assert size_bytes > 0
        self.held_bytes += size_bytes
        self.held_bytes_peak = max(self.held_bytes_peak, self.held_bytes)

    def release(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        assert self.held_bytes >= 0

    def set_authenticated(self, authenticated: bool) -> None:
        self.authenticated = authenticated

    def frame_pending(self, pending: bool, kept_bytes: int = 0) -> None:
        self.pending.append(pending)

    def call_soon(self, step: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(step)


class Conversation:
    def __init__(self, flymq: FlyMQ, peer: str = "192.0.2.1:50000") -> None:
        self.connection = MemoryConnection(peer)
        self.session = flymq(self.connection)
        self._buffer = b""

    def say(self, *data: bytes) -> None:
        """One read."""
        self.session.receive(b"".join(data))

    async def replies(self, count: int) -> list[Frame]:
        """The next frames, as soon as there are so many."""
        frames: list[Frame] = []
        while len(frames) < count:
            frame = self._next_frame()
            if frame is None:
                await self.connection.arrived.wait()
                self.connection.arrived.clear()
                continue
            frames.append(frame)
        return frames

    async def ask(self, data: bytes) -> Frame:
        """One request, one reply, and not a byte more."""
        self.say(data)
        [frame] = await self.replies(1)
        assert not self._buffer
        assert not self.connection.sends
        return frame

    def _next_frame(self) -> Frame | None:
        self._buffer += b"".join(self.connection.sends)
        self.connection.sends.clear()
        if len(self._buffer) < HEADER_BYTES:
            return None
        magic, version, opcode, flags, length = HEADER.unpack_from(self._buffer)
        assert (magic, version, flags) == (0xAF, 1, 1)
        end = HEADER_BYTES + length
        if len(self._buffer) < end:
            return None
        payload, self._buffer = self._buffer[HEADER_BYTES:end], self._buffer[end:]
        return Frame(opcode, payload)
