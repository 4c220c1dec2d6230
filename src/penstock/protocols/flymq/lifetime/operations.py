"""What FlyMQ requests about delayed records, records with a time to live and dead letters do. The rest is in `operations`.

The two that write are started one after another like PRODUCE, without waiting for each other's commit: `WRITES` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from penstock.broker.deadletter_entries import DeadLetter
from penstock.broker.deadletters import Wanted
from penstock.broker.schedule import Scheduled, expiry_of
from penstock.broker.spreading import Placement, Scattered
from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.protocols.flymq.filters import RecordFilter
from penstock.protocols.flymq.lifetime.messages import (
    CancelDelayed,
    DeadLetterInfo,
    FetchDlq,
    ProduceDelayed,
    ProduceWithTtl,
    PurgeDlq,
    ReplayDlq,
    ReplayDlqAll,
    ReplayDlqAt,
)
from penstock.protocols.flymq.lifetime.replies import (
    encode_delayed,
    encode_letters,
    encode_ok,
    encode_replayed_all,
    encode_replayed_at,
    encode_stored,
)
from penstock.protocols.flymq.wire import FETCH_RECORDS_DEFAULT, Opcode
from penstock.workers import Check

if TYPE_CHECKING:
    from penstock.protocols.flymq.access.operations import Caller

OnWritten = Callable[[bytes | PenstockError], None]

# --- writes ---


def _produce_delayed(caller: Caller, clock: Clock, body: ProduceDelayed, written: OnWritten) -> None:
    if body.delay_ms <= 0:
        _store(caller, clock, Opcode.PRODUCE_DELAYED, body, written)
        return

    def done(result: Scheduled | PenstockError) -> None:
        if isinstance(result, PenstockError):
            written(result)
        else:
            written(encode_delayed(body.topic, result.partition, result.due_ms, body.key, body.value, result.id))

    caller.broker.schedule.add(
        caller.principal,
        body.topic,
        body.partition,
        body.value,
        body.key,
        delay_ms=body.delay_ms,
        ttl_ms=body.ttl_ms,
        done=done,
    )


def _produce_with_ttl(caller: Caller, clock: Clock, body: ProduceWithTtl, written: OnWritten) -> None:
    _store(caller, clock, Opcode.PRODUCE_WITH_TTL, body, written)


def _store(
    caller: Caller, clock: Clock, opcode: Opcode, body: ProduceDelayed | ProduceWithTtl, written: OnWritten
) -> None:
    def done(placed: list[Placement] | Scattered) -> None:
        if isinstance(placed, Scattered):
            partition, offset, timestamp_ms = (int(column[0]) for column in placed)
        else:
            [(partition, _, result)] = placed
            if isinstance(result, PenstockError):
                written(result)
                return
            offset, timestamp_ms = result
        written(encode_stored(opcode, body.topic, partition, offset, timestamp_ms, body.key, body.value))

    expiry_ms = expiry_of(clock.now_ms(), body.ttl_ms)
    caller.broker.produce(
        caller.principal,
        body.topic,
        body.partition,
        [body.value],
        None if body.key is None else [body.key],
        None,
        [expiry_ms] if expiry_ms else None,
        done=done,
    )


WRITES: Mapping[type, Callable[[Caller, Clock, Any, OnWritten], None]] = {
    ProduceDelayed: _produce_delayed,
    ProduceWithTtl: _produce_with_ttl,
}

# --- everything else ---


async def _cancel_delayed(caller: Caller, opcode: int, body: CancelDelayed) -> bytes:
    await caller.broker.schedule.cancel(caller.principal, body.topic, body.id)
    return encode_ok(opcode, "OK")


async def _fetch_dlq(caller: Caller, opcode: int, body: FetchDlq) -> bytes:
    count_max = body.max_records if body.max_records > 0 else FETCH_RECORDS_DEFAULT
    letters = await caller.broker.dead_letters.letters(caller.principal, body.topic, count_max)
    return encode_letters([_info(letter) for letter in letters])


async def _replay_dlq(caller: Caller, opcode: int, body: ReplayDlq) -> bytes:
    await caller.broker.dead_letters.replay(caller.principal, body.topic, body.id)
    return encode_ok(opcode, "OK")


async def _replay_dlq_at(caller: Caller, opcode: int, body: ReplayDlqAt) -> bytes:
    await caller.broker.dead_letters.replay_at(caller.principal, body.topic, body.offset)
    return encode_replayed_at("OK")


async def _replay_dlq_all(caller: Caller, opcode: int, body: ReplayDlqAll) -> bytes:
    wanted = None
    if body.filter:
        wanted = _wanted(await caller.worker.run(lambda _: RecordFilter(body.filter)))
    count = await caller.broker.dead_letters.replay_all(caller.principal, body.topic, wanted, dry_run=body.dry_run)
    return encode_replayed_all("OK", count)


async def _purge_dlq(caller: Caller, opcode: int, body: PurgeDlq) -> bytes:
    await caller.broker.dead_letters.purge(caller.principal, body.topic)
    return encode_ok(opcode, "OK")


def _wanted(record_filter: RecordFilter) -> Wanted:
    """A letter is wanted for its record, as in FETCH, or for its reason."""

    def wanted(letter: DeadLetter, check: Check) -> bool:
        return record_filter.matches(letter.key, letter.value, check) or record_filter.matches(
            None, letter.reason.encode(), check
        )

    return wanted


def _info(letter: DeadLetter) -> DeadLetterInfo:
    return DeadLetterInfo(
        letter.id,
        letter.value or b"",
        letter.reason,
        letter.attempts,
        letter.key,
        letter.origin_partition,
        letter.origin_offset,
        letter.first_failed_ms,
        letter.failed_ms,
    )


METHODS: Mapping[type, Callable[[Caller, int, Any], Coroutine[Any, Any, bytes]]] = {
    CancelDelayed: _cancel_delayed,
    FetchDlq: _fetch_dlq,
    ReplayDlq: _replay_dlq,
    ReplayDlqAt: _replay_dlq_at,
    ReplayDlqAll: _replay_dlq_all,
    PurgeDlq: _purge_dlq,
}
