from __future__ import annotations

import json
from pathlib import Path

from bench.report import markdown, write_json
from bench.rounds import Measured, Row, alone, amount, compared, cpu_note, cpu_us_each, interleave


def test_sides_take_turns() -> None:
    order: list[str] = []

    def first(number: int) -> int:
        order.append(f"first {number}")
        return number

    def second(number: int) -> int:
        order.append(f"second {number}")
        return -number

    assert interleave({"a": first, "b": second}, 2) == {"a": [0, 1], "b": [0, -1]}
    assert order == ["first 0", "second 0", "first 1", "second 1"]


def test_a_ratio_is_that_of_the_medians_and_is_held_to_its_aim() -> None:
    row = compared("case", "setting", "records/s", [1.0, 30.0, 20.0], "other", [10.0, 10.0, 99.0], ratio_min=2.0)
    assert (row.value, row.against_value, row.ratio, row.met) == (20.0, 10.0, 2.0, True)
    assert compared("case", "setting", "s", [1.0], "other", [2.0], ratio_min=0.6).met is False
    assert compared("case", "setting", "s", [1.0], "other", [2.0]).met is None


def test_a_row_may_have_to_reach_a_ratio_and_a_figure() -> None:
    def row(ours: float, theirs: float) -> Row:
        return compared("case", "setting", "records/s", [ours], "other", [theirs], ratio_min=2.0, at_least=1_000.0)

    assert row(1_000.0, 500.0).aim == "at least 2x and 1,000 records/s"
    assert [row(1_000.0, 500.0).met, row(1_000.0, 600.0).met, row(900.0, 100.0).met] == [True, False, False]


def test_an_aim_is_a_bound_from_below_or_above() -> None:
    assert alone("case", "setting", "MB/s", [500.0], at_least=500.0).met is True
    assert alone("case", "setting", "KB", [20.0], below=20.0).met is False


def test_amounts_have_the_digits_that_mean_something() -> None:
    assert [amount(value) for value in (123456.7, 99.96, 12.34, 1.234)] == ["123,457", "100.0", "12.3", "1.23"]


def test_a_report_names_the_machine_and_keeps_every_round(tmp_path: Path) -> None:
    rows = [compared("case", "a | b", "records/s", [1.0, 3.0, 2.0], "other", [1.0], ratio_min=1.0)]
    text = markdown({"cores": "2"}, rows)
    assert "- cores: 2" in text
    assert "| case | a \\| b | 2.00 records/s (1.00 to 3.00) | other: 1.00 | 2.00x | at least 1x: met |  |  |" in text
    write_json(tmp_path / "results" / "run.json", {"cores": "2"}, rows)
    (result,) = json.loads((tmp_path / "results" / "run.json").read_text())["results"]
    assert (result["rounds"], result["ratio"]) == ([1.0, 3.0, 2.0], 2.0)


def test_the_cost_of_a_record_is_the_servers_processor_time() -> None:
    ours = [Measured(rate=1e6, server_cpu=0.5, load_cpu=0.1), Measured(rate=1e5, server_cpu=0.2, load_cpu=0.3)]
    assert cpu_us_each(ours) == [0.5, 2.0]
    row = compared("case", "setting", "records/s", [1.0], "other", [1.0], cpu_us=[2.0, 4.0, 3.0], against_cpu_us=[8.0])
    assert "|  | 3.00 us (8.00 us) |  |" in markdown({}, [row])
    assert "|  | 3.00 us |  |" in markdown({}, [alone("case", "setting", "records/s", [1.0], cpu_us=[3.0])])


def test_a_load_that_was_the_bottleneck_is_named() -> None:
    ours = [Measured(rate=1.0, server_cpu=0.5, load_cpu=0.25)]
    theirs = [Measured(rate=1.0, server_cpu=0.75, load_cpu=0.95)]
    assert cpu_note(ours) == "cpu: broker 0.50 + load 0.25"
    limited = "cpu: broker 0.50 + load 0.25, Redis 0.75 + load 0.95; the load generator limits Redis"
    assert cpu_note(ours, theirs, "Redis") == limited
