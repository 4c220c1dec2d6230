"""What every test shares: the event loop it runs on, that it can be interrupted, and that Hypothesis finds the same each time.

`async def` tests and fixtures run through anyio's pytest plugin (`anyio_mode = "auto"` in pyproject.toml), on uvloop
because that is the loop of `penstock serve`.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A machine that is busy is no fault: nothing here may fail because it took long. The examples are the same in every run, so that a change
# is judged by what it changes; `pytest --hypothesis-profile=searching` looks for others.
settings.register_profile("searching", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", settings.get_profile("searching"), derandomize=True)
settings.load_profile("steady")

# Assertions in what tests share (suites, conversations) explain themselves as those in test files do.
pytest.register_assert_rewrite(*(f"tests.{path.name}" for path in Path(__file__).parent.iterdir() if path.is_dir()))

# What a shell starts in the background ignores Ctrl-C, and so do its children; tests send that signal to both.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}
