"""What Spark jobs and backups ask for: staged records, pipelines, whole blocks, snapshots.

Every request may be sent again if a connection was lost: what was done is not done twice.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.clients.arguments import check_topic, index_field, offset_field
from penstock.errors import ProtocolViolation, RecordTooLarge
from penstock.protocols.flymq.client.exchanges import Channel
from penstock.protocols.flymq.operations.blocks import (
    NO_EPOCH,
    EncodedBlocks,
    FetchBlocks,
    Plan,
    ReadPlan,
    TopicSpans,
    decode_blocks,
    decode_plan,
)
from penstock.protocols.flymq.operations.spark import (
    BeginRun,
    LeftOut,
    PipelineDescription,
    PipelineList,
    PipelineReport,
    PipelineStop,
    Run,
    Stage,
    StageAbort,
    StageCommit,
    Unstaged,
    Winner,
    left_out_of,
    with_left_out,
)
from penstock.protocols.flymq.operations.topics import SnapshotCreate, SnapshotDescription, SnapshotRelease
from penstock.protocols.flymq.wire import PAYLOAD_BYTES_MAX

IN_FLIGHT_REQUESTS_MAX: Final = 4
"""Per attempt; the client bounds their bytes besides."""
FETCH_BYTES: Final = 4 << 20
"""Bytes that one request asks for unless told otherwise; a broker gives no more."""
BLOCK_BYTES_MAX: Final = 128 << 20
"""No Penstock broker writes larger blocks: a larger size is an error, and must not exhaust memory."""
_PENDING: Final = 2
"""The outcome of a commit that is durable and still being published."""

Parts = Sequence[tuple[int, bytes]]


class AsyncStaging:
    """Staged writes: records that become visible when a commit names the task attempts that staged them. The Spark sink uses it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ask = channel.ask

    async def begin_run(
        self,
        application: str,
        name: str,
        *,
        lasting: bool = True,
        query: str = "",
        replaces: bool = False,
        topic: str = "",
    ) -> Run:
        """Begin a run of an application, or return the run with this name. Raises ProducerFenced if a newer run has begun.

        Records staged by older runs are dropped. An application that is not `lasting` has one epoch, and is soon forgotten. The reply names
        the query that the application belongs to: the first that was named, or the last that `replaces` it. Of a `topic` that exists it has
        the id and the number of partitions.
        """
        return await self._ask(BeginRun(application, name, lasting, query, replaces, topic))

    def attempt(self, application: str, run: int, epoch: int, attempt: str) -> AsyncAttempt:
        """Return an object that stages the records of one task attempt."""
        return AsyncAttempt(self._channel, application, run, epoch, attempt)

    async def commit(
        self, application: str, run: int, epoch: int, winners: Sequence[Winner], unstaged: Sequence[Unstaged] = ()
    ) -> bool:
        """Publish what the winning attempts staged, atomically and once. Return False if the epoch was committed before.

        `unstaged` are more records of the epoch: where all of them fit into a request, nothing needs to be staged. Raises TopicNotFound if
        a topic is not the one that `begin_run` found. Returns when all records are visible; a large commit may take long.
        """
        request = StageCommit(application, run, epoch, winners, [*unstaged])
        pending = False
        while (outcome := _checked(await self._ask(request))) == _PENDING:
            pending = True
        return pending or bool(outcome)

    async def abort(self, application: str, run: int, epoch: int) -> bool:
        """Drop what this run and earlier ones staged for an epoch. Return False if the epoch is committed.

        Raises OutcomeUnknown if only a restart of the broker can tell whether it is.
        """
        return await self._ask(StageAbort(application, run, epoch))


def _checked(outcome: int) -> int:
    if outcome > _PENDING:
        raise ProtocolViolation(f"invalid binary format: outcome must be at most {_PENDING}, not {outcome}")
    return outcome


