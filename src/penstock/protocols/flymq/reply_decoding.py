"""FlyMQ replies as a client reads them: each function takes a payload. Layouts are in `wire`."""

from __future__ import annotations

import struct

import numpy as np

from penstock.errors import ProtocolViolation
from penstock.protocols.bytes import U32, U64, ByteReader
from penstock.protocols.flymq.limits import REPLY_ITEMS_MAX
from penstock.protocols.flymq.reply_messages import (
    VECTOR_ROWS_MIN,
    ClusterPartition,
    Fetched,
    GroupLag,
    GroupState,
    PartitionMetadata,
    TopicMetadata,
    uniform_dtype,
)
from penstock.protocols.flymq.wire import (
    ERROR_MARK,
    GROUP_OFFSET,
    LAG,
    PARTITION_METADATA,
    RECORD_METADATA,
    ROW_FIXED_BYTES,
)


def decode_produced(payload: bytes) -> tuple[str, int, int, int]:
    """Topic, partition, offset and timestamp of one PRODUCE reply."""
    reader = ByteReader(payload)
    topic = reader.text16("topic")
    partition, offset, timestamp_ms, _, _ = RECORD_METADATA.unpack(reader.take(RECORD_METADATA.size, "record metadata"))
    return topic, partition, offset, timestamp_ms


def decode_consumed(payload: bytes) -> tuple[bytes | None, bytes]:
    reader = ByteReader(payload)
    key = reader.blob32("key")
    return key or None, reader.blob32("value")


def decode_fetched(payload: bytes, *, native: bool) -> Fetched:
    reader = ByteReader(payload)
    count = reader.count32("records", ROW_FIXED_BYTES, REPLY_ITEMS_MAX)
    next_offset = reader.u64("next offset") if native else 0
    fetched = _decode_uniform(payload, reader.position, count, native) if count >= VECTOR_ROWS_MIN else None
    if fetched is None:
        fetched, reader.position = _decode_rows(payload, reader.position, count, native)
    else:
        reader.position = len(payload) - (0 if native else 8)
    fetched.next_offset = next_offset if native else reader.u64("next offset")
    return fetched


def _decode_uniform(payload: bytes, start: int, count: int, native: bool) -> Fetched | None:
    """Records without keys and with values of one size, as one array; None where they are not."""
    records_bytes = len(payload) - start - (0 if native else 8)
    value_bytes, left_over = divmod(records_bytes, count)
    value_bytes -= ROW_FIXED_BYTES
    if left_over or value_bytes <= 0:
        return None
    rows = np.frombuffer(payload, uniform_dtype(value_bytes, native), count, start)
    if rows["key_size"].any() or (rows["value_size"] != value_bytes).any():
        return None
    return Fetched(rows["offset"].tolist(), None, rows["value"].tolist(), 0)


def _decode_rows(payload: bytes, position: int, count: int, native: bool) -> tuple[Fetched, int]:
    """Records of any shape, and where they end."""
    offsets: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes] = []
    unpack_size, unpack_offset = U32.unpack_from, U64.unpack_from
    end = len(payload)
    try:
        for _ in range(count):
            if native:
                offsets += unpack_offset(payload, position)
                position += 8
            key_at = position + 4
            key_end = key_at + unpack_size(payload, position)[0]
            value_at = key_end + 4
            position = value_at + unpack_size(payload, key_end)[0]
            keys.append(payload[key_at:key_end] or None)
            values.append(payload[value_at:position])
            if not native:
                offsets += unpack_offset(payload, position)
                position += 8
    except struct.error:
        position = end + 1
    if position > end:
        raise ProtocolViolation(f"buffer too small: record {len(values)} of {count} does not fit into the payload")
    return Fetched(offsets, keys if any(keys) else None, values, 0), position


def decode_names(payload: bytes) -> list[str]:
    return ByteReader(payload).texts16("topics", REPLY_ITEMS_MAX)


def decode_topic_metadata(payload: bytes) -> TopicMetadata:
    reader = ByteReader(payload)
    topic = reader.text16("topic")
    partitions = [
        PartitionMetadata(*PARTITION_METADATA.unpack(reader.take(PARTITION_METADATA.size, "partition")))
        for _ in range(reader.count32("partitions", PARTITION_METADATA.size, REPLY_ITEMS_MAX))
    ]
    config = {}
    if reader.remaining:
        for _ in range(reader.count32("settings", 4, REPLY_ITEMS_MAX)):
            name = reader.text16("setting name")
            config[name] = reader.text16("setting value")
    return TopicMetadata(topic, partitions, config)


def decode_cluster_metadata_reply(payload: bytes) -> tuple[str, dict[str, list[ClusterPartition]]]:
    """The cluster's name and, for each topic, who leads its partitions."""
    reader = ByteReader(payload)
    cluster = reader.text16("cluster")
    topics: dict[str, list[ClusterPartition]] = {}
    for _ in range(reader.count32("topics", 6, REPLY_ITEMS_MAX)):
        partitions = topics[reader.text16("topic")] = []
        for _ in range(reader.count32("partitions", 28, REPLY_ITEMS_MAX)):
            partitions.append(
                ClusterPartition(reader.i32("partition"), reader.text16("leader"), reader.text16("address"))
            )
            reader.u64("epoch")
            reader.text16("state")
            reader.texts16("replicas", REPLY_ITEMS_MAX)
            reader.texts16("in-sync replicas", REPLY_ITEMS_MAX)
    return cluster, topics


def decode_offset(payload: bytes) -> int:
    return ByteReader(payload).u64("offset")


def decode_lag(payload: bytes) -> GroupLag:
    return GroupLag(*LAG.unpack(ByteReader(payload).take(LAG.size, "lag")))


def decode_groups(payload: bytes) -> list[GroupState]:
    reader = ByteReader(payload)
    return [_read_group(reader) for _ in range(reader.count32("groups", 12, REPLY_ITEMS_MAX))]


def decode_group(payload: bytes) -> GroupState:
    return _read_group(ByteReader(payload))


def _read_group(reader: ByteReader) -> GroupState:
    topic, group, members = reader.text16("topic"), reader.text16("group"), reader.u32("members")
    count = reader.count32("offsets", GROUP_OFFSET.size, REPLY_ITEMS_MAX)
    offsets = dict(GROUP_OFFSET.iter_unpack(reader.take(count * GROUP_OFFSET.size, "offsets")))
    return GroupState(topic, group, members, offsets)


def decode_error(payload: bytes) -> str:
    """Return the message of an ERROR in any form in use: the contract's, a u32 code and a string, or bare text."""
    reader = ByteReader(payload)
    for code_bytes, mark in ((1, ERROR_MARK), (4, "")):
        try:
            reader.position = 0
            reader.take(code_bytes, "code")
            message = reader.text16("message")
            reader.finish("message")
        except ProtocolViolation:
            continue
        return message.removeprefix(mark)
    return payload.decode(errors="replace")
