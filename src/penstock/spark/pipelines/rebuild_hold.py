"""How a rebuild gets its turn: it asks the query that writes the table to begin no batch for a moment.

The two need no more than that to be right: the second to commit is refused and tries again. But a query with short batches would win
every race against a rebuild that has to decode what came in meanwhile. The question is a file next to the checkpoints; one that a killed
rebuild has left behind is passed over after a while.
"""

from __future__ import annotations

import json
import time
from typing import Final

from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.model import Pipeline, path_name

HOLD_S_MAX: Final = 60.0
LOOK_EVERY_S: Final = 0.1


def rebuild_directory(pipeline: Pipeline, topic: str) -> str:
    return f"{pipeline.notes}/_rebuilds/silver/{path_name(topic)}"


def ask_to_wait(files: Files, pipeline: Pipeline, topic: str) -> None:
    files.write(_note(pipeline, topic), json.dumps({"until_s": time.time() + HOLD_S_MAX}))


def wait_for_rebuild(files: Files, pipeline: Pipeline, topic: str) -> None:
    """Return when no rebuild asks to wait, or has asked for too long."""
    give_up_s = time.monotonic() + HOLD_S_MAX
    while time.monotonic() < give_up_s:
        found = files.read(_note(pipeline, topic))
        if found is None or json.loads(found)["until_s"] < time.time():
            return
        time.sleep(LOOK_EVERY_S)


def _note(pipeline: Pipeline, topic: str) -> str:
    return f"{rebuild_directory(pipeline, topic)}/hold.json"
