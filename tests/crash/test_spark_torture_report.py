"""A torture that sees no fault must not be one that cannot see any."""

from __future__ import annotations

import pytest

from tests.crash.spark_torture_report import Deeds, judge

ALL = [b"1", b"2", b"3"]


def test_every_record_once_is_flawless() -> None:
    verdict = judge(ALL, ALL, reversed(ALL))
    assert verdict.flawless
    assert list(verdict.lines()) == [
        "records: 3 acknowledged to their writer, 3 in the source, 3 in the sink",
        "lost: 0",
        "there twice: 0",
    ]


def test_a_record_whose_writer_never_heard_of_it_may_be_there_but_then_in_both() -> None:
    assert judge(ALL[:2], ALL, ALL).flawless
    assert not judge(ALL[:2], ALL[:2], ALL).flawless


@pytest.mark.parametrize(
    ("source", "sink", "line"),
    [
        (ALL, ALL[1:], "lost: 1 (as 1)"),
        (ALL[1:], ALL[1:], "lost: 1 (as 1)"),
        (ALL, [*ALL, b"2", b"2", b"3"], "there twice: 3 (as 2, 3)"),
        ([*ALL, b"2"], [*ALL, b"2"], "there twice: 1 (as 2)"),
        (ALL, [*ALL, b"none of ours"], "there twice: 1 (as none of ours)"),
    ],
)
def test_whatever_is_lost_or_there_twice_is_told(source: list[bytes], sink: list[bytes], line: str) -> None:
    verdict = judge(ALL, source, sink)
    assert not verdict.flawless
    assert line in verdict.lines()


def test_what_was_done_is_counted_by_kind_and_a_query_stopped_in_peace_is_no_kill() -> None:
    deeds = Deeds()
    for kind in ("broker killed", "query stopped", "broker killed", "no worker found", "batch forgotten, done again"):
        deeds.add(kind)
    assert deeds.kills_and_replays == 3
    assert list(deeds.lines()) == [
        "broker killed                   2",
        "batch forgotten, done again     1",
        "no worker found                 1",
        "query stopped                   1",
        "kills and replays: 3",
    ]
