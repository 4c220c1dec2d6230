from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing.clock import ManualClock
from tests.broker.transactions.staging_house import StagingHouse


@pytest.fixture
def house(tmp_path: Path, clock: ManualClock) -> StagingHouse:
    return StagingHouse(tmp_path / "data", clock)
