"""A Felix connection in memory: say bytes on a stream, get messages back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.errors import LimitExceeded
from penstock.net.quic_session import Stream, StreamSession
from penstock.protocols.felix.codec.frames import Frame, FrameDecoder, Reply, decode_reply, encode_frame, encode_message
from penstock.protocols.felix.codec.messages import Auth, Message
from penstock.protocols.felix.session import Felix
from tests.protocols.transport import PEER, MemoryTransport

HIGH_BYTES = 1 << 20


class MemoryStream(MemoryTransport):
    """What a session sees of a stream."""

    def __init__(self, id_: int, *, can_send: bool = True, can_receive: bool = True) -> None:
        super().__init__("felix")
        self.id = id_
        self.can_send = can_send
        self.can_receive = can_receive
        self.stalled = False
        """The peer takes nothing."""
        self.sent: list[bytes] = []
        self.unsent_bytes = self.unacknowledged_bytes = 0
        self.our_side_ended = False
        self.stopped: int | None = None
        self.was_reset: int | None = None
        self.closing = False
        self.changed = asyncio.Event()

    @property
    def writable(self) -> bool:
        return self.unsent_bytes < HIGH_BYTES

    def send(self, data: bytes, *, end: bool = False) -> None:
        assert data
        if not self.can_send or self.was_reset is not None:
            return
        assert not self.our_side_ended
        self.sent.append(data)
        if self.stalled:
            self.unsent_bytes += len(data)
        self.our_side_ended = end
        self.changed.set()

    def end(self) -> None:
        self.our_side_ended = True
        self.changed.set()

    def stop_receiving(self, code: int = 0) -> None:
        self.stopped = code

    def reset(self, code: int = 0) -> None:
        self.was_reset = code
        self.changed.set()

    def close(self) -> None:
        self.closing = True


class MemoryConnection:
    """What a session sees of a connection."""

    def __init__(self) -> None:
        self.peer = PEER
        self.listener = "felix"
        self.principal_hint: str | None = None
        self.alpn: str | None = None
        self.reading = True
        self.opened: list[Talk] = []
        """Streams that the session opened."""
        self.streams_max = 1000
        self.was_closed: tuple[int, str] | None = None

    def open_stream(self, talk: Callable[[Stream], StreamSession], *, one_way: bool = False) -> Stream:
        if len(self.opened) >= self.streams_max:
            raise LimitExceeded("the peer allows no more streams")
        stream = MemoryStream(3 + 4 * len(self.opened), can_receive=not one_way)
        self.opened.append(Talk(stream, talk(stream)))
        return stream

    def close(self, code: int = 0, reason: str = "") -> None:
        self.was_closed = (code, reason)


class Talk:
    """One stream."""

    def __init__(self, stream: MemoryStream, session: StreamSession) -> None:
        self.stream = stream
        self.session = session
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []

    def say(self, *messages: bytes | Message) -> None:
        """One read."""
        self.session.receive(b"".join(each if isinstance(each, bytes) else encode_message(each) for each in messages))

    async def frame(self) -> Frame:
        while not self._frames:
            await self.stream.changed.wait()
            self.stream.changed.clear()
            sent, self.stream.sent = self.stream.sent, []
            for data in sent:
                self._frames += self._decoder.feed(data)
            assert self._decoder.violation is None
        return self._frames.pop(0)

    async def raw(self) -> bytes:
        """The next frame, as bytes."""
        frame = await self.frame()
        return encode_frame(frame.flags, frame.payload)

    async def reply(self) -> Reply:
        return decode_reply(await self.frame())

    async def ask(self, *messages: bytes | Message) -> Reply:
        """One read, one answer."""
        self.say(*messages)
        return await self.reply()

    async def ask_raw(self, *messages: bytes | Message) -> bytes:
        self.say(*messages)
        return await self.raw()

    async def cut_off(self) -> None:
        """Wait until the stream was reset."""
        while self.stream.was_reset is None:
            await self.stream.changed.wait()
            self.stream.changed.clear()

    def ended(self) -> bool:
        """Whether the session has ended its side."""
        return self.stream.our_side_ended

    def silent(self) -> bool:
        """Whether everything received was consumed."""
        return not self._frames and not self.stream.sent

    def drain(self) -> None:
        """The peer reads what was sent."""
        self.stream.unsent_bytes = 0
        self.session.resume()

    def close(self) -> None:
        self.session.closed()
        assert self.stream.held_bytes == 0


class Peer:
    """One connection to a Felix listener."""

    def __init__(self, felix: Felix) -> None:
        self.connection = MemoryConnection()
        self.session = felix(self.connection)
        self._ids = 0

    def open(self, *, one_way: bool = False, **stream: Any) -> Talk:
        opened = MemoryStream(4 * self._ids + (2 if one_way else 0), can_send=not one_way)
        for name, value in stream.items():
            setattr(opened, name, value)
        self._ids += 1
        return Talk(opened, self.session.stream_opened(opened))

    async def log_in(self, tenant_id: str = "t1", token: str = "anything", client_flags: int | None = None) -> Talk:
        talk = self.open()
        given = {} if client_flags is None else {"client_flags": client_flags}
        await talk.ask(Auth(tenant_id=tenant_id, token=token, **given))
        return talk

    @property
    def events(self) -> Talk:
        """The stream that was opened last."""
        return self.connection.opened[-1]
