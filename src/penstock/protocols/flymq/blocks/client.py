"""Reading by blocks as clients ask for it: `client.blocks` of the async client and of its twin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from penstock.clients.arguments import check_topic, index_field, offset_field
from penstock.clients.loop_thread import LoopThread
from penstock.errors import ProtocolViolation
from penstock.protocols.flymq.blocks import layouts
from penstock.protocols.flymq.blocks.messages import NO_EPOCH, EncodedBlocks, Plan, TopicSpans

FETCH_BYTES: Final = 4 << 20
"""Bytes that one request asks for unless told otherwise; a broker gives no more."""
BLOCK_BYTES_MAX: Final = 128 << 20
"""No broker of ours makes larger ones: more than this is a fault, and must not fill the memory."""

Ask = Callable[[bytes], Awaitable[bytes]]


class AsyncBlocks:
    """`read` may be sent again where a connection was lost."""

    def __init__(self, read: Ask) -> None:
        self._read = read

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        topic_id: str = "",
        max_bytes: int = FETCH_BYTES,
        epoch: int = NO_EPOCH,
    ) -> EncodedBlocks:
        """Whole blocks as they are stored, the first of which holds `offset`; none at the end of the partition.

        At least one, then more while they fit into `max_bytes`. Raises OffsetOutOfRange, also if the partition's log epoch is not the one
        given, and TopicNotFound also where the topic's id is not the one given. Expired records are among them; who reads blocks leaves
        them out itself.
        """
        check_topic(topic)
        pieces: list[bytes] = []
        size = 0
        while True:
            data = layouts.encode_fetch_blocks(
                topic, topic_id, index_field(partition), offset_field(offset), max_bytes, size, epoch
            )
            piece = layouts.decode_blocks(await self._read(data))
            pieces.append(piece.data)
            size += len(piece.data)
            if not piece.missing:
                return EncodedBlocks(piece.start_offset, piece.end_offset, b"".join(pieces))
            if not piece.data or size + piece.missing > BLOCK_BYTES_MAX:
                raise ProtocolViolation(f"a block of {size + piece.missing} bytes cannot be: the broker sends nonsense")

    async def plan(self, topics: Sequence[TopicSpans], *, step_bytes: int = 0, wait_ms: int = 0) -> Plan:
        """What the broker holds of some topics: ids, start and end offsets, log epochs, where the log was cut since the epochs of the
        given spans, and with `step_bytes` where the blocks of the spans lie.

        With `wait_ms`, the answer comes once there is a record after one of the spans, its log was cut, or the time is over.
        """
        for each in topics:
            check_topic(each.topic)
        return layouts.decode_plan(await self._read(layouts.encode_read_plan(topics, step_bytes, wait_ms)))


class Blocks:
    """The same calls as `AsyncBlocks`, each waiting for its answer."""

    def __init__(self, thread: LoopThread, blocks: AsyncBlocks) -> None:
        self._thread = thread
        self._blocks = blocks

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        topic_id: str = "",
        max_bytes: int = FETCH_BYTES,
        epoch: int = NO_EPOCH,
    ) -> EncodedBlocks:
        """Whole blocks as they are stored, the first of which holds `offset`; none at the end of the partition."""
        return self._thread.run(
            self._blocks.fetch(topic, partition, offset, topic_id=topic_id, max_bytes=max_bytes, epoch=epoch)
        )

    def plan(self, topics: Sequence[TopicSpans], *, step_bytes: int = 0, wait_ms: int = 0) -> Plan:
        """What the broker holds of some topics, and with `step_bytes` where the blocks of the given spans lie."""
        return self._thread.run(self._blocks.plan(topics, step_bytes=step_bytes, wait_ms=wait_ms))
