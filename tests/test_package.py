"""What `import penstock` promises."""

from __future__ import annotations

import subprocess
import sys

import pytest

import penstock.testing

HEAVY = ("asyncio", "numpy", "ssl", "uvloop", "msgspec", "pydantic", "structlog", "starlette", "typer", "pytest")


@pytest.mark.parametrize("module", ["penstock", "penstock.errors", "penstock.testing"])
def test_importing_the_package_imports_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(*(name for name in {HEAVY} if name in sys.modules))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert found.stdout.split() == []


def test_every_name_the_testing_package_offers_is_there() -> None:
    for name in penstock.testing.__all__:
        assert getattr(penstock.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = penstock.testing.nothing
