"""A home for Spark without its Python modules in a zip: when there is one, and what is in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.spark.homes import HOME, without_zip


def test_a_virtual_machine_that_is_started_has_a_home_without_the_zip() -> None:
    environment = {"PYSPARK_PYTHON": sys.executable}
    with without_zip(environment):
        home = Path(environment[HOME])
        assert (home / "bin" / "spark-submit").is_file()
        assert list((home / "jars").glob("spark-core*.jar"))
        assert not (home / "python").exists()
    assert environment == {"PYSPARK_PYTHON": sys.executable}, (
        "what else this process starts has the home that it would have"
    )


@pytest.mark.parametrize(
    "environment",
    [
        {HOME: "/opt/spark"},
        {"PYSPARK_PYTHON": "/usr/bin/python3"},
        {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": "jupyter"},
    ],
)
def test_a_home_that_was_chosen_and_another_interpreter_are_left_alone(environment: dict[str, str]) -> None:
    before = dict(environment)
    with without_zip(environment):
        assert environment == before


def test_a_package_that_other_processes_may_not_find_is_left_in_the_zip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("penstock.spark.homes.sysconfig.get_path", lambda name: str(tmp_path))
    environment: dict[str, str] = {}
    with without_zip(environment):
        assert environment == {}
