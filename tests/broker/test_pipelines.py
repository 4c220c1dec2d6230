"""What pipelines report is kept, bounded and theirs; a stop reaches the run that was meant and no other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.access.checks import ANONYMOUS, Principal
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.broker.pipelines import MESSAGE_BYTES_MAX, REMEMBERED_MS, SILENT_MS, STAGES_MAX, Report, Stage
from penstock.errors import AccessDenied, EntryNotFound, InvalidRequest, LimitExceeded
from penstock.log.api import Engine
from penstock.testing.clock import ManualClock
from tests.engines import make_engine

ALICE = replace(ANONYMOUS, name="alice")
BOB = replace(ANONYMOUS, name="bob")
BRONZE = Stage("bronze/orders", "running", 100, 0, 7, 3, 250)
SILVER = Stage("silver/orders", "running", 90, 10, -1, 3, 400, dropped=2, late=3, future=4)


def report(run: str = "run-1", started_ms: int = 1, state: str = "running", *stages: Stage) -> Report:
    return Report(run, started_ms, state, "", stages)


async def test_the_last_report_of_each_pipeline_is_listed_by_name(broker: Broker, clock: ManualClock) -> None:
    await broker.pipelines.report(ALICE, "sales", report("run-1", 1, "starting"))
    clock.advance(2)
    await broker.pipelines.report(ALICE, "sales", report("run-1", 1, "running", BRONZE, SILVER))
    await broker.pipelines.report(BOB, "audit", report())
    audit, sales = broker.pipelines.reported(BOB)
    assert (audit.name, audit.owner) == ("audit", "bob")
    assert (sales.name, sales.state, sales.stages) == ("sales", "running", (BRONZE, SILVER))
    assert (sales.updated_ms, sales.alive, sales.stopping) == (clock.now_ms(), True, False)


async def test_reports_survive_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    for run in range(2):
        engine = make_engine(tmp_path / "data", clock=clock)
        await engine.start()
        broker = Broker(engine, clock=clock, limits=BrokerLimits())
        await broker.start()
        if run == 0:
            await broker.pipelines.report(ALICE, "sales", report("run-1", 1, "running", BRONZE))
            await broker.pipelines.stop(ALICE, "sales")
        else:
            [sales] = broker.pipelines.reported(ALICE)
            assert (sales.stages, sales.stopping) == ((BRONZE,), True)
            assert await broker.pipelines.report(ALICE, "sales", report()), "it is still asked to stop"
        await broker.close()
        await engine.close()


async def test_a_run_that_is_asked_to_stop_learns_it_with_its_next_report(broker: Broker) -> None:
    assert not await broker.pipelines.report(ALICE, "sales", report())
    assert await broker.pipelines.stop(ALICE, "sales")
    assert broker.pipelines.reported(ALICE)[0].stopping
    assert await broker.pipelines.report(ALICE, "sales", report(state="stopping"))
    await broker.pipelines.report(ALICE, "sales", report(state="stopped"))
    [sales] = broker.pipelines.reported(ALICE)
    assert (sales.state, sales.stopping, sales.alive) == ("stopped", False, False)
    assert not await broker.pipelines.report(ALICE, "sales", report("run-2", 2)), "the next run was not asked"


async def test_a_stop_and_a_report_on_their_way_at_once_lose_neither(broker: Broker) -> None:
    await broker.pipelines.report(ALICE, "sales", report())
    stopping = broker.pipelines.stop(ALICE, "sales")
    reporting = broker.pipelines.report(ALICE, "sales", report("run-1", 1, "running", BRONZE))
    _, stop = await asyncio.gather(stopping, reporting)
    assert stop
    assert broker.pipelines.reported(ALICE)[0].stopping


async def test_an_older_run_is_told_to_stop_and_changes_nothing(broker: Broker) -> None:
    await broker.pipelines.report(ALICE, "sales", report("run-2", 2, "running", BRONZE))
    assert await broker.pipelines.report(ALICE, "sales", report("run-1", 1, "running", SILVER))
    assert broker.pipelines.reported(ALICE)[0].stages == (BRONZE,)


async def test_the_end_of_a_run_is_noted_for_it_unless_it_or_a_newer_one_has_reported(broker: Broker) -> None:
    await broker.pipelines.report(ALICE, "sales", report("run-2", 2, "running", BRONZE))
    for name, run in (("sales", "run-1"), ("gone", "run-2")):
        await broker.pipelines.note_end(ANONYMOUS, name, run, "failed", "it was ended by SIGKILL")
    assert broker.pipelines.reported(ALICE)[0].alive
    await broker.pipelines.note_end(ANONYMOUS, "sales", "run-2", "failed", "it was ended by SIGKILL")
    [sales] = broker.pipelines.reported(ALICE)
    assert (sales.owner, sales.state, sales.alive, sales.stages) == ("alice", "failed", False, (BRONZE,))
    await broker.pipelines.note_end(ANONYMOUS, "sales", "run-2", "stopped", "")
    assert broker.pipelines.reported(ALICE)[0].message == "it was ended by SIGKILL", "what was told last stays"


async def test_nothing_is_stopped_where_nothing_runs(broker: Broker, clock: ManualClock) -> None:
    with pytest.raises(EntryNotFound, match="penstock pipeline status"):
        await broker.pipelines.stop(ALICE, "sales")
    await broker.pipelines.report(ALICE, "sales", report(state="finished"))
    assert not await broker.pipelines.stop(ALICE, "sales")
    await broker.pipelines.report(ALICE, "sales", report())
    clock.advance(SILENT_MS / 1000)
    assert not await broker.pipelines.stop(ALICE, "sales"), "who has been silent for so long is dead"


async def test_a_pipeline_belongs_to_who_reported_it_first(broker: Broker) -> None:
    await broker.pipelines.report(ALICE, "sales", report())
    with pytest.raises(AccessDenied, match="is owned by another user"):
        await broker.pipelines.report(BOB, "sales", report())
    assert await broker.pipelines.stop(BOB, "sales"), "an administrator may stop it, as everyone is without users"


async def test_somebody_elses_pipeline_is_stopped_by_administrators_only(engine: Engine, clock: ManualClock) -> None:
    broker = Broker(engine, clock=clock, limits=BrokerLimits())
    await broker.start()
    consumer, admin = Principal("key:carl", frozenset({"consumer"})), Principal("key:ada", frozenset({"admin"}))
    await broker.pipelines.report(ALICE, "sales", report())
    with pytest.raises(AccessDenied):
        await broker.pipelines.stop(consumer, "sales")
    assert await broker.pipelines.stop(admin, "sales")
    await broker.close()


@pytest.mark.parametrize(
    ("name", "bad", "text"),
    [
        ("", report(), "pipeline name has 0 bytes"),
        ("sales", report(run=""), "run has 0 bytes"),
        ("sales", report(state="dancing"), "'dancing' of a pipeline is not known"),
        ("sales", report("r", 1, "running", Stage("s", "odd", 0, 0, 0, 0, 0)), "'odd'"),
        ("sales", report("r", 1, "running", BRONZE, BRONZE), "two stages"),
        ("sales", report("r", 1, "running", Stage("s", "running", -1, 0, 0, 0, 0)), "reports -1"),
        ("sales", report("r", 1, "running", Stage("s", "running", 0, 0, 0, 0, 0, late=1 << 63)), "reports 9223"),
        ("sales", report("r", 1, "running", *[BRONZE] * (STAGES_MAX + 1)), "at most 256"),
        ("sales", Report("r", 1, "running", "x" * (MESSAGE_BYTES_MAX + 1), []), "too long"),
    ],
)
async def test_a_report_that_makes_no_sense_is_refused(broker: Broker, name: str, bad: Report, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        await broker.pipelines.report(ALICE, name, bad)
    assert broker.pipelines.reported(ALICE) == []


async def test_the_number_of_pipelines_is_bounded(engine: Engine, clock: ManualClock) -> None:
    broker = Broker(engine, clock=clock, limits=BrokerLimits(pipelines_max=1))
    await broker.start()
    await broker.pipelines.report(ALICE, "one", report())
    with pytest.raises(LimitExceeded):
        await broker.pipelines.report(ALICE, "two", report())
    await broker.close()


async def test_what_nobody_has_reported_for_months_is_forgotten(engine: Engine, clock: ManualClock) -> None:
    for expected in (0, 1, 0):
        broker = Broker(engine, clock=clock, limits=BrokerLimits())
        await broker.start()
        await broker.close()
        assert len(broker.pipelines.infos()) == expected
        broker = Broker(engine, clock=clock, limits=BrokerLimits())
        await broker.start()
        if expected == 0:
            await broker.pipelines.report(ALICE, "sales", report())
        else:
            clock.advance(REMEMBERED_MS / 1000 + 1)
        await broker.close()
