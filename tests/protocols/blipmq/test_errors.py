"""Every error the broker knows has a NACK code."""

from __future__ import annotations

import pytest

from penstock import errors
from penstock.errors import BatchFailed, PenstockError
from penstock.protocols.blipmq.errors import CODES, code_of
from penstock.protocols.blipmq.wire import NackCode

CLASSES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, PenstockError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_has_a_code(kind: type[PenstockError]) -> None:
    error = kind("why", []) if kind is BatchFailed else kind("why")
    assert code_of(error) in NackCode


def test_the_nearest_class_decides() -> None:
    assert code_of(errors.InvalidTopicName("x")) == NackCode.INVALID
    assert code_of(errors.NoSpace("x")) == NackCode.INTERNAL
    assert code_of(errors.AccessDenied("x")) == NackCode.UNAUTHENTICATED
    assert set(CODES) <= set(CLASSES)
