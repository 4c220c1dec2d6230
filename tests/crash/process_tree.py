"""Processes that others have started, found in /proc: what can be killed; and programs of the tests that are run as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(parent_of(int(entry.name)), []).append(int(entry.name))
    found, waiting = list[int](), [pid]
    while waiting:
        offspring = children.get(waiting.pop(), [])
        found += offspring
        waiting += offspring
    return found


def parent_of(pid: int) -> int:
    """Return the process that started a process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def command_of(pid: int) -> str:
    """Return the command line of a process; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def kill(pid: int) -> None:
    """End a process at once, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_with_descendants(process: subprocess.Popen[Any]) -> None:
    """End a process of ours with all that it has started, at once."""
    for pid in (*descendants(process.pid), process.pid):
        kill(pid)
    process.wait()


def run_module(module: str, *arguments: str, within_s: float, environment: Mapping[str, str] | None = None) -> str:
    """Run a module as a program, and return what it prints. If it takes too long, it is ended with what it has started.

    For what uses Spark: there can be one session in a process, and the process of the tests may have one already.
    """
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            output, _ = process.communicate(timeout=within_s)
        finally:
            kill_with_descendants(process)
    assert process.returncode == 0, output
    return output
