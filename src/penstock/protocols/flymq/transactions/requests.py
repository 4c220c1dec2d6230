"""FlyMQ requests about transactions, both ways. Layouts are in `wire`.

The tails are Penstock's own and are sent only where they say something: a deployed broker gets what its own clients send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from struct import Struct

from penstock.errors import RecordTooLarge
from penstock.protocols.bytes import I32, U32, U64, ByteReader, blob32, text16
from penstock.protocols.flymq.limits import TXN_OFFSETS_MAX
from penstock.protocols.flymq.transactions.messages import (
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
    HEADER_BYTES,
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
    run = TxnProduce(reader.text16("transaction"), reader.text16("topic"), [])
    value, key, partition = reader.blob32("value"), None, PARTITION_AUTO
    if reader.remaining:
        key, partition = reader.blob32("key") or None, reader.i32("partition")
        reader.finish("partition")
    run.add(value, key, partition)
    return run


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
            key_end = value_end + 4 + U32.unpack_from(data, value_end)[0]
            if key_end + 4 != frame_end:
                break
            key, (partition,) = data[value_end + 4 : key_end] or None, I32.unpack_from(data, key_end)
        run.add(data[value_at:value_end], key, partition)
        position = frame_end
    return position


@lru_cache(maxsize=256)
def _alike(names_bytes: int) -> Struct:
    """A TXN_PRODUCE frame up to its value: start, length, names, length of the value."""
    return Struct(f">4sI{names_bytes}sI")


def _commit(reader: ByteReader) -> TxnCommit:
    body = TxnCommit(reader.text16("transaction"))
    if reader.remaining:
        body.offsets = [
            GroupOffset(reader.text16("group"), reader.text16("topic"), reader.i32("partition"), reader.u64("offset"))
            for _ in range(reader.count32("offsets", _OFFSET_BYTES_MIN, TXN_OFFSETS_MAX))
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
