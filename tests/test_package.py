"""What `import penstock` and the README promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import penstock.testing
from penstock.testing import RunningBroker
from tests.manual import blocks, page, run_shown

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


def not_for_a_shell_of_tests(command: str) -> bool:
    return command.startswith(("make ", "pip ", "curl ", "penstock serve", "penstock pipeline"))


@pytest.mark.timeout(240)
def test_the_two_minutes_of_the_readme_are_as_shown(penstock_broker: RunningBroker, tmp_path: Path) -> None:
    readme = page("README.md")
    printed, shown = run_shown(readme, penstock_broker.url, tmp_path, leave_out=not_for_a_shell_of_tests)
    assert printed.startswith(shown)
    # The group and the address of the console, which the page leaves to be seen.
    assert len(printed.removeprefix(shown).splitlines()) == 5
    program = next(code for code in blocks("python", readme) if "penstock.connect" in code)
    exec(program.replace("127.0.0.1:9092", penstock_broker.address), {})
    (billing,) = penstock_broker.connect().describe_group("billing")
    assert sum(billing.offsets.values()) == 1003
