"""Transactions. Runs of TXN_PRODUCE are a hot path: they are encoded and decoded by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import lru_cache
from struct import Struct
from typing import Annotated, NamedTuple, Self

from penstock.errors import ProtocolViolation, RecordTooLarge
from penstock.protocols.bytes import I32 as I32_STRUCT
from penstock.protocols.bytes import U32 as U32_STRUCT
from penstock.protocols.bytes import ByteReader, blob32, text16
from penstock.protocols.flymq.operations.layout import (
    I32,
    NOT_SENT,
    TAIL,
    U64,
    AtMost,
    Bool,
    Opaque,
    Str,
)
from penstock.protocols.flymq.operations.limits import TXN_OFFSETS_MAX
from penstock.protocols.flymq.operations.operation import Operation
from penstock.protocols.flymq.operations.records import StoredRecord
from penstock.protocols.flymq.wire import HEADER_BYTES, PARTITION_AUTO, PAYLOAD_BYTES_MAX, RECORD_METADATA, header

_PRODUCE_FIXED_BYTES = 12
"""In a TXN_PRODUCE payload, besides names, key and value: two lengths and the partition."""


class TransactionState(NamedTuple):
    transaction: Str
    done: Bool
    """False: it was committed before, or there is none to roll back."""


class TxnBegin(Operation[TransactionState], opcode=0x40):
    """Begin a transaction."""


class GroupOffset(NamedTuple):
    """The next offset that a group reads."""

    group: Str
    topic: Str
    partition: I32
    offset: U64


class TxnCommit(Operation[TransactionState], opcode=0x41, long_lists=True):
    """Commit a transaction. `done` is false if it was committed before."""

    transaction: Str
    offsets: Annotated[list[GroupOffset], AtMost(TXN_OFFSETS_MAX), TAIL] = field(default_factory=list)
    """Group offsets that are committed with the records."""


class TxnRollback(Operation[TransactionState], opcode=0x42):
    """Roll a transaction back. `done` is false if there is none."""

    transaction: Str


class TxnProduce(Operation[StoredRecord], opcode=0x43, repeatable=False):
    """Add a record to a transaction. The reply has offset 0 and timestamp 0: the commit decides them.

    Consecutive frames with one transaction and one topic are decoded as one request; each has its reply.
    """

    transaction: Str
    topic: Str
    values: Annotated[list[bytes], Opaque("blob value [, blob key, i32 partition]")]
    keys: Annotated[list[bytes | None] | None, NOT_SENT] = None
    """None if no record has one."""
    partitions: Annotated[list[int] | None, NOT_SENT] = None
    """None if every record leaves the choice to the broker."""

    @classmethod
    def read(cls, reader: ByteReader) -> Self:
        run = cls(reader.text16("transaction"), reader.text16("topic"), [])
        value, key, partition = reader.blob32("value"), None, PARTITION_AUTO
        if reader.remaining:
            key, partition = reader.blob32("key") or None, reader.i32("partition")
            reader.finish("partition")
        run.add(value, key, partition)
        return run

    def add(self, value: bytes, key: bytes | None, partition: int) -> None:
        if key is not None and self.keys is None:
            self.keys = [None] * len(self.values)
        if partition != PARTITION_AUTO and self.partitions is None:
            self.partitions = [PARTITION_AUTO] * len(self.values)
        if self.keys is not None:
            self.keys.append(key)
        if self.partitions is not None:
            self.partitions.append(partition)
        self.values.append(value)


# --- runs of TXN_PRODUCE, the server's side ---


def take_alike(run: TxnProduce, data: bytes, first: int, position: int, payload_bytes_max: int) -> int:
    """Add the frames from `position` that have the transaction and topic of the one at `first`; returns where they end.

    A frame that does not fit, or is not right, is left for the long way, which says what is wrong with it.
    """
    names_bytes = 4 + len(run.transaction.encode()) + len(run.topic.encode())
    unpack = _alike(names_bytes).unpack_from
    head_bytes = HEADER_BYTES + names_bytes + 4
    start, names = data[first : first + 4], data[first + HEADER_BYTES : first + HEADER_BYTES + names_bytes]
    end = len(data)
    while position + head_bytes <= end:
        found_start, length, found_names, value_bytes = unpack(data, position)
        frame_end = position + HEADER_BYTES + length
        if found_start != start or found_names != names or frame_end > end or length > payload_bytes_max:
            break
        value_at = position + head_bytes
        value_end = value_at + value_bytes
        key, partition = None, PARTITION_AUTO
        if value_end != frame_end:
            if value_end + 8 > frame_end:
                break
            key_end = value_end + 4 + U32_STRUCT.unpack_from(data, value_end)[0]
            if key_end + 4 != frame_end:
                break
            key, (partition,) = data[value_end + 4 : key_end] or None, I32_STRUCT.unpack_from(data, key_end)
        run.add(data[value_at:value_end], key, partition)
        position = frame_end
    return position


@lru_cache(maxsize=256)
def _alike(names_bytes: int) -> Struct:
    """A TXN_PRODUCE frame up to its value: start, length, names, length of the value."""
    return Struct(f">4sI{names_bytes}sI")


def encode_added(
    topic: str, partitions: Sequence[int], keys: Sequence[bytes | None] | None, values: Sequence[bytes]
) -> bytes:
    """One reply a record. Offset and time are 0: the commit decides them."""
    head = header(TxnProduce.opcode, len(text16(topic)) + RECORD_METADATA.size)
    head += text16(topic)
    pack = RECORD_METADATA.pack
    return b"".join(
        [
            head + pack(partition, 0, 0, len(key) if key else -1, len(value))
            for partition, key, value in zip(partitions, keys or (None,) * len(values), values, strict=True)
        ]
    )


# --- runs of TXN_PRODUCE, the client's side ---


def encode_txn_produces(
    transaction: str,
    topic: str,
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None = None,
    partition: int = PARTITION_AUTO,
) -> bytes:
    """One TXN_PRODUCE frame a record, back to back."""
    names = text16(transaction) + text16(topic)
    place = I32_STRUCT.pack(partition)
    parts: list[bytes] = []
    for row, value in enumerate(values):
        key = keys[row] if keys is not None else None
        tail = blob32(key or b"") + place if key or partition != PARTITION_AUTO else b""
        length = len(names) + 4 + len(value) + len(tail)
        head = header(TxnProduce.opcode, length)
        parts += head, names, U32_STRUCT.pack(len(value)), value, tail
    return b"".join(parts)


def check_txn_record(transaction: str, topic: str, record_bytes: int) -> None:
    """Raises RecordTooLarge if a key and value of this size do not fit into one request."""
    others = len(text16(transaction)) + len(text16(topic)) + _PRODUCE_FIXED_BYTES
    if others + record_bytes > PAYLOAD_BYTES_MAX:
        raise RecordTooLarge(
            f"a record of {record_bytes} bytes does not fit into a FlyMQ frame: "
            f"at most {PAYLOAD_BYTES_MAX - others} bytes of key and value for this topic"
        )


def decode_added(payload: bytes) -> int:
    """The partition, which stands at the same distance from the end whatever the topic."""
    if len(payload) < RECORD_METADATA.size + 2:
        raise ProtocolViolation(
            f"buffer too small: record metadata needs {RECORD_METADATA.size} bytes behind the topic"
        )
    partition: int = RECORD_METADATA.unpack_from(payload, len(payload) - RECORD_METADATA.size)[0]
    return partition
