"""Every record once in every table of a pipeline, with one of everything that can happen to it. `make torture-pipeline` does more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.pipeline_torture import PipelineTorture

KINDS = ("rebuild", "fault", "forget", "commit")


@pytest.mark.jvm
@pytest.mark.usefixtures("spark_home")
@pytest.mark.timeout(400)
def test_every_record_is_in_every_table_once_whatever_happens(tmp_path: Path) -> None:
    with PipelineTorture(tmp_path, seed=3) as torture:
        for kind in KINDS:
            torture.round(kind)
        verdicts = torture.finish()
    flawed = {name: list(verdict.lines()) for name, verdict in verdicts.items() if not verdict.flawless}
    assert not flawed
    assert all(verdict.found for name, verdict in verdicts.items()), "nothing was tested"
