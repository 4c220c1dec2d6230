"""The broker ends at an operation of its disk, of every kind that matters; then everything must be there."""

from __future__ import annotations

import pytest

from penstock.testing.crashing import CRASHED, CrashAt
from penstock.testing.diskfaults import Crash
from penstock.testing.workload import SINGLE, Workload
from tests.crash import crash_targets

RARE = (
    *crash_targets.CHECKPOINT,
    *crash_targets.ROLL,
    *crash_targets.REWRITE,
    *crash_targets.RETENTION,
    *crash_targets.TOPIC,
)
OFTEN = (*crash_targets.APPEND, *crash_targets.JOURNAL, *crash_targets.INDEX)
LATER = 7
"""Of operations that load has often, a later one finds the log in the middle of things."""
TORN = CrashAt("commit write segment", 40, "half")


def crash_under_load(workload: Workload, at: CrashAt) -> None:
    # The operation may be one of the start (topics are created), so the broker may never say that it is ready.
    workload.broker.start(disk=Crash(str(at)), wait=False)
    try:
        workload.broker.wait_ready()
        with workload.running() as load:
            load.wait_until_over(timeout_s=40)
    except Exception:
        if workload.broker.running:
            raise
    assert workload.broker.wait_exit() == CRASHED, workload.broker.output


@pytest.mark.timeout(120)
@pytest.mark.parametrize("at", [*(each._replace(nth=LATER) for each in OFTEN), *RARE], ids=crash_targets.named)
def test_a_crash_under_load_loses_nothing(workload: Workload, at: CrashAt) -> None:
    crash_under_load(workload, at)
    workload.broker.start()
    workload.check().raise_for_violations()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("at", crash_targets.CLOSE, ids=crash_targets.named)
def test_a_crash_while_closing_loses_nothing(workload: Workload, at: CrashAt) -> None:
    workload.broker.start(disk=Crash(str(at)))
    with workload.running() as load:
        load.wait_until_acked(500)
    assert workload.broker.terminate() == CRASHED
    workload.broker.start()
    workload.check().raise_for_violations()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("at", crash_targets.REDO, ids=crash_targets.named)
def test_a_crash_while_the_journal_is_applied_loses_nothing(workload: Workload, at: CrashAt) -> None:
    crash_under_load(workload, CrashAt("commit flush journal", LATER, "after"))
    workload.broker.start(disk=Crash(str(at)), wait=False)
    assert workload.broker.wait_exit() == CRASHED, workload.broker.output
    workload.broker.start()
    workload.check().raise_for_violations()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("at", crash_targets.TORN_TAIL, ids=crash_targets.named)
def test_a_crash_while_a_torn_tail_is_cut_loses_nothing(workload: Workload, at: CrashAt) -> None:
    # A commit of one partition goes to its segment and nowhere else, so half of it is a torn tail.
    workload.broker.start(disk=Crash(str(TORN)))
    with workload.producing(SINGLE) as load:
        load.wait_until_over()
    assert workload.broker.wait_exit() == CRASHED, workload.broker.output
    workload.broker.start(disk=Crash(str(at)), wait=False)
    assert workload.broker.wait_exit() == CRASHED, workload.broker.output
    workload.broker.start()
    workload.check().raise_for_violations()
