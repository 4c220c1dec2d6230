"""Transactions and the end of the process, at every site that a commit passes: all of one or nothing, and what was acknowledged."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.log.embedded.crashpoints import VARIABLE, Site
from penstock.testing.process import BrokerProcessFailed
from tests.crash.transaction_load import TransactionLoad

CRASHED = 9
KILLS = 6
# Where the process ends, one life after another: at these passes of these sites. A commit applies its parts one by one, so that site has
# many passes; creating the topics passes those of the index.
COMMITTING = (
    (Site.JOURNAL_HALF_WRITTEN, 1),
    (Site.JOURNAL_WRITTEN, 1),
    (Site.JOURNAL_SYNCED, 1),
    (Site.JOURNAL_APPLIED_ONE, 1),
    (Site.JOURNAL_APPLIED, 1),
    (Site.JOURNAL_HALF_WRITTEN, 4),
    (Site.JOURNAL_WRITTEN, 4),
    (Site.JOURNAL_SYNCED, 4),
    (Site.JOURNAL_APPLIED_ONE, 17),
    (Site.JOURNAL_APPLIED_ONE, 60),
)
AFTERWARDS = (
    (Site.CHECKPOINT_SYNCED, 1),
    (Site.CHECKPOINT_DONE, 1),
    (Site.ROLL_SYNCED, 3),
    (Site.ROLL_SEALED, 3),
    (Site.ROLL_CREATED, 3),
    (Site.INDEX_WRITTEN, 20),
    (Site.INDEX_RENAMED, 20),
    (Site.REWRITE_WRITTEN, 2),
    (Site.REWRITE_SWAPPED, 2),
    (Site.REWRITE_DONE, 2),
)
RECOVERING = (Site.RECOVERY_REDONE, Site.RECOVERY_CUT)


@pytest.fixture
def load(tmp_path: Path) -> Iterator[TransactionLoad]:
    load = TransactionLoad(tmp_path)
    try:
        yield load
    finally:
        load.close()


def live(load: TransactionLoad, site: Site, nth: int) -> None:
    """A life that ends at a site. It begins with a look at what the one before has left."""
    load.broker.start({VARIABLE: f"{site}:{nth}"}, wait=False)
    try:
        load.broker.wait_ready()
        load.check()
        with load.running(until_it_dies=True):
            pass
    except (BrokerProcessFailed, PenstockError):
        if load.broker.running:  # it may end on the way up, which also passes some of the sites
            raise
    assert load.broker.wait_exit() == CRASHED, load.broker.output


@pytest.mark.timeout(240)
@pytest.mark.parametrize("ends", [COMMITTING, AFTERWARDS], ids=["in the commit", "in what comes of it"])
def test_a_crash_leaves_all_or_nothing_of_each_transaction(
    load: TransactionLoad, ends: tuple[tuple[Site, int], ...]
) -> None:
    for site, nth in ends:
        live(load, site, nth)
    load.broker.start()
    load.check()


@pytest.mark.timeout(120)
def test_a_crash_while_recovering_leaves_all_or_nothing_too(load: TransactionLoad) -> None:
    for site in RECOVERING:
        live(load, Site.JOURNAL_APPLIED_ONE, 50)
        load.broker.start({VARIABLE: f"{site}:1"}, wait=False)
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
