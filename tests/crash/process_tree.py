"""Processes that others have started, found in /proc: what can be killed."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


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
