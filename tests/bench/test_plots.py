from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import plots
from bench.cases.growth import CPU_PANEL
from bench.report import write_json
from bench.rounds import Point, Row, alone


def row(at: float, series: str, value: float, cpu_us: list[float] | None = None) -> Row:
    panel = CPU_PANEL if cpu_us else f"{series}, MB"
    point = Point(axis="topics", at=at, panel=panel, series=series)
    return alone("growth: topics", f"{at:g} topics: {series}", "MB", [value], cpu_us=cpu_us, point=point)


ROWS = [row(100, "produce", 5e5, [2.0, 9.0, 3.0]), row(1, "produce", 6e5, [1.0]), row(1, "memory", 110.0)]


def test_a_rate_is_drawn_by_what_it_costs_and_points_are_in_order() -> None:
    assert plots.lines_of([*ROWS, alone("produce", "fsync", "records/s", [1.0])]) == {
        "topics": {CPU_PANEL: {"produce": [(1.0, 1.0), (100.0, 3.0)]}, "memory, MB": {"memory": [(1.0, 110.0)]}}
    }


def test_each_axis_becomes_a_file_and_the_same_figures_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(tmp_path / "figures.json", {}, ROWS)
    drawn = []
    for directory in (tmp_path / "first", tmp_path / "second"):
        monkeypatch.setattr(sys, "argv", ["plots", str(tmp_path / "figures.json"), str(directory)])
        plots.main()
        [file] = directory.iterdir()
        drawn.append((file.name, file.read_text()))
    assert drawn[0] == drawn[1]
    name, svg = drawn[0]
    assert name == "topics.svg"
    assert all(f">{text}</text>" in svg for text in (CPU_PANEL, "memory, MB", "topics", "100"))


def test_a_run_without_growth_has_nothing_to_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "figures.json", {}, [alone("produce", "fsync", "records/s", [1.0])])
    monkeypatch.setattr(sys, "argv", ["plots", str(tmp_path / "figures.json"), str(tmp_path)])
    with pytest.raises(SystemExit):
        plots.main()
    assert "run the case growth" in capsys.readouterr().err
