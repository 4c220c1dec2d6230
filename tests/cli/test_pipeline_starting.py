"""`penstock pipeline start`, over the admin API of a broker that runs here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.testing import RunningBroker
from tests.admin.launching import declared, process_of, silent_server, write_file
from tests.cli.conftest import Run

pytestmark = pytest.mark.timeout(180)  # processes that give way to others may take long on a busy machine


@pytest.fixture
def broker(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RunningBroker]:
    with RunningBroker(admin=True, clock=SystemClock(), pipelines=declared(tmp_path, "shop")) as broker:
        monkeypatch.setenv("PENSTOCK_ADMIN_URL", f"http://{broker.addresses['admin']}")
        yield broker


def test_a_pipeline_that_fails_ends_with_1_and_the_reason(run: Run, broker: RunningBroker, tmp_path: Path) -> None:
    write_file(tmp_path, "shop", broker.address)
    result = run("pipeline", "start", "shop")
    assert result.code == 1
    assert result.err.startswith("error: pipeline shop failed: topic not found: gone")


def test_a_pipeline_is_started_without_waiting_for_it(run: Run, broker: RunningBroker, tmp_path: Path) -> None:
    with silent_server() as silent:
        write_file(tmp_path, "shop", silent.address)
        started = run("pipeline", "start", "shop", "--no-wait", "--json")
        told = json.loads(started.out.splitlines()[-1])  # the lines before are the log of the broker
        assert told == {"name": "shop", "state": "starting", "pid": process_of(broker, "shop").pid}
        again = run("pipeline", "start", "shop")
        assert (again.code, "is running already" in again.err) == (1, True)


def test_what_is_refused_is_told_in_the_words_of_the_broker(run: Run, broker: RunningBroker) -> None:
    undeclared = run("pipeline", "start", "other/one")
    assert undeclared.code == 1
    assert "pipeline other/one is not declared" in undeclared.err
    assert "cannot be read (No such file or directory)" in run("pipeline", "start", "shop").err
    broker.stop()
    assert "is the broker running?" in run("pipeline", "start", "shop").err
