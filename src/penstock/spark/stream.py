"""`spark.readStream.format("penstock")`: the stream reader.

Spark keeps one reader for the life of a query and asks it, over and over, how far the next batch may go. `offsets` has what it is told
and why. An answer waits a moment for new records, so an idle query costs next to nothing and a new record is seen at once. While batches
are done it does not wait: the query may have another source, which has records.

What a batch has read is published as offsets of a group when Spark asks for the batch after it, which it does once the batch is done, also
after the last one of a query that ends (`Trigger.AvailableNow`). So tools that watch groups see the lag of the query. It is for them only:
the query continues from its checkpoint, whatever the group says, and does not wait for it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.connection import pooled_client
from penstock.spark.holdings import (
    Holdings,
    TopicHoldings,
    check_all_exist,
    look,
    starting_positions,
    without_lost,
)
from penstock.spark.limits import waiting_rows, within_bytes, within_rows
from penstock.spark.offsets import START, Positions, StreamOffset, is_start
from penstock.spark.options import SourceOptions
from penstock.spark.prefetching import Prefetching
from penstock.spark.publishing import BackgroundPublisher
from penstock.spark.source import planned, read_task

QUERY_ID_BYTES = 4
PUBLISH_S_MAX = 5.0
"""How long the end of a query waits until its last offsets are published."""


class PenstockStreamReader(Prefetching, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._began: StreamOffset | None = None
        """Where the query begins, once that was found out."""
        self._target: Positions | None = None
        """Where `Trigger.AvailableNow` ends."""
        self._seen: dict[str, Any] | None = None
        """The ends of the log when they were last examined."""
        self._idle: tuple[dict[str, Any], Positions] | None = None
        """Where the query stood when there was nothing to do for it, and the ends of the log then: only what comes after them is new."""
        self._batch_s = float("-inf")
        """When a batch was last begun."""
        self._at_work = False
        """Whether Spark has done a batch since it last asked how far to go, maybe for the sake of another source of the query."""
        self._publisher: BackgroundPublisher | None = None
        self._told: Positions = {}
        """What the publisher was told last."""

    @property
    def _client(self) -> FlyMQClient:
        return pooled_client(self._options.connection)

    # -- how far ---------------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return dict(START)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        options = self._options
        if options.offsets_per_trigger_max is not None:
            return ReadMaxRows(options.offsets_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        if options.offsets_per_trigger_min is not None:
            return ReadMaxRows((1 << 63) - 1)  # tells the usual trigger from one that wants all there is
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        holdings = look(self._client, self._options.subscription)
        self._target = {topic: held.ends for topic, held in holdings.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        options = self._options
        if is_start(start):
            return self._first_batch(limit)
        before = StreamOffset.decode(start)
        self._publish(before)
        known = self._idle[1] if self._idle is not None and self._idle[0] == start else None
        wait_ms = 0 if self._at_work or self._target is not None else options.poll_wait_ms
        holdings = self._look(before, known, wait_ms)
        self._at_work = False
        if self._target is not None:
            holdings = {topic: held for topic, held in holdings.items() if topic in self._target}
        read = {topic: numbers for topic, numbers in before.positions.items() if options.subscription.covers(topic)}
        left = without_lost(holdings, read, before.ids, fail=options.fail_on_data_loss)
        # Also what is still empty: were it not on record, nobody could tell that it has lost records when some come and go.
        new: dict[str, Mapping[int, int]] = {}
        for topic, held in holdings.items():
            starts = {**_starts_after_cuts(topic, held, left, before), **_starts_of_new(topic, held, before)}
            if starts:
                new[topic] = starts
        begin = {topic: {**left.get(topic, {}), **new.get(topic, {})} for topic in holdings}
        end = self._limited(begin, self._available(holdings, begin), limit, first=False)
        if end == before.positions and not new:
            if self._target is not None and self._publisher is not None:
                self._publisher.wait(PUBLISH_S_MAX)  # Spark ends this process next
            missing: Positions = {topic: {} for topic in options.subscription.topics}
            self._idle = start, {**missing, **{topic: held.ends for topic, held in holdings.items()}}
            return start
        if waiting_rows(begin, end):
            self._batch_s = time.monotonic()
        return _stream_offset(end, holdings, new, before.query).encode()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return self._seen

    def _first_batch(self, limit: ReadLimit) -> dict[str, Any]:
        """The end of the first batch, and with it where it begins. It may be empty: what "latest" was is then on record."""
        options = self._options
        if self._began is None:
            holdings = self._look(options.starting.reached)
            check_all_exist(holdings, options.subscription)
            query = "" if options.group is None or options.group_is_given else secrets.token_hex(QUERY_ID_BYTES)
            self._began = _stream_offset(starting_positions(self._client, holdings, options), holdings, query=query)
        else:
            holdings = self._look(self._began)
        begin = without_lost(holdings, self._began.positions, self._began.ids, fail=options.fail_on_data_loss)
        available = {topic: numbers for topic, numbers in self._available(holdings, begin).items() if topic in begin}
        end = self._limited(begin, available, limit, first=True)
        self._batch_s = time.monotonic()
        return _stream_offset(end, holdings, begin, self._began.query).encode()

    def _publish(self, done: StreamOffset) -> None:
        """Publish what was read, as offsets of the query's group."""
        options = self._options
        if options.group is None or done.positions == self._told:
            return
        self._told = done.positions
        if self._publisher is None:
            is_own = done.query and not options.group_is_given
            group = f"{options.group}-{done.query}" if is_own else options.group
            self._publisher = BackgroundPublisher(options.connection, group)
        self._publisher.publish(done.positions)

    def _look(self, reached: StreamOffset, known: Positions | None = None, wait_ms: int = 0) -> Holdings:
        holdings = look(self._client, self._options.subscription, reached=reached, known=known, wait_ms=wait_ms)
        self._seen = _stream_offset({topic: held.ends for topic, held in holdings.items()}, holdings).encode()
        return holdings

    def _available(self, holdings: Holdings, begin: Positions) -> Positions:
        """How far there is anything to read, up to where an AvailableNow trigger ends."""
        if self._target is None:
            return {topic: held.ends for topic, held in holdings.items()}
        return {
            topic: {
                index: max(min(offset, self._target.get(topic, {}).get(index, 0)), begin[topic][index])
                for index, offset in held.ends.items()
            }
            for topic, held in holdings.items()
            if topic in begin
        }

    def _limited(self, begin: Positions, end: Positions, limit: ReadLimit, *, first: bool) -> Positions:
        options = self._options
        if isinstance(limit, ReadAllAvailable):
            return end
        if not first and self._target is None and self._too_few(waiting_rows(begin, end)):
            return begin
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else options.offsets_per_trigger_max
        if rows_max is not None:
            end = within_rows(begin, end, rows_max)
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.bytes_per_trigger_max
        return end if bytes_max is None else within_bytes(self._client, begin, end, bytes_max)

    def _too_few(self, rows: int) -> bool:
        """Whether to wait for more records, because there are few and the last batch was not long ago."""
        rows_min = self._options.offsets_per_trigger_min
        waited_s = time.monotonic() - self._batch_s
        return rows_min is not None and rows < rows_min and waited_s * 1000 < self._options.trigger_delay_ms_max

    # -- a batch ---------------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._at_work = True
        until = StreamOffset.decode(end)
        tasks = planned(self._options, until.ids, until.epochs, until.begin(start), until.positions)
        self.prefetch(tasks, self.read)
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options, partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        self._at_work = True

    def stop(self) -> None:
        """Spark ends the process instead of calling this."""


def _stream_offset(
    positions: Positions, holdings: Holdings, began: Positions | None = None, query: str = ""
) -> StreamOffset:
    """An offset in topics as they are now."""
    ids = {topic: holdings[topic].id for topic in positions}
    epochs = {
        topic: {index: holdings[topic].epochs[index] for index in numbers} for topic, numbers in positions.items()
    }
    return StreamOffset(positions, ids, began or {}, epochs, query)


def _starts_after_cuts(topic: str, held: TopicHoldings, left: Positions, before: StreamOffset) -> Mapping[int, int]:
    """Where reading continues in those partitions of a topic whose log was cut below what was read."""
    read_to = before.positions.get(topic, {})
    return {
        index: offset for index, offset in left.get(topic, {}).items() if index in held.cuts and offset < read_to[index]
    }


def _starts_of_new(topic: str, held: TopicHoldings, before: StreamOffset) -> Mapping[int, int]:
    """Where those partitions of a topic begin that no batch has seen yet."""
    if before.ids.get(topic, held.id) != held.id:
        return held.starts
    seen = before.positions.get(topic, {})
    return {index: offset for index, offset in held.starts.items() if index not in seen}
