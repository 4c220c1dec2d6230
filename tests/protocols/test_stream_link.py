"""What nodes say to each other about the stream of a client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import NotLeading, ProtocolViolation
from penstock.net.quic_session import Stream
from penstock.net.session import Introduction, Streams
from penstock.protocols.stream_link import (
    FRAME_BYTES_MAX,
    LOOK_S,
    FrameReader,
    Kind,
    LinkedSession,
    LinkedSessions,
    StreamLink,
    encode,
)
from tests.protocols.transport import MemoryConnection


class Echo:
    """A session that says again what it is told; what it is told with a full stop it owes an answer until it is asked for."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.owed: list[bytes] = []
        self.happened: list[str] = []

    def receive(self, data: bytes) -> None:
        if data.endswith(b"."):
            self.stream.hold(len(data))
            self.owed.append(data)
        else:
            self.stream.send(data)

    def answer(self) -> None:
        data = self.owed.pop()
        self.stream.send(data)
        self.stream.release(len(data))

    def ended(self) -> None:
        self.happened.append("ended")

    def aborted(self, code: int) -> None:
        raise AssertionError("a link that is over is closed")

    def resume(self) -> None:
        self.happened.append("resumed")

    def closed(self) -> None:
        self.happened.append("closed")

    def stop(self) -> None:
        self.happened.append("stopped")
        self.stream.close()


class Linked:
    """A session on the node that leads, and what is said to it and by it."""

    def __init__(self, connection: MemoryConnection, open_session: Callable[..., LinkedSession]) -> None:
        self.connection = connection
        self.session = open_session(connection, self._begin)

    def _begin(self, stream: Stream) -> Echo:
        self.echo = Echo(stream)
        return self.echo

    def say(self, *frames: bytes) -> None:
        self.session.receive(b"".join(frames))

    def said(self) -> list[tuple[Kind, bytes]]:
        sends, self.connection.sends = self.connection.sends, []
        return list(FrameReader().feed(b"".join(sends)))


@pytest.fixture
def sessions() -> LinkedSessions:
    return LinkedSessions()


@pytest.fixture
async def linked(sessions: LinkedSessions) -> Linked:
    return Linked(MemoryConnection("cluster"), sessions.open)


@pytest.mark.parametrize("piece_bytes", [1, 4, 5, 6, 1000])
def test_frames_are_whole_however_they_come(piece_bytes: int) -> None:
    frames = [(Kind.DATA, b"x" * 300), (Kind.DATA, b""), (Kind.ARRIVED, bytes(8)), (Kind.END, b"")]
    data = b"".join(encode(*frame) for frame in frames)
    reader = FrameReader()
    found = [frame for at in range(0, len(data), piece_bytes) for frame in reader.feed(data[at : at + piece_bytes])]
    assert found == frames


@pytest.mark.parametrize("piece_bytes", [1, 4, 5, 6, 1000])
def test_data_is_given_as_it_comes_where_it_need_not_be_whole(piece_bytes: int) -> None:
    frames = [
        (Kind.DATA, b"x" * 300),
        (Kind.ARRIVED, bytes(8)),
        (Kind.DATA, b""),
        (Kind.DATA, b"y" * 20),
        (Kind.END, b""),
    ]
    data = b"".join(encode(*frame) for frame in frames)
    reader = FrameReader(whole=False)
    kinds, given, kept_bytes = [], b"", 0
    for at in range(0, len(data), piece_bytes):
        for kind, payload in reader.feed(data[at : at + piece_bytes]):
            given += payload if kind is Kind.DATA else b""
            if kind is not Kind.DATA:
                kinds.append((kind, payload))
        kept_bytes = max(kept_bytes, len(reader._kept))
    assert given == b"x" * 300 + b"y" * 20
    assert kinds == [(Kind.ARRIVED, bytes(8)), (Kind.END, b"")]
    assert kept_bytes < len(encode(Kind.ARRIVED, bytes(8)))


@pytest.mark.parametrize("head", [b"\x09\0\0\0\0", b"\0" + (FRAME_BYTES_MAX + 1).to_bytes(4, "big")])
def test_what_is_no_frame_is_refused(head: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="a node of another release"):
        list(FrameReader().feed(head))


CLIENT = Introduction("fujin", "192.0.2.7:1234")


async def test_it_is_looked_ever_less_often_what_has_arrived_at_a_client_that_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Unreached:
        def owner(self, shard: int | None) -> None:
            return None

        async def dial(self, introduction: Introduction) -> Streams:
            raise NotLeading("nobody leads")

    delays: list[float] = []
    monkeypatch.setattr(StreamLink, "_look_after", lambda _, delay_s: delays.append(delay_s))
    stream: Any = SimpleNamespace(
        unacknowledged_bytes=100, listener="fujin", peer="192.0.2.1:1", release=lambda _: None
    )
    link: Any = StreamLink(stream, Unreached(), CLIENT, answered=lambda _: None, ended=lambda _: None)
    link._received(encode(Kind.DATA, bytes(100)))
    for _ in range(6):
        link._look(delays[-1])
    assert delays == [LOOK_S * factor for factor in (1, 2, 4, 8, 16, 16, 16)]
    stream.unacknowledged_bytes = 50
    link._look(delays[-1])
    assert delays[-1] == LOOK_S
    link.close()


async def test_answers_are_unacknowledged_until_the_clients_node_says_that_they_have_arrived(linked: Linked) -> None:
    linked.say(encode(Kind.DATA, b"one"), encode(Kind.DATA, b"two"))
    assert linked.said() == [(Kind.DATA, b"one"), (Kind.DATA, b"two")]
    stream: Any = linked.echo.stream
    assert stream.unacknowledged_bytes == 6
    linked.say(encode(Kind.ARRIVED, (4).to_bytes(8, "big")))
    assert stream.unacknowledged_bytes == 2


async def test_a_session_hears_how_its_client_ends(linked: Linked) -> None:
    linked.session.resume()
    linked.say(encode(Kind.END))
    linked.session.closed()
    assert linked.echo.happened == ["resumed", "ended", "closed"]
    linked.echo.stream.send(b"nobody hears this")
    assert linked.said() == []


async def test_a_stream_that_is_closed_ends_once_everything_is_answered(
    linked: Linked, sessions: LinkedSessions
) -> None:
    linked.say(encode(Kind.DATA, b"owed."))
    sessions.stop()
    assert linked.echo.happened == ["stopped"]
    await asyncio.sleep(0)
    assert linked.said() == []
    linked.echo.answer()
    await asyncio.sleep(0)
    assert linked.said() == [(Kind.DATA, b"owed."), (Kind.END, b"")]
    assert linked.connection.closing
    assert linked.connection.held_bytes == 0


async def test_a_reset_says_so_and_ends_the_link(linked: Linked) -> None:
    linked.echo.stream.reset(7)
    linked.echo.stream.end()
    assert linked.said() == [(Kind.RESET, b"")]
    assert linked.connection.closing
    with pytest.raises(ProtocolViolation, match="by ending the connection"):
        linked.say(encode(Kind.RESET))
