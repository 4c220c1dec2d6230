"""Requests that the node that leads answers: passed on as they came, over a connection of the session's own.

A node that does not lead serves records itself, and what it follows: topics, users, rights, keys, schemas, offsets. Everything else is
decided where it is kept. A reply is given to the client once this node shows what it tells of, so that a client finds what it has changed
on the node that it is connected to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from penstock.broker.access.checks import Principal
from penstock.broker.groups.resets import Move, ResetTarget
from penstock.broker.topics.settings import format_topic_config
from penstock.errors import OutcomeUnknown
from penstock.log.api import TopicConfig
from penstock.net.session import Streams
from penstock.protocols.flymq.errors import decode_error, error_for
from penstock.protocols.flymq.operations import records, topics
from penstock.protocols.flymq.operations.groups import ALL_PARTITIONS, SubscriptionReset
from penstock.protocols.flymq.operations.operation import Operation, decode_reply, encode_request
from penstock.protocols.flymq.server.dispatch import HANDLERS, ON_EVERY_NODE, WRITERS
from penstock.protocols.flymq.server.groups import UNKNOWN
from penstock.protocols.flymq.server.topics import SCHEMA_SETTING
from penstock.protocols.flymq.wire import ERROR, HEADER, HEADER_BYTES, PAYLOAD_BYTES_MAX
from penstock.protocols.node_link import LOOK_S, DialNode, introduction_of

Again = Callable[[], bytes]
ASKED_MAX: Final = 3
"""How often a request is asked, if each time the node that leads is lost before it answers: the request itself may be why."""


FORWARDED: Final = frozenset(kind.opcode for kind in (*HANDLERS, *WRITERS) if kind not in ON_EVERY_NODE) | {
    records.ProduceRecords.opcode
}
"""Opcodes of what a node passes on that does not lead; PRODUCE_RECORDS only with a delay."""


def is_forwarded(opcode: int, body: object) -> bool:
    if opcode == records.ProduceRecords.opcode:
        return isinstance(body, records.ProduceRecords) and body.delay_ms > 0
    return opcode in FORWARDED


def sent_again(body: object, frames: bytes) -> Again | None:
    """Return what makes the frames of a request for another node, if the one that was asked may have carried it out; None if it must not
    be asked twice."""
    if not isinstance(body, Operation) or not body.repeatable:
        return None
    # A node that begins to lead tells by this what may be stored already.
    return lambda: encode_request(replace(body, resent=True)) if isinstance(body, records.ProduceOnce) else frames


class NodeSession:
    """The connection of one client's session to the node that leads, or that owns a shard. Made when it is needed, for one principal."""

    def __init__(self, dial: DialNode, shard: int | None = None) -> None:
        self._dial = dial
        self._shard = shard
        self._streams: Streams | None = None
        self._for: tuple[Principal, bool | None, str | None] | None = None

    async def ask(
        self, principal: Principal, native: bool | None, frames: bytes, count: int, *, again: Again | None
    ) -> bytes:
        """Return the replies to `count` requests. If that node is lost, the frames that `again` returns are sent to the next one.

        Raises NotLeading if nobody could be asked, OutcomeUnknown if no answer came.
        """
        asked = 0
        while True:
            asked += 1
            streams = await self._connected(principal, native)
            asking = asyncio.ensure_future(_ask(streams, frames, count))
            try:
                while not asking.done():
                    await asyncio.wait([asking], timeout=LOOK_S)
                    if not asking.done() and self._owner() not in (None, self._for and self._for[2]):
                        raise OSError("another node has taken over")
                return asking.result()
            except (OSError, asyncio.IncompleteReadError) as error:
                self.close()
                if again is None or asked == ASKED_MAX:
                    raise OutcomeUnknown(
                        f"the node that was asked was lost before it answered ({error}): look whether it was done"
                    ) from error
                frames = again()
            except BaseException:
                self.close()
                raise
            finally:
                asking.cancel()

    def _owner(self) -> str | None:
        return self._dial.owner(self._shard)

    async def _connected(self, principal: Principal, native: bool | None) -> Streams:
        if self._streams is not None:
            reader, writer = self._streams
            if self._for == (principal, native, self._owner()) and not reader.at_eof() and not writer.is_closing():
                return self._streams
            self.close()
        self._streams = await self._dial.dial(introduction_of("flymq", principal, native=native, shard=self._shard))
        self._for = (principal, native, self._owner())
        return self._streams

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


async def _ask(streams: Streams, frames: bytes, count: int) -> bytes:
    reader, writer = streams
    writer.write(frames)
    await writer.drain()
    return b"".join([await _read_frame(reader) for _ in range(count)])


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(HEADER_BYTES)
    length = HEADER.unpack(head)[4]
    if length > PAYLOAD_BYTES_MAX:
        raise OSError(f"a reply of {length} bytes")
    return head + await reader.readexactly(length)


class NodeOperations:
    """Implements `penstock.broker.leading.Leader`, and `Owners` of `penstock.broker.deliveries.elsewhere`."""

    def __init__(self, dial: DialNode) -> None:
        self._dial = dial

    async def create_topic(self, principal: Principal, name: str, config: TopicConfig, schema: str | None) -> None:
        settings = [(key, value) for key, value in format_topic_config(config) if key != "partitions"]
        if schema is not None:
            settings.append((SCHEMA_SETTING, schema))
        await self._ask(principal, topics.CreateTopic(name, config.partitions, settings))

    async def reset_subscription(
        self,
        shard: int,
        principal: Principal,
        topic: str,
        subscription: str,
        target: ResetTarget,
        partition: int | None,
        *,
        preview: bool,
    ) -> list[Move]:
        wanted = ALL_PARTITIONS if partition is None else partition
        request = SubscriptionReset(topic, subscription, target.mode, target.value, wanted, preview)
        moved = decode_reply(SubscriptionReset, await self._ask(principal, request, shard))
        return [
            Move(
                each.partition,
                None if each.before == UNKNOWN else each.before,
                each.after,
                each.log_start,
                each.next_offset,
            )
            for each in moved
        ]

    async def delete_subscriptions(self, shard: int, principal: Principal, group: str, topic: str | None) -> None:
        await self._ask(principal, topics.DeleteGroup(topic or "", group), shard)

    async def _ask(self, principal: Principal, request: Operation[Any], shard: int | None = None) -> bytes:
        session = NodeSession(self._dial, shard)
        frames = encode_request(request)
        try:
            reply = await session.ask(principal, False, frames, 1, again=sent_again(request, frames))
        finally:
            session.close()
        if HEADER.unpack_from(reply)[2] == ERROR:
            raise error_for(decode_error(reply[HEADER_BYTES:]))
        return reply[HEADER_BYTES:]


def topic_of(body: object) -> str | None:
    """The topic that a request names, if it names one."""
    topic = getattr(body, "topic", None)
    return topic if isinstance(topic, str) and topic else None
