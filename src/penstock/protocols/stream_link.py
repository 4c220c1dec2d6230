"""Streams of QUIC whose sessions are on another node: what a client says on one there, and what is answered, over a link.

Each side says in frames what has happened to the stream: a u8 kind, a u32 length, and so many bytes. Answers are sent on as they come, or
whole where others may be sent between them. The node of the client tells how much of them has arrived there, because that is what settles
deliveries that nobody acknowledges.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct
from typing import Any, Final, Protocol, cast

from penstock.errors import ProtocolViolation
from penstock.net.quic_session import Stream, StreamSession
from penstock.net.session import Connection, Introduction
from penstock.protocols.node_link import DialNode, NodeLink

LOOK_S: Final = 0.01
LOOK_S_MAX: Final = 0.16
"""How soon it is looked what has arrived, while something has not: twice as late each time that nothing more has."""
LOST: Final = 1
"""The code of a reset because the node at the other end was lost."""
FRAME_BYTES_MAX: Final = 64 << 20
_HEAD: Final = Struct(">BI")
_ARRIVED: Final = Struct(">Q")


class Kind(IntEnum):
    DATA = 0
    END = 1
    """The sender's side of the stream has ended in good order."""
    RESET = 2
    ARRIVED = 3
    """How many bytes of answers have arrived at the client."""
    STOPPING = 4
    """The client's node stops."""


def encode(kind: Kind, payload: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(payload)) + payload


class FrameReader:
    """Bytes to frames; of those of data, where not whole ones are asked for, each part as it comes."""

    def __init__(self, *, whole: bool = True) -> None:
        self._whole = whole
        self._missing_bytes = 0
        """Of the frame of data whose first part was given."""
        self._kept = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """Iterate over what has come. Raises ProtocolViolation."""
        if self._missing_bytes:
            part, data = data[: self._missing_bytes], data[self._missing_bytes :]
            self._missing_bytes -= len(part)
            yield Kind.DATA, part
        kept = self._kept
        kept += data
        while len(kept) >= _HEAD.size:
            number, length = _HEAD.unpack_from(kept)
            if number > max(Kind) or length > FRAME_BYTES_MAX:
                raise ProtocolViolation(f"a node of another release: it says {number} with {length} bytes of a stream")
            end = _HEAD.size + length
            if len(kept) < end:
                if self._whole or number != Kind.DATA or len(kept) == _HEAD.size:
                    return
                self._missing_bytes, end = end - len(kept), len(kept)
            payload = bytes(memoryview(kept)[_HEAD.size : end])
            del kept[:end]
            yield Kind(number), payload


class StreamLink:
    """Of a client's stream, to its session on another node. `answered` is given answers, whole ones if asked for; `ended` is told
    that there are no more: True if the session has ended its side in good order."""

    def __init__(
        self,
        stream: Stream,
        dial: DialNode,
        introduction: Introduction,
        *,
        answered: Callable[[bytes], None],
        ended: Callable[[bool], None],
        whole: bool = True,
    ) -> None:
        self._stream = stream
        self._answered = answered
        self._ended = ended
        self._frames = FrameReader(whole=whole)
        self._sent_bytes = 0
        self._arrived_bytes = 0
        self._looking: asyncio.TimerHandle | None = None
        self._link = NodeLink(stream, dial, introduction, received=self._received, ended=self._lost)

    def send(self, data: bytes, held_bytes: int) -> None:
        """Have the session receive bytes for which so many are held."""
        self._tell_arrived()
        self._link.send(encode(Kind.DATA, data), held_bytes)

    def tell(self, kind: Kind) -> None:
        self._tell_arrived()
        self._link.send(encode(kind), 0)

    def resume(self) -> None:
        self._link.resume()

    def close(self) -> None:
        """The stream is over: whoever had something of it at the other end gives that back."""
        if self._looking is not None:
            self._looking.cancel()
        self._link.close()

    def _received(self, data: bytes) -> None:
        try:
            for kind, payload in self._frames.feed(data):
                if kind is Kind.DATA:
                    self._sent_bytes += len(payload)
                    self._answered(payload)
                else:
                    self.close()
                    self._ended(kind is Kind.END)
                    return
        except ProtocolViolation as error:
            raise OSError(str(error)) from error
        if self._looking is None and self._sent_bytes:
            self._look_after(LOOK_S)

    def _look_after(self, delay_s: float) -> None:
        self._looking = asyncio.get_running_loop().call_later(delay_s, self._look, delay_s)

    def _look(self, waited_s: float) -> None:
        self._looking = None
        before_bytes = self._arrived_bytes
        self._tell_arrived()
        if self._arrived_bytes < self._sent_bytes:
            self._look_after(LOOK_S if self._arrived_bytes > before_bytes else min(2 * waited_s, LOOK_S_MAX))

    def _tell_arrived(self) -> None:
        arrived_bytes = self._sent_bytes - self._stream.unacknowledged_bytes
        if arrived_bytes > self._arrived_bytes:
            self._arrived_bytes = arrived_bytes
            self._link.send(encode(Kind.ARRIVED, _ARRIVED.pack(arrived_bytes)), 0)

    def _lost(self) -> None:
        self.close()
        self._ended(False)


