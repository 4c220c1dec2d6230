"""The binary dialect at the server: payloads to requests and replies to frames. Layouts are in `wire`.

A PRODUCE whose records all have one size, which most have, is cut by one array operation; any other costs one unpack and one slice a
record. Counts and lengths are checked against what is there before anything is made of them. What is wrong with a request is said in
the words of deployed brokers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.errors import ProtocolViolation
from penstock.protocols.bytes import U16, U32, U64, text16
from penstock.protocols.rustlog.codec import messages
from penstock.protocols.rustlog.wire import (
    COUNT,
    ERROR_TEXT_BYTES_MAX,
    FETCH_REPLY_FIXED_BYTES,
    LENGTH_BYTES,
    PRODUCED,
    RECORDS_PER_PRODUCE_MAX,
    Dialect,
    Opcode,
    frame,
)

UNIFORM_RECORDS_MIN = 16
"""Below this many records, setting up arrays costs more than it saves."""

# --- requests, as the server reads them ---


_Layout = Sequence[tuple[str, struct.Struct]]
"""Names of fields and what each begins with: itself, or a U16 where it is a text, which has its length before it."""


def _fields(payload: bytes, layout: _Layout) -> tuple[list[Any], int]:
    """Return the fields of a request, and where they end. Raises ProtocolViolation with the words of deployed brokers."""
    fields: list[Any] = []
    position, end = 1, len(payload)  # behind the opcode
    for name, kind in layout:
        start = position + kind.size
        if start > end:
            raise ProtocolViolation(f"missing {name} length" if kind is U16 else f"missing {name}")
        (value,) = kind.unpack_from(payload, position)
        position = start
        if kind is U16:
            position += value
            if position > end:
                raise ProtocolViolation(f"truncated {name}")
            try:
                value = payload[start:position].decode()
            except UnicodeDecodeError as error:
                raise ProtocolViolation(f"invalid utf8 {name}: {_utf8_fault(error)}") from None
        fields.append(value)
    return fields, position


def _utf8_fault(error: UnicodeDecodeError) -> str:
    if error.reason == "unexpected end of data":
        return f"incomplete utf-8 byte sequence from index {error.start}"
    return f"invalid utf-8 sequence of {error.end - error.start} bytes from index {error.start}"


def decode_request(payload: bytes) -> messages.ProduceRun | messages.Call:
    """The request in a payload of at least one byte."""
    opcode = payload[0]
    request_bytes = LENGTH_BYTES + len(payload)
    try:
        if opcode == Opcode.PRODUCE:
            (topic, partition), position = _fields(payload, _PRODUCE)
            values = decode_values(payload, position, RECORDS_PER_PRODUCE_MAX)
            held_bytes = request_bytes + messages.RECORD_BYTES_IN_MEMORY * len(values)
            return messages.ProduceRun(Dialect.BINARY, topic, partition, values, [len(values)], held_bytes)
        body: messages.Body
        if opcode in _READERS:
            layout, make = _READERS[opcode]
            body = make(*_fields(payload, layout)[0])
        else:
            body = messages.BadRequest(f"unknown request type: {opcode}")
    except ProtocolViolation as fault:
        body = messages.BadRequest(f"decode error: {fault}")
    return messages.Call(Dialect.BINARY, opcode, body, request_bytes)


def decode_values(data: bytes, position: int, records_max: int) -> list[bytes]:
    """The records of a request or reply, whose number is at this position."""
    end = len(data)
    if position + U32.size > end:
        raise ProtocolViolation("missing record count")
    (count,) = U32.unpack_from(data, position)
    position += U32.size
    if count * 4 > end - position:
        raise ProtocolViolation("truncated record length")
    if count > records_max:
        raise ProtocolViolation(f"too many records: {count}, at most {records_max} in one request")
    if count >= UNIFORM_RECORDS_MIN:
        uniform = _uniform_values(data, position, count)
        if uniform is not None:
            return uniform
    values: list[bytes] = []
    add, unpack = values.append, U32.unpack_from
    try:
        for _ in range(count):
            start = position + 4
            position = start + unpack(data, position)[0]
            if position > end:
                raise ProtocolViolation("truncated record")
            add(data[start:position])
    except struct.error:
        raise ProtocolViolation("truncated record length") from None
    return values


def _uniform_values(data: bytes, position: int, count: int) -> list[bytes] | None:
    """The records where all have the size of the first, else None."""
    (size,) = U32.unpack_from(data, position)
    if count * (4 + size) > len(data) - position:
        return None
    rows = np.frombuffer(data, np.dtype([("size", "V4"), ("value", f"V{size}")]), count, position)
    # The last one is examined first: records of mixed sizes should not pay for an array they cannot use.
    last = position + (count - 1) * (4 + size)
    if data[last : last + 4] != data[position : position + 4] or (rows["size"] != rows["size"][0]).any():
        return None
    values: list[bytes] = rows["value"].tolist() if size else [b""] * count
    return values


_PRODUCE: _Layout = (("topic", U16), ("partition", U32))
_READERS: Mapping[int, tuple[_Layout, Callable[..., messages.Body]]] = {
    Opcode.FETCH: (
        (("group_id", U16), ("topic", U16), ("partition", U32), ("offset", U64), ("max_bytes", U32)),
        lambda group, topic, partition, offset, max_bytes: messages.Fetch(topic, partition, offset, max_bytes, group),
    ),
    Opcode.OFFSET_COMMIT: (
        (("group", U16), ("topic", U16), ("partition", U32), ("offset", U64)),
        lambda group, topic, partition, offset: messages.OffsetCommit(topic, partition, group, offset),
    ),
    Opcode.OFFSET_FETCH: (
        (("group", U16), ("topic", U16), ("partition", U32)),
        lambda group, topic, partition: messages.OffsetFetch(topic, partition, group),
    ),
    Opcode.CREATE_TOPIC: ((("topic", U16), ("partition count", U32)), messages.CreateTopic),
    Opcode.LIST_TOPICS: ((), messages.ListTopics),
    Opcode.DESCRIBE_TOPIC: ((("topic", U16),), messages.DescribeTopic),
    Opcode.DESCRIBE_PARTITION: ((("topic", U16), ("partition", U32)), messages.DescribePartition),
    Opcode.METRICS: ((), messages.Metrics),
    Opcode.PING: ((), messages.Ping),
}


# --- replies, as the server writes them ---

_PONG = frame(bytes((Opcode.PING,)))
_PRODUCED_FRAME = struct.Struct(">I" + PRODUCED.format[1:])


def encode_produced(base_offset: int, count: int) -> bytes:
    return _PRODUCED_FRAME.pack(PRODUCED.size, Opcode.PRODUCE, base_offset, count)


def encode_fetched(records: Sequence[bytes], count: int, next_offset: int) -> bytes:
    """`records` are pieces of `encode_values`."""
    length = FETCH_REPLY_FIXED_BYTES + sum(map(len, records))
    return b"".join((U32.pack(length), COUNT.pack(Opcode.FETCH, count), *records, U64.pack(next_offset)))


def encode_values(values: Sequence[bytes]) -> bytes:
    pieces: list[bytes] = [b""] * (2 * len(values))
    pieces[::2] = map(U32.pack, map(len, values))
    pieces[1::2] = values
    return b"".join(pieces)


def encode_uniform_values(data: bytes | memoryview, value_bytes: int, count: int) -> bytes:
    rows = np.empty(count, np.dtype([("size", ">u4"), ("value", f"V{value_bytes}")]))
    rows["size"] = value_bytes
    rows["value"] = np.frombuffer(data, f"V{value_bytes}", count)
    return rows.tobytes()


def encode_offset_committed(success: bool) -> bytes:
    return frame(bytes((Opcode.OFFSET_COMMIT, success)))


def encode_committed_offset(offset: int | None) -> bytes:
    return frame(bytes((Opcode.OFFSET_FETCH, offset is not None)) + (b"" if offset is None else U64.pack(offset)))


def encode_created() -> bytes:
    return frame(bytes((Opcode.CREATE_TOPIC, 1)))


def encode_topics(topics: Sequence[tuple[str, int]]) -> bytes:
    rows = [text16(name) + U32.pack(partitions) for name, partitions in topics]
    return frame(COUNT.pack(Opcode.LIST_TOPICS, len(topics)) + b"".join(rows))


def encode_topic(state: messages.TopicState) -> bytes:
    count = U32.pack(len(state.partitions))
    rows = [U32.pack(each.index) + U64.pack(each.high_watermark) for each in state.partitions]
    return frame(b"".join((bytes((Opcode.DESCRIBE_TOPIC,)), text16(state.topic), count, count, *rows)))


def encode_partition(topic: str, state: messages.PartitionState) -> bytes:
    head = bytes((Opcode.DESCRIBE_PARTITION,)) + text16(topic)
    return frame(head + U32.pack(state.index) + U64.pack(state.high_watermark))


def encode_metrics(text: str) -> bytes:
    data = text.encode()
    return frame(COUNT.pack(Opcode.METRICS, len(data)) + data)


def encode_pong() -> bytes:
    return _PONG


def encode_error(code: int, message: str) -> bytes:
    text = message.encode(errors="replace")
    if len(text) > ERROR_TEXT_BYTES_MAX:
        text = text[:ERROR_TEXT_BYTES_MAX].decode(errors="ignore").encode()
    return frame(bytes((Opcode.ERROR,)) + U16.pack(code) + U16.pack(len(text)) + text)
