"""The binary dialect at the client: requests to frames and payloads to replies. Layouts are in `wire`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.errors import ProtocolViolation
from penstock.protocols.bytes import U32, U64, ByteReader, text16
from penstock.protocols.rustlog.codec import messages
from penstock.protocols.rustlog.codec.binary_dialect import decode_values, encode_values
from penstock.protocols.rustlog.wire import (
    FETCH_REPLY_FIXED_BYTES,
    LENGTH_BYTES,
    PAYLOAD_BYTES_MAX,
    TOPICS_MAX,
    Opcode,
    frame,
)

# --- requests ---


def encode_produce(topic: str, partition: int, values: Sequence[bytes]) -> bytes:
    head = bytes((Opcode.PRODUCE,)) + text16(topic) + U32.pack(partition) + U32.pack(len(values))
    return frame(head + encode_values(values))


def encode_call(body: messages.Body) -> bytes:
    return frame(_WRITERS[type(body)](body))


_WRITERS: Mapping[type, Callable[..., bytes]] = {
    messages.Fetch: lambda body: (
        bytes((Opcode.FETCH,))
        + text16(body.group)
        + text16(body.topic)
        + U32.pack(body.partition)
        + U64.pack(body.offset)
        + U32.pack(body.max_bytes)
    ),
    messages.OffsetCommit: lambda body: (
        bytes((Opcode.OFFSET_COMMIT,))
        + text16(body.group)
        + text16(body.topic)
        + U32.pack(body.partition)
        + U64.pack(body.offset)
    ),
    messages.OffsetFetch: lambda body: (
        bytes((Opcode.OFFSET_FETCH,)) + text16(body.group) + text16(body.topic) + U32.pack(body.partition)
    ),
    messages.CreateTopic: lambda body: bytes((Opcode.CREATE_TOPIC,)) + text16(body.topic) + U32.pack(body.partitions),
    messages.ListTopics: lambda _: bytes((Opcode.LIST_TOPICS,)),
    messages.DescribeTopic: lambda body: bytes((Opcode.DESCRIBE_TOPIC,)) + text16(body.topic),
    messages.DescribePartition: lambda body: (
        bytes((Opcode.DESCRIBE_PARTITION,)) + text16(body.topic) + U32.pack(body.partition)
    ),
    messages.Metrics: lambda _: bytes((Opcode.METRICS,)),
    messages.Ping: lambda _: bytes((Opcode.PING,)),
}


# --- replies: payloads with their opcode in front ---


def _body(payload: bytes) -> ByteReader:
    reader = ByteReader(payload)
    reader.u8("opcode")
    return reader


def decode_produced(payload: bytes) -> messages.Produced:
    reader = _body(payload)
    base_offset, count = reader.u64("base offset"), reader.u32("count")
    return messages.Produced(range(base_offset, base_offset + count))


def decode_fetched(payload: bytes) -> messages.Fetched:
    """Records have no offsets of their own here: they end right before the next offset, without a gap."""
    values = decode_values(payload, 1, PAYLOAD_BYTES_MAX // LENGTH_BYTES)
    count = len(values)
    reader = ByteReader(payload)
    reader.take(1 + 4 + 4 * count + sum(map(len, values)), "records")
    following = reader.u64("next offset")
    if count > following:
        raise ProtocolViolation(f"{count} records cannot end before offset {following}")
    return messages.Fetched(range(following - count, following), values, following)


def next_offset(payload: bytes) -> int:
    """For a FETCH reply whose records are not examined."""
    if len(payload) < FETCH_REPLY_FIXED_BYTES:
        raise ProtocolViolation(f"a FETCH reply has at least {FETCH_REPLY_FIXED_BYTES} bytes, not {len(payload)}")
    offset: int = U64.unpack_from(payload, len(payload) - U64.size)[0]
    return offset


def decode_success(payload: bytes) -> bool:
    return _body(payload).boolean("success")


def decode_committed_offset(payload: bytes) -> int | None:
    reader = _body(payload)
    return reader.u64("offset") if reader.boolean("has offset") else None


def decode_topics(payload: bytes) -> list[tuple[str, int]]:
    reader = _body(payload)
    return [(reader.text16("topic"), reader.u32("partitions")) for _ in range(reader.count32("topics", 6, TOPICS_MAX))]


def decode_metrics(payload: bytes) -> str:
    return _body(payload).blob32("metrics").decode(errors="replace")


def decode_error(payload: bytes) -> messages.Failure:
    reader = _body(payload)
    return messages.Failure(reader.u16("code"), reader.text16("message"))
