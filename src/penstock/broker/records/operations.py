"""Records as protocols see them: every operation takes the principal first and passes the access check.

Writing is the hot path of every session: it goes from the access check through the schema of the topic, if there is one, to the producer.
Reading is done on a partition, or on all partitions of a topic, which are handed out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.broker.access.checks import Operation, Principal, on_topic
from penstock.broker.part import Context, Part
from penstock.broker.records.faults import Faults
from penstock.broker.records.producer import ANY_PARTITION, Producer
from penstock.broker.records.spreading import ALL_ROWS, OnPlaced, Placement
from penstock.broker.schemas.reference import parse_reference
from penstock.broker.schemas.validation import Validation
from penstock.broker.tracing import ending, error_of_placed
from penstock.log.api import Batch, LogFiles, Partition, TopicInfo


class ReadableTopic(NamedTuple):
    info: TopicInfo
    partitions: Sequence[Partition]
    files: LogFiles | None
    """Where the log lies, for readers on the same machine."""


class Records(Part):
    def __init__(self, context: Context, producer: Producer, validation: Validation) -> None:
        super().__init__(context)
        self._producer = producer
        self._validation = validation

    @on_topic(Operation.WRITE)
    def produce(
        self,
        principal: Principal,
        topic: str,
        partition: int | Sequence[int],
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[bytes | None] | None = None,
        expiries: Sequence[int] | None = None,
        *,
        units: Sequence[int] | None = None,
        schema: str | None = None,
        done: OnPlaced,
    ) -> bool:
        """Append records to a topic, to one partition or to one for each record; -1 goes by the key, or in turn without one.

        Records must follow the schema that the topic is bound to, and the one given here.

        `units` has the number of records of each request, if requests hold several: a record at fault refuses its request. By default
        it refuses only itself.

        Raises what concerns all records, and then nothing was appended: the topic is missing or not open to the principal, there are no
        records, or columns differ in length. Otherwise `done` is called once, on the loop, after this returns and after the commit of
        the last part. It gets a Placement for each part, of which any may have failed, and for the records that are refused (too
        large, without the key that the topic asks for, not as the schema says, for a partition that does not exist); or, if
        records went to many partitions and all arrived, columns with the place of each.

        Return whether it is already known that some records are refused.
        """
        batch = Batch(values, keys, headers, expiries)
        if self._tracing is not None:
            batch, end = self._tracing.produce(topic, batch)
            done = ending(end, done, error_of_placed)
        if schema is None and not self._validation.applies_to(topic):
            return self._producer.produce(topic, partition, batch, units, done)
        return self._produce_checked(topic, partition, batch, units, schema, done)

    @on_topic(Operation.WRITE)
    def produce_together(
        self,
        principal: Principal,
        topic: str,
        values: Sequence[bytes | None],
        key: bytes | None = None,
        *,
        units: Sequence[int] | None = None,
        done: OnPlaced,
    ) -> None:
        """Append records that share a key, or have none, as `produce` does, but all to one partition: that of the key, else the next in
        turn."""
        batch = Batch(values, None if key is None else [key] * len(values))
        partition = self._producer.one_partition(topic, key)
        if self._tracing is not None:
            batch, end = self._tracing.produce(topic, batch)
            done = ending(end, done, error_of_placed)
        if self._validation.applies_to(topic):
            self._produce_checked(topic, partition, batch, units, None, done)
        else:
            self._producer.produce(topic, partition, batch, units, done)

    def _produce_checked(
        self,
        topic: str,
        partition: int | Sequence[int],
        batch: Batch,
        units: Sequence[int] | None,
        schema: str | None,
        done: OnPlaced,
    ) -> bool:
        """Append the records that follow the topic's schema and the one given."""
        refused = False

        def append(faults: Faults | None, stamped: Batch) -> None:
            nonlocal refused
            refused = self._producer.produce(topic, partition, stamped, units, done, faults)

        self._validation.screen(
            topic,
            None if schema is None else parse_reference(schema),
            batch,
            units,
            append,
            lambda error: done([Placement(ANY_PARTITION, ALL_ROWS, error)]),
        )
        return refused

    @on_topic(Operation.READ)
    def partition(self, principal: Principal, topic: str, index: int) -> Partition:
        """The partition, for reading. Raises TopicNotFound or PartitionNotFound."""
        return self._engine.partition(topic, index)

    def now_ms(self) -> int:
        """The clock that records expire by. Open to everybody."""
        return self._clock.now_ms()

    @on_topic(Operation.READ)
    def readable_topic(self, principal: Principal, name: str) -> ReadableTopic:
        """A topic for readers that share its partitions out among them. Raises TopicNotFound."""
        info = self._engine.topic(name)
        return ReadableTopic(info, self._engine.partitions(info), self._engine.files)
