"""A real broker for each test, and a socket to its RustLog listener."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing import RunningBroker
from tests.protocols.rustlog.wire_client import WireClient


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with RunningBroker() as broker:
        yield broker


@pytest.fixture
def wire(broker: RunningBroker) -> Iterator[WireClient]:
    with WireClient(broker.addresses["rustlog"]) as client:
        yield client
