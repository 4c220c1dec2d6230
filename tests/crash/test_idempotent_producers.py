"""Producers whose connections and broker are killed: each record is stored once, where its acknowledgement says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.idempotent_producers import run


@pytest.mark.timeout(240)
async def test_killed_connections_and_a_killed_broker_store_each_record_once(tmp_path: Path) -> None:
    outcome = await run(tmp_path, kills=10, seed=7, broker_every=5)
    assert (outcome.lost, outcome.twice, outcome.failed) == ([], [], 0)
    assert (outcome.kills, outcome.cuts) == (2, 8)
    assert outcome.acknowledged
