"""What fits the screen of `penstock top`, and in which order."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock.cli.rates import Rates
from penstock.cli.sample import GroupSample, ListenerSample, Sample, TopicSample
from penstock.cli.top_screen import number, render


def screen(topics: int, groups: int, *, width: int, height: int, sort: str = "n", trouble: str = "") -> list[str]:
    sample = Sample(
        0.0,
        True,
        "ready",
        [],
        "1",
        topics={f"topic-{i:03d}-\x1b[31m{'x' * 60}": TopicSample(1, i, i, 1000 - i) for i in range(topics)},
        groups=[GroupSample(f"group-{i:03d}", "t" * 80, i, None) for i in range(groups)],
        listeners={name: ListenerSample("127.0.0.1:9092", 3) for name in ("flymq", "blipmq", "rustlog", "felix")},
    )
    output = io.StringIO()
    Console(file=output, width=width, height=height, color_system=None).print(
        render(Rates(None, sample), sort=sort, height=height, note="", trouble=trouble, keys=True)
    )
    return output.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (80, 12)])
@pytest.mark.parametrize(("topics", "groups"), [(0, 0), (1, 1), (500, 0), (0, 500), (500, 500), (12, 2)])
def test_it_fits_whatever_there_is(topics: int, groups: int, width: int, height: int) -> None:
    lines = screen(topics, groups, width=width, height=height)
    assert len(lines) <= max(height, 14)
    assert max(map(len, lines)) <= width
    assert not any("\x1b" in line for line in lines), "a name cannot move the cursor"
    assert lines[-1].startswith("q quit")


def test_topics_are_sorted_and_what_does_not_fit_is_counted() -> None:
    first = next(line for line in screen(50, 0, width=80, height=24, sort="c") if line.startswith("topic-"))
    assert first.startswith("topic-049")
    first = next(line for line in screen(50, 0, width=80, height=24, sort="s") if line.startswith("topic-"))
    assert first.startswith("topic-000")
    lines = screen(50, 0, width=80, height=24)
    shown = sum(line.startswith("topic-") for line in lines)
    assert f"... {50 - shown} more topics" in " ".join(lines)


def test_groups_with_the_most_lag_come_first() -> None:
    lines = [line for line in screen(1, 30, width=80, height=24) if line.startswith("group-")]
    assert lines[0].startswith("group-029")


def test_listeners_have_their_records_in_and_out_where_there_is_room() -> None:
    lines = screen(1, 1, width=80, height=24)
    at = next(number for number, line in enumerate(lines) if line.startswith("listener"))
    assert lines[at].split()[-6:] == ["records", "in/s", "out/s", "bytes", "in/s", "out/s"]
    assert [line.split()[0] for line in lines[at + 1 : at + 5]] == ["flymq", "blipmq", "rustlog", "felix"]
    assert not any(line.startswith("flymq") for line in screen(9, 9, width=80, height=12))


def test_old_numbers_are_not_called_ready() -> None:
    lines = screen(1, 1, width=80, height=24, trouble="no answer for 3 s")
    assert "gone" in lines[0]
    assert "ready" not in lines[0]
    assert lines[2] == "no answer for 3 s"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.25, "0.2"),
        (9.99, "10.0"),
        (950, "950"),
        (9999, "9999"),
        (12_345, "12.3k"),
        (4.56e6, "4.56M"),
        (2e9, "2G"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text
