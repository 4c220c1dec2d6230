"""Filling topics in Kafka with those of another log.

A new topic of Kafka begins at offset 0 and its batches have no gaps, so records with the header `penstock-gap` take the offsets that hold
none, and what lies before the first record is deleted at the end. One batch of a partition is in flight, and the same bytes are sent until
they are answered: each must land where it belongs, or the import ends, because somebody else writes to the topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidRequest, NotWritten
from penstock.log.api import Import, PlacedBatch, TopicInfo
from penstock.log.kafka.batches import EncodedRecords, encode_gap, encode_placed
from penstock.log.kafka.client import LATEST, KafkaClient, Produced, ProducerId
from penstock.log.kafka.faults import SEQUENCE_MODULUS, Code, KafkaFault
from penstock.log.kafka.lock import TRANSACTION_MS
from penstock.log.kafka.reader import Reader

if TYPE_CHECKING:
    from penstock.log.kafka.engine import KafkaEngine
    from penstock.log.kafka.partition import KafkaPartition

BATCH_BYTES: Final = 256 << 10
"""A batch is closed at this size: Kafka returns it whole, whatever is read of it."""
GAPS_MAX: Final = 1_000
"""Empty offsets that are filled among the records of one batch; more have batches of their own."""
GAP_BATCH: Final = 100_000
"""Offsets that one batch without records takes."""


class KafkaImport(Import):
    def __init__(self, engine: KafkaEngine, client: KafkaClient, reader: Reader, prefix: str) -> None:
        self._engine = engine
        self._client = client
        self._reader = reader
        self._id = f"{prefix}penstock.import"
        self._producer: ProducerId | None = None
        self._begun: set[str] = set()
        self._sequences: dict[KafkaPartition, int] = {}
        self._positions: dict[KafkaPartition, int] = {}
        self._large_gap = encode_gap(GAP_BATCH, 0)

    async def begin(self, info: TopicInfo) -> None:
        existing = self._engine.topics().get(info.name)
        if info.id not in self._begun or existing is None or existing.config.partitions < info.config.partitions:
            await self._engine.import_topic(info)
            self._begun.add(info.id)
        if self._producer is None:
            self._producer = await self._reader.patiently(
                "beginning the import", lambda: self._client.init_producer(self._id, TRANSACTION_MS)
            )

    async def position(self, topic: str, index: int) -> int:
        partition = self._engine.partition(topic, index)
        if partition not in self._positions:
            self._positions[partition] = await self._reader.offset(partition.place, LATEST)
        return self._positions[partition]

    async def place(self, topic: str, index: int, records: PlacedBatch) -> None:
        partition = self._engine.partition(topic, index)
        if partition.config.cleanup == "compact" and (records.keys is None or None in records.keys):
            row = 0 if records.keys is None else records.keys.index(None)
            raise InvalidRequest(
                f"the record at offset {records.offsets[row]} of {partition} has no key, and Kafka drops such records from a compacted"
                ' topic: alter the topic to cleanup = "delete", or delete the records, before it is moved'
            )
        for some in _cut(records):
            if some.offsets[0] - await self.position(topic, index) > GAPS_MAX:
                await self.skip_to(topic, index, some.offsets[0])
            start = await self.position(topic, index)
            compress = partition.config.compression == "zstd"
            await self._send(partition, encode_placed(some, start, compress=compress))

    async def skip_to(self, topic: str, index: int, offset: int) -> None:
        partition = self._engine.partition(topic, index)
        while (left := offset - await self.position(topic, index)) > 0:
            await self._send(partition, self._large_gap if left >= GAP_BATCH else encode_gap(left, 0))

    async def _send(self, partition: KafkaPartition, records: EncodedRecords) -> None:
        assert self._producer is not None, "nothing is placed in a topic before it has begun"
        sequence = self._sequences.get(partition, 0)
        attempt = partial(self._produce, partition, records.batch(self._producer, sequence))
        try:
            produced = await self._reader.patiently(f"writing {partition.place[0]}", attempt)
        except KafkaFault as fault:
            advice = "raise kafka.message_bytes_max" if fault.code == Code.MESSAGE_TOO_LARGE else "run it again"
            raise NotWritten(f"Kafka refuses records for {partition} ({fault}): {advice}") from fault
        position = self._positions[partition]
        if produced.offset != position:
            raise NotWritten(
                f"records for offset {position} of {partition} were stored at {produced.offset}, because something else has written to"
                f" {partition.place[0]} in Kafka: stop that, delete the topic there, and run it again"
            )
        self._sequences[partition] = (sequence + records.offsets) % SEQUENCE_MODULUS
        self._positions[partition] = position + records.offsets

    async def _produce(self, partition: KafkaPartition, data: bytes) -> Produced:
        answers = await self._client.produce(self._reader.leader(partition.place), [(partition.place, data)])
        answer = answers[partition.place]
        if isinstance(answer, KafkaFault):
            raise answer
        return answer

    async def finish(self, info: TopicInfo, starts: Sequence[int]) -> None:
        await self._engine.truncate_topic(info.name, dict(enumerate(starts)))
        await self._engine.alter_topic(info.name, info.config)


def _cut(records: PlacedBatch) -> Iterator[PlacedBatch]:
    """The records in portions for one batch each."""
    start = size = gaps = 0
    sizes = _sizes(records)
    offsets = records.offsets
    for row, row_bytes in enumerate(sizes):
        gap = offsets[row] - offsets[row - 1] - 1 if row > start else 0
        if row > start and (size + row_bytes > BATCH_BYTES or gaps + gap > GAPS_MAX):
            yield records.rows(start, row)
            start, size, gaps, gap = row, 0, 0, 0
        size += row_bytes
        gaps += gap
    yield records if not start else records.rows(start, records.count)


def _sizes(records: PlacedBatch) -> list[int]:
    columns = [column for column in (records.values, records.keys, records.headers) if column is not None]
    return [sum(len(cell) for cell in cells if cell is not None) for cells in zip(*columns, strict=True)]
