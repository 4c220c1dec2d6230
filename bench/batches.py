"""One batch after another on each connection, as transactions or as plain writes. Run by the benchmarks as `python -m bench.batches`.

A connection sends a batch in one write and the next one when the last reply to it has come. A transaction is its records and its commit,
and in the same write the begin of the one after it, so that both ways take one round trip a batch. Requests are made beforehand; only a
transaction's id is put into them.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import socket
import sys
import time
from abc import ABC, abstractmethod

import msgspec

from bench.dialects import RecordLost
from bench.load import cpu_seconds
from penstock.protocols.flymq.codec.record_layouts import encode_produce_many
from penstock.protocols.flymq.operations.operation import decode_reply, encode_reply, encode_request
from penstock.protocols.flymq.operations.records import Produce
from penstock.protocols.flymq.operations.transactions import (
    TransactionState,
    TxnBegin,
    TxnCommit,
    TxnProduce,
    encode_added,
    encode_txn_produces,
)
from penstock.protocols.flymq.wire import FLAG_BINARY, HEADER_BYTES, MAGIC, VERSION

RECEIVE_BYTES = 1 << 20
ID = "txn-" + "0" * 32


class BatchJob(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: int
    topic: str
    payload_bytes: int
    size: int
    """Records in a batch."""
    transactional: bool
    connections: int
    warm_up_s: float = 0.5
    seconds: float = 2.0
    server_pid: int


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    records: int
    """Acknowledged while the clock ran."""
    seconds: float
    load_cpu: float
    server_cpu: float
    acknowledged: int
    """Warm-up included."""

    @property
    def rate(self) -> float:
        return self.records / self.seconds


class _Link(ABC):
    """One connection."""

    def __init__(self, job: BatchJob) -> None:
        self.socket = socket.create_connection((job.host, job.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._size = job.size
        self._values = [os.urandom(job.payload_bytes) for _ in range(job.size)]
        self._received = bytearray()
        self._reply_bytes = len(encode_added(job.topic, [0], None, [b""]))

    def receive(self) -> bool:
        """Whether the replies to the last batch are all in."""
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise RecordLost("the broker closed a connection")
        self._received += data
        if len(self._received) < self._expected_bytes:
            return False
        self._check(bytes(self._received))
        self._received.clear()
        return True

    def _count(self, replies: bytes, opcode: int) -> None:
        found = replies.count(bytes((MAGIC, VERSION, opcode, FLAG_BINARY)))
        if found != self._size:
            raise RecordLost(f"{self._size} records were sent, {found} replies came")

    @property
    @abstractmethod
    def _expected_bytes(self) -> int: ...

    @abstractmethod
    def send(self) -> None:
        """The next batch."""

    @abstractmethod
    def _check(self, replies: bytes) -> None: ...


class Plain(_Link):
    def __init__(self, job: BatchJob) -> None:
        super().__init__(job)
        self._requests = encode_produce_many(job.topic, self._values)

    @property
    def _expected_bytes(self) -> int:
        return self._size * self._reply_bytes

    def send(self) -> None:
        self.socket.sendall(self._requests)

    def _check(self, replies: bytes) -> None:
        self._count(replies, Produce.opcode)


class Transactional(_Link):
    def __init__(self, job: BatchJob) -> None:
        super().__init__(job)
        self._requests = (
            encode_txn_produces(ID, job.topic, self._values)
            + encode_request(TxnCommit(ID))
            + encode_request(TxnBegin())
        )
        self._answer_bytes = len(encode_reply(TxnCommit, TransactionState(ID, True)))
        self.socket.sendall(encode_request(TxnBegin()))
        begun = b""
        while len(begun) < self._answer_bytes:
            begun += self.socket.recv(self._answer_bytes - len(begun))
        self._next_id, _ = decode_reply(TxnCommit, begun[HEADER_BYTES:])

    @property
    def _expected_bytes(self) -> int:
        return self._size * self._reply_bytes + 2 * self._answer_bytes

    def send(self) -> None:
        self.socket.sendall(self._requests.replace(ID.encode(), self._next_id.encode()))

    def _check(self, replies: bytes) -> None:
        self._count(replies, TxnProduce.opcode)
        committed, begun = replies[-2 * self._answer_bytes : -self._answer_bytes], replies[-self._answer_bytes :]
        if committed != encode_reply(TxnCommit, TransactionState(self._next_id, True)):
            raise RecordLost(f"a commit was answered with {committed!r}")
        self._next_id, _ = decode_reply(TxnCommit, begun[HEADER_BYTES:])


def drive(links: list[_Link], seconds: float) -> tuple[int, float]:
    """Batches acknowledged, and how long that took."""
    ready = selectors.DefaultSelector()
    for link in links:
        ready.register(link.socket, selectors.EVENT_READ, link)
    started = now = time.perf_counter()
    batches, owed = 0, len(links)
    for link in links:
        link.send()
    while owed:
        for key, _ in ready.select():
            link = key.data
            if not link.receive():
                continue
            batches += 1
            now = time.perf_counter()
            if now - started < seconds:
                link.send()
            else:
                owed -= 1
    ready.close()
    return batches, now - started


def run(job: BatchJob) -> BatchResult:
    links: list[_Link] = [(Transactional if job.transactional else Plain)(job) for _ in range(job.connections)]
    warm_up, _ = drive(links, job.warm_up_s)
    gc.disable()
    server_before, own_before = cpu_seconds(job.server_pid), time.process_time()
    batches, seconds = drive(links, job.seconds)
    own_seconds, server_seconds = time.process_time() - own_before, cpu_seconds(job.server_pid) - server_before
    for link in links:
        link.socket.close()
    return BatchResult(
        records=batches * job.size,
        seconds=seconds,
        load_cpu=own_seconds / seconds,
        server_cpu=server_seconds / seconds,
        acknowledged=(warm_up + batches) * job.size,
    )


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=BatchJob)
    json.dump(msgspec.to_builtins(run(job)), sys.stdout)


if __name__ == "__main__":
    main()
