"""FlyMQ requests as a client sends them: each function returns whole frames. Layouts are in `wire`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.errors import RecordTooLarge
from penstock.protocols.bytes import I32, I64, U32, U64, blob32, text8, text16
from penstock.protocols.flymq.wire import (
    FLAG_BINARY,
    HEADER,
    MAGIC,
    PARTITION_AUTO,
    PAYLOAD_BYTES_MAX,
    PRODUCE_FIXED_BYTES,
    VERSION,
    Opcode,
    frame,
)


def encode_produce(topic: str, value: bytes, key: bytes | None = None, partition: int = PARTITION_AUTO) -> bytes:
    topic_field, key = text16(topic), key or b""
    return b"".join(
        (
            _produce_head(topic_field, len(key) + len(value)),
            blob32(key),
            U32.pack(len(value)),
            value,
            I32.pack(partition),
        )
    )


def encode_produce_many(
    topic: str, values: Sequence[bytes], keys: Sequence[bytes | None] | None = None, partition: int = PARTITION_AUTO
) -> bytes:
    """One PRODUCE frame a record, back to back."""
    topic_field, tail = text16(topic), I32.pack(partition)
    if keys is not None and any(keys):
        parts: list[bytes] = []
        for value, key in zip(values, keys, strict=True):
            key = key or b""
            parts += _produce_head(topic_field, len(key) + len(value)), blob32(key), U32.pack(len(value)), value, tail
        return b"".join(parts)
    heads = {size: _produce_head(topic_field, size) + bytes(4) + U32.pack(size) for size in set(map(len, values))}
    if len(heads) == 1:
        (head,) = heads.values()
        # Frames of equal size differ only in their values: what stands between two values is always the same bytes.
        return b"".join((head, (tail + head).join(values), tail))
    return b"".join([part for value in values for part in (heads[len(value)], value, tail)])


def check_record(topic: str, record_bytes: int) -> None:
    """Raises RecordTooLarge where a key and value of this size do not fit into one request."""
    _produce_head(text16(topic), record_bytes)


def _produce_head(topic_field: bytes, record_bytes: int) -> bytes:
    length = len(topic_field) + PRODUCE_FIXED_BYTES + record_bytes
    if length > PAYLOAD_BYTES_MAX:
        raise RecordTooLarge(
            f"a record of {record_bytes} bytes does not fit into a FlyMQ frame: "
            f"at most {PAYLOAD_BYTES_MAX - length + record_bytes} bytes of key and value for this topic"
        )
    return HEADER.pack(MAGIC, VERSION, Opcode.PRODUCE, FLAG_BINARY, length) + topic_field


def encode_consume(topic: str, partition: int, offset: int) -> bytes:
    return frame(Opcode.CONSUME, text16(topic) + I32.pack(partition) + U64.pack(offset))


def encode_create_topic(topic: str, partitions: int, config: Mapping[str, str] | None = None) -> bytes:
    payload = text16(topic) + I32.pack(partitions)
    if config:
        pairs = [text16(name) + text16(value) for name, value in config.items()]
        payload += U32.pack(len(pairs)) + b"".join(pairs)
    return frame(Opcode.CREATE_TOPIC, payload)


def encode_metadata(topic: str) -> bytes:
    return frame(Opcode.METADATA, text16(topic))


def encode_subscribe(topic: str, group: str, partition: int, mode: str, *, native: bool = False) -> bytes:
    width = text8 if native else text16
    return frame(Opcode.SUBSCRIBE, text16(topic) + text16(group) + I32.pack(partition) + width(mode))


def encode_commit(topic: str, group: str, partition: int, offset: int) -> bytes:
    return frame(Opcode.COMMIT, text16(topic) + text16(group) + I32.pack(partition) + U64.pack(offset))


def encode_fetch(
    topic: str,
    partition: int,
    offset: int,
    max_records: int,
    wanted: str | None = None,
    *,
    opcode: int = Opcode.FETCH,
) -> bytes:
    """With a filter, empty or not, the reply has the deployed layout; without (None) it has the contract's."""
    payload = text16(topic) + I32.pack(partition) + U64.pack(offset) + I32.pack(max_records)
    return frame(opcode, payload if wanted is None else payload + text16(wanted))


def encode_list_topics() -> bytes:
    return frame(Opcode.LIST_TOPICS)


def encode_delete_topic(topic: str) -> bytes:
    return frame(Opcode.DELETE_TOPIC, text16(topic))


def encode_cluster_metadata(topic: str = "") -> bytes:
    return frame(Opcode.CLUSTER_METADATA, text16(topic))


def encode_get_offset(topic: str, group: str, partition: int) -> bytes:
    return frame(Opcode.GET_OFFSET, text16(topic) + text16(group) + I32.pack(partition))


def encode_reset_offset(topic: str, group: str, partition: int, mode: str, offset: int | None = None) -> bytes:
    tail = b"" if offset is None else U64.pack(offset)
    return frame(Opcode.RESET_OFFSET, text16(topic) + text16(group) + I32.pack(partition) + text8(mode) + tail)


def encode_list_groups() -> bytes:
    return frame(Opcode.LIST_GROUPS)


def encode_describe_group(topic: str, group: str) -> bytes:
    return frame(Opcode.DESCRIBE_GROUP, text16(topic) + text16(group))


def encode_get_lag(topic: str, group: str, partition: int) -> bytes:
    return frame(Opcode.GET_LAG, text16(topic) + text16(group) + I32.pack(partition))


def encode_delete_group(topic: str, group: str) -> bytes:
    return frame(Opcode.DELETE_GROUP, text16(topic) + text16(group))


def encode_seek_to_timestamp(topic: str, group: str, partition: int, timestamp_ms: int) -> bytes:
    return frame(Opcode.SEEK_TO_TIMESTAMP, text16(topic) + text16(group) + I32.pack(partition) + I64.pack(timestamp_ms))


def encode_auth(user: str, password: str) -> bytes:
    return frame(Opcode.AUTH, text16(user) + text16(password))


def encode_whoami() -> bytes:
    return frame(Opcode.WHOAMI)
