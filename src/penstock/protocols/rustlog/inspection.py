"""RustLog's frames of both dialects, decoded field by field for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.errors import ProtocolViolation
from penstock.inspection import Field, Frame, FramedDissector
from penstock.protocols.bytes import U32
from penstock.protocols.rustlog.codec import binary_client, json_client, json_dialect
from penstock.protocols.rustlog.codec.frames import ReplyDecoder, RequestDecoder
from penstock.protocols.rustlog.codec.messages import BadRequest, Call, MalformedFrame, Reply, Undecoded
from penstock.protocols.rustlog.wire import LENGTH_BYTES, PAYLOAD_BYTES_MAX, Dialect, Opcode

_BINARY: dict[Opcode, Callable[[bytes], Any]] = {
    Opcode.PRODUCE: binary_client.decode_produced,
    Opcode.FETCH: binary_client.decode_fetched,
    Opcode.OFFSET_COMMIT: binary_client.decode_success,
    Opcode.OFFSET_FETCH: binary_client.decode_committed_offset,
    Opcode.LIST_TOPICS: binary_client.decode_topics,
    Opcode.METRICS: binary_client.decode_metrics,
    Opcode.ERROR: binary_client.decode_error,
}
_JSON: dict[Opcode, Callable[[bytes], Any]] = {
    Opcode.PRODUCE: json_client.decode_produced,
    Opcode.FETCH: json_client.decode_fetched,
    Opcode.OFFSET_COMMIT: json_client.decode_success,
    Opcode.OFFSET_FETCH: json_client.decode_committed_offset,
    Opcode.LIST_TOPICS: json_client.decode_topics,
    Opcode.DESCRIBE_TOPIC: json_client.decode_topic,
    Opcode.METRICS: json_client.decode_metrics,
    Opcode.ERROR: json_client.decode_error,
}


class RustLogDissector(FramedDissector):
    @staticmethod
    def _size_of(data: bytes) -> int | None:
        if len(data) < LENGTH_BYTES:
            return None
        (length,) = U32.unpack_from(data)
        if not 1 <= length <= PAYLOAD_BYTES_MAX:
            raise ProtocolViolation(f"a frame of {length} bytes: 1 to {PAYLOAD_BYTES_MAX} are allowed")
        return LENGTH_BYTES + int(length)

    def _request(self, data: bytes) -> Frame:
        [request] = RequestDecoder().feed(data)
        if isinstance(request, Undecoded):
            request = json_dialect.decode_request(request.payload)
        if isinstance(request, MalformedFrame):
            return Frame("not decoded", len(data), (Field("reason", self._view.text(request.message)),))
        dialect = Field("dialect", request.dialect.name)
        if not isinstance(request, Call):
            hidden = ("dialect", "counts", "request_bytes")
            return Frame("PRODUCE", len(data), (dialect, *self._view.fields(request, without=hidden)))
        if isinstance(request.body, BadRequest):
            return Frame(
                f"0x{request.opcode:02x}", len(data), (dialect, Field("fault", self._view.text(request.body.message)))
            )
        return Frame(Opcode(request.opcode).name, len(data), (dialect, *self._view.fields(request.body)))

    def _reply(self, data: bytes) -> Frame:
        [reply] = ReplyDecoder().feed(data)
        return Frame(reply.opcode.name, len(data), (Field("dialect", reply.dialect.name), *self._contents(reply)))

    def _contents(self, reply: Reply) -> tuple[Field, ...]:
        known = _JSON if reply.dialect is Dialect.JSON else _BINARY
        decode = known.get(reply.opcode)
        if decode is not None:
            return self._view.fields(decode(reply.payload))
        if reply.dialect is Dialect.JSON:
            return (Field("reply", self._view.text(msgspec.json.decode(reply.payload))),)
        return (Field("payload", f"{len(reply.payload) - 1} bytes"),) if len(reply.payload) > 1 else ()
