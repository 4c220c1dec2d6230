"""Reads a topic from its first record to its last over RustLog, in a process of its own: `python -m bench.rustlog_reader`.

All records have one size, so how many a request brings is known beforehand and two requests are kept in flight. Of every reply the
number of records and the next offset are checked.
"""

from __future__ import annotations

import socket

import msgspec

from bench.dialects import RecordLost
from bench.jobs import answer_job
from bench.reader import measured, receive_exactly
from penstock.protocols.rustlog.codec import binary_client, json_client
from penstock.protocols.rustlog.codec.messages import Fetch
from penstock.protocols.rustlog.wire import FETCH_RECORD_COST_BYTES, PAYLOAD_BYTES_MAX

FETCH_RECORDS = 10_000
IN_FLIGHT = 2


class RustLogReadJob(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: int
    topic: str
    payload_bytes: int
    records: int
    dialect: str
    server_pid: int


class Reader:
    def __init__(self, job: RustLogReadJob) -> None:
        self._job = job
        self._json = job.dialect == "json"
        cost_bytes = job.payload_bytes + (0 if self._json else FETCH_RECORD_COST_BYTES)
        self._max_bytes = FETCH_RECORDS * cost_bytes
        self._socket = socket.create_connection((job.host, job.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._view = memoryview(bytearray(4 + PAYLOAD_BYTES_MAX))

    def read_all(self) -> int:
        """Returns how many records came."""
        starts = list(range(0, self._job.records, FETCH_RECORDS))
        for start in starts[:IN_FLIGHT]:
            self._ask(start)
        for number, start in enumerate(starts):
            count, following = self._reply()
            expected = min(FETCH_RECORDS, self._job.records - start)
            if count != expected or following != start + expected:
                raise RecordLost(f"a Fetch from offset {start} brought {count} records up to {following}")
            if number + IN_FLIGHT < len(starts):
                self._ask(starts[number + IN_FLIGHT])
        return self._job.records

    def _ask(self, offset: int) -> None:
        client = json_client if self._json else binary_client
        self._socket.sendall(client.encode_call(Fetch(self._job.topic, 0, offset, self._max_bytes, "")))

    def _reply(self) -> tuple[int, int]:
        receive_exactly(self._socket, self._view[:4])
        length = int.from_bytes(self._view[:4])
        receive_exactly(self._socket, self._view[4 : 4 + length])
        payload = bytes(self._view[4 : 4 + length])
        if self._json:
            return payload.count(b'{"offset":'), json_client.next_offset(payload)
        if payload[0] != 2:
            raise RecordLost(f"a FETCH was answered with {payload[:100]!r}")
        return int.from_bytes(payload[1:5]), binary_client.next_offset(payload)


def main() -> None:
    answer_job(RustLogReadJob, lambda job: measured(Reader(job).read_all, job.server_pid))


if __name__ == "__main__":
    main()
