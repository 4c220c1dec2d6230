"""A rebuild that asks for its turn, and a query that gives it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

from penstock.spark.pipelines.files import LocalFiles
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.rebuild_hold import ask_to_wait, rebuild_directory, wait_for_rebuild

FILES = LocalFiles()


def pipeline(directory: Path) -> Pipeline:
    return Pipeline.model_validate({"name": "p", "topics": ["orders"], "directory": str(directory), "silver": {}})


def test_a_batch_waits_until_the_rebuild_is_done(tmp_path: Path) -> None:
    made = pipeline(tmp_path)
    wait_for_rebuild(FILES, made, "orders")
    ask_to_wait(FILES, made, "orders")
    begun = threading.Event()

    def batch() -> None:
        wait_for_rebuild(FILES, made, "orders")
        begun.set()

    thread = threading.Thread(target=batch)
    thread.start()
    assert not begun.wait(0.3)
    wait_for_rebuild(FILES, made, "payments")
    FILES.remove(rebuild_directory(made, "orders"))
    thread.join(10)
    assert begun.is_set()


def test_a_rebuild_that_was_killed_keeps_nobody_waiting(tmp_path: Path) -> None:
    made = pipeline(tmp_path)
    FILES.write(f"{rebuild_directory(made, 'orders')}/hold.json", json.dumps({"until_s": time.time() - 1}))
    wait_for_rebuild(FILES, made, "orders")
