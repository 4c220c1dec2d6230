"""What the load generator sends and how it counts what comes back, for each side of a comparison.

All requests of a stream have one size, so any run of them is one slice of a buffer made beforehand. Replies are only counted while the
clock runs; they are kept, and checked afterwards.
"""

from __future__ import annotations

import json
import random
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.protocols.flymq.codec.record_layouts import encode_produce
from penstock.protocols.flymq.operations.records import Produce
from penstock.protocols.flymq.wire import FLAG_BINARY, HEADER, HEADER_BYTES, MAGIC, RECORD_METADATA, VERSION
from penstock.protocols.rustlog.codec.binary_client import encode_produce as encode_batch
from penstock.protocols.rustlog.wire import LENGTH_BYTES, PRODUCED

STREAM_REQUESTS: Final = 1024
"""Requests in the buffer before it starts again."""
STREAM_BATCHES: Final = 16
"""The same where a request is a batch."""


class RecordLost(Exception):
    """What was acknowledged and what is there do not agree; the run is worth nothing."""


class Dialect(ABC):
    """One side's requests and replies."""

    def __init__(self, requests: Sequence[bytes], in_flight: int) -> None:
        self.request_bytes = len(requests[0])
        if any(len(request) != self.request_bytes for request in requests):
            raise ValueError("requests of several sizes")
        self._count = len(requests)
        # The beginning follows the end once more, so that no slice has to wrap.
        repeated = -(-in_flight // self._count)
        self._stream = memoryview(b"".join([*requests, *(list(requests) * repeated)[:in_flight]]))

    def requests(self, first: int, count: int) -> memoryview:
        """The bytes of `count` requests, at most as many as may be in flight."""
        at = first % self._count * self.request_bytes
        return self._stream[at : at + count * self.request_bytes]

    records_per_reply = 1

    def begin(self, connection: socket.socket) -> None:  # noqa: B027 - most have nothing to do
        """What comes before the first request."""

    units_per_reply: int
    """Of what `units` counts; a connection's complete replies are its units divided by this."""

    @abstractmethod
    def units(self, received: bytes) -> int:
        """Something cheap to count of which each reply has the same number: bytes, or line ends."""

    @abstractmethod
    def check(self, received: Sequence[bytes], replies: int, *, whole: bool = True) -> dict[int, int]:
        """Look at every reply of a run, all connections; returns by partition how many records must now be there.

        A run is `whole` when every request was answered: then no offset may be missing among the replies.
        """


class FlyMQProduce(Dialect):
    """PRODUCE of one record a request; `partitions` are taken in turn, `run_length` requests each; -1 lets the broker choose."""

    def __init__(
        self,
        topic: str,
        payload_bytes: int,
        in_flight: int,
        partitions: Sequence[int] = (-1,),
        run_length: int = 1,
        value: bytes | None = None,
        held_before: int = 0,
    ) -> None:
        turns = [partition for partition in partitions for _ in range(run_length)]
        count = STREAM_REQUESTS // len(turns) * len(turns) or len(turns)
        payloads = _payloads(count, payload_bytes) if value is None else [value] * count
        super().__init__(
            [encode_produce(topic, payload, None, turns[i % len(turns)]) for i, payload in enumerate(payloads)],
            in_flight,
        )
        name = topic.encode()
        length = 2 + len(name) + RECORD_METADATA.size
        head = HEADER.pack(MAGIC, VERSION, Produce.opcode, FLAG_BINARY, length) + len(name).to_bytes(2, "big") + name
        self.units_per_reply = HEADER_BYTES + length
        self._held_before = held_before
        self._head = np.frombuffer(head, np.uint8)
        self._reply = np.dtype(
            [
                ("head", "u1", (len(head),)),
                ("partition", ">i4"),
                ("offset", ">u8"),
                ("rest", f"V{RECORD_METADATA.size - 12}"),
            ]
        )

    def units(self, received: bytes) -> int:
        return len(received)

    def check(self, received: Sequence[bytes], replies: int, *, whole: bool = True) -> dict[int, int]:
        rows = [np.frombuffer(data, self._reply, len(data) // self.units_per_reply) for data in received]
        for part in rows:
            if not (part["head"] == self._head).all():
                raise RecordLost("a PRODUCE was answered with something else than its success")
        found = np.concatenate(rows)
        if len(found) != replies:
            raise RecordLost(f"{replies} replies were counted, {len(found)} came")
        partitions, offsets = found["partition"].astype(np.int64), found["offset"].astype(np.int64)
        return _ends(partitions, offsets, whole=whole, first=self._held_before)


def _ends(
    partitions: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], *, whole: bool, first: int = 0
) -> dict[int, int]:
    """By partition, the offset after the last acknowledged one; of a whole run, all from the first on must be there, each once."""
    ends: dict[int, int] = {}
    for partition in np.unique(partitions).tolist():
        own = np.sort(offsets[partitions == partition])
        if whole and not (own == np.arange(first, first + len(own))).all():
            raise RecordLost(f"the offsets acknowledged for partition {partition} have a gap or a repetition")
        ends[partition] = int(own[-1]) + 1
    return ends


class RustLogBatches(Dialect):
    """PRODUCE of many records a request to partition 0, in RustLog's binary dialect."""

    def __init__(self, topic: str, payload_bytes: int, in_flight: int, batch_records: int) -> None:
        payloads = _payloads(STREAM_BATCHES * batch_records, payload_bytes)
        batches = [payloads[at : at + batch_records] for at in range(0, len(payloads), batch_records)]
        super().__init__([encode_batch(topic, 0, batch) for batch in batches], in_flight)
        self.records_per_reply = batch_records

    units_per_reply = LENGTH_BYTES + PRODUCED.size

    def units(self, received: bytes) -> int:
        return len(received)

    def check(self, received: Sequence[bytes], replies: int, *, whole: bool = True) -> dict[int, int]:
        row = np.dtype([("length", ">u4"), ("opcode", "u1"), ("base", ">u8"), ("count", ">u4")])
        found = np.concatenate([np.frombuffer(data, row, len(data) // self.units_per_reply) for data in received])
        if len(found) != replies:
            raise RecordLost(f"{replies} replies were counted, {len(found)} came")
        if not ((found["opcode"] == 1) & (found["count"] == self.records_per_reply)).all():
            raise RecordLost("a PRODUCE was answered with something else than its success")
        batches = found["base"].astype(np.int64) // self.records_per_reply
        ends = _ends(np.zeros(len(found), np.int64), batches, whole=whole)
        return {partition: end * self.records_per_reply for partition, end in ends.items()}


class RedisXadd(Dialect):
    """`XADD stream * v payload`, answered with the entry's id as a bulk string."""

    def __init__(self, stream: str, payload_bytes: int, in_flight: int) -> None:
        head = resp_command(b"XADD", stream.encode(), b"*", b"v", b"").rpartition(b"$0")[0]
        super().__init__(
            [
                b"%b$%d\r\n%b\r\n" % (head, payload_bytes, payload)
                for payload in _payloads(STREAM_REQUESTS, payload_bytes)
            ],
            in_flight,
        )

    units_per_reply = 2

    def units(self, received: bytes) -> int:
        return received.count(b"\n")

    def check(self, received: Sequence[bytes], replies: int, *, whole: bool = True) -> dict[int, int]:
        found = 0
        for data in received:
            lines = data.split(b"\r\n")
            if not all(line.startswith(b"$") for line in lines[:-1:2]):
                raise RecordLost("an XADD was answered with something else than an id")
            found += len(lines) // 2
        if found != replies:
            raise RecordLost(f"{replies} replies were counted, {found} came")
        return {0: found}


class NatsPublish(Dialect):
    """PUB to a stream of JetStream, answered with a message to an inbox: a JSON object with the sequence number.

    For one connection: several would get the replies of each other, as all have this inbox.
    """

    INBOX: Final = b"_INBOX.bench"

    def __init__(self, subject: str, payload_bytes: int, in_flight: int) -> None:
        super().__init__(
            [
                b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), self.INBOX, payload_bytes, payload)
                for payload in _payloads(STREAM_REQUESTS, payload_bytes)
            ],
            in_flight,
        )

    def begin(self, connection: socket.socket) -> None:
        nats_hello(connection, self.INBOX)

    units_per_reply = 1

    def units(self, received: bytes) -> int:
        return received.count(b"}")  # the server may ask PING between replies, which has none

    def check(self, received: Sequence[bytes], replies: int, *, whole: bool = True) -> dict[int, int]:
        answers = [json.loads(line) for data in received for line in data.split(b"\r\n") if line.startswith(b"{")]
        if any("error" in answer for answer in answers):
            raise RecordLost("a PUB was answered with an error")
        sequence = np.array([answer["seq"] for answer in answers], np.int64) - 1
        if len(sequence) != replies:
            raise RecordLost(f"{replies} replies were counted, {len(sequence)} came")
        return _ends(np.zeros(len(sequence), np.int64), sequence, whole=whole)


def nats_hello(connection: socket.socket, inbox: bytes) -> None:
    """Greet a NATS server, and subscribe to an inbox."""
    connection.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB %b 1\r\nPING\r\n' % inbox)
    answer = b""
    while not answer.endswith(b"PONG\r\n"):
        received = connection.recv(1 << 16)
        if not received:
            raise ConnectionError("NATS closed the connection")
        answer += received


def resp_command(*words: bytes) -> bytes:
    """A Redis command on the wire."""
    return b"*%d\r\n%b" % (len(words), b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))


def _payloads(count: int, size: int) -> list[bytes]:
    source = random.Random(count * size)
    return [source.randbytes(size) for _ in range(count)]
