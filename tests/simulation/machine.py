"""What a program gets from its operating system, from the seed instead: time, randomness and sockets.

Clock, disk and threads are handed to the broker. What it and its clients take from the system directly is replaced here, at the edge of
the process, for as long as a simulation runs; so nothing that is added later escapes it unnoticed.

One thing does: the key exchange of the QUIC library draws from a generator of its own, in compiled code. So the bytes of datagrams
differ from run to run, while their number, sizes and times do not, with a certificate whose signatures have a fixed size.
"""

from __future__ import annotations

import gc
import os
import random
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Final
from unittest import mock

import structlog

from tests.simulation.loop import SimLoop
from tests.simulation.network import Network
from tests.simulation.trace import Trace

START_MS: Final = 1_767_225_600_000


class SimClock:
    """Wall clock and monotonic time of the machine; the wall clock may jump."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._jumped_ms = 0

    def now_ms(self) -> int:
        return START_MS + round(self._loop.time() * 1000) + self._jumped_ms

    def monotonic(self) -> float:
        return self._loop.time()

    def jump(self, seconds: float) -> None:
        self._jumped_ms += round(seconds * 1000)


@contextmanager
def simulated(loop: SimLoop, network: Network, clock: SimClock, chance: Random, trace: Trace) -> Iterator[None]:
    """Let programs in this process see the simulated machine. What they log is noted in the trace, by name; a log with a
    traceback counts as an error that nobody caught."""

    def note_log(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        trace.note("log", event["event"])
        if event.get("exc_info"):
            loop.errors.append(f"logged: {event['event']}: {traceback.format_exc()}")
        raise structlog.DropEvent

    with (
        mock.patch.multiple(
            time,
            monotonic=loop.time,
            perf_counter=loop.time,
            time=lambda: clock.now_ms() / 1000,
            time_ns=lambda: clock.now_ms() * 1_000_000,
            sleep=lambda _: None,
        ),
        mock.patch.object(os, "urandom", chance.randbytes),
        mock.patch.object(random, "_urandom", chance.randbytes),
        mock.patch.object(socket, "socket", network.socket),
        _collector_off(),
    ):
        configuration = structlog.get_config()
        structlog.configure(processors=[note_log])
        try:
            yield
        finally:
            structlog.configure(**configuration)


@contextmanager
def _collector_off() -> Iterator[None]:
    """When the collector runs depends on what ran before, and finalizers run with it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
