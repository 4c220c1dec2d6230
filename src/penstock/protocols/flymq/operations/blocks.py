"""Whole blocks, for readers that decode columns themselves, and plans for sharing out the work.

Replies hold blocks as they are stored, and plans of tens of thousands of extents: they are encoded and decoded by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from struct import Struct, pack, unpack_from
from typing import Annotated, Any, Final, NamedTuple

from penstock.frame_bounds import REPLY_ITEMS_MAX
from penstock.protocols.bytes import U32 as U32_STRUCT
from penstock.protocols.bytes import ByteReader, text16
from penstock.protocols.flymq.operations.layout import I32, I64, U32, U64, AtMost, Items, Label, Opaque, Str, record_of
from penstock.protocols.flymq.operations.limits import PLAN_PARTITIONS_MAX, PLAN_TOPICS_MAX
from penstock.protocols.flymq.operations.operation import Operation, join_reply

_BLOCKS_HEAD = Struct(">QQI")
_PARTITION = Struct(">iQQQq")
_CLOCK = Struct(">q")
_EXTENT = Struct(">QQQ")
_MARK_BYTES = 16
_NO_CUT = -1
NO_EPOCH: Final = -1
"""In place of a partition's log epoch: the reader knows none."""
EXTENTS_MAX = 16_384
"""Per reply; a reader asks again for what follows."""

# --- requests ---


class FetchBlocks(
    Operation[Annotated[bytes, Opaque("u64 start offset, u64 end offset, u32 missing bytes, then blocks")]], opcode=0xD0
):
    """Blocks as they are stored, the first of which holds the offset. If the first is too large, or `skip` is not 0, the reply is a
    piece of it from byte `skip` on, and how many bytes of it are missing then."""

    topic: Str
    topic_id: Str
    """Empty: whatever topic has the name now."""
    partition: I32
    offset: U64
    max_bytes: U32
    skip: Annotated[U32, Label("bytes to skip")] = 0
    """Bytes of the first block that came with an earlier reply."""
    epoch: I64 = NO_EPOCH
    """The log epoch that the offset belongs to, or -1."""


class PartitionSpan(NamedTuple):
    """The records of a partition that a reader is about to read; or, in a request that waits, those it knows of."""

    partition: I32
    offset: U64
    end_offset: U64
    bytes_max: U64 = 0
    """How many bytes to plan for; 0 for no bound."""
    epoch: I64 = NO_EPOCH
    """The log epoch that the offsets belong to, or -1."""


@dataclass(slots=True)
class TopicSpans:
    topic: Str
    spans: Annotated[Sequence[PartitionSpan], AtMost(PLAN_PARTITIONS_MAX), Label("partitions")]


class PlanTopics(Items):
    """The topics of a plan; the bound of their partitions is one for all of them together."""

    def read(self, reader: ByteReader, name: str) -> Any:
        topics: list[TopicSpans] = []
        span = record_of(PartitionSpan)
        spans_left = PLAN_PARTITIONS_MAX
        for _ in range(reader.count32(name, self.item.bytes_min, self.items_max)):
            topic = reader.text16("topic")
            count = reader.count32("partitions", span.bytes_min, spans_left)
            spans_left -= count
            topics.append(TopicSpans(topic, [span.read(reader) for _ in range(count)]))
        return topics


class ReadPlan(
    Operation[
        Annotated[
            bytes,
            Opaque(
                "str directory, str proof, str token, {str topic, str id (empty: none), bool retained, {i32 partition, "
                "u64 start offset, u64 end offset, u64 log epoch, i64 cut since the epoch asked about (-1: none), "
                "{str path, u64 end position, u64 next offset, u64 file size (0: it grows), "
                "{u64 offset, u64 position}*}*}*}*, i64 the broker's clock"
            ),
        ]
    ],
    opcode=0xD1,
    long_lists=True,
    smaller="plan fewer topics at a time",
):
    """What the broker holds of some topics: offsets, and in which files the blocks are."""

    topics: Annotated[Sequence[TopicSpans], PlanTopics(record_of(TopicSpans), PLAN_TOPICS_MAX)]
    step_bytes: U32 = 0
    """How far apart marks shall be; 0: no extents are asked for."""
    wait_ms: U32 = 0
    """How long to wait for a record after one of the spans."""


