"""How much of the available records goes into one batch of a stream.

Rows are shared out among partitions by how much each has waiting, as Kafka's connector does; bytes likewise, and the broker says at
which block a share ends. Every partition that has something gets something, so a small one is never starved and a stream always moves.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.protocols.flymq.operations.blocks import EXTENTS_MAX, PartitionSpan, TopicSpans
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.offsets import Positions

_STEP_BYTES_MIN = 64 << 10


def waiting_rows(begin: Positions, end: Positions) -> int:
    return sum(
        max(0, offset - begin[topic][index]) for topic, numbers in end.items() for index, offset in numbers.items()
    )


def within_rows(begin: Positions, end: Positions, rows_max: int) -> Positions:
    """The end of a batch with about this many rows."""
    waiting = waiting_rows(begin, end)
    if waiting <= rows_max:
        return end

    def share(from_offset: int, to_offset: int) -> int:
        rows = to_offset - from_offset
        return from_offset + min(rows, max(rows_max * rows // waiting, 1)) if rows > 0 else from_offset

    return {
        topic: {index: share(begin[topic][index], offset) for index, offset in numbers.items()}
        for topic, numbers in end.items()
    }


def within_bytes(client: FlyMQClient, begin: Positions, end: Positions, bytes_max: int) -> Positions:
    """The end of a batch with about this many bytes of log: up to a block more in each partition."""
    waiting = waiting_rows(begin, end)
    if not waiting:
        return end
    asked = [
        TopicSpans(
            topic,
            [
                PartitionSpan(
                    index, begin[topic][index], offset, max(bytes_max * (offset - begin[topic][index]) // waiting, 1)
                )
                for index, offset in numbers.items()
                if offset > begin[topic][index]
            ],
        )
        for topic, numbers in end.items()
    ]
    plan = client.blocks.plan(asked, step_bytes=max(_STEP_BYTES_MIN, bytes_max // 256))
    reached: Mapping[tuple[str, int], int] = {
        (topic.topic, each.partition): each.extents[-1].next_offset
        for topic in plan.topics
        for each in topic.partitions
        if each.extents
    }
    told_all = sum(len(each.extents) for topic in plan.topics for each in topic.partitions) < EXTENTS_MAX

    def stop(topic: str, index: int, offset: int) -> int:
        """Where nothing is told of a partition there is nothing in it, or the answer was full; then it has its turn with the next batch."""
        return min(offset, reached.get((topic, index), offset if told_all else begin[topic][index]))

    return {
        topic: {index: stop(topic, index, offset) for index, offset in numbers.items()}
        for topic, numbers in end.items()
    }
