"""How long one frame keeps the event loop: CPU time of the loop's thread in the longest of its turns."""

from __future__ import annotations

import asyncio
import gc
import time
from asyncio import events
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import settings

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.errors import ProtocolViolation
from penstock.log.api import TopicConfig
from penstock.log.embedded import EmbeddedEngine
from penstock.net.quic_session import QuicSessionFactory, Stream, StreamSession
from penstock.net.session import Connection, Session, SessionFactory
from penstock.testing.clock import ManualClock
from tests.open_access import OpenAccess
from tests.protocols.transport import PEER, MemoryTransport

READ_BYTES = 256 << 10
"""As much as the network hands on at a time."""
TURN_S_MAX = 0.05 if settings.get_current_profile_name() == "fuzzing" else 0.25
"""No frame may keep the loop for longer. CPU time, so that a busy machine counts as little as possible."""
ATTEMPTS = 3
"""The best of these counts: caches, page faults and garbage of other tests cost something too."""


class Peer(MemoryTransport):
    """What a session sees of a connection, or of a stream, and whether everything it sent is answered."""

    id = 0
    can_receive = True
    unsent_bytes = unacknowledged_bytes = 0

    def __init__(self) -> None:
        super().__init__("fuzz")
        self.can_send = True
        self.writable = True
        self.answered = asyncio.Event()
        self.sent_bytes = 0

    def send(self, data: bytes, *, end: bool = False) -> None:
        self.sent_bytes += len(data)
        self.can_send = not end

    def end(self) -> None:
        self.can_send = False

    def close(self) -> None:
        pass

    def stop_receiving(self, code: int = 0) -> None:
        pass

    def reset(self, code: int = 0) -> None:
        self.can_send = False

    def hold(self, size_bytes: int) -> None:
        super().hold(size_bytes)
        self.answered.clear()

    def release(self, size_bytes: int) -> None:
        super().release(size_bytes)
        if not self.held_bytes:
            self.answered.set()

    def frame_pending(self, pending: bool, kept_bytes: int = 0) -> None:
        pass


class QuicPeer:
    """What a session sees of a QUIC connection."""

    peer = PEER
    listener = "fuzz"
    principal_hint: str | None = None
    alpn: str | None = None
    reading = True

    def open_stream(self, talk: Callable[[Stream], StreamSession], *, one_way: bool = False) -> Stream:
        stream = Peer()
        talk(stream)
        return stream

    def close(self, code: int = 0, reason: str = "") -> None:
        pass


def one_stream(listener: QuicSessionFactory) -> SessionFactory:
    """Connections that have one stream."""

    def session(peer: Connection) -> Session:
        assert isinstance(peer, Peer)
        return listener(QuicPeer()).stream_opened(peer)

    return session


class Bench:
    """A broker on a loop of its own, to which single frames are sent."""

    def __init__(self, directory: Path) -> None:
        self._runner = asyncio.Runner()
        self.clock = ManualClock()
        self._engine = EmbeddedEngine(directory / "data", clock=self.clock)
        self.broker = self._runner.run(self._start())
        gc.collect()
        gc.freeze()  # as the server does

    async def _start(self) -> Broker:
        await self._engine.start()
        broker = Broker(self._engine, clock=self.clock, limits=BrokerLimits(), access=OpenAccess())
        await broker.start()
        await broker.topics.create(ANONYMOUS, "t", TopicConfig())
        return broker

    def close(self) -> None:
        gc.unfreeze()
        self._runner.run(self.broker.close())
        self._runner.run(self._engine.close())
        self._runner.close()

    def turn_s(self, listener: SessionFactory, *before: bytes, frame: bytes) -> float:
        """CPU seconds of the longest turn that one frame takes, sent after some others over a connection of its own."""
        return min(self._attempts_s(listener, before, frame))

    def _attempts_s(self, listener: SessionFactory, before: tuple[bytes, ...], frame: bytes) -> Iterator[float]:
        for _ in range(ATTEMPTS):
            turn_s = self._runner.run(_conversation(listener, before, frame))
            yield turn_s
            if turn_s < TURN_S_MAX / 2:
                return


async def _conversation(listener: SessionFactory, before: tuple[bytes, ...], frame: bytes) -> float:
    peer = Peer()
    session = listener(peer)
    try:
        for each in before:
            await _exchange(peer, session, each)
        with _longest_turn() as longest_s:
            await _exchange(peer, session, frame)
        return max(longest_s)
    finally:
        session.closed()


async def _exchange(peer: Peer, session: Session, frame: bytes) -> None:
    """Send a frame read by read, each in a turn of its own, and wait until all of it is answered."""
    try:
        for start in range(0, len(frame), READ_BYTES):
            await asyncio.sleep(0)
            session.receive(frame[start : start + READ_BYTES])
    except ProtocolViolation:
        pass
    await asyncio.sleep(0)
    if peer.held_bytes:
        await peer.answered.wait()


@contextmanager
def _longest_turn() -> Iterator[list[float]]:
    turns_s = [0.0]
    run = events.Handle._run

    def timed(handle: events.Handle) -> None:
        started_s = time.thread_time()
        run(handle)
        turns_s.append(time.thread_time() - started_s)

    events.Handle._run = timed  # type: ignore[assignment, method-assign]
    try:
        yield turns_s
    finally:
        events.Handle._run = run  # type: ignore[method-assign]
