"""Every row once on a standalone cluster of Spark, in one small round. `make test-cluster` runs larger ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.process_tree import descendants, kill

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
    # A process of its own: this one may have a session already, and there can be one only.
    command = [sys.executable, "-m", "tests.crash.spark_cluster", "--rounds", "1", "--records", "3000"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, env=environment, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=ROUND_S_MAX)
        finally:
            for pid in (*descendants(process.pid), process.pid):
                kill(pid)
    assert process.returncode == 0, output
    assert [line.split("  ok      ")[1] for line in output.splitlines() if "  ok      " in line] == list(TRIALS)
