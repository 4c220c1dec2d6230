"""What the client awaits: the reply to one request, or the error that it stands for."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.clients.pipeline import Exchange
from penstock.clients.records import FetchResult, Record
from penstock.errors import (
    InvalidRequest,
    OffsetOutOfRange,
    PartitionNotFound,
    PenstockError,
    ProtocolViolation,
    ServerError,
    TopicExists,
    TopicNotFound,
)
from penstock.protocols.rustlog.codec import binary_client, json_client
from penstock.protocols.rustlog.codec.messages import Reply
from penstock.protocols.rustlog.wire import Dialect, Opcode

OPENINGS: Mapping[str, type[PenstockError]] = {
    "Topic or partition does not exist": PartitionNotFound,
    "partition not found": PartitionNotFound,
    "DescribePartition failed: Partition": PartitionNotFound,
    "DescribeTopic failed: Topic": TopicNotFound,
    "offset out of range": OffsetOutOfRange,
    "Topic '": TopicExists,
    "Invalid partition count": InvalidRequest,
    "Decode error": InvalidRequest,
    "Frame error": InvalidRequest,
    "failed to parse request": InvalidRequest,
    "max frame size exceeded": InvalidRequest,
}
"""How the text of an error begins, and the class it stands for. JSON errors have no code, so both dialects go by the text."""


def error_for(text: str) -> PenstockError:
    """Return the error for a text; ServerError if it is not recognized."""
    for opening, kind in OPENINGS.items():
        if text.startswith(opening):
            return kind(text)
    return ServerError(text)


class Call(Exchange[Reply]):
    """One request with one reply, whose payload is `payload`."""

    __slots__ = ("_dialect", "_opcode", "payload")

    def __init__(self, data: bytes, opcode: Opcode, dialect: Dialect, *, timeout_s: float, repeatable: bool) -> None:
        super().__init__(data, replies=1, timeout_s=timeout_s, repeatable=repeatable)
        self._opcode = opcode
        self._dialect = dialect
        self.payload = b""

    def accept(self, message: Reply, first: int, count: int) -> None:
        if message.opcode == Opcode.ERROR:
            decode = json_client.decode_error if message.dialect is Dialect.JSON else binary_client.decode_error
            self.fail(error_for(decode(message.payload).message))
        elif message.opcode == self._opcode and message.dialect is self._dialect:
            self.payload = message.payload
        else:
            raise ProtocolViolation(
                f"expected a reply to {self._opcode.name} in {self._dialect.value}, "
                f"got {message.opcode.name} in {message.dialect.value}"
            )


class EncodedFetch:
    """A FETCH reply as it came."""

    __slots__ = ("_dialect", "_partition", "_payload", "_topic", "next_offset")

    def __init__(self, topic: str, partition: int, payload: bytes, dialect: Dialect) -> None:
        self._topic = topic
        self._partition = partition
        self._payload = payload
        self._dialect = dialect
        json = dialect is Dialect.JSON
        self.next_offset = json_client.next_offset(payload) if json else binary_client.next_offset(payload)

    def decode(self) -> FetchResult:
        decode = json_client.decode_fetched if self._dialect is Dialect.JSON else binary_client.decode_fetched
        fetched, topic, partition = decode(self._payload), self._topic, self._partition
        records = [
            Record(topic, partition, offset, None, value)
            for offset, value in zip(fetched.offsets, fetched.values, strict=True)
        ]
        return FetchResult(records, fetched.next_offset)
