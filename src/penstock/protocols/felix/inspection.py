"""Felix's frames, JSON and binary, decoded field by field for people."""

from __future__ import annotations

import re

from penstock.errors import ProtocolViolation
from penstock.inspection import Field, Frame, FramedDissector
from penstock.protocols.felix.codec.frames import Frame as Sent
from penstock.protocols.felix.codec.frames import decode_reply, decode_request
from penstock.protocols.felix.codec.messages import Message
from penstock.protocols.felix.wire import HEADER, HEADER_BYTES, MAGIC, PAYLOAD_BYTES_MAX


class FelixDissector(FramedDissector):
    @staticmethod
    def _size_of(data: bytes) -> int | None:
        if len(data) < HEADER_BYTES:
            return None
        magic, _, _, length = HEADER.unpack_from(data)
        if magic != MAGIC or length > PAYLOAD_BYTES_MAX:
            raise ProtocolViolation("this is not the beginning of a Felix frame")
        return HEADER_BYTES + int(length)

    def _request(self, data: bytes) -> Frame:
        return self._frame(data, decode_request(_taken_apart(data)))

    def _reply(self, data: bytes) -> Frame:
        return self._frame(data, decode_reply(_taken_apart(data)))

    def _frame(self, data: bytes, message: object) -> Frame:
        if isinstance(message, Message):
            name = str(message.__struct_config__.tag)
        else:
            name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(message).__name__).lower()
        flags = Field("flags", f"{_taken_apart(data).flags:#06x}")
        return Frame(name, len(data), (flags, *self._view.fields(message)))


def _taken_apart(data: bytes) -> Sent:
    _, _, flags, _ = HEADER.unpack_from(data)
    return Sent(flags, data[HEADER_BYTES:])
