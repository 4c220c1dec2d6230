"""Processes are limited while a benchmark wants it, and not after it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.cpu_limits import limited_cpu


def group_of(pid: int) -> list[str]:
    return [line.rpartition("/")[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]


def test_processes_are_limited_until_the_context_is_left() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        name = f"penstock-bench-{process.pid}"
        with limited_cpu([process.pid], 0.5) as limited:
            assert (name in group_of(process.pid)) == limited
        assert name not in group_of(process.pid)
        process.communicate(b"\n")


def test_a_process_that_is_gone_limits_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    with limited_cpu([gone.pid], 0.5) as limited:
        assert not limited
