"""Texts of Fujin's replies as errors of the client. A text of the broker that is not here is a ServerError with its words."""

from __future__ import annotations

from penstock.errors import (
    EntryNotFound,
    InvalidRequest,
    PenstockError,
    ServerError,
    ShuttingDown,
    TopicNotFound,
    TransactionNotActive,
)
from penstock.protocols.fujin import wire

_ERRORS: dict[str, type[PenstockError]] = {
    wire.WRITER_NOT_FOUND: TopicNotFound,
    wire.READER_NOT_FOUND: TopicNotFound,
    wire.INVALID_TX_STATE: TransactionNotActive,
    wire.UNKNOWN_ID: EntryNotFound,
    wire.STOPPING: ShuttingDown,
    wire.INVALID_READER_TYPE: InvalidRequest,
    wire.EMPTY_BODY: InvalidRequest,
    wire.EMPTY_FETCH: InvalidRequest,
    wire.EMPTY_READER_TOPIC: InvalidRequest,
    wire.EMPTY_WRITER_TOPIC: InvalidRequest,
}


def error_of(reason: str) -> PenstockError:
    """The error that a client raises for the text of a reply."""
    return _ERRORS.get(reason, ServerError)(reason)
