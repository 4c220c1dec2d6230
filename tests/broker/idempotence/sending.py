"""A client of idempotent producers as a test wants it: it numbers requests, and decides which answers it has got."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.broker.access.checks import ANONYMOUS, Principal
from penstock.broker.broker import Broker
from penstock.broker.idempotence.producers import IdempotentProducers
from penstock.broker.idempotence.stored import Written
from penstock.errors import PenstockError
from penstock.log.api import Batch


@dataclass(slots=True)
class Request:
    sequence: int
    topic: str
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    schema: str | None = None
    sent: bool = False


class Numbers(NamedTuple):
    """What makes a request `Sequenced`."""

    producer: bytes
    sequence: int
    floor: int
    resent: bool


@dataclass(slots=True)
class Client:
    producer: bytes
    principal: Principal = ANONYMOUS
    next: int = 0
    unanswered: dict[int, Request] = field(default_factory=dict)

    @property
    def floor(self) -> int:
        return next(iter(self.unanswered), self.next)

    def request(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        schema: str | None = None,
    ) -> Request:
        """The next request; it counts as unanswered until `answered`."""
        request = Request(self.next, topic, values, keys, schema)
        self.unanswered[self.next] = request
        self.next += 1
        return request

    def answered(self, request: Request) -> None:
        self.unanswered.pop(request.sequence, None)

    def start(self, broker: Broker | IdempotentProducers, request: Request) -> asyncio.Future[Written]:
        """Send a request, or send it again. Raises what is refused at once."""
        future: asyncio.Future[Written] = asyncio.get_running_loop().create_future()

        def done(outcome: Written | PenstockError) -> None:
            if isinstance(outcome, PenstockError):
                future.set_exception(outcome)
                future.exception()
            else:
                future.set_result(outcome)

        numbers = Numbers(self.producer, request.sequence, self.floor, request.sent)
        request.sent = True
        batch = Batch(request.values, request.keys)
        producers_of(broker).produce(
            self.principal, request.topic, numbers, -1, batch, schema=request.schema, done=done
        )
        return future

    async def send(self, broker: Broker | IdempotentProducers, request: Request) -> Written:
        return await self.start(broker, request)


def producers_of(broker: Broker | IdempotentProducers) -> IdempotentProducers:
    return broker.producers if isinstance(broker, Broker) else broker


async def client_of(broker: Broker | IdempotentProducers, principal: Principal = ANONYMOUS) -> Client:
    return Client(await producers_of(broker).register(principal), principal)


def places(written: Written, count: int) -> list[tuple[int, int] | None]:
    """Partition and offset of each record, None for those that were refused."""
    offsets = {place.partition: place.base_offset for place in written.places}
    refused = {row for row, _ in written.refused}
    found: list[tuple[int, int] | None] = []
    for row, partition in enumerate(written.partitions or [written.places[0].partition] * count):
        if row in refused:
            found.append(None)
            continue
        found.append((partition, offsets[partition]))
        offsets[partition] += 1
    return found
