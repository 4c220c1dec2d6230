"""The protocol inspector: what one connection says, decoded frame by frame.

Listening in costs a connection nothing but the test of one attribute while nobody does. While somebody does, its bytes are noted as they
are and decoded when they are read, in a worker thread. An inspection is bounded in bytes and frames and ends where it reaches a
bound, when its connection ends, and when nobody has read it for a while.

A connection is inspected from its first byte on if the inspection was there before it (`peer` left empty), else from where the next frame
begins.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from penstock.clock import Clock
from penstock.errors import EntryNotFound, InvalidRequest, LimitExceeded
from penstock.inspection import Dissector, DissectorFactory, Frame, View
from penstock.net.limits import AdminLimits
from penstock.net.tap import Tappable
from penstock.workers import Check, Worker

BYTES_MAX: Final = 4 << 20
FRAMES_MAX: Final = 1_000
CHUNKS_MAX: Final = 10_000
"""Reads and sends that are noted."""
STREAMS_MAX: Final = 256
"""Per connection: the first ones are decoded."""
UNWATCHED_S_MAX: Final = 60.0
"""After which an inspection that nobody asks for ends."""
CONNECTIONS_SHOWN_MAX: Final = 1_000

Direction = Literal["received", "sent"]
State = Literal["waiting", "running", "closed", "full", "stopped"]
"""waiting for a connection; running; the connection is closed; a bound is reached; somebody stopped it or nobody asked."""
ACTIVE: Final = frozenset({"waiting", "running"})


class OpenConnection(NamedTuple):
    listener: str
    peer: str
    certificate: str | None


class Seen(NamedTuple):
    """One frame, and when it was read or sent."""

    at_ms: int
    direction: Direction
    stream: int
    frame: Frame


class _Chunk(NamedTuple):
    at_ms: int
    direction: Direction
    stream: int
    data: bytes


class Inspection:
    """Implements `penstock.net.tap.Tap` for one connection."""

    def __init__(self, listener: str, peer: str, view: View, dissectors: DissectorFactory, clock: Clock) -> None:
        self.id = secrets.token_urlsafe(12)
        self.listener = listener
        self.peer = peer
        """Empty while it waits for a connection."""
        self.state: State = "waiting"
        self.frames: list[Seen] = []
        self.more_streams = False
        """The connection has had more streams than are decoded."""
        self.asked_s = clock.monotonic()
        self._connection: Tappable | None = None
        self._view = view
        self._dissectors = dissectors
        self._clock = clock
        self._chunks: deque[_Chunk] = deque()
        """What is not decoded yet."""
        self._size_bytes = 0
        self._count = 0
        self._streams: dict[int, bool] = {}
        """Whether each is decoded; those that were open before are not until a frame begins."""
        self._open: dict[int, Dissector] = {}
        self._decoding = threading.Lock()
        """Held by the worker thread, which continues after the request that started it is cancelled."""

    def attach(self, connection: Tappable) -> None:
        self._connection = connection
        connection.tap = self
        self.peer = connection.peer
        self.state = "running"

    def stop(self, state: State = "stopped") -> None:
        if self.state in ACTIVE:
            self.state = state
        if self._connection is not None:
            self._connection.tap = None
            self._connection = None

    # -- what the connection calls ----------------------------------------------------------------------------------------

    def received(self, data: bytes, stream: int, *, at_start: bool, at_frame: bool) -> None:
        if not self._streams.get(stream):
            if not self._has_room(stream):
                return
            self._streams[stream] = at_start or (at_frame and not self._dissectors.from_start)
        if self._streams[stream]:
            self._note(data, stream, "received")

    def sent(self, data: bytes, stream: int) -> None:
        if stream not in self._streams and not self._dissectors.from_start and self._has_room(stream):
            self._streams[stream] = True  # what is sent are whole frames
        if self._streams.get(stream):
            self._note(bytes(data), stream, "sent")

    def _has_room(self, stream: int) -> bool:
        if len(self._streams) < STREAMS_MAX or stream in self._streams:
            return True
        self.more_streams = True
        return False

    def closed(self) -> None:
        self.stop("closed")

    def _note(self, data: bytes, stream: int, direction: Direction) -> None:
        self._size_bytes += len(data)
        self._count += 1
        if self._size_bytes > BYTES_MAX or self._count > CHUNKS_MAX:
            self.stop("full")
            return
        self._chunks.append(_Chunk(self._clock.now_ms(), direction, stream, data))

    # -- what people ask for ----------------------------------------------------------------------------------------------

    async def decode(self, worker: Worker) -> None:
        """Decode what came since the last time."""
        if self._chunks:
            await worker.run(self._decode)
        if len(self.frames) >= FRAMES_MAX:
            self.stop("full")

    def _decode(self, check: Check) -> None:
        with self._decoding:
            while self._chunks and len(self.frames) < FRAMES_MAX:
                at_ms, direction, stream, data = self._chunks.popleft()
                dissector = self._open.get(stream)
                if dissector is None:
                    dissector = self._open[stream] = self._dissectors(self._view)
                for frame in dissector.received(data) if direction == "received" else dissector.sent(data):
                    self.frames.append(Seen(at_ms, direction, stream, frame))
                    if len(self.frames) >= FRAMES_MAX:
                        self._chunks.clear()
                        return
                    check()
                check()


class Inspector:
    def __init__(
        self,
        listeners: Mapping[str, Any],
        dissectors: Mapping[str, DissectorFactory],
        clock: Clock,
        limits: AdminLimits,
    ) -> None:
        self.limits = limits
        self._listeners = listeners
        self._dissectors = dissectors
        self._clock = clock
        self._inspections: dict[str, Inspection] = {}
        self._timer: asyncio.TimerHandle | None = None

    def connections(self) -> list[OpenConnection]:
        """Return open connections, by listener."""
        found: list[OpenConnection] = []
        for name, listener in self._listeners.items():
            for each in listener.connections:
                if len(found) >= CONNECTIONS_SHOWN_MAX:
                    return found
                found.append(OpenConnection(name, each.peer, each.principal_hint))
        return found

    def start(self, listener: str, peer: str, *, payloads: bool) -> Inspection:
        """Begin to inspect a connection, or the next one of a listener where `peer` is empty.

        Raises InvalidRequest for a listener that is not there, EntryNotFound for such a connection, LimitExceeded.
        """
        if listener not in self._listeners:
            raise InvalidRequest(f"there is no listener {listener[:100]!r}: use one of {', '.join(self._listeners)}")
        self._make_room()
        inspection = Inspection(listener, peer, View(payloads), self._dissectors[listener], self._clock)
        if peer:
            connections: Iterable[Tappable] = self._listeners[listener].connections
            connection = next((each for each in connections if each.peer == peer), None)
            if connection is None:
                raise EntryNotFound(f"listener {listener} has no connection from {peer[:100]}: it may have been closed")
            if connection.tap is not None:
                raise InvalidRequest(f"the connection from {peer} is being inspected already: wait until that ends")
            inspection.attach(connection)
        self._inspections[inspection.id] = inspection
        self._listen()
        self._watch()
        return inspection

    def get(self, inspection_id: str) -> Inspection:
        """Raises EntryNotFound."""
        found = self._inspections.get(inspection_id)
        if found is None:
            raise EntryNotFound("there is no such inspection: it ended a while ago, or the broker was restarted")
        found.asked_s = self._clock.monotonic()
        return found

    def all(self) -> list[Inspection]:
        return list(self._inspections.values())

    def stop(self, inspection_id: str) -> None:
        """End an inspection and forget it. Raises EntryNotFound."""
        self.get(inspection_id).stop()
        del self._inspections[inspection_id]
        self._listen()

    def close(self) -> None:
        for inspection in self._inspections.values():
            inspection.stop()
        self._inspections.clear()
        self._listen()
        if self._timer is not None:
            self._timer.cancel()

    def _make_room(self) -> None:
        if len(self._inspections) < self.limits.inspections_max:
            return
        ended = next((each.id for each in self._inspections.values() if each.state not in ACTIVE), None)
        if ended is None:
            raise LimitExceeded(
                f"{len(self._inspections)} connections are being inspected, the most allowed: stop one of them, or raise "
                "admin.inspections_max"
            )
        del self._inspections[ended]

    def _listen(self) -> None:
        """Watch for new connections on listeners where an inspection waits for one."""
        wanted = {each.listener for each in self._inspections.values() if each.state == "waiting"}
        for name, listener in self._listeners.items():
            if name in wanted:
                listener.on_opened = lambda connection, name=name: self._opened(name, connection)
            elif getattr(listener, "on_opened", None) is not None:
                listener.on_opened = None

    def _opened(self, listener: str, connection: Tappable) -> None:
        for each in self._inspections.values():
            if each.state == "waiting" and each.listener == listener:
                each.attach(connection)
                break
        self._listen()

    def _watch(self) -> None:
        """End inspections that nobody has read recently, and check again while there are any."""
        now_s = self._clock.monotonic()
        for each in self._inspections.values():
            if each.state in ACTIVE and now_s - each.asked_s > UNWATCHED_S_MAX:
                each.stop()
        self._listen()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if any(each.state in ACTIVE for each in self._inspections.values()):
            self._timer = asyncio.get_running_loop().call_later(UNWATCHED_S_MAX / 4, self._watch)
