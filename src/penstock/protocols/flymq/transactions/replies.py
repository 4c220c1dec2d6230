"""FlyMQ replies about transactions, both ways. Layouts are in `wire`."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import ProtocolViolation
from penstock.protocols.bytes import ByteReader, text16
from penstock.protocols.flymq.wire import FLAG_BINARY, HEADER, MAGIC, RECORD_METADATA, VERSION, Opcode, frame

# --- the server's side ---


def encode_transaction(opcode: int, transaction: str, *, done: bool) -> bytes:
    """The reply of TXN_BEGIN, TXN_COMMIT and TXN_ROLLBACK."""
    return frame(opcode, text16(transaction) + bytes((done,)))


def encode_added(
    topic: str, partitions: Sequence[int], keys: Sequence[bytes | None] | None, values: Sequence[bytes]
) -> bytes:
    """One reply a record. Offset and time are 0: the commit decides them."""
    head = HEADER.pack(MAGIC, VERSION, Opcode.TXN_PRODUCE, FLAG_BINARY, len(text16(topic)) + RECORD_METADATA.size)
    head += text16(topic)
    pack = RECORD_METADATA.pack
    return b"".join(
        [
            head + pack(partition, 0, 0, len(key) if key else -1, len(value))
            for partition, key, value in zip(partitions, keys or (None,) * len(values), values, strict=True)
        ]
    )


# --- the client's side ---


def decode_transaction(payload: bytes) -> tuple[str, bool]:
    reader = ByteReader(payload)
    return reader.text16("transaction"), reader.boolean("success")


def decode_added(payload: bytes) -> int:
    """The partition, which stands at the same distance from the end whatever the topic."""
    if len(payload) < RECORD_METADATA.size + 2:
        raise ProtocolViolation(
            f"buffer too small: record metadata needs {RECORD_METADATA.size} bytes behind the topic"
        )
    partition: int = RECORD_METADATA.unpack_from(payload, len(payload) - RECORD_METADATA.size)[0]
    return partition