# --- in replies ---


class EncodedBlocks(NamedTuple):
    """Whole blocks as they are stored, with seals of 0, and what the partition holds."""

    start_offset: int
    end_offset: int
    data: bytes


class PlannedExtent(NamedTuple):
    """A stretch of a partition in one file."""

    path: str
    """From the log's directory; empty if the file cannot be read by others."""
    marks: Sequence[tuple[int, int]]
    """Offset and position of blocks, rising; reading begins at the first."""
    end: int
    next_offset: int
    file_bytes: int
    """The size of the file where it is finished, 0 if it still grows."""


class PlannedPartition(NamedTuple):
    partition: int
    start_offset: int
    end_offset: int
    epoch: int
    """The partition's log epoch."""
    cut: int | None
    """The lowest offset at which the log was cut after the epoch of the span, None if it was not."""
    extents: Sequence[PlannedExtent]


class PlannedTopic(NamedTuple):
    topic: str
    id: str
    """Empty if there is no such topic."""
    retained: bool
    """Whether retention takes records away. If it does not, what is missing at the start was compacted away or has expired."""
    partitions: Sequence[PlannedPartition]


class Plan(NamedTuple):
    """What a broker holds of some topics, and where its files are for who is on the same machine."""

    directory: str
    proof: str
    token: str
    """The file `proof` in `directory` holds it, if this is the machine. All three are empty if files cannot be read by others."""
    topics: Sequence[PlannedTopic]
    now_ms: int
    """The broker's clock: what had expired by then is not to be read."""


# --- replies ---


class BlocksPiece(NamedTuple):
    start_offset: int
    end_offset: int
    missing: int
    """Bytes of the first block that are still to come."""
    data: bytes


def encode_blocks(start_offset: int, end_offset: int, missing: int, data: Sequence[bytes]) -> bytes:
    """`data` is joined here, once: it is large."""
    return join_reply(FetchBlocks, [_BLOCKS_HEAD.pack(start_offset, end_offset, missing), *data])


def decode_blocks(payload: bytes) -> BlocksPiece:
    reader = ByteReader(payload)
    return BlocksPiece(
        reader.u64("start offset"),
        reader.u64("end offset"),
        reader.u32("missing bytes"),
        reader.take(reader.remaining, "blocks"),
    )


def encode_plan(plan: Plan) -> bytes:
    parts = [text16(plan.directory), text16(plan.proof), text16(plan.token), U32_STRUCT.pack(len(plan.topics))]
    for topic in plan.topics:
        parts += text16(topic.topic), text16(topic.id), bytes((topic.retained,)), U32_STRUCT.pack(len(topic.partitions))
        for partition in topic.partitions:
            cut = _NO_CUT if partition.cut is None else partition.cut
            parts += _PARTITION.pack(*partition[:4], cut), U32_STRUCT.pack(len(partition.extents))
            for extent in partition.extents:
                parts += text16(extent.path), _EXTENT.pack(*extent[2:])
                parts += U32_STRUCT.pack(len(extent.marks)), pack(f">{2 * len(extent.marks)}Q", *chain(*extent.marks))
    parts.append(_CLOCK.pack(plan.now_ms))
    return join_reply(ReadPlan, parts)


def decode_plan(payload: bytes) -> Plan:
    reader = ByteReader(payload)
    plan = Plan(
        reader.text16("directory"),
        reader.text16("proof"),
        reader.text16("token"),
        [_topic(reader) for _ in range(reader.count32("topics", 9, REPLY_ITEMS_MAX))],
        reader.i64("clock"),
    )
    reader.finish("clock")
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
