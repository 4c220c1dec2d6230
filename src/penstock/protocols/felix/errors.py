"""Errors of the broker as the texts of this protocol, and as the codes that later releases added.

Clients that read no codes tell errors apart by words: "not found" is one kind, "unauthorized" another, "cursor" a third. So each text
contains the word of its kind, whatever else it says. A code comes with what a client may do about the error (`retry`). The official
client replaces its connection after a refused publish that has no code.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationRequired,
    CorruptBlock,
    CorruptMetadata,
    EntryNotFound,
    GroupNotFound,
    InvalidRequest,
    LimitExceeded,
    MissingSegment,
    NotLeading,
    NotSupported,
    NotWritten,
    OffsetOutOfRange,
    PartitionNotFound,
    PenstockError,
    ProducerFenced,
    ProtocolViolation,
    SchemaNotFound,
    ShuttingDown,
    TopicExists,
    TopicNotFound,
    TransactionNotActive,
    TransactionNotFound,
    UserExists,
    UserNotFound,
    WriteFailed,
)
from penstock.protocols.felix.codec.scopes import Scope

UNAUTHORIZED = "unauthorized"
INTERNAL = "internal error: see the broker's log"
TEXT_CHARS_MAX: Final = 1024
"""For an error's text. Ours are shorter, but some quote what the client sent, which may be as long as a frame."""
Retry = Literal["retry", "retry_after", "outcome_unknown", "fatal"]
RETRY_NUMBERS: Final[dict[Retry, int]] = {"retry": 1, "retry_after": 2, "outcome_unknown": 4, "fatal": 5}


class ErrorCode(NamedTuple):
    """As JSON has it, by name, and as a binary acknowledgement has it, by number."""

    name: str
    number: int
    retry: Retry


class Refusal(NamedTuple):
    """What a client is told of an error."""

    text: str
    code: ErrorCode


INVALID_REQUEST: Final = ErrorCode("invalid_request", 4, "fatal")
INTERNAL_ERROR: Final = ErrorCode("internal", 13, "outcome_unknown")
_NOT_FOUND: Final = ErrorCode("not_found", 3, "fatal")
_UNREADABLE: Final = ErrorCode("storage", 14, "fatal")
_UNAUTHENTICATED: Final = ErrorCode("unauthenticated", 1, "fatal")
_INVALID: Final[tuple[type[PenstockError], ...]] = (
    InvalidRequest,
    ProtocolViolation,
    NotSupported,
    TopicExists,
    OffsetOutOfRange,
    SchemaNotFound,
    TransactionNotFound,
    TransactionNotActive,
    ProducerFenced,
    UserNotFound,
    UserExists,
)
"""Refused before anything happens, and would be again."""
_NOT_WRITTEN: Final = ErrorCode("storage", 14, "retry_after")
_CODES: Final[tuple[tuple[type[PenstockError], ErrorCode], ...]] = (
    (AuthenticationRequired, _UNAUTHENTICATED),
    (AuthenticationFailed, _UNAUTHENTICATED),
    (AccessDenied, ErrorCode("forbidden", 2, "fatal")),
    (EntryNotFound, ErrorCode("stale_claim", 15, "retry")),  # the only entries Felix has are claims of groups
    (TopicNotFound, _NOT_FOUND),
    (PartitionNotFound, _NOT_FOUND),
    (GroupNotFound, _NOT_FOUND),
    (LimitExceeded, ErrorCode("limit_exceeded", 11, "fatal")),
    (ShuttingDown, ErrorCode("draining", 12, "retry")),
    (NotLeading, ErrorCode("draining", 12, "retry")),
    (CorruptBlock, _UNREADABLE),
    (CorruptMetadata, _UNREADABLE),
    (MissingSegment, _UNREADABLE),
    (NotWritten, _NOT_WRITTEN),
    (WriteFailed, ErrorCode("storage", 14, "outcome_unknown")),
    *((kind, INVALID_REQUEST) for kind in _INVALID),
)
"""The first that fits. What is not listed is the broker's fault."""

_DENIALS = (AccessDenied, AuthenticationFailed, AuthenticationRequired)


def refusal(error: PenstockError, scope: Scope | None = None) -> str:
    """What to tell the client; `scope` is the stream that was asked for."""
    if isinstance(error, TopicNotFound) and scope is not None:
        return stream_not_found(scope)
    text = str(error)
    if isinstance(error, _DENIALS) and UNAUTHORIZED not in text:
        return f"{UNAUTHORIZED}: {text}"
    return text


def code_of(error: PenstockError) -> ErrorCode:
    return next((code for kind, code in _CODES if isinstance(error, kind)), INTERNAL_ERROR)


def shortened(text: str) -> str:
    """A text that is no longer than one may be."""
    return text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - 3] + "..."


def stream_not_found(scope: Scope) -> str:
    return f"stream not found: tenant={scope.tenant_id} namespace={scope.namespace} stream={scope.name}"
