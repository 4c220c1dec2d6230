"""Idle, partial-frame and unread-answer deadlines without a timer per read.

Reading a clock or arming a timer for each read would cost more than decoding a small frame. So the data path sets flags and adds to counts
it has anyway, and one sweep per listener looks at all connections about once a second: whatever moved since the last pass gets its
time from the pass. A deadline is late by two passes at most, never early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Protocol

from penstock.clock import Clock
from penstock.net.limits import ListenerLimits


class Expiry(Enum):
    """Why a connection's time is up."""

    IDLE = "nothing was received or sent"
    PARTIAL_FRAME = "a frame stayed partial"
    UNREAD = "the peer left its answers unread"


class ConnectionWatch:
    """What one connection did between two passes. The data path writes `received` and the frame fields; only `judge` reads time."""

    __slots__ = (
        "_delivered_before_pressure_bytes",
        "_delivered_bytes",
        "_frame_since_s",
        "_pressure_since_s",
        "_quiet_since_s",
        "is_frame_pending",
        "received",
    )

    def __init__(self, now_s: float) -> None:
        self.received = False
        self.is_frame_pending = False
        self._frame_since_s: float | None = None
        self._quiet_since_s = now_s
        self._delivered_bytes = 0
        self._pressure_since_s: float | None = None
        """Since when others wait for what the peer does not take, or since it was last found to take enough."""
        self._delivered_before_pressure_bytes = 0

    def frame_pending(self, pending: bool) -> None:
        if not pending:
            self._frame_since_s = None
        self.is_frame_pending = pending

    def frame_completed(self) -> None:
        """A whole request arrived: a frame that is pending now began after it."""
        self._frame_since_s = None

    def judge(
        self,
        now_s: float,
        limits: ListenerLimits,
        *,
        reading: bool,
        frame_waits: bool,
        frames_wait: bool,
        owed: bool,
        unsent_bytes: int,
        delivered_bytes: int,
        under_pressure: bool,
    ) -> Expiry | None:
        """Look at what moved since the last pass.

        `reading`: the socket is being read; `frame_waits`: it is not, only because the whole server has too much of partial frames;
        `frames_wait`: such connections exist; `owed`: the peer waits for an answer of ours; `delivered_bytes`: what the kernel has
        taken from us over the connection's life; `under_pressure`: the peer leaves answers unread while others wait for the room that
        they take, or the whole server has too many requests.
        """
        if not (reading or frame_waits):
            self._frame_since_s = (
                None  # we stopped listening, so a frame that stays incomplete is no fault of the peer's
            )
        elif self.is_frame_pending:
            if self._frame_since_s is None:
                self._frame_since_s = now_s
            elif now_s - self._frame_since_s >= limits.frame_s_max(stalled=frames_wait and not self.received):
                return Expiry.PARTIAL_FRAME
        if not under_pressure:
            self._pressure_since_s = None
        elif self._pressure_since_s is None:
            self._pressure_since_s, self._delivered_before_pressure_bytes = now_s, delivered_bytes
        elif now_s - self._pressure_since_s >= limits.under_pressure_s_max:
            if delivered_bytes - self._delivered_before_pressure_bytes < limits.under_pressure_bytes_min:
                return Expiry.UNREAD
            self._pressure_since_s, self._delivered_before_pressure_bytes = now_s, delivered_bytes
        peers_turn = unsent_bytes > 0 or (reading and not owed)
        if self.received or delivered_bytes > self._delivered_bytes or not peers_turn:
            self.received = False
            self._quiet_since_s = now_s
        elif now_s - self._quiet_since_s >= (limits.under_pressure_s_max if under_pressure else limits.idle_s_max):
            return Expiry.UNREAD if unsent_bytes else Expiry.IDLE
        self._delivered_bytes = delivered_bytes
        return None


class Swept(Protocol):
    def sweep(self, now_s: float) -> None: ...


class Sweep:
    """Passes over all connections of one listener at a steady interval."""

    def __init__(self, connections: Callable[[], Iterable[Swept]], clock: Clock, interval_s: float) -> None:
        self._connections = connections
        self._clock = clock
        self._interval_s = interval_s
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def run(self) -> None:
        """One pass. A connection may end during it, hence the copy."""
        now_s = self._clock.monotonic()
        for connection in list(self._connections()):
            connection.sweep(now_s)

    def _tick(self) -> None:
        self.start()
        self.run()
