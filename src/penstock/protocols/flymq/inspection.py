"""FlyMQ's frames, decoded field by field for people: the declared layouts of requests and replies."""

from __future__ import annotations

from collections import deque

from penstock.errors import ProtocolViolation
from penstock.inspection import HIDDEN, Field, Frame, FramedDissector, View
from penstock.protocols.flymq import operations
from penstock.protocols.flymq.codec.frames import Call, CodecLimits, RequestDecoder, Undecoded, decode_undecoded
from penstock.protocols.flymq.codec.record_layouts import decode_consumed, decode_fetched, decode_produced
from penstock.protocols.flymq.errors import decode_error
from penstock.protocols.flymq.operations.operation import OPERATIONS, BadRequest, decode_reply
from penstock.protocols.flymq.operations.schemas import Validation
from penstock.protocols.flymq.wire import AUTH_RESPONSE, ERROR, HEADER, HEADER_BYTES, MAGIC, VERSION

assert operations.__all__  # importing them fills OPERATIONS
_BY_REPLY = {kind.reply_opcode: kind for kind in OPERATIONS.values()}
_PRODUCE = operations.records.Produce.opcode
_FETCHES = frozenset({operations.records.Fetch.opcode, operations.records.FetchBinary.opcode})
_CONSUMES = frozenset({operations.records.Consume.opcode, operations.records.ConsumeZeroCopy.opcode})
UNANSWERED_MAX = 10_000
"""Fetches whose layout is remembered until they are answered."""


class FlyMQDissector(FramedDissector):
    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._native: deque[bool] = deque(maxlen=UNANSWERED_MAX)
        """Of fetches that are not answered: whether the reply has the layout of deployed brokers."""

    @staticmethod
    def _size_of(data: bytes) -> int | None:
        if data[0] != MAGIC or (len(data) > 1 and data[1] != VERSION):
            raise ProtocolViolation(f"not a FlyMQ frame: it begins with {data[:2].hex(' ')}, af 01 is expected")
        if len(data) < HEADER_BYTES:
            return None
        length: int = HEADER.unpack_from(data)[4]
        return HEADER_BYTES + length

    def _request(self, data: bytes) -> Frame:
        [request] = RequestDecoder().feed(data)
        name = _name(data)
        if isinstance(request, Call) and isinstance(request.body, Undecoded):
            request = decode_undecoded(request, CodecLimits(), lambda: None)
        if not isinstance(request, Call):
            return Frame(name, len(data), self._view.fields(request, without=("request_bytes", "partitions")))
        if isinstance(request.body, BadRequest):
            return Frame(name, len(data), (Field("fault", self._view.text(request.body.message)),))
        if request.opcode in _FETCHES:
            self._native.append(getattr(request.body, "filter", None) is not None)
        return Frame(name, len(data), self._view.fields(request.body))

    def _reply(self, data: bytes) -> Frame:
        _, _, opcode, _, _ = HEADER.unpack_from(data)
        payload, view = data[HEADER_BYTES:], self._view
        if opcode == ERROR:
            return Frame("ERROR", len(data), (Field("message", view.text(decode_error(payload))),))
        kind = _BY_REPLY.get(opcode)
        name = "UNKNOWN" if kind is None else kind.opcode_name
        if opcode == _PRODUCE:
            values = decode_produced(payload)
            names = ("topic", "partition", "offset", "timestamp_ms")
            return Frame(
                name, len(data), tuple(Field(*each) for each in zip(names, map(view.text, values), strict=True))
            )
        if opcode in _FETCHES:
            native = self._native.popleft() if self._native else False
            return Frame(name, len(data), view.fields(decode_fetched(payload, native=native)))
        if opcode in _CONSUMES:
            key, value = decode_consumed(payload)
            return Frame(name, len(data), (Field("key", view.text(key)), Field("value", view.text(value))))
        if kind is None or opcode == AUTH_RESPONSE:
            return Frame(name, len(data), (Field("payload", f"{len(payload)} bytes"),))
        if kind is operations.access.KeyCreate:
            return Frame(name, len(data), (Field("key", HIDDEN),))
        reply = decode_reply(kind, payload)
        if isinstance(reply, Validation) and not view.payloads:
            reply.errors = [HIDDEN] * len(reply.errors)  # they quote the value
        if isinstance(reply, bytes):
            # Coded by hand, and the plan of a read has a secret in it.
            return Frame(name, len(data), (Field("payload", f"{len(reply)} bytes"),))
        return Frame(name, len(data), view.fields(reply))


def _name(data: bytes) -> str:
    kind = OPERATIONS.get(data[2])
    return f"0x{data[2]:02x}" if kind is None else kind.opcode_name
