"""Reads a topic from its first record to its last, in a process of its own. Run by the benchmarks as `python -m bench.reader`.

Over a raw socket, the reader asks for the next records as soon as the head of a reply says where they begin, and checks that the
offsets of every reply are the ones it expects. Through our client, it takes the records as a program would.
"""

from __future__ import annotations

import functools
import gc
import socket
import time
from collections.abc import Callable

import msgspec
import numpy as np

import penstock
from bench.dialects import RecordLost
from bench.jobs import answer_job
from bench.load import cpu_seconds
from penstock.protocols.flymq.operations.operation import encode_request
from penstock.protocols.flymq.operations.records import Fetch
from penstock.protocols.flymq.wire import HEADER, HEADER_BYTES

FETCH_RECORDS = 10_000
REPLY_BYTES_MAX = 64 << 20
HEAD_BYTES = HEADER_BYTES + 12
"""Of a reply in the layout of deployed clients: frame header, count, next offset; the records follow."""


class ReadJob(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: int
    topic: str
    payload_bytes: int
    records: int
    """How many the topic holds, all with the same payload size and no key."""
    through_client: bool = False
    server_pid: int


class ReadResult(msgspec.Struct, frozen=True, kw_only=True):
    records: int
    seconds: float
    load_cpu: float
    server_cpu: float

    @property
    def rate(self) -> float:
        return self.records / self.seconds


class RawReader:
    def __init__(self, job: ReadJob) -> None:
        self._job = job
        self._socket = socket.create_connection((job.host, job.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(REPLY_BYTES_MAX)
        self._view = memoryview(self._buffer)
        self._row = np.dtype(
            [("offset", ">u8"), ("key_size", ">u4"), ("value_size", ">u4"), ("value", f"V{job.payload_bytes}")]
        )

    def read_all(self) -> int:
        """Returns how many records came."""
        offset = 0
        self._ask(0)
        while offset < self._job.records:
            self._receive(0, HEAD_BYTES)
            _, _, opcode, _, length = HEADER.unpack_from(self._buffer)
            if opcode != Fetch.opcode:
                raise RecordLost(f"a FETCH from offset {offset} was answered with opcode {opcode:#x}")
            count = int.from_bytes(self._view[HEADER_BYTES : HEADER_BYTES + 4])
            following = int.from_bytes(self._view[HEADER_BYTES + 4 : HEAD_BYTES])
            if following < self._job.records:
                self._ask(following)
            self._receive(HEAD_BYTES, HEADER_BYTES + length)
            rows = np.frombuffer(self._buffer, self._row, count, HEAD_BYTES)
            if not count or HEAD_BYTES + rows.nbytes != HEADER_BYTES + length:
                raise RecordLost(f"a FETCH from offset {offset} brought {count} records in {length} bytes")
            if not (rows["offset"] == np.arange(offset, following)).all():
                raise RecordLost(f"a FETCH from offset {offset} brought other offsets than those up to {following}")
            offset = following
        return offset

    def _ask(self, offset: int) -> None:
        self._socket.sendall(encode_request(Fetch(self._job.topic, 0, offset, FETCH_RECORDS, "")))

    def _receive(self, start: int, stop: int) -> None:
        receive_exactly(self._socket, self._view[start:stop])


def receive_exactly(connection: socket.socket, into: memoryview) -> None:
    """Fill it with what comes next."""
    filled = 0
    while filled < len(into):
        received = connection.recv_into(into[filled:])
        if not received:
            raise RecordLost("the broker closed the connection")
        filled += received


def measured(read: Callable[[], int], server_pid: int) -> ReadResult:
    """What reading takes; `read` returns how many records came."""
    gc.disable()
    server_before, own_before, started = cpu_seconds(server_pid), time.process_time(), time.perf_counter()
    records = read()
    seconds = time.perf_counter() - started
    return ReadResult(
        records=records,
        seconds=seconds,
        load_cpu=(time.process_time() - own_before) / seconds,
        server_cpu=(cpu_seconds(server_pid) - server_before) / seconds,
    )


def read_through_client(job: ReadJob) -> int:
    expected = 0
    with penstock.connect(f"flymq://{job.host}:{job.port}") as client:
        for batch in client.batches(job.topic, start="earliest"):
            if batch[0].offset != expected or batch[-1].offset != expected + len(batch) - 1:
                raise RecordLost(f"offset {batch[0].offset} came where {expected} was due")
            expected += len(batch)
    return expected


def run(job: ReadJob) -> ReadResult:
    read = functools.partial(read_through_client, job) if job.through_client else RawReader(job).read_all
    result = measured(read, job.server_pid)
    if result.records != job.records:
        raise RecordLost(f"{job.records} records were written, {result.records} came back")
    return result


def main() -> None:
    answer_job(ReadJob, run)


if __name__ == "__main__":
    main()
