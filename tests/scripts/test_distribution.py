"""A run of tests on two workers ends, whatever becomes of a worker, and every test has an outcome."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests.distribution import ReplacingLoadFile

def pytest_xdist_make_scheduler(config, log):
    return ReplacingLoadFile(config, log)
"""
TESTS = """
import os, pytest

@pytest.mark.parametrize("number", range({tests}))
def test_it(number):
    if number == {dies_at}:
        os._exit(1)
"""


FILES = (5, 1, 5, 1, 5, 5)
"""How many tests each file has."""
DYING = (1, 4)
"""The files whose middle test ends its worker: one that has no other, and one of the last."""


def test_a_run_goes_on_when_a_worker_dies(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    for number, tests in enumerate(FILES):
        dies_at = tests // 2 if number in DYING else -1
        (tmp_path / f"test_{number}.py").write_text(TESTS.format(tests=tests, dies_at=dies_at))
    plugins = ["-p", "xdist", "-p", "no:cacheprovider"]
    options = ["--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", *plugins, *options, "."]
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True, timeout=50
    )
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED, ran.stdout
    assert f"{len(DYING)} failed, {sum(FILES) - len(DYING)} passed" in ran.stdout
    for number in DYING:
        assert f"crashed while running 'test_{number}.py::test_it[{FILES[number] // 2}]'" in ran.stdout
