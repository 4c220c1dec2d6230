"""WRITEs over Fujin, from a process of their own: `python -m bench.fujin_load`. A job comes as JSON, its result goes as JSON.

One connection, some streams, and on each as many WRITEs in flight as asked for: whenever replies come, as many requests go out.
Requests are made beforehand; while the clock runs, replies are only counted, and every one of them is looked at afterwards.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from typing import Final

import msgspec
import numpy as np
import uvloop

from bench.dialects import RecordLost
from bench.jobs import answer_job
from bench.load import LoadResult, cpu_seconds
from penstock.clients.quic import QuicConnection, QuicStream, connect_quic
from penstock.protocols.bytes import blob32
from penstock.protocols.fujin.wire import ALPN, CORRELATED, Reply, Request

SILENCE_S_MAX: Final = 60.0
REPLY_BYTES: Final = CORRELATED.size + 1
CONNECT_WRITER: Final = bytes((Request.CONNECT_WRITER,)) + blob32(b"")


class FujinJob(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: int
    topic: str
    payload_bytes: int
    streams: int
    in_flight: int
    """On each stream."""
    warm_up_s: float = 0.5
    seconds: float = 2.0
    server_pid: int


class _Writer:
    """One stream: how far it got in its requests, and what it received."""

    def __init__(self, load: _Load, job: FujinJob) -> None:
        self._load = load
        self._in_flight = job.in_flight
        value = os.urandom(job.payload_bytes)
        requests = [
            CORRELATED.pack(Request.WRITE, number) + blob32(job.topic.encode()) + blob32(value)
            for number in range(job.in_flight)
        ]
        self._request_bytes = len(requests[0])
        self._ring = b"".join(requests) * 2
        self._next = 0
        self.sent = 0
        self.replies = 0
        self.received: list[bytes] = []
        self._received_bytes = 0
        self._stream: QuicStream

    def open(self, connection: QuicConnection) -> None:
        self._stream = connection.open_stream(on_data=self._take)
        self._stream.send(CONNECT_WRITER)

    def begin(self) -> None:
        self._send(self._in_flight)

    def _send(self, count: int) -> None:
        at = self._next * self._request_bytes
        self._next = (self._next + count) % self._in_flight
        self.sent += count
        self._stream.send(self._ring[at : at + count * self._request_bytes])

    def _take(self, data: bytes) -> None:
        if not data:
            self._load.fail(RecordLost("the broker ended a stream"))
            return
        self.received.append(data)
        self._received_bytes += len(data)
        arrived = self._received_bytes // REPLY_BYTES - self.replies
        self.replies += arrived
        if arrived and self._load.goes_on(arrived):
            self._send(arrived)

    def check(self) -> None:
        """Every reply says that its WRITE was carried out."""
        replies = np.frombuffer(b"".join(self.received), np.uint8)
        rows = replies[: len(replies) // REPLY_BYTES * REPLY_BYTES].reshape(-1, REPLY_BYTES)
        if len(rows) != self.sent or not ((rows[:, 0] == Reply.WRITE) & (rows[:, -1] == 0)).all():
            raise RecordLost(f"{self.sent} WRITEs were sent, and the replies to them are not all good")


class _Load:
    """All streams of one connection, and the clock."""

    def __init__(self, job: FujinJob) -> None:
        self._writers = [_Writer(self, job) for _ in range(job.streams)]
        self._over: asyncio.Future[None]
        self._deadline = self._now = 0.0
        self._owed = self._replies = 0
        self._in_flight = job.in_flight

    def open(self, connection: QuicConnection) -> None:
        for writer in self._writers:
            writer.open(connection)

    async def drive(self, seconds: float) -> tuple[int, float]:
        """WRITEs that were answered, and how long that took."""
        self._over = asyncio.get_running_loop().create_future()
        self._replies, self._owed = 0, len(self._writers) * self._in_flight
        started = self._now = time.perf_counter()
        self._deadline = started + seconds
        for writer in self._writers:
            writer.begin()
        await asyncio.wait_for(self._over, seconds + SILENCE_S_MAX)
        return self._replies, self._now - started

    def goes_on(self, arrived: int) -> bool:
        """Count replies; whether as many WRITEs are to be sent again."""
        self._replies += arrived
        self._now = time.perf_counter()
        if self._now < self._deadline:
            return True
        self._owed -= arrived
        if not self._owed:
            self._over.set_result(None)
        return False

    def fail(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    def check(self) -> int:
        for writer in self._writers:
            writer.check()
        return sum(writer.sent for writer in self._writers)


async def run(job: FujinJob) -> LoadResult:
    load = _Load(job)
    connection = await connect_quic(job.host, job.port, alpn=ALPN, verify=False)
    load.open(connection)
    gc.disable()
    await load.drive(job.warm_up_s)
    server_before, own_before = cpu_seconds(job.server_pid), time.process_time()
    replies, seconds = await load.drive(job.seconds)
    server_after, own_after = cpu_seconds(job.server_pid), time.process_time()
    acknowledged = load.check()
    connection.close()
    return LoadResult(
        records=replies,
        seconds=seconds,
        load_cpu=(own_after - own_before) / seconds,
        server_cpu=max(server_after - server_before, 0.0) / seconds,
        acknowledged={0: acknowledged},
    )


def main() -> None:
    answer_job(FujinJob, lambda job: uvloop.run(run(job)))


if __name__ == "__main__":
    main()
