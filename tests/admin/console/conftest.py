"""A browser, and a broker whose console it opens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from scripts.screenshots import browser
from tests.admin.api.asking import Asking, asking


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def ask() -> Iterator[Asking]:
    with asking() as found:
        yield found
