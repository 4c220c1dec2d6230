"""`df.write.format("penstock")` and `writeStream`: every batch is published whole, and once.

Each attempt of each task stages its records at the broker under a name of its own; the driver's commit names the attempts that won, and the
broker publishes exactly these (see `broker.transactions`). What makes it happen once is the name of the work: application and epoch.

    stream   application = txnAppId, or the id of the query, which is in its checkpoint; epoch = number of the batch
    batch    application = txnAppId and epoch = txnVersion; otherwise a new name for each write, with the one epoch 0
             inside foreachBatch, txnAppId alone is enough: the epoch is the number of the batch

Spark makes writers again in several processes, so they hold plain data. What a task knows (the query, its run, the number of the batch) it
has from its local properties, and tells the driver in its message: the process that commits has no other way to know. A message may be
missing where a task failed, and an abort may come after a commit that did not fail; so an abort only drops what is not committed.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.errors import (
    InvalidRequest,
    NotSupported,
    PartitionNotFound,
    RecordTooLarge,
    TopicNotFound,
    TransactionNotFound,
    Unreachable,
)
from penstock.protocols.flymq.operations.spark import Run, Winner
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.connection import ConnectionSettings, pooled_client
from penstock.spark.sink_blocks import BlockMaker, Request
from penstock.spark.sink_options import APPLICATION, REPLAY, VERSION, SinkOptions, parse_sink_options
from penstock.spark.workers import freeze_loaded_modules

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

RECONNECT_S_MAX: Final = 20.0
RECONNECT_DELAY_S: Final = 0.5
_ALL_RUNS: Final = (1 << 63) - 1


@dataclass
class StagedMessage(WriterCommitMessage):
    """What a task tells the driver."""

    application: str
    run: int
    epoch: int
    attempt: str
    requests: int
    records: int


@dataclass(frozen=True, slots=True)
class Work:
    """What a task is part of."""

    application: str
    run_name: str
    epoch: int
    lasting: bool
    query: str
    """The streaming query, empty for a batch of no query."""
    turn: int
    """Where rows without keys begin: tasks begin at different partitions."""


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> PenstockWriter:
    if overwrite:
        raise InvalidRequest(
            'a topic cannot be overwritten: records are only added to it. Use mode("append"); to begin anew, delete the topic first'
        )
    return PenstockWriter(parse_sink_options(options, schema, streaming=False))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> PenstockStreamWriter:
    """`overwrite` is set in complete mode: the whole result is added with each batch, as Kafka's sink does."""
    return PenstockStreamWriter(parse_sink_options(options, schema, streaming=True))


class PenstockWriter(DataSourceArrowWriter):
    """A batch. Made once, and the same in all processes."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage(self._options, self._work(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        options = self._options
        if not messages and options.application is not None and options.version is not None:
            # There were no tasks, so none has begun the run. The version is written all the same.
            run = patient_client(options.connection).staging.begin_run(options.application, self._id)
            messages = [StagedMessage(options.application, run.number, options.version, "", 0, 0)]
        publish(options.connection, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.application is None:
            # Nobody else has this name, so nothing but this write can be meant.
            patient_client(self._options.connection).staging.abort(f"spark-{self._id}", _ALL_RUNS, 0)
        else:
            drop(self._options.connection, messages)

    def _work(self) -> Work:
        context, options = TaskContext.get(), self._options
        turn = context.partitionId() if context is not None else 0
        if options.application is None:
            return Work(f"spark-{self._id}", self._id, 0, lasting=False, query="", turn=turn)
        batch = _property(context, "streaming.sql.batchId")
        epoch = options.version if options.version is not None else int(batch) if batch else None
        if epoch is None:
            raise InvalidRequest(
                f"option {APPLICATION} is set without {VERSION}: number the writes of {options.application}, each higher than the last"
            )
        run = (batch and _property(context, "spark.jobGroup.id")) or self._id
        query = (batch and _property(context, "sql.streaming.queryId")) or ""
        return Work(options.application, run, epoch, lasting=True, query=query, turn=turn)


class PenstockStreamWriter(DataSourceStreamArrowWriter):
    """A stream. Made again for each batch, and again for each commit and abort."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage(self._options, self._work(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        publish(self._options.connection, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        # Without a message it is not known whose they are. The next run of the query drops them, or they expire.
        drop(self._options.connection, messages)

    def _work(self) -> Work:
        context = TaskContext.get()
        query, batch = _property(context, "sql.streaming.queryId"), _property(context, "streaming.sql.batchId")
        run = _property(context, "spark.jobGroup.id")
        if context is None or not query or not batch or not run:
            raise InvalidRequest(
                "Spark does not say which batch of which query this task belongs to: use a micro-batch trigger (not continuous)"
            )
        return Work(
            self._options.application or query, run, int(batch), lasting=True, query=query, turn=context.partitionId()
        )


# -- in a task ----------------------------------------------------------------------------------------------------------------


