"""What the client awaits: the reply to one request, or the replies to many that were written together."""

from __future__ import annotations

from penstock.clients.pipeline import Exchange
from penstock.clients.records import RecordMetadata
from penstock.errors import PenstockError, ProtocolViolation
from penstock.protocols.flymq.codec import ProducedRun, Reply
from penstock.protocols.flymq.error_texts import error_for
from penstock.protocols.flymq.lifetime.replies import decode_stored
from penstock.protocols.flymq.reply_decoding import decode_error
from penstock.protocols.flymq.wire import Opcode

Replies = ProducedRun | Reply
_OPCODE_AT = 2


def replies_in(message: Replies) -> int:
    return len(message.offsets) if isinstance(message, ProducedRun) else 1


class Call(Exchange[Replies]):
    """One request with one reply; `payload` is what came back."""

    __slots__ = ("_reply_opcode", "payload")

    def __init__(self, data: bytes, *, timeout_s: float, repeatable: bool) -> None:
        super().__init__(data, replies=1, timeout_s=timeout_s, repeatable=repeatable)
        opcode = data[_OPCODE_AT]
        self._reply_opcode = Opcode.AUTH_RESPONSE if opcode == Opcode.AUTH else opcode
        self.payload = b""

    def accept(self, message: Replies, first: int, count: int) -> None:
        if isinstance(message, Reply) and message.opcode == self._reply_opcode:
            self.payload = message.payload
        elif isinstance(message, Reply) and message.opcode == Opcode.ERROR:
            self.fail(error_for(decode_error(message.payload)))
        else:
            raise _mismatch(self.data[_OPCODE_AT], message)


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
        elif message.opcode == Opcode.ERROR:
            self.results.append(error_for(decode_error(message.payload)))
        elif message.opcode == self.data[_OPCODE_AT] == Opcode.PRODUCE_WITH_SCHEMA:
            self.results.append(decode_stored(message.payload))
        else:
            raise _mismatch(self.data[_OPCODE_AT], message)


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
        elif isinstance(message, Reply) and message.opcode == Opcode.ERROR:
            self.results.append(error_for(decode_error(message.payload)))
        else:
            raise _mismatch(opcode, message)


def _mismatch(requested: int, message: Replies) -> ProtocolViolation:
    answered = Opcode.PRODUCE if isinstance(message, ProducedRun) else message.opcode
    return ProtocolViolation(f"opcode 0x{requested:02x} was asked, opcode 0x{answered:02x} is the answer")
