"""The usual PRODUCE_ONCE and its reply by hand: values without keys and headers, all stored in one partition.

The layouts are those of `operations.records`; what has another form is coded as it is declared there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from penstock.columns import UniformCells
from penstock.protocols.flymq.operations.limits import PRODUCED_RECORDS_MAX
from penstock.protocols.flymq.operations.records import ProduceOnce
from penstock.protocols.flymq.wire import FLAG_BINARY, HEADER, MAGIC, PAYLOAD_BYTES_MAX, VERSION, header

_ONCE_HEAD = struct.Struct(">I16sQQBH")
"""Of PRODUCE_ONCE, before the topic: producer with its length, sequence, floor, whether it was sent before, length of the topic."""
_ONCE_VALUES = struct.Struct(">II")
"""The number of values and the length of the first."""
_ONCE_TAIL = struct.Struct(">IIiQH")
"""Behind the values: the numbers of keys and headers, partition, time to live, length of the schema."""
_ONE_PLACE = struct.Struct(">IIiqqI")
"""A reply to PRODUCE_ONCE: no partitions, one place, no failures."""
_ONE_PLACE_FRAME = struct.Struct(HEADER.format + _ONE_PLACE.format[1:])


def encode_produce_once(
    topic: str, values: Sequence[bytes | None], partition: int, ttl_ms: int, schema: str
) -> bytes | None:
    """A PRODUCE_ONCE of values alone, its numbers zero. None if it has to be encoded field by field: a value is null, or all are too
    much."""
    topic_data, schema_data, count = topic.encode(), schema.encode(), len(values)
    try:
        lengths, data = struct.pack(f">I{count}I", count, *map(len, values)), b"".join(values)  # type: ignore[arg-type]
        head = _ONCE_HEAD.pack(16, bytes(16), 0, 0, 0, len(topic_data))
        tail = _ONCE_TAIL.pack(0, 0, partition, ttl_ms, len(schema_data))
    except (TypeError, struct.error):
        return None
    payload_bytes = len(head) + len(topic_data) + len(lengths) + len(data) + len(tail) + len(schema_data)
    if payload_bytes > PAYLOAD_BYTES_MAX:
        return None
    return b"".join((header(ProduceOnce.opcode, payload_bytes), head, topic_data, lengths, data, tail, schema_data))


def decode_produce_once(data: bytes, start: int, end: int) -> ProduceOnce | None:
    """The PRODUCE_ONCE request whose payload is `data[start:end]`, if it has values of one size and neither keys nor headers. The values
    stay one column. None if it has to be decoded field by field, which tells what is wrong with it, if anything is."""
    try:
        # A length that lies may lead out of the frame here; then the sum of all of them does not fit.
        producer_bytes, producer, sequence, floor, resent, topic_bytes = _ONCE_HEAD.unpack_from(data, start)
        topic_at = start + _ONCE_HEAD.size
        topic_end = topic_at + topic_bytes
        count, value_bytes = _ONCE_VALUES.unpack_from(data, topic_end)
        if not 0 < count <= PRODUCED_RECORDS_MAX:  # first: offsets that two lies multiply to are none
            return None
        lengths_at = topic_end + 4
        values_at = lengths_at + 4 * count
        values_end = values_at + count * value_bytes
        keys, headers, partition, ttl_ms, schema_bytes = _ONCE_TAIL.unpack_from(data, values_end)
        schema_at = values_end + _ONCE_TAIL.size
        if (
            producer_bytes != len(producer)
            or resent > 1
            or not value_bytes
            or keys
            or headers
            or schema_at + schema_bytes != end
            or (count > 1 and data[lengths_at:values_at] != data[lengths_at : lengths_at + 4] * count)
        ):
            return None
        topic, schema = data[topic_at:topic_end].decode(), data[schema_at:end].decode()
    except (struct.error, UnicodeDecodeError):
        return None
    cells = data[values_at:values_end]
    values: Sequence[bytes] = [cells] if count == 1 else UniformCells(value_bytes, count, cells)
    return ProduceOnce(producer, sequence, floor, resent == 1, topic, values, [], [], partition, ttl_ms, schema)


def encode_stored_together(partition: int, base_offset: int, timestamp_ms: int) -> bytes:
    """The reply to a PRODUCE_ONCE whose records are all stored, in one partition."""
    head = MAGIC, VERSION, ProduceOnce.opcode, FLAG_BINARY, _ONE_PLACE.size
    return _ONE_PLACE_FRAME.pack(*head, 0, 1, partition, base_offset, timestamp_ms, 0)


def decode_stored_together(payload: bytes) -> tuple[int, int, int] | None:
    """Partition, first offset and timestamp, if the payload is such a reply."""
    if len(payload) != _ONE_PLACE.size:
        return None
    partitions, places, partition, base_offset, timestamp_ms, failures = _ONE_PLACE.unpack(payload)
    return None if partitions or places != 1 or failures else (partition, base_offset, timestamp_ms)
