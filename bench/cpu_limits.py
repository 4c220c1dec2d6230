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
    own, limits = _group_and_limits(pid, cores)
    group = own / f"penstock-bench-{pid}"
    group.mkdir()
    try:
        for name, value in limits.items():
            (group / name).write_text(value)
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            (own / "cgroup.procs").write_text(left)
        group.rmdir()


def _group_and_limits(pid: int, cores: float) -> tuple[Path, dict[str, str]]:
    """Return the group that a process is in, of version 1 or 2, whichever has processor time. Raises OSError if neither has."""
    quota_us = str(round(cores * _PERIOD_US))
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            limits = {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": quota_us}
            return _CONTROL_GROUPS / "cpu" / path.lstrip("/"), limits
        own = _CONTROL_GROUPS / path.lstrip("/")
        if not controllers and "cpu" in (own / "cgroup.subtree_control").read_text().split():
            return own, {"cpu.max": f"{quota_us} {_PERIOD_US}"}
    raise OSError(errno.ENOTSUP, "no control groups for processor time")
