"""Refusals over HTTP: every error has a status, and the statuses say whose fault it is."""

from __future__ import annotations

import pytest

from penstock import errors
from penstock.admin.api.problems import problem_of, status_of


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidTopicName, 400),
        (errors.AuthenticationFailed, 401),
        (errors.AccessDenied, 403),
        (errors.TopicNotFound, 404),
        (errors.TopicExists, 409),
        (errors.RecordTooLarge, 413),
        (errors.ValidationFailed, 422),
        (errors.OutcomeUnknown, 500),
        (errors.NotSupported, 501),
        (errors.ShuttingDown, 503),
        (errors.NoSpace, 507),
    ],
)
def test_an_error_has_its_status(error: type[errors.PenstockError], status: int) -> None:
    assert status_of(error) == status


def test_a_problem_says_what_the_error_says() -> None:
    problem = problem_of(errors.NoSpace("the disk is full: make room"))
    assert (problem.type, problem.code, problem.detail) == (
        "urn:penstock:error:no_space",
        "no_space",
        "the disk is full: make room",
    )
    assert problem.retriable