def stage(options: SinkOptions, work: Work, batches: Iterator[pa.RecordBatch]) -> StagedMessage:
    """Store the records of a task where nobody sees them."""
    client = patient_client(options.connection)
    freeze_loaded_modules()
    run = client.staging.begin_run(
        work.application, work.run_name, lasting=work.lasting, query=work.query, replaces=options.replay
    )
    attempt_id = uuid.uuid4().hex
    if work.epoch <= run.epoch:
        _check_query(work, run)
        # Repeated work that is done. Spark wants its rows taken all the same.
        for _ in batches:
            pass
        return StagedMessage(work.application, run.number, work.epoch, attempt_id, 0, 0)
    attempt = client.staging.attempt(work.application, run.number, work.epoch, attempt_id)
    maker = BlockMaker(options, lambda topic: _partitions(client, topic), work.turn)
    try:
        for request in _requests(maker, batches):
            attempt.stage(*request)
        requests = attempt.finish().requests
    except BaseException:
        attempt.cancel()
        raise
    return StagedMessage(work.application, run.number, work.epoch, attempt_id, requests, maker.records)


def _requests(maker: BlockMaker, batches: Iterable[pa.RecordBatch]) -> Iterator[Request]:
    for batch in batches:
        yield from maker.add(batch)
    yield from maker.finish()


def _check_query(work: Work, run: Run) -> None:
    """An epoch that another query committed is another's work: leaving this one out would lose its rows."""
    if work.query and run.query and work.query != run.query:
        raise InvalidRequest(
            f"query {run.query} wrote batches up to {run.epoch} under {APPLICATION} {work.application}, and this is batch {work.epoch} of "
            f"query {work.query}, which has another checkpoint: use another {APPLICATION}; or, if its batches are those of the first "
            f"query, set {REPLAY} to true, and those that were written are left out"
        )


def _partitions(client: FlyMQClient, topic: str) -> int:
    try:
        return len(client.describe_topic(topic).partitions)
    except TopicNotFound:
        return 1  # it is created with the first request, as for every other writer


def _property(context: TaskContext | None, name: str) -> str | None:
    return None if context is None else context.getLocalProperty(name)


# -- on the driver ------------------------------------------------------------------------------------------------------------


def publish(connection: ConnectionSettings, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Publish what the tasks staged, be it nothing. Without tasks there is no epoch. Raises where that would not be all of them."""
    if not messages:
        return
    staged = [message for message in messages if isinstance(message, StagedMessage)]
    if len(staged) < len(messages):
        raise InvalidRequest(
            f"{len(messages) - len(staged)} of {len(messages)} tasks did not say what they wrote, so nothing is published: use one "
            "version of Penstock on all machines, and write the batch again"
        )
    named = {(each.application, each.run, each.epoch) for each in staged}
    if len(named) > 1:
        raise TransactionNotFound(
            f"the tasks of one batch wrote under {len(named)} names ({_listed(named)}), so nothing is published: the broker has lost "
            "what it knew of the earlier ones (another data directory, or an old copy of it?); write the batch again"
        )
    winners = [Winner(each.attempt, each.requests) for each in staged if each.requests]
    application, run, epoch = named.pop()
    if not patient_client(connection).staging.commit(application, run, epoch, winners):
        _note_skipped(application, epoch)


def write_whole(options: SinkOptions, work: Work, batches: Sequence[pa.RecordBatch]) -> bool:
    """Write and publish a small batch in one request. Returns False, having written nothing, where it must be staged."""
    client = patient_client(options.connection)
    maker = BlockMaker(options, lambda topic: _partitions(client, topic), work.turn)
    try:
        requests = list(itertools.islice(_requests(maker, batches), 2))
        if len(requests) != 1:
            return False
        run, now = client.staging.write(
            work.application, work.run_name, work.epoch, *requests[0], query=work.query, replaces=options.replay
        )
    except (NotSupported, PartitionNotFound, RecordTooLarge):
        # A broker of an earlier release; or an error that staging raises too, unless the batch was committed before.
        return False
    if not now:
        _check_query(work, run)
        _note_skipped(work.application, work.epoch)
    return True


def _note_skipped(application: str, epoch: int) -> None:
    """Log a batch that was committed before: expected when Spark repeats it, a mistake if a name or version was reused."""
    import structlog  # slow to import, and rarely needed

    structlog.get_logger(__name__).warning("batch_skipped", application=application, epoch=epoch)


def _listed(named: Iterable[tuple[str, int, int]]) -> str:
    return ", ".join(f"{application} run {run} epoch {epoch}" for application, run, epoch in sorted(named))


def drop(connection: ConnectionSettings, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Give up what the tasks staged, unless it is committed."""
    for message in messages:
        if isinstance(message, StagedMessage):
            client = patient_client(connection)
            client.staging.abort(message.application, message.run, message.epoch)
            return


def patient_client(connection: ConnectionSettings) -> FlyMQClient:
    """The client of this process; a broker that is just being restarted is waited for."""
    until_s = time.monotonic() + RECONNECT_S_MAX
    while True:
        try:
            return pooled_client(connection)
        except Unreachable:
            if time.monotonic() >= until_s:
                raise
            time.sleep(RECONNECT_DELAY_S)
