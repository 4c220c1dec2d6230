"""Requests at a fixed rate, whatever the server does. Run by the benchmarks as `python -m bench.latency_load`.

A job comes as JSON on standard input, its result goes as JSON to standard output, as with `bench.load`. Every connection sends
its share of requests once a tick. Connections have their ticks one after the other, at equal distances, as clients that do not know of each
other would. Latency counts from the moment at which a tick was due, not from when it was sent: a server that stops for a
while cannot hide it by having stopped the load (coordinated omission). A tick counts once all its replies are there, so the latency is
that of its slowest request. The result also has how late ticks were sent, which is a part of the latency that the load
generator caused. Replies are kept, and checked afterwards.
"""

from __future__ import annotations

import gc
import itertools
import select
import socket
import time
from collections import deque

import msgspec
import numpy as np

from bench.dialects import Dialect, FlyMQProduce, RedisXadd
from bench.jobs import answer_job
from bench.load import RECEIVE_BYTES, SILENCE_S_MAX, cpu_seconds

TICK_S = 0.001
PERCENTILES = (50.0, 90.0, 99.0, 99.9)


class LatencyJob(msgspec.Struct, frozen=True, kw_only=True):
    side: str
    host: str
    port: int
    name: str
    payload_bytes: int
    connections: int
    rate: float
    """Requests a second, over all connections."""
    warm_up_s: float = 0.5
    seconds: float = 2.0
    server_pid: int


class LatencyResult(msgspec.Struct, frozen=True, kw_only=True):
    rate: float
    """Answered a second."""
    percentiles_us: dict[str, float]
    late_us: float
    """By how much ticks were sent late, at the 99th percentile."""
    load_cpu: float
    server_cpu: float
    acknowledged: dict[int, int]
    """By partition, how many records must be there now, warm-up included."""


class Link:
    __slots__ = ("due", "first", "received", "replies", "sent", "socket", "units", "unsent", "waits")

    def __init__(self, connection: socket.socket, first: int) -> None:
        self.socket = connection
        self.first = first
        self.sent = 0
        self.replies = 0
        self.received: list[bytes] = []
        self.units = 0
        self.unsent = b""
        self.waits = False
        """For room to send."""
        self.due: deque[tuple[int, float]] = deque()
        """Of each tick under way: how many replies end it, and when it was due. Bounded by the length of the run."""


class LatencyLoad:
    def __init__(self, dialect: Dialect, job: LatencyJob) -> None:
        self._dialect = dialect
        self._job = job
        self._share = max(1, round(job.rate * TICK_S / job.connections))
        self._tick_s = self._share * job.connections / job.rate
        self._poll = select.epoll()
        self._links: dict[int, Link] = {}
        self.late: list[float] = []
        """By how many seconds each tick of a connection in the last drive was sent late."""
        for number in range(job.connections):
            connection = socket.create_connection((job.host, job.port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            dialect.begin(connection)
            connection.setblocking(False)
            self._links[connection.fileno()] = Link(connection, number)
            self._poll.register(connection, select.EPOLLIN)

    def drive(self, seconds: float) -> tuple[list[float], float]:
        """Returns the latency of each tick of each connection, and how long it took until the last reply."""
        latencies: list[float] = []
        self.late = []
        started = time.perf_counter()
        ticks_left = max(1, round(seconds / self._tick_s)) * len(self._links)
        apart_s = self._tick_s / len(self._links)
        in_turn = itertools.cycle(self._links.values())
        next_tick, waiting = started, 0
        while ticks_left or waiting:
            while ticks_left and time.perf_counter() >= next_tick:
                self.late.append(time.perf_counter() - next_tick)
                self._send(next(in_turn), next_tick)
                waiting += 1
                ticks_left -= 1
                next_tick += apart_s
            ready = self._wait(max(0.0, next_tick - time.perf_counter()) if ticks_left else SILENCE_S_MAX)
            if not ready and not ticks_left:
                raise TimeoutError(f"no reply for {SILENCE_S_MAX:.0f} s")
            for descriptor, events in ready:
                link = self._links[descriptor]
                if events & ~select.EPOLLOUT:
                    waiting -= self._receive(link, latencies)
                if link.unsent:
                    self._push(link)
        return latencies, time.perf_counter() - started

    def _wait(self, seconds: float) -> list[tuple[int, int]]:
        """Wait for replies; epoll itself counts in milliseconds, which is as long as a tick."""
        if seconds:
            select.select([self._poll], [], [], seconds)
        return self._poll.poll(0)

    def _send(self, link: Link, due: float) -> None:
        link.unsent += self._dialect.requests(link.first + link.sent, self._share)
        link.sent += self._share
        link.due.append((link.sent, due))
        self._push(link)

    def _push(self, link: Link) -> None:
        try:
            sent = link.socket.send(link.unsent)
        except BlockingIOError:
            sent = 0
        link.unsent = link.unsent[sent:]
        if bool(link.unsent) != link.waits:
            link.waits = bool(link.unsent)
            self._poll.modify(link.socket, select.EPOLLIN | (select.EPOLLOUT if link.waits else 0))

    def _receive(self, link: Link, latencies: list[float]) -> int:
        received = link.socket.recv(RECEIVE_BYTES)
        if not received:
            raise ConnectionError("the server closed a connection")
        now = time.perf_counter()
        link.received.append(received)
        link.units += self._dialect.units(received)
        link.replies = link.units // self._dialect.units_per_reply
        ended = 0
        while link.due and link.due[0][0] <= link.replies:
            latencies.append(now - link.due.popleft()[1])
            ended += 1
        return ended

    def close(self) -> None:
        for link in self._links.values():
            link.socket.close()
        self._poll.close()

    @property
    def replies(self) -> int:
        return sum(link.replies for link in self._links.values())

    def check(self) -> dict[int, int]:
        """Look at every reply; returns by partition how many records must now be there. Raises RecordLost."""
        received = [b"".join(link.received) for link in self._links.values()]
        return self._dialect.check(received, self.replies)


def run(job: LatencyJob) -> LatencyResult:
    in_flight = max(1, round(job.rate * TICK_S / job.connections))
    dialect: Dialect = (
        RedisXadd(job.name, job.payload_bytes, in_flight)
        if job.side == "redis"
        else FlyMQProduce(job.name, job.payload_bytes, in_flight)
    )
    load = LatencyLoad(dialect, job)
    gc.disable()
    load.drive(job.warm_up_s)
    before, server_before, own_before = load.replies, cpu_seconds(job.server_pid), time.process_time()
    latencies, seconds = load.drive(job.seconds)
    server, own = cpu_seconds(job.server_pid) - server_before, time.process_time() - own_before
    load.close()
    return LatencyResult(
        rate=(load.replies - before) / seconds,
        percentiles_us={
            f"{percentile:g}": float(1e6 * np.percentile(latencies, percentile)) for percentile in PERCENTILES
        },
        late_us=float(1e6 * np.percentile(load.late, 99)),
        load_cpu=own / seconds,
        server_cpu=server / seconds,
        acknowledged=load.check(),
    )


def main() -> None:
    answer_job(LatencyJob, run)


if __name__ == "__main__":
    main()
