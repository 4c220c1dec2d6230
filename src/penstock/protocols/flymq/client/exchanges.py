"""How a client makes requests: one with its reply, or many that are written together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from penstock.clients.arguments import index_field
from penstock.clients.pipeline import Exchange
from penstock.clients.records import RecordMetadata
from penstock.clients.requests import Requests
from penstock.errors import PenstockError, ProtocolViolation
from penstock.protocols.flymq.codec.frames import ProducedRun, Reply
from penstock.protocols.flymq.errors import decode_error, error_for
from penstock.protocols.flymq.operations.access import Auth
from penstock.protocols.flymq.operations.operation import Operation, decode_reply, encode_request
from penstock.protocols.flymq.operations.records import Produce, StoredRecord
from penstock.protocols.flymq.operations.schemas import ProduceWithSchema
from penstock.protocols.flymq.wire import ERROR, PARTITION_AUTO

Replies = ProducedRun | Reply
Answer = TypeVar("Answer")
Item = TypeVar("Item")
_OPCODE_AT = 2


def replies_in(message: Replies) -> int:
    return len(message.offsets) if isinstance(message, ProducedRun) else 1


def partition_field(partition: int | None) -> int:
    return PARTITION_AUTO if partition is None else index_field(partition)


def metadata_of(stored: StoredRecord) -> RecordMetadata:
    return RecordMetadata(stored.topic, stored.partition, stored.offset, stored.timestamp_ms)


async def all_pages(ask: Callable[[Item | None], Awaitable[tuple[Iterable[Item], bool]]]) -> list[Item]:
    """Return the items of all pages. `ask` gets the page after an item, or the first, and tells whether more follow."""
    found: list[Item] = []
    more = True
    while more:
        items, more = await ask(found[-1] if found else None)
        before = len(found)
        found += items
        more = more and len(found) > before
    return found


class Channel:
    """Makes requests over the connection of one client."""

    def __init__(self, requests: Requests[Replies], timeout_s: float) -> None:
        self.requests = requests
        self.timeout_s = timeout_s

    def ask(self, request: Operation[Answer], *, repeatable: bool | None = None) -> Coroutine[Any, Any, Answer]:
        """Encode a request at once, and return what sends it and awaits its reply.

        A repeatable request is sent again if the connection is lost; by default the operation says if it is.
        """
        repeatable = request.repeatable if repeatable is None else repeatable
        call = Call(encode_request(request), timeout_s=self.timeout_s, repeatable=repeatable)
        return self._perform(type(request), call)

    async def ask_encoded(self, request: Operation[Any]) -> bytes:
        """Like `ask`, with the payload of the reply as it came."""
        call = Call(encode_request(request), timeout_s=self.timeout_s, repeatable=request.repeatable)
        await self.requests.perform(call)
        return call.payload

    async def _perform(self, kind: type[Operation[Answer]], call: Call) -> Answer:
        await self.requests.perform(call)
        return decode_reply(kind, call.payload)


class Call(Exchange[Replies]):
    """One request with one reply; `payload` is what came back."""

    __slots__ = ("_reply_opcode", "payload")

    def __init__(self, data: bytes, *, timeout_s: float, repeatable: bool) -> None:
        super().__init__(data, replies=1, timeout_s=timeout_s, repeatable=repeatable)
        opcode = data[_OPCODE_AT]
        self._reply_opcode = Auth.reply_opcode if opcode == Auth.opcode else opcode
        self.payload = b""

    def accept(self, message: Replies, first: int, count: int) -> None:
        if isinstance(message, Reply) and message.opcode == self._reply_opcode:
            self.payload = message.payload
        elif isinstance(message, Reply) and message.opcode == ERROR:
            self.fail(error_for(decode_error(message.payload)))
        else:
            raise mismatch(self.data[_OPCODE_AT], message)


class Produces(Exchange[Replies]):
    """A batch of PRODUCE or PRODUCE_WITH_SCHEMA requests; `results` gathers the metadata or the error of each record, in order."""

    __slots__ = ("results",)

    def __init__(self, data: bytes, *, records: int, timeout_s: float) -> None:
        super().__init__(data, replies=records, timeout_s=timeout_s, repeatable=False)
        self.results: list[RecordMetadata | PenstockError] = []

    def accept(self, message: Replies, first: int, count: int) -> None:
        if isinstance(message, ProducedRun):
            topic, rows = message.topic, slice(first, first + count)
            columns = zip(message.partitions[rows], message.offsets[rows], message.timestamps_ms[rows], strict=True)
            self.results += [RecordMetadata(topic, *row) for row in columns]
        elif message.opcode == ERROR:
            self.results.append(error_for(decode_error(message.payload)))
        elif message.opcode == self.data[_OPCODE_AT] == ProduceWithSchema.opcode:
            self.results.append(metadata_of(decode_reply(ProduceWithSchema, message.payload)))
        else:
            raise mismatch(self.data[_OPCODE_AT], message)


class Calls(Exchange[Replies]):
    """Requests of one kind, with one reply each; `results` gathers the payload or the error of each, in order."""

    __slots__ = ("results",)

    def __init__(self, data: bytes, *, requests: int, timeout_s: float) -> None:
        super().__init__(data, replies=requests, timeout_s=timeout_s, repeatable=False)
        self.results: list[bytes | PenstockError] = []

    def accept(self, message: Replies, first: int, count: int) -> None:
        opcode = self.data[_OPCODE_AT]
        if isinstance(message, Reply) and message.opcode == opcode:
            self.results.append(message.payload)
        elif isinstance(message, Reply) and message.opcode == ERROR:
            self.results.append(error_for(decode_error(message.payload)))
        else:
            raise mismatch(opcode, message)


def mismatch(requested: int, message: Replies) -> ProtocolViolation:
    answered = Produce.opcode if isinstance(message, ProducedRun) else message.opcode
    return ProtocolViolation(f"expected a reply to opcode 0x{requested:02x}, got opcode 0x{answered:02x}")
