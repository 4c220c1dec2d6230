"""A FlyMQ session in memory: say bytes, get frames."""

from __future__ import annotations

from typing import NamedTuple

from penstock.protocols.flymq.errors import decode_error
from penstock.protocols.flymq.session import FlyMQ
from penstock.protocols.flymq.wire import HEADER, HEADER_BYTES
from tests.protocols.transport import PEER, MemoryConnection


class Frame(NamedTuple):
    opcode: int
    payload: bytes

    @property
    def error(self) -> str:
        """The message of an ERROR frame."""
        assert self.opcode == 0xFF, f"no error but opcode {self.opcode:#x}"
        return decode_error(self.payload)


class Conversation:
    def __init__(self, flymq: FlyMQ, peer: str = PEER) -> None:
        self.connection = MemoryConnection("flymq", peer)
        self.session = flymq(self.connection)
        self._buffer = b""

    def say(self, *data: bytes) -> None:
        """One read."""
        self.session.receive(b"".join(data))

    async def replies(self, count: int) -> list[Frame]:
        """The next frames, as soon as this many have arrived."""
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
