"""Crash tests use real processes and real kills; each starts with an empty directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing.workload import Workload


@pytest.fixture
def workload(tmp_path: Path) -> Iterator[Workload]:
    workload = Workload(tmp_path)
    try:
        yield workload
    finally:
        workload.close()
