"""File descriptors: as many as the process may have, and a reserve that connections leave to the log.

The kernel hands out the lowest free number, so the number of a new descriptor says how many are in use, and no count has to be kept.
"""

from __future__ import annotations

import os
import resource

DESCRIPTORS_MIN = 48  # standard streams, event loop, listeners, admin, and the log with a handful of partitions


def raise_descriptor_limit() -> int:
    """Let the process open as many descriptors as its hard limit allows, and say how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def descriptor_mark(reserved: int) -> int:
    """The descriptor number from which on connections eat into the reserve."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft - min(reserved, soft // 4)


def next_descriptor(opened: int) -> int | None:
    """The number the next descriptor would get (tried out with a copy of an open one), None if there is none left."""
    try:
        copy = os.dup(opened)
    except OSError:
        return None
    os.close(copy)
    return copy
