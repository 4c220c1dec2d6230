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

from penstock.protocols.felix import binary
from penstock.protocols.felix.codec import encode_frame, encode_message
from penstock.protocols.felix.messages import (
    BinaryPublish,
    Error,
    Id,
    Ok,
    Publish,
    PublishBatch,
    PublishError,
    PublishOk,
)
from penstock.protocols.felix.refusals import shortened
from penstock.protocols.felix.wire import ACK_OFFSET, PUBLISH_ACK


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
    with_offset: bool = False

    @property
    def awaited(self) -> bool:
        return self.style not in (Style.ERRORS_ONLY, Style.SILENT)

    def ok(self, offset: int | None) -> bytes:
        """Empty where nothing is to be said."""
        if self.style is Style.BINARY:
            assert isinstance(self.request_id, int)
            if self.with_offset and offset is not None:
                return encode_frame(PUBLISH_ACK | ACK_OFFSET, binary.encode_ack(self.request_id, None, offset))
            return encode_frame(PUBLISH_ACK, binary.encode_ack(self.request_id, None, None))
        if self.style is Style.NATIVE:
            return encode_message(PublishOk(request_id=self.request_id))
        return encode_message(Ok(request_id=self.request_id)) if self.style is Style.SPEC else b""

    def error(self, text: str) -> bytes:
        if self.style is Style.SILENT:
            return b""
        if self.style is Style.BINARY:
            assert isinstance(self.request_id, int)
            return encode_frame(PUBLISH_ACK, binary.encode_ack(self.request_id, text, None))
        if self.style is Style.NATIVE:
            return encode_message(PublishError(request_id=self.request_id, message=shortened(text)))
        return encode_message(Error(request_id=self.request_id, message=shortened(text)))


def acknowledgement(
    request: Publish | PublishBatch | BinaryPublish, *, native: bool, client_flags: int | None
) -> Acknowledgement:
    """`client_flags` are those that the client announced; None where it announced none."""
    if isinstance(request, BinaryPublish):
        if request.request_id is None:
            return Acknowledgement(Style.SILENT if native else Style.ERRORS_ONLY)
        return binary_acknowledgement(request.request_id, client_flags)
    id_ = UNSET if request.request_id is None else request.request_id
    if request.ack == "none":
        return Acknowledgement(Style.SILENT if native else Style.ERRORS_ONLY, id_)
    return Acknowledgement(Style.NATIVE if native and isinstance(id_, int) else Style.SPEC, id_)


def binary_acknowledgement(request_id: int, client_flags: int | None) -> Acknowledgement:
    """A client that asks in binary reads binary answers, unless it has said that it does not."""
    if client_flags is not None and not client_flags & PUBLISH_ACK:
        return Acknowledgement(Style.NATIVE, request_id)
    return Acknowledgement(Style.BINARY, request_id, bool((client_flags or 0) & ACK_OFFSET))
