"""The load generator: one process, raw sockets, requests made beforehand. Run by the benchmarks as `python -m bench.load`.

A job comes as JSON on standard input, its result goes as JSON to standard output. Each connection keeps a number of requests in
flight: whenever replies come, as many requests go out. While the clock runs, a wake-up costs one `recv`, one count and one `send`, so
one process keeps either side busy; the result says how much of a processor it used, and how much the server did.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import time
from typing import NamedTuple

import msgspec

from bench.dialects import Dialect, FlyMQProduce, NatsPublish, RedisXadd, RustLogBatches
from bench.jobs import answer_job
from bench.rounds import Measured

RECEIVE_BYTES = 1 << 20
SILENCE_S_MAX = 60.0
"""A server that says nothing for this long while it owes replies has lost them."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to send where. Ends after `seconds`, or after `records` where that is given."""

    side: str
    host: str
    port: int
    name: str
    """Of the topic or the stream."""
    payload_bytes: int
    connections: int
    in_flight: int
    warm_up_s: float = 0.5
    seconds: float = 2.0
    records: int | None = None
    partitions: tuple[int, ...] = (-1,)
    run_length: int = 1
    held_before: int = 0
    """Records that the topic holds already, if it has one partition."""
    batch_records: int = 1
    """Records of a request, where the protocol has batches."""
    value: bytes | None = None
    """The value of every record, where it must mean something; else they are random."""
    server_pid: int
    until_killed: bool = False
    """The server will be killed under this load: report what it acknowledged until then."""


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    records: int
    """Acknowledged while the clock ran."""
    seconds: float
    load_cpu: float
    """Processors in use by the load generator while the clock ran; near 1 it is the bottleneck."""
    server_cpu: float
    acknowledged: dict[int, int]
    """By partition, how many records must be there now, warm-up included."""

    @property
    def rate(self) -> float:
        return self.records / self.seconds


class _Link:
    """One connection: how far it got in the stream of requests, and what it received."""

    __slots__ = ("first", "received", "replies", "sent", "socket", "units", "unsent")

    def __init__(self, connection: socket.socket, first: int) -> None:
        self.socket = connection
        self.first = first
        self.sent = 0
        self.replies = 0
        self.units = 0
        self.unsent: memoryview | None = None
        self.received: list[bytes] = []


class _Drive(NamedTuple):
    replies: int
    seconds: float


