"""FlyMQ replies as the server sends them: each function returns whole frames. Layouts are in `wire`.

The two that carry records work on columns, so that a thousand rows cost a few vector operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import starmap
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.protocols.bytes import I32, U16, U32, U64, blob32, text16, texts16
from penstock.protocols.flymq.reply_messages import (
    VECTOR_ROWS_MIN,
    Failed,
    GroupLag,
    GroupState,
    Placed,
    Rows,
    TopicMetadata,
    UniformRows,
    uniform_dtype,
)
from penstock.protocols.flymq.wire import (
    ERROR_CODE,
    ERROR_MARK,
    ERROR_TEXT_BYTES_MAX,
    FLAG_BINARY,
    GROUP_OFFSET,
    HEADER,
    LAG,
    MAGIC,
    PARTITION_METADATA,
    RECORD_METADATA,
    VERSION,
    Opcode,
    counted_rows,
    frame,
    header,
)

Int64s = npt.NDArray[np.int64]

# --- PRODUCE ---


@lru_cache(maxsize=256)
def _metadata_dtype(head_bytes: int) -> np.dtype[np.void]:
    return np.dtype(
        [
            ("head", f"V{head_bytes}"),
            ("partition", ">i4"),
            ("offset", ">u8"),
            ("timestamp", ">i8"),
            ("key_size", ">i4"),
            ("value_size", ">i4"),
        ]
    )


@lru_cache(maxsize=1024)
def _metadata_head(topic: str) -> bytes:
    field = text16(topic)
    return HEADER.pack(MAGIC, VERSION, Opcode.PRODUCE, FLAG_BINARY, len(field) + RECORD_METADATA.size) + field


def encode_produced(
    topic: str, keys: Sequence[bytes | None] | None, values: Sequence[bytes], parts: Sequence[Placed | Failed]
) -> bytes:
    """The replies to a run, in the order of its records. The parts cover every record once."""
    if len(parts) == 1:
        return _encode_part(topic, keys, values, parts[0])
    frames: list[bytes] = [b""] * len(values)
    for part in parts:
        rows = part.rows
        part_values = _pick(values, rows)
        replies = _encode_part(topic, None if keys is None else _pick(keys, rows), part_values, part)
        size = len(replies) // len(part_values)
        cut = [replies[at : at + size] for at in range(0, len(replies), size)]
        if isinstance(rows, slice):
            frames[rows] = cut
        else:
            for row, reply in zip(rows, cut, strict=True):
                frames[row] = reply
    return b"".join(frames)


def _pick(column: Sequence[Any], rows: slice | list[int]) -> Sequence[Any]:
    return column[rows] if isinstance(rows, slice) else [column[row] for row in rows]


def _encode_part(
    topic: str, keys: Sequence[bytes | None] | None, values: Sequence[bytes], part: Placed | Failed
) -> bytes:
    count = len(values)
    if isinstance(part, Failed):
        return part.reply * count
    head = _metadata_head(topic)
    if count < VECTOR_ROWS_MIN:
        pack, partition, timestamp = RECORD_METADATA.pack, part.partition, part.timestamp_ms
        return b"".join(
            [
                head + pack(partition, offset, timestamp, len(key) if key else -1, len(value))
                for offset, value, key in zip(
                    range(part.base_offset, part.base_offset + count), values, keys or (None,) * count, strict=True
                )
            ]
        )
    fields = RECORD_METADATA.pack(part.partition, 0, part.timestamp_ms, -1, 0)
    return _metadata_rows(head, fields, keys, values, np.arange(part.base_offset, part.base_offset + count)).tobytes()


def encode_scattered(
    topic: str,
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes],
    partitions: Int64s,
    offsets: Int64s,
    timestamps_ms: Int64s,
) -> bytes:
    """The replies to a run whose records all arrived, each in a place of its own."""
    rows = _metadata_rows(_metadata_head(topic), RECORD_METADATA.pack(0, 0, 0, -1, 0), keys, values, offsets)
    rows["partition"] = partitions
    rows["timestamp"] = timestamps_ms
    return rows.tobytes()


def _metadata_rows(
    head: bytes, fields: bytes, keys: Sequence[bytes | None] | None, values: Sequence[bytes], offsets: Int64s
) -> npt.NDArray[np.void]:
    """One reply for each record: head and fields, with offsets and sizes put in."""
    count = len(values)
    rows = np.frombuffer(bytearray((head + fields) * count), _metadata_dtype(len(head)))
    rows["offset"] = offsets
    rows["value_size"] = np.fromiter(map(len, values), np.int32, count)
    if keys is not None:
        rows["key_size"] = np.fromiter((len(key) if key else -1 for key in keys), np.int32, count)
    return rows


# --- CONSUME ---


def encode_consumed(opcode: int, key: bytes | None, value: bytes | None) -> bytes:
    return frame(opcode, blob32(key or b"") + blob32(value or b""))


# --- FETCH ---

_NATIVE_HEAD = np.dtype([("offset", ">u8"), ("key_size", ">u4"), ("value_size", ">u4")])


def encode_fetched(opcode: int, parts: Sequence[Rows | UniformRows], next_offset: int, *, native: bool) -> bytes:
    encoded = [
        _encode_uniform(part, native) if isinstance(part, UniformRows) else _encode_rows(part, native) for part in parts
    ]
    count = U32.pack(sum(len(part.offsets) for part in parts))
    following = U64.pack(next_offset)
    payload = (count, following, *encoded) if native else (count, *encoded, following)
    length = sum(map(len, payload))
    return b"".join((header(opcode, length), *payload))


def _encode_uniform(part: UniformRows, native: bool) -> memoryview:
    rows = np.empty(len(part.offsets), uniform_dtype(part.value_bytes, native))
    rows["offset"] = _offset_vector(part.offsets)
    rows["key_size"] = 0
    rows["value_size"] = part.value_bytes
    rows["value"] = np.frombuffer(part.data, f"V{part.value_bytes}")
    return rows.view(np.uint8).data


def _encode_rows(part: Rows, native: bool) -> bytes:
    count = len(part.offsets)
    values = [value or b"" for value in part.values] if None in part.values else part.values
    if part.keys is None and native and count >= VECTOR_ROWS_MIN:
        heads = np.zeros(count, _NATIVE_HEAD)
        heads["offset"] = _offset_vector(part.offsets)
        heads["value_size"] = np.fromiter(map(len, values), np.uint32, count)  # type: ignore[arg-type]
        pieces: list[bytes] = [b""] * (2 * count)
        pieces[::2] = heads.view("V16").tolist()
        pieces[1::2] = values  # type: ignore[assignment]
        return b"".join(pieces)
    keys = [key or b"" for key in part.keys] if part.keys is not None else [b""] * count
    key_sizes, value_sizes = map(U32.pack, map(len, keys)), map(U32.pack, map(len, values))  # type: ignore[arg-type]
    offsets = map(U64.pack, part.offsets)
    pieces = [b""] * (5 * count)
    columns = (
        (offsets, key_sizes, keys, value_sizes, values) if native else (key_sizes, keys, value_sizes, values, offsets)
    )
    for place, column in enumerate(columns):
        pieces[place::5] = column  # type: ignore[assignment]
    return b"".join(pieces)


def _offset_vector(offsets: Sequence[int]) -> Int64s:
    if isinstance(offsets, range):
        return np.arange(offsets.start, offsets.stop, offsets.step)
    return np.array(offsets, np.int64)


# --- topics ---


def encode_done(opcode: int) -> bytes:
    """The one-byte success of COMMIT, DELETE_TOPIC, RESET_OFFSET and DELETE_GROUP."""
    return frame(opcode, b"\x01")


def encode_created(message: str) -> bytes:
    return frame(Opcode.CREATE_TOPIC, b"\x01" + text16(message))


def encode_names(names: Iterable[str]) -> bytes:
    return frame(Opcode.LIST_TOPICS, counted_rows(Opcode.LIST_TOPICS, map(text16, names)))


def encode_topic_metadata(metadata: TopicMetadata) -> bytes:
    partitions = [
        PARTITION_METADATA.pack(each.index, each.leader, each.start_offset, each.next_offset)
        for each in metadata.partitions
    ]
    settings = [text16(name) + text16(value) for name, value in metadata.config.items()]
    return frame(
        Opcode.METADATA,
        b"".join((text16(metadata.topic), U32.pack(len(partitions)), *partitions, U32.pack(len(settings)), *settings)),
    )


def encode_cluster_metadata_reply(
    cluster: str, node: str, address: str, topics: Iterable[tuple[str, Sequence[bool]]], *, epoch: int = 1
) -> bytes:
    """One node that leads every partition; `topics` has names, and whether each of its partitions takes writes."""
    leader, replicas = text16(node) + text16(address) + U64.pack(epoch), texts16([node])
    # A partition that takes no more writes has its one replica still, which can be read, and none in sync.
    states = {
        True: leader + text16("online") + replicas * 2,
        False: leader + text16("offline") + replicas + texts16([]),
    }

    def row(topic: str, partitions: Sequence[bool]) -> bytes:
        parts = [I32.pack(index) + states[writable] for index, writable in enumerate(partitions)]
        return b"".join((text16(topic), U32.pack(len(partitions)), *parts))

    return frame(Opcode.CLUSTER_METADATA, text16(cluster) + counted_rows(Opcode.CLUSTER_METADATA, starmap(row, topics)))


# --- groups ---


def encode_offset(opcode: int, offset: int) -> bytes:
    """The reply of SUBSCRIBE, GET_OFFSET and SEEK_TO_TIMESTAMP."""
    return frame(opcode, U64.pack(offset))


def encode_lag(lag: GroupLag) -> bytes:
    return frame(Opcode.GET_LAG, LAG.pack(lag.current, lag.committed, lag.latest, lag.lag))


def encode_groups(groups: Iterable[GroupState]) -> bytes:
    return frame(Opcode.LIST_GROUPS, counted_rows(Opcode.LIST_GROUPS, map(_group, groups)))


def encode_group(group: GroupState) -> bytes:
    return frame(Opcode.DESCRIBE_GROUP, _group(group))


def encode_group_summary(
    group: str, state: str, members: Iterable[str], topics: Iterable[str], coordinator: str
) -> bytes:
    """The reply to a DESCRIBE_GROUP that names a group and no topic field at all."""
    lists = [counted_rows(Opcode.DESCRIBE_GROUP, map(text16, texts)) for texts in (members, topics)]
    return frame(Opcode.DESCRIBE_GROUP, b"".join((text16(group), text16(state), *lists, text16(coordinator))))


def _group(group: GroupState) -> bytes:
    offsets = [GROUP_OFFSET.pack(partition, offset) for partition, offset in group.offsets.items()]
    return b"".join(
        (text16(group.topic), text16(group.group), U32.pack(group.members), U32.pack(len(offsets)), *offsets)
    )


# --- ERROR ---


def encode_error(message: str, *, native: bool = False) -> bytes:
    """Encode an ERROR in the contract's form, or in the one that all deployed clients read exactly."""
    head, mark = (U32.pack(ERROR_CODE), "") if native else (b"\x00", ERROR_MARK)
    text = (mark + message).encode(errors="replace")
    if len(text) > ERROR_TEXT_BYTES_MAX:
        text = text[:ERROR_TEXT_BYTES_MAX].decode(errors="ignore").encode()
    return frame(Opcode.ERROR, head + U16.pack(len(text)) + text)
