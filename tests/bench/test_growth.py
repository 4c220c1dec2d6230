from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.cases import growth
from bench.rounds import Plan


def plan_in(directory: Path) -> Plan:
    return Plan(directory=directory, rounds=1, seconds=0.05, quick=True, say=lambda _: None)


def test_every_point_of_an_axis_has_every_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "COUNTS_QUICK", (1, 3))
    monkeypatch.setattr(growth, "REQUESTS_QUICK", 10)
    monkeypatch.setattr(growth, "MAINTENANCE_S", 0.1)
    rows = growth.groups(plan_in(tmp_path))
    points = [row.point for row in rows]
    assert all(point is not None and point.axis == "groups" for point in points)
    by_series: dict[str, list[float]] = {}
    for point in points:
        assert point is not None
        by_series.setdefault(point.series, []).append(point.at)
    assert len(by_series) == 5, by_series
    assert set(map(tuple, by_series.values())) == {(1, 3)}
    assert all(row.cpu_us for row in rows if "in flight" in row.setting)


def test_a_log_that_the_disk_has_no_room_for_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    with pytest.raises(RuntimeError, match="too little for a log of 30 MB"):
        growth.log_size(plan_in(tmp_path))
    assert list(tmp_path.iterdir()) == []
