"""Felix's frames, JSON and binary, decoded field by field for people."""

from __future__ import annotations

import re
from typing import ClassVar

from penstock.errors import ProtocolViolation
from penstock.inspection import Cutter, Field, Frame, View
from penstock.protocols.felix.codec.frames import Frame as Sent
from penstock.protocols.felix.codec.frames import decode_reply, decode_request
from penstock.protocols.felix.codec.messages import Message
from penstock.protocols.felix.wire import HEADER, HEADER_BYTES, MAGIC, PAYLOAD_BYTES_MAX


class FelixDissector:
    from_start: ClassVar = False

    def __init__(self, view: View) -> None:
        self._view = view
        self._requests = Cutter(_size_of, self._request)
        self._replies = Cutter(_size_of, self._reply)

    def received(self, data: bytes) -> list[Frame]:
        return self._requests.feed(data)

    def sent(self, data: bytes) -> list[Frame]:
        return self._replies.feed(data)

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


def _size_of(data: bytes) -> int | None:
    if len(data) < HEADER_BYTES:
        return None
    magic, _, _, length = HEADER.unpack_from(data)
    if magic != MAGIC or length > PAYLOAD_BYTES_MAX:
        raise ProtocolViolation("this is not the beginning of a Felix frame")
    return HEADER_BYTES + int(length)
