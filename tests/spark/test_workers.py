"""Garbage collections in Spark's Python workers."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock.spark.workers import REUSED, freeze_loaded_modules


@pytest.fixture
def freezes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[None]]:
    """One item for each time that objects were excluded from collections."""
    made: list[None] = []
    monkeypatch.setattr(gc, "freeze", lambda: made.append(None))
    freeze_loaded_modules.cache_clear()
    yield made
    freeze_loaded_modules.cache_clear()


def test_a_worker_that_is_reused_excludes_what_it_has_loaded_once(
    freezes: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REUSED, "1")
    freeze_loaded_modules()
    freeze_loaded_modules()
    assert len(freezes) == 1


def test_the_collections_of_a_driver_are_left_alone(freezes: list[None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REUSED, raising=False)
    freeze_loaded_modules()
    assert not freezes


def test_a_worker_loads_nothing_that_only_commands_and_the_broker_need() -> None:
    """Spark starts several Python processes for each query, and each loads the source."""
    program = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import penstock.spark.source, penstock.spark.sink; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "penstock" in loaded
    assert not {"attr", "pandas", "pygments", "rich", "structlog", "typer"} & set(loaded)


def test_a_library_that_decoding_needs_and_the_platform_has_not_is_named_with_its_remedy() -> None:
    program = "import sys; sys.modules['fastavro'] = None; import penstock.spark; penstock.spark.decode(None, 'orders')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert 'fastavro is not installed: run pip install "penstock-client[spark,schemas]"' in ended.stderr
