"""Handlers of whole records, delayed records, records with a time to live, and dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from penstock.broker.deliveries.deadletter_entries import DeadLetter
from penstock.broker.deliveries.deadletters import Wanted
from penstock.broker.records.filters import RecordFilter
from penstock.broker.records.spreading import Placement, Scattered
from penstock.broker.schedule.schedule import Scheduled, expiry_of
from penstock.errors import InvalidRequest, PenstockError
from penstock.protocols.flymq.errors import error_text
from penstock.protocols.flymq.operations import records as op
from penstock.protocols.flymq.operations.topics import Done
from penstock.protocols.flymq.server.dispatch import Answer, Caller, Written, handles, writes
from penstock.protocols.flymq.server.fetching import WholeForm
from penstock.protocols.flymq.wire import FETCH_RECORDS_DEFAULT, PARTITION_AUTO
from penstock.workers import Check

UINT32_MAX = 0xFFFFFFFF

_WHOLE_FORM = WholeForm()

# --- whole records ---


@handles(op.FetchRecords, large_read=True, on_every_node=True)
def fetch_records(caller: Caller, request: op.FetchRecords) -> Answer:
    partition = caller.broker.records.partition(caller.principal, request.topic, request.partition)
    return caller.fetcher.fetch(
        partition,
        request.offset,
        request.max_records,
        request.filter,
        _WHOLE_FORM,
        caller.worker,
        caller.note_read,
    )


@writes(op.ProduceRecords, on_every_node=True)
def produce_records(caller: Caller, request: op.ProduceRecords, written: Written) -> None:
    count = len(request.values)
    for name, column in (("keys", request.keys), ("headers", request.headers)):
        if column and len(column) != count:
            raise InvalidRequest(f"{count} values came with {len(column)} {name}: send as many, or none")
    if request.delay_ms and request.schema:
        raise InvalidRequest("a delay and a schema do not go together: bind the topic to the schema")
    write = _RecordsWrite(caller, request, written)
    if request.delay_ms:
        write.schedule()
    else:
        write.start()


class _RecordsWrite:
    """One PRODUCE_RECORDS under way: each record is stored or fails by itself."""

    def __init__(self, caller: Caller, request: op.ProduceRecords, written: Written) -> None:
        self._caller = caller
        self._request = request
        self._written = written
        self._expiry_ms = expiry_of(caller.clock.now_ms(), request.ttl_ms)
        count = len(request.values)
        self._partitions = [PARTITION_AUTO] * count
        self._offsets = [0] * count
        self._timestamps_ms = [0] * count
        self._ids = [""] * count if request.delay_ms else []
        self._failures: list[op.RecordFailure] = []
        self._left = count

    def start(self) -> None:
        request = self._request
        self._caller.broker.records.produce(
            self._caller.principal,
            request.topic,
            request.partition,
            request.values,
            request.keys or None,
            request.headers or None,
            [self._expiry_ms] * self._left if self._expiry_ms else None,
            schema=request.schema or None,
            done=self._placed,
        )

    def schedule(self) -> None:
        if not self._left:
            raise InvalidRequest("no records to write: send at least one")
        request = self._request
        refused: dict[int, PenstockError] = {}
        for row, value in enumerate(request.values):
            try:
                self._caller.broker.schedule.add(
                    self._caller.principal,
                    request.topic,
                    request.partition,
                    value,
                    request.keys[row] if request.keys else None,
                    request.headers[row] if request.headers else None,
                    delay_ms=request.delay_ms,
                    ttl_ms=request.ttl_ms,
                    done=partial(self._scheduled, row),
                )
            except PenstockError as error:
                refused[row] = error
        if refused:
            asyncio.get_running_loop().call_soon(self._not_scheduled, refused)

    def _not_scheduled(self, refused: dict[int, PenstockError]) -> None:
        for row, error in refused.items():
            self._fail([row], error)
        self._settle(len(refused))

    def _scheduled(self, row: int, result: Scheduled | PenstockError) -> None:
        if isinstance(result, PenstockError):
            self._fail([row], result)
        else:
            self._ids[row] = result.id
            self._store([row], [result.partition], [0], [result.due_ms])
        self._settle(1)

    def _placed(self, placed: list[Placement] | Scattered) -> None:
        rows = range(self._left)
        if isinstance(placed, Scattered):
            self._store(rows, *(column.tolist() for column in placed))
        else:
            for each in placed:
                part, result = each.rows, each.result
                stored = rows[part] if isinstance(part, slice) else [rows[at] for at in part]
                if isinstance(result, PenstockError):
                    self._fail(stored, result)
                else:
                    count = len(stored)
                    offsets = range(result.base_offset, result.base_offset + count)
                    self._store(stored, [each.partition] * count, offsets, [result.timestamp_ms] * count)
        self._settle(len(rows))

    def _store(
        self, rows: Sequence[int], partitions: Sequence[int], offsets: Sequence[int], timestamps_ms: Sequence[int]
    ) -> None:
        for row, *place in zip(rows, partitions, offsets, timestamps_ms, strict=True):
            self._partitions[row], self._offsets[row], self._timestamps_ms[row] = place

    def _fail(self, rows: Sequence[int], error: PenstockError) -> None:
        text = error_text(error)
        self._failures += [op.RecordFailure(row, text) for row in rows]

    def _settle(self, count: int) -> None:
        self._left -= count
        if not self._left:
            self._written(
                op.ProducedRecords(self._partitions, self._offsets, self._timestamps_ms, self._failures, self._ids)
            )


# --- writes of one record ---


def stored(
    kind: type[op.StoredRecord], topic: str, key: bytes | None, value: bytes, written: Written
) -> Callable[[list[Placement] | Scattered], None]:
    """Return what takes the outcome of a write of one record and hands the reply, or the error, to `written`."""

    def done(placed: list[Placement] | Scattered) -> None:
        if isinstance(placed, Scattered):
            partition, offset, timestamp_ms = (int(column[0]) for column in placed)
        else:
            (placement,) = placed
            partition, result = placement.partition, placement.result
            if isinstance(result, PenstockError):
                written(result)
                return
            offset, timestamp_ms = result.base_offset, result.timestamp_ms
        written(kind.of(topic, partition, offset, timestamp_ms, key, value))

    return done


@writes(op.ProduceDelayed)
def produce_delayed(caller: Caller, request: op.ProduceDelayed, written: Written) -> None:
    if request.delay_ms <= 0:
        _store(caller, request, op.ScheduledRecord, written)
        return

    def done(result: Scheduled | PenstockError) -> None:
        if isinstance(result, PenstockError):
            written(result)
            return
        # The offset is 0, as deployed brokers have it: it is not known yet.
        reply = op.ScheduledRecord.of(request.topic, result.partition, 0, result.due_ms, request.key, request.value)
        reply.id = result.id
        written(reply)

    caller.broker.schedule.add(
        caller.principal,
        request.topic,
        request.partition,
        request.value,
        request.key,
        delay_ms=request.delay_ms,
        ttl_ms=request.ttl_ms,
        done=done,
    )


@writes(op.ProduceWithTtl, on_every_node=True)
def produce_with_ttl(caller: Caller, request: op.ProduceWithTtl, written: Written) -> None:
    _store(caller, request, op.StoredRecord, written)


def _store(
    caller: Caller, request: op.ProduceDelayed | op.ProduceWithTtl, reply: type[op.StoredRecord], written: Written
) -> None:
    expiry_ms = expiry_of(caller.clock.now_ms(), request.ttl_ms)
    caller.broker.records.produce(
        caller.principal,
        request.topic,
        request.partition,
        [request.value],
        None if request.key is None else [request.key],
        None,
        [expiry_ms] if expiry_ms else None,
        done=stored(reply, request.topic, request.key, request.value, written),
    )


@handles(op.CancelDelayed)
async def cancel_delayed(caller: Caller, request: op.CancelDelayed) -> Done:
    await caller.broker.schedule.cancel(caller.principal, request.topic, request.id)
    return Done(True, "OK")


# --- dead letters ---


@handles(op.FetchDlq, large_read=True)
async def fetch_dlq(
    caller: Caller, request: op.FetchDlq
) -> Iterable[tuple[op.DeadLetterHead, op.DeadLetterDetails | None]]:
    count_max = request.max_records if request.max_records > 0 else FETCH_RECORDS_DEFAULT
    letters = await caller.broker.dead_letters.letters(caller.principal, request.topic, count_max)
    caller.note_read(len(letters))
    return (
        (
            op.DeadLetterHead(each.id, each.value or b"", each.reason, each.attempts),
            op.DeadLetterDetails(
                each.key, each.origin_partition, each.origin_offset, each.first_failed_ms, each.failed_ms
            ),
        )
        for each in letters
    )


@handles(op.ReplayDlq)
async def replay_dlq(caller: Caller, request: op.ReplayDlq) -> op.Replayed | op.ReplayedAt:
    dead_letters, target = caller.broker.dead_letters, request.target
    if isinstance(target, str):
        await dead_letters.replay(caller.principal, request.topic, target)
        return op.Replayed(True, "OK")
    if isinstance(target, int):
        await dead_letters.replay_at(caller.principal, request.topic, target)
        return op.ReplayedAt(True, b"OK")
    wanted = await _wanted(caller, target) if target.filter else None
    count = await dead_letters.replay_all(caller.principal, request.topic, wanted, dry_run=target.dry_run)
    return op.Replayed(True, "OK", min(count, UINT32_MAX))


async def _wanted(caller: Caller, target: op.ReplayFilter) -> Wanted:
    """A letter is wanted for its record, as in FETCH, or for its reason."""
    record_filter = await caller.worker.run(lambda _: RecordFilter(target.filter))

    def wanted(letter: DeadLetter, check: Check) -> bool:
        return record_filter.matches(letter.key, letter.value, letter.headers, check) or record_filter.matches_text(
            letter.reason.encode(), check
        )

    return wanted


@handles(op.PurgeDlq)
async def purge_dlq(caller: Caller, request: op.PurgeDlq) -> Done:
    await caller.broker.dead_letters.purge(caller.principal, request.topic)
    return Done(True, "OK")
