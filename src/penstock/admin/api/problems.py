"""Refusals over HTTP: every error as a problem document (RFC 9457), derived from `errors.py`.

`code` is the error's own, for programs; `detail` is its message. What only HTTP can refuse (a path, a method, a body) is an HttpProblem.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec

from penstock import errors

CONTENT_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:penstock:error:"

STATUSES: Final[Mapping[type[errors.PenstockError], HTTPStatus]] = {
    errors.PenstockError: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.InvalidRequest: HTTPStatus.BAD_REQUEST,
    errors.NotSupported: HTTPStatus.NOT_IMPLEMENTED,
    errors.TopicNotFound: HTTPStatus.NOT_FOUND,
    errors.TopicExists: HTTPStatus.CONFLICT,
    errors.PartitionNotFound: HTTPStatus.NOT_FOUND,
    errors.OffsetOutOfRange: HTTPStatus.NOT_FOUND,
    errors.GroupNotFound: HTTPStatus.NOT_FOUND,
    errors.TransactionNotFound: HTTPStatus.NOT_FOUND,
    errors.ConsumerFenced: HTTPStatus.CONFLICT,
    errors.EntryNotFound: HTTPStatus.NOT_FOUND,
    errors.PipelineRunning: HTTPStatus.CONFLICT,
    errors.RecordTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.SchemaNotFound: HTTPStatus.NOT_FOUND,
    errors.SchemaInvalid: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.IncompatibleSchema: HTTPStatus.CONFLICT,
    errors.ValidationFailed: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.LimitExceeded: HTTPStatus.CONFLICT,
    errors.AuthenticationRequired: HTTPStatus.UNAUTHORIZED,
    errors.AuthenticationFailed: HTTPStatus.UNAUTHORIZED,
    errors.AccessDenied: HTTPStatus.FORBIDDEN,
    errors.UserNotFound: HTTPStatus.NOT_FOUND,
    errors.UserExists: HTTPStatus.CONFLICT,
    errors.ConfigError: HTTPStatus.CONFLICT,
    errors.NoSpace: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.ShuttingDown: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.NotLeading: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""An error that is not here has the status of the nearest class above it that is."""


class Problem(msgspec.Struct, frozen=True):
    """A refusal as it is sent."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retriable: bool = False


class HttpProblem(Exception):
    """A request that HTTP itself refuses, before any operation is asked."""

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        *,
        retriable: bool = False,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers or {}
        self.problem = Problem(TYPE_PREFIX + code, status.phrase, status.value, detail, code, retriable)


def status_of(kind: type[errors.PenstockError]) -> HTTPStatus:
    return next(STATUSES[each] for each in kind.__mro__ if each in STATUSES)


def problem_of(error: errors.PenstockError) -> Problem:
    status = status_of(type(error))
    return Problem(TYPE_PREFIX + error.code, status.phrase, status.value, error.message, error.code, error.retriable)
