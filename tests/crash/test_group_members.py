"""Members of a consumer group and their broker, killed: nothing is skipped, and no fenced member commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.group_members import FAULTS, ROUND_RECORDS, Rounds

LATE_COMMIT_ROUNDS_MAX = 5
"""On a busy machine a member may have committed before it is stopped."""


@pytest.mark.timeout(240)
def test_killed_members_and_a_killed_broker_skip_no_record_and_fence_late_commits(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, seed=7)
    try:
        for fault in FAULTS:
            rounds.round(fault)
        assert rounds.counts["processed"] >= ROUND_RECORDS * len(FAULTS)
        for _ in range(LATE_COMMIT_ROUNDS_MAX):
            if rounds.counts["fenced"]:
                break
            rounds.round("stop member")
        assert rounds.counts["fenced"]
    finally:
        rounds.close()
