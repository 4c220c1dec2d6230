"""Requests and replies of readers that take whole blocks, as bytes, both ways. Layouts are in `wire`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from struct import Struct, pack, unpack_from
from typing import NamedTuple

from penstock.protocols.bytes import U32, ByteReader, text16
from penstock.protocols.flymq.blocks.messages import (
    NO_EPOCH,
    BlocksBody,
    FetchBlocks,
    PartitionSpan,
    Plan,
    PlannedExtent,
    PlannedPartition,
    PlannedTopic,
    ReadPlan,
    TopicSpans,
)
from penstock.protocols.flymq.limits import PLAN_PARTITIONS_MAX, PLAN_TOPICS_MAX, REPLY_ITEMS_MAX
from penstock.protocols.flymq.wire import Opcode, frame, header

_FETCH = Struct(">iQIIq")
_SPAN = Struct(">iQQQq")
_BLOCKS_HEAD = Struct(">QQI")
_PARTITION = Struct(">iQQQq")
_NO_CUT = -1
_EXTENT = Struct(">QQQ")
_MARK_BYTES = 16
EXTENTS_MAX = 16_384
"""Of one reply; a reader asks again for what lies behind them."""

# --- requests ---


def _fetch_blocks(reader: ByteReader) -> FetchBlocks:
    topic, topic_id = reader.text16("topic"), reader.text16("topic id")
    body = FetchBlocks(
        topic,
        topic_id,
        reader.i32("partition"),
        reader.u64("offset"),
        reader.u32("max_bytes"),
        reader.u32("bytes to skip"),
        reader.i64("epoch"),
    )
    reader.finish("epoch")
    return body


def _read_plan(reader: ByteReader) -> ReadPlan:
    topics: list[TopicSpans] = []
    spans_left = PLAN_PARTITIONS_MAX
    for _ in range(reader.count32("topics", 6, PLAN_TOPICS_MAX)):
        topic = reader.text16("topic")
        count = reader.count32("partitions", _SPAN.size, spans_left)
        spans_left -= count
        spans = [PartitionSpan(*_SPAN.unpack(reader.take(_SPAN.size, "partition"))) for _ in range(count)]
        topics.append(TopicSpans(topic, spans))
    body = ReadPlan(topics, reader.u32("step"), reader.u32("wait"))
    reader.finish("wait")
    return body


READERS: Mapping[int, Callable[[ByteReader], BlocksBody]] = {
    Opcode.FETCH_BLOCKS: _fetch_blocks,
    Opcode.READ_PLAN: _read_plan,
}


def encode_fetch_blocks(
    topic: str, topic_id: str, partition: int, offset: int, max_bytes: int, skip: int = 0, epoch: int = NO_EPOCH
) -> bytes:
    fixed = _FETCH.pack(partition, offset, max_bytes, skip, epoch)
    return frame(Opcode.FETCH_BLOCKS, text16(topic) + text16(topic_id) + fixed)


def encode_read_plan(topics: Sequence[TopicSpans], step_bytes: int = 0, wait_ms: int = 0) -> bytes:
    parts = [U32.pack(len(topics))]
    for each in topics:
        parts += text16(each.topic), U32.pack(len(each.spans))
        parts += [_SPAN.pack(*span) for span in each.spans]
    parts += U32.pack(step_bytes), U32.pack(wait_ms)
    return frame(Opcode.READ_PLAN, b"".join(parts))


# --- replies ---


class BlocksPiece(NamedTuple):
    start_offset: int
    end_offset: int
    missing: int
    """Bytes of the first block that are still to come."""
    data: bytes


def encode_blocks(start_offset: int, end_offset: int, missing: int, data: Sequence[bytes]) -> bytes:
    """`data` is joined here, once: it is large."""
    length = _BLOCKS_HEAD.size + sum(map(len, data))
    return b"".join((header(Opcode.FETCH_BLOCKS, length), _BLOCKS_HEAD.pack(start_offset, end_offset, missing), *data))


def decode_blocks(payload: bytes) -> BlocksPiece:
    reader = ByteReader(payload)
    return BlocksPiece(
        reader.u64("start offset"),
        reader.u64("end offset"),
        reader.u32("missing bytes"),
        reader.take(reader.remaining, "blocks"),
    )


def encode_plan(plan: Plan) -> bytes:
    parts = [text16(plan.directory), text16(plan.proof), text16(plan.token), U32.pack(len(plan.topics))]
    for topic in plan.topics:
        parts += text16(topic.topic), text16(topic.id), bytes((topic.retained,)), U32.pack(len(topic.partitions))
        for partition in topic.partitions:
            cut = _NO_CUT if partition.cut is None else partition.cut
            parts += _PARTITION.pack(*partition[:4], cut), U32.pack(len(partition.extents))
            for extent in partition.extents:
                parts += text16(extent.path), _EXTENT.pack(*extent[2:])
                parts += U32.pack(len(extent.marks)), pack(f">{2 * len(extent.marks)}Q", *chain(*extent.marks))
    return frame(Opcode.READ_PLAN, b"".join(parts))


def decode_plan(payload: bytes) -> Plan:
    reader = ByteReader(payload)
    plan = Plan(
        reader.text16("directory"),
        reader.text16("proof"),
        reader.text16("token"),
        [_topic(reader) for _ in range(reader.count32("topics", 9, REPLY_ITEMS_MAX))],
    )
    reader.finish("topics")
    return plan


def _topic(reader: ByteReader) -> PlannedTopic:
    return PlannedTopic(
        reader.text16("topic"),
        reader.text16("topic id"),
        reader.boolean("retained"),
        [_partition(reader) for _ in range(reader.count32("partitions", _PARTITION.size + 4, REPLY_ITEMS_MAX))],
    )


def _partition(reader: ByteReader) -> PlannedPartition:
    return PlannedPartition(
        reader.i32("partition"),
        reader.u64("start offset"),
        reader.u64("end offset"),
        reader.u64("epoch"),
        None if (cut := reader.i64("cut")) == _NO_CUT else cut,
        [_extent(reader) for _ in range(reader.count32("extents", 30, REPLY_ITEMS_MAX))],
    )


def _extent(reader: ByteReader) -> PlannedExtent:
    path = reader.text16("path")
    end, next_offset, file_bytes = reader.u64("end"), reader.u64("next offset"), reader.u64("size of the file")
    count = reader.count32("marks", _MARK_BYTES, REPLY_ITEMS_MAX)
    numbers = unpack_from(f">{2 * count}Q", reader.take(count * _MARK_BYTES, "marks"))
    return PlannedExtent(path, list(zip(numbers[::2], numbers[1::2], strict=True)), end, next_offset, file_bytes)
