"""One round of each scenario passes; and with a disk that lies about flushes, each scenario that a flush matters to finds it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.process import BrokerProcess, BrokerProcessFailed
from penstock.testing.torture import SCENARIOS, Findings, Torture


@pytest.mark.timeout(240)
def test_a_sound_engine_keeps_every_promise_in_every_scenario(tmp_path: Path) -> None:
    rounds: list[int] = []

    def count(findings: Findings) -> None:
        rounds.append(sum(result.rounds for result in findings.results))

    findings = Torture(tmp_path, seed=2, on_round=count).run(seconds=0)
    assert findings.ok, findings.problems
    assert not findings.problems
    assert findings.kept is None
    assert [(result.scenario, result.rounds) for result in findings.results] == [(name, 1) for name in SCENARIOS]
    assert rounds == [1, 2, 3, 4]
    assert all(result.acked > 0 and result.restart_s_max > 0 for result in findings.results if result.sent)
    full = findings.results[-1]
    assert full.refused >= 20, "the disk was full"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("scenario", ["kill", "powercut", "fsync"])
def test_a_disk_that_lies_about_flushes_is_found_out(tmp_path: Path, scenario: str) -> None:
    findings = Torture(tmp_path, seed=3, scenarios=[scenario], flushes_broken=True).run(seconds=60)  # type: ignore[list-item]
    (result,) = findings.results
    assert not findings.ok
    assert result.lost > 0
    assert result.acked > 0
    assert findings.problems
    assert findings.kept == next(tmp_path.iterdir())
    assert (findings.kept / "journal").exists()


@pytest.mark.timeout(120)
def test_a_broker_that_does_not_start_again_is_a_broken_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, starts = BrokerProcess.start, itertools.count(1)

    def fail_the_second_time(broker: BrokerProcess, **options: Any) -> BrokerProcess:
        if next(starts) == 2:
            raise BrokerProcessFailed("the broker ended with 1 before it was ready:\nno topic.json")
        return start(broker, **options)

    monkeypatch.setattr(BrokerProcess, "start", fail_the_second_time)
    findings = Torture(tmp_path, seed=2, scenarios=["kill"]).run(seconds=60)
    assert not findings.ok
    assert findings.results[0].stuck == findings.results[0].rounds == 1
    assert findings.results[0].lost == findings.results[0].acked > 0
    assert findings.problems == ["the broker ended with 1 before it was ready:", "no topic.json"]
