"""Transactions and the end of the process, at every kind of operation of a commit: all of one or nothing, and what was acknowledged."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.testing.crashing import CRASHED, CrashAt
from penstock.testing.diskfaults import Crash
from penstock.testing.process import BrokerProcessFailed
from tests.crash.transaction_load import TransactionLoad

KILLS = 6
# The operations at which the process ends, one life after another. A commit writes its parts one by one, so there are many writes.
COMMITTING = (
    CrashAt("commit write journal", 1, "half"),
    CrashAt("commit flush journal", 1),
    CrashAt("commit flush journal", 1, "after"),
    CrashAt("commit write segment", 1, "after"),
    CrashAt("commit write journal", 4, "half"),
    CrashAt("commit flush journal", 4),
    CrashAt("commit flush journal", 4, "after"),
    CrashAt("commit write segment", 17, "after"),
    CrashAt("commit write segment", 60, "after"),
)
AFTERWARDS = (
    CrashAt("checkpoint unlink journal", 1),
    CrashAt("checkpoint unlink journal", 1, "after"),
    CrashAt("commit create index", 3),
    CrashAt("commit rename index", 3, "after"),
    CrashAt("commit create segment", 3, "after"),
    CrashAt("* rename index", 20),
    CrashAt("* rename index", 20, "after"),
    CrashAt("maintenance rename draft", 2),
    CrashAt("maintenance rename draft", 2, "after"),
    CrashAt("maintenance rename swap", 2, "after"),
)
RECOVERING = (CrashAt("sync flush segment", 5), CrashAt("sync flush segment", 10, "after"))


@pytest.fixture
def load(tmp_path: Path) -> Iterator[TransactionLoad]:
    load = TransactionLoad(tmp_path)
    try:
        yield load
    finally:
        load.close()


def live(load: TransactionLoad, at: CrashAt) -> None:
    """A life that ends at an operation. It begins with a look at what the one before has left."""
    load.broker.start(disk=Crash(str(at)), wait=False)
    try:
        load.broker.wait_ready()
        load.check()
        with load.running(until_it_dies=True):
            pass
    except (BrokerProcessFailed, PenstockError):
        if load.broker.running:  # it may end on the way up, which has some of the operations too
            raise
    assert load.broker.wait_exit() == CRASHED, load.broker.output


@pytest.mark.timeout(240)
@pytest.mark.parametrize("ends", [COMMITTING, AFTERWARDS], ids=["in the commit", "in what comes of it"])
def test_a_crash_leaves_all_or_nothing_of_each_transaction(load: TransactionLoad, ends: tuple[CrashAt, ...]) -> None:
    for at in ends:
        live(load, at)
    load.broker.start()
    load.check()


@pytest.mark.timeout(120)
def test_a_crash_while_recovering_leaves_all_or_nothing_too(load: TransactionLoad) -> None:
    for at in RECOVERING:
        live(load, CrashAt("commit write segment", 50, "after"))
        load.broker.start(disk=Crash(str(at)), wait=False)
        assert load.broker.wait_exit() == CRASHED, load.broker.output
    load.broker.start()
    load.check()


@pytest.mark.timeout(240)
def test_kills_at_any_moment_leave_all_or_nothing_of_each_transaction(load: TransactionLoad) -> None:
    chance = random.Random(4)
    for _ in range(KILLS):
        load.broker.start()
        with load.running():
            load.wait_until_acked(1)
            time.sleep(chance.uniform(0.0, 0.3))  # the moment of the kill is the thing that varies
            load.broker.kill9()
    load.broker.start()
    load.check()
    assert sum(attempt.state == "acked" for attempt in load.attempts) >= KILLS


@pytest.mark.timeout(120)
def test_a_clean_stop_commits_or_refuses_every_transaction(load: TransactionLoad) -> None:
    load.broker.start()
    with load.running():
        load.wait_until_acked(3)
        assert load.broker.terminate() == 0
    load.broker.start()
    load.check()
