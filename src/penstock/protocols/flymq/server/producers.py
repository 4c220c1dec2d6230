"""Handlers of idempotent producers."""

from __future__ import annotations

from penstock.broker.idempotence.sequences import IN_FLIGHT_MAX
from penstock.broker.idempotence.stored import Written as Outcome
from penstock.broker.schedule.schedule import expiry_of
from penstock.errors import InvalidRequest, PenstockError
from penstock.log.api import Batch
from penstock.protocols.flymq.codec.produce_once import encode_stored_together
from penstock.protocols.flymq.errors import error_text
from penstock.protocols.flymq.operations import records as op
from penstock.protocols.flymq.server.dispatch import Caller, Written, handles, writes


@handles(op.RegisterProducer)
async def register_producer(caller: Caller, request: op.RegisterProducer) -> op.RegisteredProducer:
    return op.RegisteredProducer(await caller.broker.producers.register(caller.principal), IN_FLIGHT_MAX)


@writes(op.ProduceOnce)
def produce_once(caller: Caller, request: op.ProduceOnce, written: Written) -> None:
    count, keys, headers = len(request.values), request.keys, request.headers
    if keys or headers:
        for name, column in (("keys", keys), ("headers", headers)):
            if column and len(column) != count:
                raise InvalidRequest(f"{count} values came with {len(column)} {name}: send as many, or none")
    expiry_ms = expiry_of(caller.clock.now_ms(), request.ttl_ms) if request.ttl_ms else 0

    def done(outcome: Outcome | PenstockError) -> None:
        if isinstance(outcome, PenstockError):
            written(outcome)
        elif not outcome.partitions and not outcome.refused:
            written(encode_stored_together(*outcome.places[0]))
        else:
            failures = [op.RecordFailure(row, error_text(error)) for row, error in outcome.refused]
            written(op.StoredOnce(outcome.partitions, outcome.places, failures))

    caller.broker.producers.produce(
        caller.principal,
        request.topic,
        request,
        request.partition,
        Batch(
            request.values,
            keys or None,
            headers or None,
            [expiry_ms] * count if expiry_ms else None,
        ),
        schema=request.schema or None,
        done=done,
    )
