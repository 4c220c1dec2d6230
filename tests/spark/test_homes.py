"""A home for Spark without its Python modules in a zip: when there is one, what is in it, and how long it stays."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.homes import HOME, home_without_zip


def test_a_virtual_machine_has_a_home_without_the_zip() -> None:
    home = home_without_zip({"PYSPARK_PYTHON": sys.executable})
    assert home is not None
    assert (home / "bin" / "spark-submit").is_file()
    assert list((home / "jars").glob("spark-core*.jar"))
    assert not (home / "python").exists()
    assert home_without_zip({}) == home, "one for all sessions of a process"


def test_a_home_that_is_in_use_is_locked_so_that_no_cleaner_removes_it() -> None:
    home = home_without_zip({})
    assert home is not None
    descriptor = os.open(home, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


FORKING = """
import os, sys
from penstock.spark.homes import home_without_zip

home = home_without_zip({})
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
print(home, (home / "jars").is_dir())
"""


def test_a_home_goes_with_the_process_that_made_it_and_not_with_its_children(tmp_path: Path) -> None:
    program = [sys.executable, "-c", FORKING]
    done = subprocess.run(program, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, check=True)
    home, there = done.stdout.decode().split()
    assert (Path(home).parent, there) == (tmp_path, "True")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "environment",
    [
        {HOME: "/opt/spark"},
        {"PYSPARK_PYTHON": "/usr/bin/python3"},
        {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": "jupyter"},
    ],
)
def test_a_home_that_was_chosen_and_another_interpreter_are_left_alone(environment: dict[str, str]) -> None:
    assert home_without_zip(environment) is None


def test_a_package_that_other_processes_may_not_find_is_left_in_the_zip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("penstock.spark.homes.sysconfig.get_path", lambda name: str(tmp_path))
    assert home_without_zip({}) is None