class Load:
    def __init__(self, dialect: Dialect, job: Job) -> None:
        self._dialect = dialect
        self._job = job
        self._poll = select.epoll()
        self._buffer = memoryview(
            bytearray(RECEIVE_BYTES)
        )  # made once: the system is slow to give and take back so much
        self._links: dict[int, _Link] = {}
        self._lost = False
        for number in range(job.connections):
            connection = socket.create_connection((job.host, job.port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            dialect.begin(connection)
            connection.setblocking(False)
            # Connections begin at different places of the stream, so that they do not write to one partition in step.
            link = _Link(connection, number * job.in_flight)
            self._links[connection.fileno()] = link
            self._poll.register(connection, select.EPOLLIN)

    def drive(self, seconds: float, records: int | None) -> _Drive:
        """Keep requests in flight, then wait for the last reply."""
        in_flight = self._job.in_flight
        units_of, units_per_reply = self._dialect.units, self._dialect.units_per_reply
        started = now = time.perf_counter()
        deadline = started + (seconds if records is None else 1e9)
        left = records if records is not None else 1 << 60
        replies = owed = 0
        for link in self._links.values():
            count = min(in_flight, left)
            left -= count
            owed += count
            self._send(link, count)
        while owed and not self._lost:
            ready = self._poll.poll(SILENCE_S_MAX)
            if not ready:
                raise TimeoutError(f"no reply for {SILENCE_S_MAX:.0f} s, {owed} are owed")
            for descriptor, events in ready:
                link = self._links[descriptor]
                if events & ~select.EPOLLOUT:
                    chunk = self._receive(link)
                    link.units += units_of(chunk)
                    complete = link.units // units_per_reply
                    arrived = complete - link.replies
                    link.replies = complete
                    replies += arrived
                    owed -= arrived
                    now = time.perf_counter()
                    if arrived and left and now < deadline:
                        count = min(arrived, left)
                        left -= count
                        owed += count
                        self._send(link, count)
                elif link.unsent is not None:
                    self._push(link, link.unsent)
        return _Drive(replies, now - started)

    def check(self) -> dict[int, int]:
        received = [b"".join(link.received) for link in self._links.values()]
        replies = sum(link.replies for link in self._links.values())
        return self._dialect.check(received, replies, whole=not self._lost)

    def _receive(self, link: _Link) -> bytes:
        try:
            chunk = self._buffer[: link.socket.recv_into(self._buffer)].tobytes()
        except ConnectionError:
            chunk = b""
        if chunk:
            link.received.append(chunk)
        elif self._job.until_killed:
            self._lost = True
        else:
            raise ConnectionError("the server closed a connection")
        return chunk

    def _send(self, link: _Link, count: int) -> None:
        data = self._dialect.requests(link.first + link.sent, count)
        link.sent += count
        if link.unsent is not None:
            link.unsent = memoryview(b"".join((link.unsent, data)))
        else:
            self._push(link, data)

    def _push(self, link: _Link, data: memoryview) -> None:
        try:
            sent = link.socket.send(data)
        except BlockingIOError:
            sent = 0
        except ConnectionError:
            if not self._job.until_killed:
                raise
            self._lost = True
            return
        waiting = link.unsent is not None
        link.unsent = data[sent:] if sent < len(data) else None
        if waiting != (link.unsent is not None):
            self._poll.modify(link.socket, select.EPOLLIN | (select.EPOLLOUT if link.unsent is not None else 0))


def cpu_seconds(pid: int) -> float:
    """Processor time a process has used, in user and system mode."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - no time for a Path between two clock readings
            fields = file.read().rpartition(") ")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Meter:
    """Measures from when it is made: time, and processor time of a server and of this process."""

    def __init__(self, server_pid: int) -> None:
        self._pid = server_pid
        self._server_before, self._own_before = cpu_seconds(server_pid), time.process_time()
        self._started = time.perf_counter()

    def measured(self, count: int) -> Measured:
        """What so many records took until now."""
        seconds = time.perf_counter() - self._started
        own, server = time.process_time() - self._own_before, cpu_seconds(self._pid) - self._server_before
        return Measured(count / seconds, server / seconds, own / seconds)


def run(job: Job) -> LoadResult:
    dialect: Dialect
    if job.side == "redis":
        dialect = RedisXadd(job.name, job.payload_bytes, job.in_flight)
    elif job.side == "nats":
        dialect = NatsPublish(job.name, job.payload_bytes, job.in_flight)
    elif job.side == "rustlog":
        dialect = RustLogBatches(job.name, job.payload_bytes, job.in_flight, job.batch_records)
    else:
        dialect = FlyMQProduce(
            job.name, job.payload_bytes, job.in_flight, job.partitions, job.run_length, job.value, job.held_before
        )
    load = Load(dialect, job)
    gc.disable()
    if job.warm_up_s:
        load.drive(job.warm_up_s, None)
    server_before, own_before = cpu_seconds(job.server_pid), time.process_time()
    drive = load.drive(job.seconds, job.records)
    server_after, own_after = cpu_seconds(job.server_pid), time.process_time()
    return LoadResult(
        records=drive.replies * dialect.records_per_reply,
        seconds=drive.seconds,
        load_cpu=(own_after - own_before) / drive.seconds,
        server_cpu=max(server_after - server_before, 0.0) / drive.seconds,
        acknowledged=load.check(),
    )


def main() -> None:
    answer_job(Job, run)


if __name__ == "__main__":
    main()
