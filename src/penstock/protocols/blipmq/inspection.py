"""BlipMQ's frames, decoded field by field for people."""

from __future__ import annotations

from penstock.errors import ProtocolViolation
from penstock.inspection import HIDDEN, Field, Frame, FramedDissector
from penstock.protocols.blipmq.codec import parse_hello, parse_id, parse_nack, parse_publish, parse_subscribe
from penstock.protocols.blipmq.wire import HEAD, HEAD_BYTES, LENGTH_BYTES, LENGTH_MAX, LENGTH_MIN, FrameType


class BlipMQDissector(FramedDissector):
    @staticmethod
    def _size_of(data: bytes) -> int | None:
        if len(data) < LENGTH_BYTES:
            return None
        length = int.from_bytes(data[:LENGTH_BYTES], "big")
        if not LENGTH_MIN <= length <= LENGTH_MAX:
            raise ProtocolViolation(f"a frame of {length} bytes: {LENGTH_MIN} to {LENGTH_MAX} are allowed")
        return LENGTH_BYTES + length

    def _request(self, data: bytes) -> Frame:
        _, number, correlation_id = HEAD.unpack_from(data)
        kind = FrameType(number)
        fields = (Field("correlation_id", str(correlation_id)), *self._payload(kind, data[HEAD_BYTES:]))
        return Frame(kind.name, len(data), fields)

    _reply = _request

    def _payload(self, kind: FrameType, payload: bytes) -> list[Field]:
        parsers = {
            FrameType.HELLO: (parse_hello, ("version",)),
            FrameType.PUBLISH: (parse_publish, ("qos", "topic", "value")),
            FrameType.SUBSCRIBE: (parse_subscribe, ("topic", "qos")),
            FrameType.NACK: (parse_nack, ("code", "reason")),
            FrameType.ACK: (parse_id, ("subscription_id",)),
            FrameType.POLL: (parse_id, ("subscription_id",)),
        }
        if kind is FrameType.AUTH:
            return [Field("key", HIDDEN)]
        if kind not in parsers:
            return [Field("payload", self._view.text(payload))] if payload else []
        parse, names = parsers[kind]
        parsed = parse(payload)
        if parsed is None:
            return [Field("fault", "the payload cannot be read"), Field("payload", self._view.text(payload))]
        values = parsed if isinstance(parsed, tuple) else (parsed,)
        return [Field(name, self._view.text(value)) for name, value in zip(names, values, strict=True)]
