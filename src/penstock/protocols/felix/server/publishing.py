"""The publishes of one stream, on their way to the log.

They are started without waiting for one another's commit, and those that came together and go to one place are written as one run: one
append instead of many.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Protocol

from msgspec import UnsetType

from penstock.broker.access.checks import Operation, Resource, ResourceKind, authorize
from penstock.broker.records.spreading import Placement, Scattered, offsets_by_unit
from penstock.columns import concatenated
from penstock.errors import TopicNotFound
from penstock.net.quic_session import Stream
from penstock.protocols.conversation import ReplySlot
from penstock.protocols.felix.codec.messages import BinaryPublish, Publish, PublishBatch
from penstock.protocols.felix.codec.scopes import Scope, check_shard
from penstock.protocols.felix.errors import Refusal
from penstock.protocols.felix.server.acknowledging import Acknowledgement
from penstock.protocols.felix.server.identities import Identity
from penstock.protocols.felix.server.shared import Shared

RUN_BYTES_MAX: Final = 1 << 20
"""About how much is written at a time, so that what waits for its commit is released in parts."""
EVENT_BYTES: Final = 48
"""What each further event that is being written takes in memory besides its bytes; for the first, what a request counts for is enough."""


class Reserve(Protocol):
    def __call__(self, held_bytes: int, *, late: bool = False) -> ReplySlot: ...


class Write:
    """One publish on its way to the log."""

    __slots__ = ("ack", "key", "scope", "slot", "values")

    def __init__(
        self, scope: Scope, values: Sequence[bytes], key: bytes | None, ack: Acknowledgement, slot: ReplySlot
    ) -> None:
        self.scope = scope
        self.values = values
        self.key = key
        self.ack = ack
        self.slot = slot


class Run:
    """Publishes of one stream that go to one place, one behind the other."""

    __slots__ = ("_size_bytes", "identity", "topic", "units", "writes")

    def __init__(self, topic: str, identity: Identity, first: Write) -> None:
        self.topic = topic
        self.identity = identity
        self.writes = [first]
        self.units = [len(first.values)]
        """The number of events of each."""
        self._size_bytes = first.slot.held_bytes

    def takes(self, topic: str, identity: Identity, write: Write) -> bool:
        return (
            self.topic == topic
            and self.identity is identity
            and self.writes[0].key == write.key
            and self._size_bytes < RUN_BYTES_MAX
        )

    def add(self, write: Write) -> None:
        self.writes.append(write)
        self.units.append(len(write.values))
        self._size_bytes += write.slot.held_bytes

    def values(self) -> Sequence[bytes]:
        return concatenated([write.values for write in self.writes])


class Publisher:
    """What one stream publishes, and what it hears of that."""

    __slots__ = ("_answer", "_on_committed", "_refusal_of", "_reserve", "_shared", "_stream", "gathered", "in_flight")

    def __init__(
        self,
        shared: Shared,
        stream: Stream,
        *,
        reserve: Reserve,
        answer: Callable[[ReplySlot, bytes], None],
        refusal_of: Callable[[Exception, Scope], Refusal],
        on_committed: Callable[[], None],
    ) -> None:
        """`on_committed` is called whenever publishes were committed or refused, after they were answered."""
        self._shared = shared
        self._stream = stream
        self._reserve = reserve
        self._answer = answer
        self._refusal_of = refusal_of
        self._on_committed = on_committed
        self.gathered: Run | None = None
        """Publishes that were gathered in this turn and are not on their way yet."""
        self.in_flight = 0
        """Runs that are on their way."""

    def publish(
        self,
        request: Publish | PublishBatch | BinaryPublish,
        identity: Identity,
        ack: Acknowledgement,
        held_bytes: int,
    ) -> Coroutine[Any, Any, None] | None:
        """Start a publish and see to its answer. Returns what has to be done before the next may start: the making of its stream."""
        scope = Scope(request.tenant_id, request.namespace, request.stream)
        values = [request.payload] if isinstance(request, Publish) else request.payloads
        self._shared.stats.received_records += len(values)
        key = None if isinstance(request.key, UnsetType) else request.key
        more_bytes = EVENT_BYTES * (len(values) - 1)
        if more_bytes > 0:
            self._stream.hold(more_bytes)
        else:
            more_bytes = 0
        # What is answered only if it fails keeps no place: replies after it do not wait for the disk.
        write = Write(scope, values, key, ack, self._reserve(held_bytes + more_bytes, late=not ack.awaited))
        try:
            if not isinstance(request, BinaryPublish):
                check_shard(request.shard)
            topic = self._shared.topic(identity, scope)
            if self._shared.auto_create and not self._shared.broker.topics.exists(topic):
                self.write_gathered()
                return self._create_and_start(topic, identity, write)
            self._start(topic, identity, write)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            self._done(write, error)
        return None

    async def _create_and_start(self, topic: str, identity: Identity, write: Write) -> None:
        try:
            await self._shared.broker.topics.ensure(identity.principal, topic)
            self._start(topic, identity, write)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            self._done(write, error)

    def _start(self, topic: str, identity: Identity, write: Write) -> None:
        if not write.values:
            self._write_nothing(topic, identity, write)
        elif self.gathered is None:
            self.gathered = Run(topic, identity, write)
        elif self.gathered.takes(topic, identity, write):
            self.gathered.add(write)
        else:
            self.write_gathered()
            self.gathered = Run(topic, identity, write)

    def _write_nothing(self, topic: str, identity: Identity, write: Write) -> None:
        """An empty batch is allowed, to those who might write more."""
        broker = self._shared.broker
        authorize(broker.access, identity.principal, Operation.WRITE, Resource(ResourceKind.TOPIC, topic))
        if not broker.topics.exists(topic):
            raise TopicNotFound(f"topic not found: {topic}")
        self._done(write, None)

    def write_gathered(self) -> None:
        """Send what was gathered on its way."""
        run, self.gathered = self.gathered, None
        if run is None:
            return
        self.in_flight += 1
        principal, values, key = run.identity.principal, run.values(), run.writes[0].key
        done = partial(self._committed, run)
        try:
            self._shared.broker.records.produce_together(principal, run.topic, values, key, units=run.units, done=done)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            self.in_flight -= 1
            for write in run.writes:
                self._done(write, error)

    def _committed(self, run: Run, placed: list[Placement] | Scattered) -> None:
        self.in_flight -= 1
        assert isinstance(placed, list)  # all go to one partition
        for write, offset in zip(run.writes, offsets_by_unit(placed, run.units), strict=True):
            self._done(write, offset)
        self._on_committed()

    def _done(self, write: Write, result: int | Exception | None) -> None:
        """Answer a publish with its first offset or its error, if it wants an answer."""
        if isinstance(result, Exception):
            self._shared.stats.errors += 1
            reply = write.ack.error(self._refusal_of(result, write.scope))
        else:
            reply = write.ack.ok(result)
        self._answer(write.slot, reply)
