"""Reading by offset and by time, and asking where a partition begins and ends. Patient: a cluster that changes its leaders is no error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from penstock.errors import CorruptBlock, InvalidRequest, OffsetOutOfRange, TopicNotFound, Unreachable
from penstock.log.block import Block
from penstock.log.kafka.batches import RecordBatch, split, visible
from penstock.log.kafka.client import EARLIEST, LATEST, READ_CONNECTIONS, Fetched, KafkaClient, Place, Purpose
from penstock.log.kafka.faults import Code, KafkaFault, Unanswered

RETRY_S_MIN: Final = 0.01
RETRY_S_MAX: Final = 0.5
UNKNOWN_S_MAX: Final = 5.0
"""A topic that brokers do not know for so long does not exist; a new one is not known to all at once."""
PROBE_BYTES: Final = 64 << 10
"""Fetched to find the last record; the first batch comes whole all the same."""

_T = TypeVar("_T")


class Patience:
    """How often and how long something is tried."""

    __slots__ = ("_began", "_deadline_s", "_loop", "_pause_s", "_what")

    def __init__(self, what: str, seconds_max: float) -> None:
        """`what` is tried, for the error."""
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._deadline_s = seconds_max
        self._pause_s = RETRY_S_MIN

    async def after(self, error: Unanswered | KafkaFault) -> None:
        """Pause before the next attempt. Raises what a fault that is final or lasts too long means."""
        waited = self._loop.time() - self._began
        if isinstance(error, KafkaFault):
            if not error.retriable:
                raise error
            if error.code == Code.UNKNOWN_TOPIC_OR_PARTITION and waited > UNKNOWN_S_MAX:
                raise TopicNotFound(f"Kafka has no topic for {self._what}: it was deleted by somebody else") from error
        if waited + self._pause_s > self._deadline_s:
            raise Unreachable(f"Kafka does not answer: {self._what}, for {waited:.0f} s now ({error})") from error
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, RETRY_S_MAX)


class Reader:
    """Reads what a partition holds, at a place in Kafka."""

    def __init__(self, client: KafkaClient, seconds_max: float) -> None:
        self._client = client
        self._seconds_max = seconds_max

    async def patiently(self, what: str, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Do something until it is answered. Raises KafkaFault if the answer is a final refusal, Unreachable if none comes."""
        patience = Patience(what, self._seconds_max)
        while True:
            try:
                return await attempt()
            except (Unanswered, KafkaFault) as error:
                await patience.after(error)
                await self._client.refresh()

    async def _ask_leader(
        self, what: str, place: Place, ask: Callable[[int], Awaitable[Mapping[Place, _T | KafkaFault]]]
    ) -> _T:
        """Ask the broker that leads a partition, until it answers for that. Raises what `patiently` does."""

        async def attempt() -> _T:
            answer = (await ask(self.leader(place)))[place]
            if isinstance(answer, KafkaFault):
                raise answer
            return answer

        return await self.patiently(what, attempt)

    def leader(self, place: Place) -> int:
        """Raises Unanswered if nobody leads the partition now."""
        leader = self._client.leader(place)
        if leader is None:
            raise Unanswered(f"no broker leads partition {place[1]} of {place[0]}")
        return leader

    async def offset(self, place: Place, timestamp_ms: int) -> int:
        """The offset of the first record at or after a time (or `EARLIEST`, `LATEST`); -1 if there is none."""

        what = f"finding an offset in {place[0]}"
        return await self._ask_leader(what, place, lambda leader: self._client.offsets(leader, {place: timestamp_ms}))

    async def bounds(self, place: Place) -> tuple[int, int]:
        """Where a partition starts, and the offset up to which everything in it is committed or aborted."""
        start, end = await asyncio.gather(self.offset(place, EARLIEST), self.offset(place, LATEST))
        return start, end

    async def fetch(self, place: Place, offset: int, max_bytes: int) -> Fetched:
        """Raises OffsetOutOfRange."""
        purpose = Purpose.READ + hash(place) % READ_CONNECTIONS
        try:
            return await self._ask_leader(
                f"reading {place[0]}",
                place,
                lambda leader: self._client.fetch(leader, {place: offset}, max_bytes, 0, purpose),
            )
        except KafkaFault as fault:
            if fault.code == Code.OFFSET_OUT_OF_RANGE:
                raise OffsetOutOfRange(f"offset {offset} is not in partition {place[1]} of {place[0]}") from fault
            raise Unreachable(f"Kafka refuses to read {place[0]}: {fault}") from fault

    async def read(self, place: Place, offset: int, end: int, max_bytes: int) -> list[Block]:
        """Blocks from the one that holds `offset` on, at least one if there is a record before `end`, more while they fit."""
        position = offset
        blocks: list[Block] = []
        size = 0
        while position < end and not blocks:
            fetched = await self.fetch(place, position, max_bytes)
            batches = list(split(fetched.data))
            if not batches:
                break
            position = batches[-1].next_offset
            for batch in visible(batches, fetched.aborted):
                if batch.base_offset >= end:
                    break
                if batch.next_offset <= offset:
                    continue
                try:
                    block = batch.block()
                except CorruptBlock:
                    if blocks:
                        break  # who reads on comes upon it, after those before it
                    raise
                if block is None or block.next_offset <= offset:
                    continue
                size += block.decoded_bytes
                if blocks and size > max_bytes:
                    break
                blocks.append(block)
        return blocks

    async def delete_before(self, place: Place, offset: int) -> int:
        """Delete the records before an offset; returns where the partition starts then."""
        what = f"deleting records of {place[0]}"
        try:
            return await self._ask_leader(
                what, place, lambda leader: self._client.delete_records(leader, {place: offset})
            )
        except KafkaFault as fault:
            raise InvalidRequest(f"Kafka refuses to delete records of {place[0]}: {fault}") from fault

    async def visible_end(self, place: Place, start: int, stable_end: int) -> int:
        """The offset after the last record before `stable_end` that a reader may see; `start` if there is none.

        Looks further back each time: what ends transactions and what was aborted may lie at the end.
        """
        at, step = stable_end, 1
        while at > start:
            at = max(start, at - step)
            step *= 2
            last: RecordBatch | None = None
            position = at
            while position < stable_end:
                fetched = await self.fetch(place, position, PROBE_BYTES)
                batches = list(split(fetched.data))
                if not batches:
                    break
                position = batches[-1].next_offset
                for batch in visible(batches, fetched.aborted):
                    if batch.base_offset < stable_end and batch.count:
                        last = batch
            if last is not None:
                try:
                    block = last.block()
                except CorruptBlock:
                    block = None  # a reader that reaches it gets the error
                return last.next_offset if block is None else block.next_offset
        return start
