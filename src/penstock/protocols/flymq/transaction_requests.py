"""FlyMQ requests about transactions, both ways. Layouts are in `wire`.

The tails are Penstock's own and are sent only where they say something: a deployed broker gets what its own clients send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.errors import RecordTooLarge
from penstock.protocols.bytes import I32, U32, U64, ByteReader, blob32, text16
from penstock.protocols.flymq.transaction_messages import (
    GroupOffset,
    TransactionBody,
    TxnBegin,
    TxnCommit,
    TxnProduce,
    TxnRollback,
)
from penstock.protocols.flymq.wire import (
    FLAG_BINARY,
    HEADER,
    MAGIC,
    PARTITION_AUTO,
    PAYLOAD_BYTES_MAX,
    VERSION,
    Opcode,
    frame,
)

_OFFSET_BYTES_MIN = 16
_PRODUCE_FIXED_BYTES = 12
"""Of a TXN_PRODUCE payload, beside names, key and value: two lengths and the partition."""

# --- the server's side ---


def _begin(reader: ByteReader) -> TxnBegin:
    reader.finish("the header of TXN_BEGIN, which has no payload")
    return TxnBegin()


def _produce(reader: ByteReader) -> TxnProduce:
    body = TxnProduce(reader.text16("transaction"), reader.text16("topic"), reader.blob32("value"))
    if reader.remaining:
        body.key, body.partition = reader.blob32("key") or None, reader.i32("partition")
        reader.finish("partition")
    return body


def _commit(reader: ByteReader) -> TxnCommit:
    body = TxnCommit(reader.text16("transaction"))
    if reader.remaining:
        body.offsets = [
            GroupOffset(reader.text16("group"), reader.text16("topic"), reader.i32("partition"), reader.u64("offset"))
            for _ in range(reader.count32("offsets", _OFFSET_BYTES_MIN))
        ]
        reader.finish("offsets")
    return body


def _rollback(reader: ByteReader) -> TxnRollback:
    body = TxnRollback(reader.text16("transaction"))
    reader.finish("transaction")
    return body


READERS: Mapping[int, Callable[[ByteReader], TransactionBody]] = {
    Opcode.TXN_BEGIN: _begin,
    Opcode.TXN_COMMIT: _commit,
    Opcode.TXN_ROLLBACK: _rollback,
    Opcode.TXN_PRODUCE: _produce,
}

# --- the client's side ---


def encode_begin() -> bytes:
    return frame(Opcode.TXN_BEGIN)


def encode_produce_many(
    transaction: str,
    topic: str,
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None = None,
    partition: int = PARTITION_AUTO,
) -> bytes:
    """One TXN_PRODUCE frame a record, back to back."""
    names = text16(transaction) + text16(topic)
    place = I32.pack(partition)
    parts: list[bytes] = []
    for row, value in enumerate(values):
        key = keys[row] if keys is not None else None
        tail = blob32(key or b"") + place if key or partition != PARTITION_AUTO else b""
        length = len(names) + 4 + len(value) + len(tail)
        head = HEADER.pack(MAGIC, VERSION, Opcode.TXN_PRODUCE, FLAG_BINARY, length)
        parts += head, names, U32.pack(len(value)), value, tail
    return b"".join(parts)


def check_record(transaction: str, topic: str, record_bytes: int) -> None:
    """Raises RecordTooLarge where a key and value of this size do not fit into one request."""
    others = len(text16(transaction)) + len(text16(topic)) + _PRODUCE_FIXED_BYTES
    if others + record_bytes > PAYLOAD_BYTES_MAX:
        raise RecordTooLarge(
            f"a record of {record_bytes} bytes does not fit into a FlyMQ frame: "
            f"at most {PAYLOAD_BYTES_MAX - others} bytes of key and value for this topic"
        )


def encode_commit(transaction: str, offsets: Sequence[GroupOffset] = ()) -> bytes:
    payload = [text16(transaction)]
    if offsets:
        payload.append(U32.pack(len(offsets)))
        for each in offsets:
            payload += text16(each.group), text16(each.topic), I32.pack(each.partition), U64.pack(each.offset)
    return frame(Opcode.TXN_COMMIT, b"".join(payload))


def encode_rollback(transaction: str) -> bytes:
    return frame(Opcode.TXN_ROLLBACK, text16(transaction))
