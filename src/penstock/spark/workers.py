"""Spark's Python worker processes, which serve one task after another.

Spark collects garbage in a worker after each task (`pyspark.daemon`). A full collection visits every object that imported modules have
made, some 60,000, and frees none of them: about 20 ms of a core each time. A micro-batch that goes to a topic takes three workers, and
what they spend on it Spark lacks for its next steps.
"""

from __future__ import annotations

import gc
import os
from functools import cache
from typing import Final

REUSED: Final = "SPARK_REUSE_WORKER"
"""The variable that Spark sets for workers that serve more than one task, and for no other process."""


@cache
def freeze_loaded_modules() -> None:
    """Exclude what is in memory from garbage collections, if this is a worker. Call it once what tasks need is loaded."""
    if REUSED in os.environ:
        gc.freeze()