class AsyncAttempt:
    """The requests of one task attempt, pipelined."""

    def __init__(self, channel: Channel, application: str, run: int, epoch: int, attempt: str) -> None:
        self._ask = channel.ask
        self._place = (application, run, epoch, attempt)
        self._in_flight: set[asyncio.Task[bool]] = set()
        self.requests = 0
        """How many were sent, which the commit names."""

    @property
    def winner(self) -> Winner:
        """The name of this attempt in a commit."""
        return Winner(self._place[3], self.requests)

    async def stage(self, topic: str, parts: Parts) -> None:
        """Send blocks for partitions of a topic, which is created if it is missing. Returns when another request may be sent.

        Raises the error of this or an earlier request; then the attempt has failed.
        """
        check_topic(topic)
        await self._wait(IN_FLIGHT_REQUESTS_MAX - 1)
        try:
            answer = self._ask(Stage(*self._place, self.requests, topic, parts))
        except RecordTooLarge:
            raise RecordTooLarge(
                f"the blocks for topic {topic} do not fit into one request: at most {PAYLOAD_BYTES_MAX} bytes, "
                "so a record with its key and headers must be smaller than that"
            ) from None
        self.requests += 1
        self._in_flight.add(asyncio.create_task(answer))

    async def finish(self) -> Winner:
        """Wait until everything is staged."""
        await self._wait(0)
        return self.winner

    async def cancel(self) -> None:
        """Wait for the requests in flight, and ignore their results."""
        await asyncio.gather(*self._in_flight, return_exceptions=True)
        self._in_flight.clear()

    async def _wait(self, left_max: int) -> None:
        while len(self._in_flight) > left_max:
            done, self._in_flight = await asyncio.wait(self._in_flight, return_when=asyncio.FIRST_COMPLETED)
            errors = [error for each in done if (error := each.exception()) is not None]
            if errors:
                await self.cancel()
                raise errors[0]


class AsyncPipelines:
    """All requests are idempotent, so they are retried after a lost connection."""

    def __init__(self, channel: Channel) -> None:
        self._ask = channel.ask

    async def report(self, report: PipelineReport) -> bool:
        """Report the progress of a run; return whether it should stop."""
        return await self._ask(replace(report, left_out=left_out_of(report.stages)))

    async def list(self) -> list[PipelineDescription]:
        """Return the last report of every pipeline, by name."""
        listing = await self._ask(PipelineList())
        left_out: dict[str, builtins.list[LeftOut]] = {}
        for pipeline, stage in listing.left_out:
            left_out.setdefault(pipeline, []).append(stage)
        return [
            replace(each, stages=with_left_out(each.stages, left_out.get(each.name, ()))) for each in listing.pipelines
        ]

    async def stop(self, pipeline: str) -> bool:
        """Ask the current run of a pipeline to stop; return whether there is one. Raises EntryNotFound."""
        return await self._ask(PipelineStop(pipeline))


class AsyncBlocks:
    """Reads of whole blocks. Requests are retried after a lost connection."""

    def __init__(self, channel: Channel) -> None:
        self._ask = channel.ask

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
        """Return whole blocks as they are stored, beginning with the one that holds `offset`; none at the end of the partition.

        At least one, then more while they fit into `max_bytes`. Raises OffsetOutOfRange, also if the partition's log epoch is not the one
        given, and TopicNotFound, also if the topic's id is not the one given. Expired records are included; the caller filters them.
        """
        check_topic(topic)
        pieces: list[bytes] = []
        size = 0
        while True:
            request = FetchBlocks(topic, topic_id, index_field(partition), offset_field(offset), max_bytes, size, epoch)
            piece = decode_blocks(await self._ask(request))
            pieces.append(piece.data)
            size += len(piece.data)
            if not piece.missing:
                return EncodedBlocks(piece.start_offset, piece.end_offset, b"".join(pieces))
            if not piece.data or size + piece.missing > BLOCK_BYTES_MAX:
                raise ProtocolViolation(
                    f"a block of {size + piece.missing} bytes is larger than any broker writes: the reply is malformed"
                )

    async def plan(self, topics: Sequence[TopicSpans], *, step_bytes: int = 0, wait_ms: int = 0) -> Plan:
        """Return ids, start and end offsets and log epochs of topics, where their logs were cut since the epochs of the given spans and,
        with `step_bytes`, where the blocks of the spans are.

        With `wait_ms`, the reply is sent once there is a record after one of the spans, its log was cut, or the time is over.
        """
        for each in topics:
            check_topic(each.topic)
        return decode_plan(await self._ask(ReadPlan(topics, step_bytes, wait_ms)))


class AsyncSnapshots:
    """Requests are retried after a lost connection: a snapshot that nobody reads is removed after a minute."""

    def __init__(self, channel: Channel) -> None:
        self._ask = channel.ask

    async def create(self) -> SnapshotDescription:
        """Create a snapshot of every topic, for a reader on the broker's machine that locks it within a minute."""
        return await self._ask(SnapshotCreate())

    async def release(self, snapshot_id: str) -> None:
        """Release a snapshot. Its files are removed once its lock is free."""
        await self._ask(SnapshotRelease(snapshot_id))
