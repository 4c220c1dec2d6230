"""FlyMQ replies about transactions, both ways. Layouts are in `wire`."""

from __future__ import annotations

from penstock.protocols.bytes import ByteReader, text16
from penstock.protocols.flymq.wire import RECORD_METADATA, Opcode, frame

# --- the server's side ---


def encode_transaction(opcode: int, transaction: str, *, done: bool) -> bytes:
    """The reply of TXN_BEGIN, TXN_COMMIT and TXN_ROLLBACK."""
    return frame(opcode, text16(transaction) + bytes((done,)))


def encode_added(topic: str, partition: int, key: bytes | None, value: bytes) -> bytes:
    """Offset and time are 0: the commit decides them."""
    metadata = RECORD_METADATA.pack(partition, 0, 0, len(key) if key else -1, len(value))
    return frame(Opcode.TXN_PRODUCE, text16(topic) + metadata)


# --- the client's side ---


def decode_transaction(payload: bytes) -> tuple[str, bool]:
    reader = ByteReader(payload)
    return reader.text16("transaction"), reader.boolean("success")


def decode_added(payload: bytes) -> int:
    """The partition."""
    reader = ByteReader(payload)
    reader.text16("topic")
    partition: int = RECORD_METADATA.unpack(reader.take(RECORD_METADATA.size, "record metadata"))[0]
    return partition
