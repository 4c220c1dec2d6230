"""A limit on the processor time of each of several processes, by control groups: what they would have on smaller machines of their own."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

_PERIOD_US: Final = 10_000
_CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")


@contextmanager
def limited_cpu(pids: Sequence[int], cores: float) -> Iterator[bool]:
    """Give each process at most this part of a core. Yields False if control groups cannot be made here, and nothing is limited."""
    with ExitStack() as limits:
        try:
            for pid in pids:
                limits.enter_context(_limit(pid, cores))
        except OSError:
            limits.close()
            yield False
            return
        yield True


@contextmanager
def _limit(pid: int, cores: float) -> Iterator[None]:
    parent, limits = _parent_and_limits(cores)
    group = parent / f"penstock-bench-{pid}"
    group.mkdir()
    try:
        for name, value in limits.items():
            (group / name).write_text(value)
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            (parent / "cgroup.procs").write_text(left)
        group.rmdir()


def _parent_and_limits(cores: float) -> tuple[Path, dict[str, str]]:
    """Of version 1 or 2 of control groups, whichever has processor time. Raises OSError if neither has."""
    quota_us = str(round(cores * _PERIOD_US))
    if (own := _CONTROL_GROUPS / "cpu").is_dir():
        return own, {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": quota_us}
    if "cpu" in (_CONTROL_GROUPS / "cgroup.subtree_control").read_text().split():
        return _CONTROL_GROUPS, {"cpu.max": f"{quota_us} {_PERIOD_US}"}
    raise OSError(errno.ENOTSUP, "no control groups for processor time")