class LinkedStream:
    """Implements `penstock.net.quic_session.Stream` over the connection of another node."""

    id = 0
    can_receive = True
    unsent_bytes = 0

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sent_bytes = 0
        self._held_bytes = 0
        self._is_closing = False
        self.arrived_bytes = 0
        self.can_send = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    @property
    def unacknowledged_bytes(self) -> int:
        return self._sent_bytes - self.arrived_bytes

    def send(self, data: bytes, *, end: bool = False) -> None:
        if data and self.can_send:
            self._sent_bytes += len(data)
            self._connection.send(encode(Kind.DATA, data))
        if end:
            self.end()

    def end(self) -> None:
        self._end(Kind.END)

    def reset(self, code: int = 0) -> None:
        self._end(Kind.RESET)

    def _end(self, how: Kind) -> None:
        if self.can_send:
            self.can_send = False
            self._connection.send(encode(how))
            self._connection.close()

    def stop_receiving(self, code: int = 0) -> None:
        """The end of our side, which comes with it, ends the other."""

    def close(self) -> None:
        self._is_closing = True
        self._end_soon()

    def hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self._connection.hold(size_bytes)

    def release(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self._connection.release(size_bytes)
        if self._is_closing:
            self._end_soon()

    def _end_soon(self) -> None:
        """End our side if everything is answered: later, because whoever calls may be about to send."""
        asyncio.get_running_loop().call_soon(self._end_if_answered)

    def _end_if_answered(self) -> None:
        if not self._held_bytes:
            self.end()


class Talk(StreamSession, Protocol):
    def stop(self) -> None:
        """The client's node stops, or this one: end in good order."""


class LinkedSession:
    """Implements `penstock.net.session.Session`: a stream's session for the connection of the client's node."""

    def __init__(
        self, connection: Connection, begin: Callable[[Stream], Talk], forget: Callable[[LinkedSession], None]
    ) -> None:
        """`forget` is called when it is over."""
        self._forget = forget
        self._stream = LinkedStream(connection)
        self._frames = FrameReader()
        self._session = begin(cast(Stream, self._stream))

    def receive(self, data: bytes) -> None:
        for kind, payload in self._frames.feed(data):
            if kind is Kind.DATA:
                self._session.receive(payload)
            elif kind is Kind.END:
                self._session.ended()
            elif kind is Kind.ARRIVED:
                (self._stream.arrived_bytes,) = _ARRIVED.unpack(payload)
            elif kind is Kind.STOPPING:
                self._session.stop()
            else:
                raise ProtocolViolation("a node ends the streams of its clients by ending the connection")

    def resume(self) -> None:
        self._session.resume()

    def closed(self) -> None:
        self._forget(self)
        self._stream.can_send = False
        self._session.closed()

    def stop(self) -> None:
        self._session.stop()


class LinkedSessions:
    """Those of one protocol."""

    def __init__(self) -> None:
        self._open: set[LinkedSession] = set()

    def open(self, connection: Connection, begin: Callable[[Stream], Talk]) -> LinkedSession:
        session = LinkedSession(connection, begin, self._open.discard)
        self._open.add(session)
        return session

    def stop(self) -> None:
        """This node stops: answer what waits, and take leave."""
        for session in list(self._open):
            session.stop()
