"""Errors of the broker as NACK codes. One table; a test shows that it has an answer for every class there is."""

from __future__ import annotations

from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationRequired,
    EntryNotFound,
    GroupNotFound,
    InvalidRequest,
    LimitExceeded,
    PartitionNotFound,
    PenstockError,
    SchemaNotFound,
    TopicExists,
    TopicNotFound,
    UserNotFound,
)
from penstock.protocols.blipmq.wire import NackCode

CODES: dict[type[PenstockError], NackCode] = {
    PenstockError: NackCode.INTERNAL,
    InvalidRequest: NackCode.INVALID,
    LimitExceeded: NackCode.INVALID,
    TopicExists: NackCode.INVALID,
    AccessDenied: NackCode.UNAUTHENTICATED,
    AuthenticationFailed: NackCode.UNAUTHENTICATED,
    AuthenticationRequired: NackCode.UNAUTHENTICATED,
    TopicNotFound: NackCode.UNKNOWN,
    PartitionNotFound: NackCode.UNKNOWN,
    GroupNotFound: NackCode.UNKNOWN,
    SchemaNotFound: NackCode.UNKNOWN,
    EntryNotFound: NackCode.UNKNOWN,
    UserNotFound: NackCode.UNKNOWN,
}


def code_of(error: PenstockError) -> NackCode:
    """The code of the nearest class that the table names. What the client cannot change by asking otherwise is 500."""
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)
