"""What every test shares: the event loop it runs on, and that it can be interrupted.

`async def` tests and fixtures run through anyio's pytest plugin (`anyio_mode = "auto"` in pyproject.toml), on uvloop
because that is the loop of `penstock serve`.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

# Assertions in what tests share (suites, conversations) explain themselves as those in test files do.
pytest.register_assert_rewrite(*(f"tests.{path.name}" for path in Path(__file__).parent.iterdir() if path.is_dir()))

# What a shell starts in the background ignores Ctrl-C, and so do its children; tests send that signal to both.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}
