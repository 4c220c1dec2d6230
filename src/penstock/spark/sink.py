"""`df.write.format("penstock")` and `writeStream`: every batch is published whole, and once.

Each attempt of each task stages its records at the broker under a name of its own; the driver's commit names the attempts that won, and the
broker publishes exactly these (see `broker.transactions`). A task of few records stages none: they travel with its message, and come with
the commit. So a small batch takes two requests, one of its task and one of the commit. What makes it happen once is the name of the work:
application and epoch. Every task begins the run, wherever its records go, so that the commit of an older run is refused.

    stream   application = txnAppId, or the id of the query, which is in its checkpoint; epoch = number of the batch
    batch    application = txnAppId and epoch = txnVersion; otherwise a new name for each write, with the one epoch 0
             inside foreachBatch, txnAppId alone is enough: the epoch is the number of the batch

Spark makes writers again in several processes, so they hold plain data. What a task knows (the query, its run, the number of the batch) it
has from its local properties, and tells the driver in its message: the process that commits has no other way to know. A message may be
missing where a task failed, and an abort may come after a commit that did not fail; so an abort only drops what is not committed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.errors import InvalidRequest, TransactionNotFound, Unreachable
from penstock.protocols.flymq.operations.spark import Run, Unstaged, Winner
from penstock.protocols.flymq.sync import Attempt, FlyMQClient
from penstock.spark.connection import ConnectionSettings, pooled_client
from penstock.spark.sink_blocks import BlockMaker, Request
from penstock.spark.sink_options import APPLICATION, REPLAY, VERSION, SinkOptions, parse_sink_options
from penstock.spark.workers import freeze_loaded_modules

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

RECONNECT_S_MAX: Final = 20.0
RECONNECT_DELAY_S: Final = 0.5
MESSAGE_BYTES_MAX: Final = 512 << 10
"""Of records in the message of a task: Spark sends up to 1 MiB with the news that a task has ended. The second task may send half as much,
the third a third, and so on: together no more than 4 MiB, however many tasks there are."""
_BLOCK_COST_BYTES: Final = 1 << 10
"""What a block counts for besides its size."""
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
    unstaged: list[Unstaged]
    """Records that the commit has to bring."""


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
    message_bytes_max: int
    """Of records that are not staged."""


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
            messages = [StagedMessage(options.application, run.number, options.version, "", 0, 0, [])]
        publish(options.connection, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.application is None:
            # Nobody else has this name, so nothing but this write can be meant.
            patient_client(self._options.connection).staging.abort(f"spark-{self._id}", _ALL_RUNS, 0)
        else:
            drop(self._options.connection, messages)

    def _work(self) -> Work:
        context, options = TaskContext.get(), self._options
        task = context.partitionId() if context is not None else 0
        if options.application is None:
            return _work(f"spark-{self._id}", self._id, 0, lasting=False, query="", task=task)
        batch = _property(context, "streaming.sql.batchId")
        epoch = options.version if options.version is not None else int(batch) if batch else None
        if epoch is None:
            raise InvalidRequest(
                f"option {APPLICATION} is set without {VERSION}: number the writes of {options.application}, each higher than the last"
            )
        run = (batch and _property(context, "spark.jobGroup.id")) or self._id
        query = (batch and _property(context, "sql.streaming.queryId")) or ""
        return _work(options.application, run, epoch, lasting=True, query=query, task=task)


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
        application = self._options.application or query
        return _work(application, run, int(batch), lasting=True, query=query, task=context.partitionId())


def _work(application: str, run_name: str, epoch: int, *, lasting: bool, query: str, task: int) -> Work:
    return Work(
        application, run_name, epoch, lasting, query, turn=task, message_bytes_max=MESSAGE_BYTES_MAX // (task + 1)
    )


# -- in a task ----------------------------------------------------------------------------------------------------------------


def stage(options: SinkOptions, work: Work, batches: Iterator[pa.RecordBatch]) -> StagedMessage:
    """Store the records of a task where nobody sees them: few in the message, others at the broker."""
    client = patient_client(options.connection)
    freeze_loaded_modules()
    topics = _Topics(client, options, work)
    run = topics.run
    attempt = client.staging.attempt(work.application, run.number, work.epoch, uuid.uuid4().hex)
    message = StagedMessage(work.application, run.number, work.epoch, attempt.winner.attempt, 0, 0, [])
    if work.epoch <= run.epoch:
        _check_query(work, run)
        # Repeated work that is done. Spark wants its rows taken all the same.
        for _ in batches:
            pass
        return message
    maker = BlockMaker(options, topics.partitions, work.turn)
    try:
        message.unstaged = _stage(attempt, _requests(maker, batches), topics, work.message_bytes_max)
        message.requests = attempt.finish().requests
    except BaseException:
        attempt.cancel()
        raise
    message.records = maker.records
    return message


def _stage(attempt: Attempt, requests: Iterable[Request], topics: _Topics, message_bytes_max: int) -> list[Unstaged]:
    """Stage all records, or none where a message has room for them. Return those that were not staged."""
    unstaged: list[Unstaged] = []
    size_bytes = 0
    for topic, parts in requests:
        size_bytes += sum(_BLOCK_COST_BYTES + len(block) for _, block in parts)
        topic_id = topics.id(topic)
        if topic_id and size_bytes <= message_bytes_max:
            unstaged.append(Unstaged(topic, topic_id, parts))
            continue
        size_bytes = message_bytes_max
        for each in unstaged:
            attempt.stage(each.topic, each.parts)
        unstaged.clear()
        attempt.stage(topic, parts)
    return unstaged


class _Topics:
    """The topics of a task, each asked for once, with the run that the task belongs to."""

    def __init__(self, client: FlyMQClient, options: SinkOptions, work: Work) -> None:
        self._client = client
        self._replaces = options.replay
        self._work = work
        topic = options.topic or ""
        self.run = self._ask(topic)
        self._found = {topic: self.run}

    def partitions(self, topic: str) -> int:
        """How many it has. One that is missing is created with the first request that stages records for it, as for every other writer."""
        return self._run_of(topic).partitions or 1

    def id(self, topic: str) -> str:
        """Empty for one that is missing."""
        return self._run_of(topic).topic_id

    def _run_of(self, topic: str) -> Run:
        if topic not in self._found:
            self._found[topic] = self._ask(topic)
        return self._found[topic]

    def _ask(self, topic: str) -> Run:
        work = self._work
        return self._client.staging.begin_run(
            work.application,
            work.run_name,
            lasting=work.lasting,
            query=work.query,
            replaces=self._replaces,
            topic=topic,
        )


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
    unstaged = [records for each in staged for records in each.unstaged]
    application, run, epoch = named.pop()
    if not patient_client(connection).staging.commit(application, run, epoch, winners, unstaged):
        _note_skipped(application, epoch)


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
