"""What this process has open. Each is named, not counted: tests of the same process that ran before may still be letting go of theirs."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path


def open_sockets() -> Counter[str]:
    return Counter(target for target in _targets() if target.startswith("socket:"))


def open_files(directory: Path) -> Counter[str]:
    """The open files under a directory, those deleted meanwhile among them, by path and how often."""
    return Counter(target for target in _targets() if target.startswith(f"{directory}/"))


def _targets() -> list[str]:
    gc.collect()  # what has no reader any more is closed when it is collected
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            targets.append(str(descriptor.readlink()))
        except FileNotFoundError:
            pass  # the descriptor the listing itself used
    return targets
