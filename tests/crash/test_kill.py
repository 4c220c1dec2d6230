"""kill -9 under load, again and again: nothing acknowledged is lost, nothing refused comes back, nothing is invented."""

from __future__ import annotations

import random
import time

import pytest

from penstock.testing.workload import Workload

ROUNDS = 15


@pytest.mark.timeout(240)
def test_nothing_acknowledged_is_lost_over_many_kills(workload: Workload) -> None:
    chance = random.Random(20)
    for _ in range(ROUNDS):
        workload.broker.start()
        with workload.running() as load:
            load.wait_until_acked(1)
            time.sleep(chance.uniform(0.02, 0.4))  # the moment of the kill is the thing that varies
            workload.broker.kill9()
    workload.broker.start()
    workload.check().raise_for_violations()


@pytest.mark.timeout(120)
def test_a_clean_stop_loses_nothing_and_leaves_nothing_to_recover(workload: Workload) -> None:
    workload.broker.start()
    with workload.running() as load:
        load.wait_until_acked(2000)
    before = workload.read_all()
    assert workload.broker.terminate() == 0
    workload.broker.start()
    assert workload.read_all() == before
    workload.check().raise_for_violations()
    assert "torn tail" not in workload.broker.output
    assert "journal_applied" not in workload.broker.output


@pytest.mark.timeout(120)
def test_sigterm_under_load_commits_or_refuses_everything(workload: Workload) -> None:
    workload.broker.start()
    with workload.running() as load:
        load.wait_until_acked(1000)
        assert workload.broker.terminate() == 0
    workload.broker.start()
    workload.check().raise_for_violations()


@pytest.mark.timeout(120)
def test_a_kill_during_recovery_is_recovered_from(workload: Workload) -> None:
    workload.broker.start()
    with workload.running() as load:
        load.wait_until_acked(1000)
        workload.broker.kill9()
    for delay_s in (0.35, 0.45, 0.55, 0.65, 0.75):  # somewhere between importing and serving
        workload.broker.start(wait=False)
        time.sleep(delay_s)
        workload.broker.kill9()
    workload.broker.start()
    workload.check().raise_for_violations()
