"""Every row once on a standalone cluster of Spark, in one small round. `make test-cluster` runs larger ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.crash.process_tree import run_module

ROUND_S_MAX = 380
TRIALS = (
    "tasks use the archive",
    "batch",
    "stream",
    "stream resumed",
    "speculation",
    "killed executor",
    "two queries, killed worker",
    "the other of the two",
    "DeltaLakeTable, killed executor",
    "IcebergTable, killed executor",
    "pipeline",
)


@pytest.mark.jvm
@pytest.mark.usefixtures("spark_home")
@pytest.mark.timeout(400)
def test_every_row_is_there_once_on_a_cluster_whose_processes_are_killed(tmp_path: Path) -> None:
    output = run_module(
        "tests.crash.spark_cluster",
        *("--rounds", "1", "--records", "3000"),
        within_s=ROUND_S_MAX,
        environment={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert [line.split("  ok      ")[1] for line in output.splitlines() if "  ok      " in line] == list(TRIALS)
