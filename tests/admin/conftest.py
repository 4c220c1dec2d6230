"""A broker with its admin API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.admin import history
from tests.admin.api.asking import Asking, asking


@pytest.fixture(scope="module")
def ask() -> Iterator[Asking]:
    with asking() as found:
        yield found


@pytest.fixture
def unsampled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asking]:
    """One of the test's own, whose history has the samples that the test takes, and no others."""
    monkeypatch.setattr(history, "FIRST_AFTER_S", None)
    with asking() as found:
        yield found
