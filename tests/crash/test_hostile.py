"""A thousand peers that begin frames and never finish them, and hundreds that never read, cost the broker no more than its budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.net.flow import PARTIAL_SHARE
from tests.crash.hostile import BEYOND_BUDGET_BYTES_MAX, BUDGET_BYTES, Cost, cost, fill, hostile_broker
from tests.crash.quic_peers import MIB


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("scenario", "connections"),
    [("half frames", 1000), ("unread replies", 400), ("quic half frames", 12), ("quic unread", 12)],
)
async def test_hostile_peers_cost_bounded_memory_and_others_are_served(
    tmp_path: Path, scenario: str, connections: int
) -> None:
    with hostile_broker(tmp_path) as broker:
        await fill(broker)
        found = await cost(broker, scenario, connections)
    assert found.ok, f"{found.growth_bytes / MIB:.0f} MiB for {connections} connections"
    if "half" in scenario:
        assert found.received_bytes > BUDGET_BYTES / PARTIAL_SHARE, "the peers did not send enough to reach the bound"


def test_more_than_the_budget_and_a_little_is_too_much() -> None:
    most = BUDGET_BYTES + BEYOND_BUDGET_BYTES_MAX
    assert Cost("any", 1, 0, most).ok
    assert not Cost("any", 1, 0, most + 1).ok
