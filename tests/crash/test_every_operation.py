"""The process ends at operations of the disk of every kind there is, under load and in recovery, and nothing acknowledged is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.testing.crashing import CRASHED, CrashAt
from tests.crash import every_operation
from tests.crash.every_operation import count_operations, count_recovery, end_at, targets

PER_KIND = 1
# What the log is known to do. A kind that is missing here is taken too; one that is missing there shows that the workload became too weak.
KNOWN = {
    "checkpoint flush segment",
    "checkpoint unlink journal",
    "commit allocate segment",
    "commit create index",
    "commit create segment",
    "commit flush journal",
    "commit flush segment",
    "commit rename index",
    "commit sync directory",
    "commit truncate segment",
    "commit write index",
    "commit write journal",
    "commit write segment",
    "maintenance flush draft",
    "maintenance rename draft",
    "maintenance rename swap",
    "maintenance unlink segment",
    "other create metadata",
    "other make directory",
    "other remove topic",
    "other rename metadata",
    "other rename topic",
    "read unlink deleted",
    "other write metadata",
}
RECOVERED_FROM = (CrashAt("commit write segment", 20, "half"), CrashAt("commit flush journal", 4, "after"))


@pytest.mark.timeout(300)
def test_a_process_that_ends_at_any_kind_of_operation_loses_nothing(tmp_path: Path) -> None:
    operations = count_operations(tmp_path / "counted")
    assert set(operations) >= KNOWN, KNOWN - set(operations)
    for at in targets(operations, PER_KIND):
        assert end_at(at, tmp_path / "crashed", operations)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", RECOVERED_FROM, ids=str)
def test_a_recovery_that_ends_at_any_operation_loses_nothing(tmp_path: Path, first: CrashAt) -> None:
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    process = every_operation._processes.Process(target=every_operation._run, args=(str(crashed), first))
    process.start()
    process.join()
    assert process.exitcode == CRASHED
    operations = count_recovery(crashed, tmp_path / "counted")
    for at in targets(operations, PER_KIND):
        shutil.copytree(crashed, tmp_path / "again")
        assert end_at(at, tmp_path / "again", operations, recovering=True)
