"""A run of tests on two workers ends, whatever becomes of a worker, and every test has an outcome; files have their order and place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests.distribution import ReplacingLoadFile, longest_first

def pytest_xdist_make_scheduler(config, log):
    return ReplacingLoadFile(config, log)

def pytest_collection_modifyitems(items):
    items[:] = longest_first(items, lambda item: item.get_closest_marker("limit").args[0])
"""
TESTS = """
import os, pytest

@pytest.mark.limit({limit})
@pytest.mark.{kind}
@pytest.mark.parametrize("number", range({tests}))
def test_it(number):
    if number == {dies_at}:
        os._exit(1)
"""


ON_TWO = ("--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder")
FILES = (5, 1, 5, 1, 5, 5)
"""How many tests each file has."""
DYING = (1, 4)
"""The files whose middle test ends its worker: one that has no other, and one of the last."""


def write_file(path: Path, tests: int, *, kind: str = "jvm", limit: int = 1, dies_at: int = -1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TESTS.format(tests=tests, kind=kind, limit=limit, dies_at=dies_at))


def run_tests(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\nmarkers =\n  jvm\n  other\n  limit\n")
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "no:cacheprovider", *options, "."]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        command, cwd=directory, env=environment, check=False, capture_output=True, text=True, timeout=50
    )


def test_a_run_continues_when_a_worker_dies(tmp_path: Path) -> None:
    for number, tests in enumerate(FILES):
        write_file(tmp_path / f"test_{number}.py", tests, dies_at=tests // 2 if number in DYING else -1)
    ran = run_tests(tmp_path, *ON_TWO)
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED, ran.stdout
    assert f"{len(DYING)} failed, {sum(FILES) - len(DYING)} passed" in ran.stdout
    for number in DYING:
        assert f"crashed while running 'test_{number}.py::test_it[{FILES[number] // 2}]'" in ran.stdout


def test_files_that_share_a_kafka_go_to_one_worker(tmp_path: Path) -> None:
    for name in ("tests/kafka/test_a.py", "tests/kafka/test_b.py", "tests/test_c.py"):
        write_file(tmp_path / name, 5)
    ran = run_tests(tmp_path, *ON_TWO, "-v")
    assert ran.returncode == pytest.ExitCode.OK, ran.stdout
    workers = re.findall(r"^\[(gw\d)\] .* tests/kafka/test_[ab]\.py::", ran.stdout, re.MULTILINE)
    assert workers == workers[:1] * 10


def test_files_that_may_take_longest_come_first(tmp_path: Path) -> None:
    write_file(tmp_path / "test_a.py", 1, kind="other", limit=9)
    for name, limit in (("b", 1), ("c", 3), ("d", 2), ("e", 3)):
        write_file(tmp_path / f"test_{name}.py", 1, limit=limit)
    ran = run_tests(tmp_path, "--collect-only", "-q")
    assert re.findall(r"^test_(\w)\.py::", ran.stdout, re.MULTILINE) == ["c", "e", "d", "b", "a"]
