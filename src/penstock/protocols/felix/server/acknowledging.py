"""How a publish is answered: in which message, if at all.

    asked for                          committed                      refused
    binary, acked                      binary ack, or publish_ok      binary ack, or publish_error
    JSON, acked, with an integer id    publish_ok                     publish_error
    JSON, acked, otherwise             ok                             error
    not acked, as the contract has it  nothing                        error
    not acked, from a deployed client  nothing                        nothing: it would take it for the answer to the next one

A publish that does not say whether it wants an answer wants one.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from msgspec import UNSET

from penstock.protocols.felix.codec import binary
from penstock.protocols.felix.codec.frames import encode_frame, encode_message
from penstock.protocols.felix.codec.messages import (
    BinaryPublish,
    Error,
    Id,
    Ok,
    Publish,
    PublishBatch,
    PublishError,
    PublishOk,
)
from penstock.protocols.felix.errors import RETRY_NUMBERS, Refusal, shortened
from penstock.protocols.felix.wire import ACK_CODE, ACK_OFFSET, CODE, PUBLISH_ACK


class Style(Enum):
    BINARY = "binary"
    NATIVE = "native"
    SPEC = "spec"
    ERRORS_ONLY = "errors only"
    SILENT = "silent"


class Acknowledgement(NamedTuple):
    """What one publish wants to hear."""

    style: Style
    request_id: Id = UNSET
    client_flags: int = 0
    """Those that the client announced."""
    with_code: bool = False
    """Whether the client reads codes in JSON."""

    @property
    def awaited(self) -> bool:
        return self.style not in (Style.ERRORS_ONLY, Style.SILENT)

    def ok(self, offset: int | None) -> bytes:
        """Empty where nothing is to be said."""
        if not self.client_flags & ACK_OFFSET:
            offset = None
        if self.style is Style.BINARY:
            assert isinstance(self.request_id, int)
            flags = PUBLISH_ACK if offset is None else PUBLISH_ACK | ACK_OFFSET
            return encode_frame(flags, binary.encode_ack(self.request_id, offset))
        if self.style is Style.NATIVE:
            return encode_message(PublishOk(request_id=self.request_id, offset=UNSET if offset is None else offset))
        return encode_message(Ok(request_id=self.request_id)) if self.style is Style.SPEC else b""

    def error(self, refused: Refusal) -> bytes:
        if self.style is Style.SILENT:
            return b""
        if self.style is Style.BINARY:
            assert isinstance(self.request_id, int)
            failed = binary.encode_failed_ack(self.request_id, refused.text)
            if self.client_flags & ACK_CODE:
                code = refused.code
                return encode_frame(PUBLISH_ACK | ACK_CODE, failed + CODE.pack(code.number, RETRY_NUMBERS[code.retry]))
            return encode_frame(PUBLISH_ACK, failed)
        form = PublishError if self.style is Style.NATIVE else Error
        return encode_refusal(form, self.request_id, refused, with_code=self.with_code)


def encode_refusal(form: type[Error | PublishError], request_id: Id, refused: Refusal, *, with_code: bool) -> bytes:
    """`with_code`: whether the client has said that it reads codes."""
    answer = form(request_id=request_id, message=shortened(refused.text))
    if with_code:
        answer.code, answer.retry = refused.code.name, refused.code.retry
    return encode_message(answer)


def acknowledgement(
    request: Publish | PublishBatch | BinaryPublish, *, native: bool, client_flags: int | None, with_code: bool
) -> Acknowledgement:
    """For a publish that is not binary, or not acked; `binary_acknowledgement` is for others.

    `client_flags` are those that the client announced; None if it announced none. `with_code`: whether it reads codes.
    """
    if isinstance(request, BinaryPublish):
        return Acknowledgement(Style.SILENT if native else Style.ERRORS_ONLY, with_code=with_code)
    id_ = UNSET if request.request_id is None else request.request_id
    if request.ack == "none":
        style = Style.SILENT if native else Style.ERRORS_ONLY
    else:
        style = Style.NATIVE if native and isinstance(id_, int) else Style.SPEC
    return Acknowledgement(style, id_, client_flags or 0, with_code)


def binary_acknowledgement(request_id: int, client_flags: int | None, *, with_code: bool) -> Acknowledgement:
    """A client that asks in binary reads binary answers, unless it has said that it does not."""
    reads_binary = client_flags is None or client_flags & PUBLISH_ACK
    return Acknowledgement(Style.BINARY if reads_binary else Style.NATIVE, request_id, client_flags or 0, with_code)
