"""Exactly once from topic to topic through Spark, with one of everything killed. `make torture-spark` does it two hundred times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.spark_torture import SparkTorture

KINDS = ("worker", "broker", "replay", "driver", "stop", "worker")


@pytest.mark.jvm
@pytest.mark.usefixtures("spark_home")
@pytest.mark.timeout(400)
def test_every_record_arrives_once_whatever_is_killed(tmp_path: Path) -> None:
    with SparkTorture(tmp_path, seed=11) as torture:
        for kind in KINDS:
            torture.round(kind)
        (verdict,) = torture.finish().values()
    assert verdict.flawless, list(verdict.lines())
    assert verdict.found, "nothing was tested"
