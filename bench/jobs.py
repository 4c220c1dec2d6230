"""The job and the result of a load generator, as JSON on its standard input and output (see `start_program`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec

_Job = TypeVar("_Job")


def answer_job(kind: type[_Job], run: Callable[[_Job], object]) -> None:
    """Read a job, run it, and print its result."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=kind)
    json.dump(msgspec.to_builtins(run(job), str_keys=True), sys.stdout)
