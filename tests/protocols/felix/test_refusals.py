"""Every error has a text, with the words by which clients tell errors apart."""

from __future__ import annotations

import pytest

from penstock import errors
from penstock.errors import BatchFailed, PenstockError
from penstock.protocols.felix.answers import error_of
from penstock.protocols.felix.refusals import refusal
from penstock.protocols.felix.scopes import Scope

CLASSES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, PenstockError)]
SCOPE = Scope("t", "n", "s")


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_has_a_text(kind: type[PenstockError]) -> None:
    error = kind("why", []) if kind is BatchFailed else kind("why")
    assert refusal(error, SCOPE)


@pytest.mark.parametrize(
    "error",
    [
        errors.TopicNotFound("topic not found: x"),
        errors.AccessDenied("unauthorized: no"),
        errors.AccessDenied("no"),
        errors.AuthenticationRequired("authentication required: log in"),
        errors.AuthenticationFailed("auth failed: no"),
    ],
)
def test_a_client_finds_the_class_again(error: PenstockError) -> None:
    assert type(error_of(refusal(error, SCOPE))) is type(error)


def test_words_of_other_brokers_are_known_too() -> None:
    assert isinstance(error_of("tenant mismatch"), errors.AccessDenied)
    assert isinstance(error_of("cursor 3 is too old"), errors.OffsetOutOfRange)
    assert isinstance(error_of("something else"), errors.ServerError)
