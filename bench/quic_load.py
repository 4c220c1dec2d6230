"""The client of the bare QUIC transport: sends for a while, or receives so many bytes, and says how fast it went."""

from __future__ import annotations

import time

import msgspec
import uvloop

from bench.jobs import answer_job
from bench.load import cpu_seconds
from penstock.clients.quic import connect_quic
from penstock.quic.settings import QuicSettings

CHUNK = bytes(256 * 1024)


class QuicJob(msgspec.Struct):
    port: int
    certificate: str
    datagram_bytes: int
    to_server: bool
    megabytes: int
    server_pid: int


class QuicResult(msgspec.Struct):
    rate: float
    """Megabytes a second."""
    server_cpu: float
    load_cpu: float


async def run(job: QuicJob) -> QuicResult:
    settings = QuicSettings(datagram_bytes=job.datagram_bytes)
    wanted = job.megabytes * 1_000_000
    async with await connect_quic("127.0.0.1", job.port, ca_file=job.certificate, settings=settings) as connection:
        stream = connection.open_stream()
        server_before, before, started = cpu_seconds(job.server_pid), time.process_time(), time.perf_counter()
        if job.to_server:
            sent = 0
            await stream.write(b">")
            while sent < wanted:
                await stream.write(CHUNK)
                sent += len(CHUNK)
            stream.end()
            moved = int(await stream.read())
            if moved != sent + 1:
                raise RuntimeError(f"{sent} bytes were sent, and {moved} came")
        else:
            moved = 0
            await stream.write(b"<%d" % wanted, end=True)
            while data := await stream.read():
                moved += len(data)
            if moved < wanted:
                raise RuntimeError(f"{wanted} bytes were asked for, and {moved} came")
        seconds = time.perf_counter() - started
        return QuicResult(
            moved / seconds / 1e6,
            (cpu_seconds(job.server_pid) - server_before) / seconds,
            (time.process_time() - before) / seconds,
        )


if __name__ == "__main__":
    answer_job(QuicJob, lambda job: uvloop.run(run(job)))
