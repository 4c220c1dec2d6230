"""Handlers of whole blocks and of plans."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from penstock.broker.records.operations import ReadableTopic
from penstock.errors import InvalidRequest, NotSupported, OffsetOutOfRange, TopicNotFound
from penstock.log.api import Partition, follow_all
from penstock.protocols.flymq.operations import blocks as op
from penstock.protocols.flymq.server.dispatch import Caller, Frame, handles

BLOCKS_BYTES_MAX: Final = 4 << 20
"""Per reply. A connection holds one reply beyond its send buffer, so this bounds what a reader that does not read can cost."""
WAIT_MS_MAX: Final = 10_000
MARKS_MAX: Final = 65_536
"""Per reply; where more would fit between the offsets, they stand further apart."""
TOPICS_PER_TURN: Final = 256
"""Looked up before others have their turn of the loop."""
_MARKS_PER_PARTITION_MIN: Final = 16


@handles(op.FetchBlocks, large_read=True, on_every_node=True)
async def fetch_blocks(caller: Caller, body: op.FetchBlocks) -> Frame:
    topic = caller.broker.records.readable_topic(caller.principal, body.topic)
    if body.topic_id not in ("", topic.info.id):
        raise TopicNotFound(
            f"topic not found: {body.topic} with id {body.topic_id} (it was deleted, and another has its name)"
        )
    partition = caller.broker.records.partition(caller.principal, body.topic, body.partition)
    if body.epoch not in (op.NO_EPOCH, partition.epoch):
        raise OffsetOutOfRange(
            f"offset out of range: {body.offset} belongs to log epoch {body.epoch} of {body.topic}-{body.partition}, which is in epoch "
            f"{partition.epoch} since a crash or a restored backup; ask for a plan to see where the log was cut"
        )
    bytes_max = min(max(body.max_bytes, 1), BLOCKS_BYTES_MAX)
    blocks = await partition.read(body.offset, bytes_max)
    data = [part for block in blocks for part in block.pieces]
    missing = 0
    if body.skip or (blocks and blocks[0].size_bytes > bytes_max):
        # A piece of the first block, and nothing after it.
        first = blocks[0].data if blocks else b""
        data = [first[body.skip : body.skip + bytes_max]]
        missing = max(len(first) - body.skip - len(data[0]), 0)
    if not missing:  # records of a block that is sent in pieces count with the last
        caller.note_read(sum(block.count for block in blocks[: 1 if body.skip else None]))
    return op.encode_blocks(partition.start_offset, partition.committed_end, missing, data)


@handles(op.ReadPlan, on_every_node=True)
async def read_plan(caller: Caller, body: op.ReadPlan) -> Frame:
    if len({each.topic for each in body.topics}) != len(body.topics):
        raise InvalidRequest("a plan names each topic once")
    topics = await _resolved(caller, body.topics)
    if body.wait_ms:
        known = [
            (partition, span)
            for _, topic, spans in topics
            if topic is not None
            for partition, span in _paired(topic.partitions, spans)
        ]
        await _until_moved(known, min(body.wait_ms, WAIT_MS_MAX) / 1000)
        topics = await _resolved(caller, body.topics)  # some may have come or gone meanwhile
    marks_max = max(MARKS_MAX // max(sum(len(each.spans) for each in body.topics), 1), _MARKS_PER_PARTITION_MIN)
    files = next((topic.files for _, topic, _ in topics if topic is not None), None)
    planned: list[op.PlannedTopic] = []
    extents_left = op.EXTENTS_MAX
    for number, (name, topic, spans) in enumerate(topics):
        if topic is not None or number % TOPICS_PER_TURN == 0:
            await asyncio.sleep(0)  # there may be thousands
        if topic is None:
            planned.append(op.PlannedTopic(name, "", False, []))
            continue
        wanted = {span.partition: span for span in spans}
        partitions: list[op.PlannedPartition] = []
        for partition in topic.partitions:
            extents: list[op.PlannedExtent] = []
            span = wanted.get(partition.index)
            if span is not None and body.step_bytes and extents_left > 0:
                step_bytes = max(body.step_bytes, partition.size_bytes // marks_max)
                extents = await _extents(partition, span, step_bytes, extents_left)
                extents_left -= len(extents)
            # The start as it is behind the look for extents: who finds it above what it asked for knows that they may be short.
            partitions.append(
                op.PlannedPartition(
                    partition.index,
                    partition.start_offset,
                    partition.committed_end,
                    partition.epoch,
                    None if span is None else _cut(partition, span),
                    extents,
                )
            )
        retained = any(partition.retained for partition in topic.partitions)
        planned.append(op.PlannedTopic(name, topic.info.id, retained, partitions))
    plan = op.Plan(*(files or ("", "", "")), planned, caller.broker.records.now_ms())
    if len(planned) <= TOPICS_PER_TURN:
        return op.encode_plan(plan)
    return await caller.worker.run(lambda _: op.encode_plan(plan))


async def _resolved(
    caller: Caller, topics: Sequence[op.TopicSpans]
) -> list[tuple[str, ReadableTopic | None, Sequence[op.PartitionSpan]]]:
    resolved: list[tuple[str, ReadableTopic | None, Sequence[op.PartitionSpan]]] = []
    for number, each in enumerate(topics, 1):
        resolved.append((each.topic, _readable(caller, each.topic), each.spans))
        if number % TOPICS_PER_TURN == 0:
            await asyncio.sleep(0)
    try:
        await follow_all(partition for _, topic, _ in resolved if topic is not None for partition in topic.partitions)
    except TopicNotFound:
        return await _resolved(caller, topics)  # one is gone since, and is not among them the next time
    return resolved


def _readable(caller: Caller, topic: str) -> ReadableTopic | None:
    try:
        return caller.broker.records.readable_topic(caller.principal, topic)
    except TopicNotFound:
        return None


def _paired(
    partitions: Sequence[Partition], spans: Sequence[op.PartitionSpan]
) -> list[tuple[Partition, op.PartitionSpan]]:
    return [(partitions[span.partition], span) for span in spans if 0 <= span.partition < len(partitions)]


async def _extents(
    partition: Partition, span: op.PartitionSpan, step_bytes: int, extents_max: int
) -> list[op.PlannedExtent]:
    offset = max(span.offset, partition.start_offset)
    try:
        found = await partition.extents(
            offset, span.end_offset, step_bytes, span.bytes_max or max(partition.size_bytes, 1)
        )
    except (NotSupported, OffsetOutOfRange, TopicNotFound):
        return []  # not in files, beyond the end, or deleted meanwhile; the reader goes by the offsets then
    return [op.PlannedExtent(*extent) for extent in found[:extents_max]]


def _cut(partition: Partition, span: op.PartitionSpan) -> int | None:
    return None if span.epoch == op.NO_EPOCH else partition.cut_since(span.epoch)


async def _until_moved(known: Sequence[tuple[Partition, op.PartitionSpan]], wait_s: float) -> None:
    """Wait until a partition has more than the reader knows of; not at all if one has less."""
    for partition, span in known:
        cut = _cut(partition, span)
        if partition.committed_end > span.end_offset or (cut is not None and cut < span.offset):
            return
    moved = asyncio.Event()
    with ExitStack() as watches:
        for partition, _ in known:
            watches.callback(partition.watch(moved.set))
        try:
            async with asyncio.timeout(wait_s):
                await moved.wait()
        except TimeoutError:
            pass
