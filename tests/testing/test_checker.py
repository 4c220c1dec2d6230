"""Each rule broken in turn: a checker that cannot fail proves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing.checker import ReadRecord, Report, Rule, check
from penstock.testing.journal import NO_PLACE, Journal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal") as journal:
        yield journal


def log(*values: bytes, partition: int = 0, first_offset: int = 0) -> list[ReadRecord]:
    return [ReadRecord("t", partition, offset, None, value) for offset, value in enumerate(values, first_offset)]


def broken_rules(report: Report) -> set[Rule]:
    return {violation.rule for violation in report.violations}


def test_a_faithful_log_passes(journal: Journal) -> None:
    acked = journal.sending("p", "t", [b"a", b"b"])
    journal.acked(acked, [(0, 0), (0, 1)])
    journal.failed(journal.sending("p", "t", [b"refused"]), "no space")
    journal.unknown(journal.sending("p", "t", [b"maybe"]), "connection lost")
    journal.sending("p", "t", [b"lost with the crash"])
    report = check(journal, {"one": log(b"a", b"b", b"maybe"), "two": log(b"a", b"b", b"maybe")})
    assert report.ok
    report.raise_for_violations()
    assert (report.sent, report.acked, report.failed, report.unknown, report.read) == (5, 2, 1, 2, 3)
    assert str(report) == "delivery check passed: 5 sent (2 acknowledged, 1 refused, 2 unknown), 3 read"


def test_an_unknown_record_may_be_absent(journal: Journal) -> None:
    journal.unknown(journal.sending("p", "t", [b"a"]), "connection lost")
    assert check(journal, {"one": []}).ok


def test_a_missing_acknowledged_record_is_reported(journal: Journal) -> None:
    journal.acked(journal.sending("p", "t", [b"a", b"b"]), [(0, 0), (0, 1)])
    report = check(journal, {"one": log(b"a")})
    assert broken_rules(report) == {Rule.ACKED_IS_PRESENT}
    assert "#1 b'b' was acknowledged at t/0@1, which holds nothing" in str(report)


def test_an_acknowledged_record_at_another_offset_is_reported(journal: Journal) -> None:
    journal.acked(journal.sending("p", "t", [b"a"]), [(0, 0)])
    assert broken_rules(check(journal, {"one": log(b"a", first_offset=1)})) == {Rule.ACKED_IS_PRESENT}


def test_an_acknowledged_record_in_another_partition_is_reported(journal: Journal) -> None:
    journal.acked(journal.sending("p", "t", [b"a"]), [(0, 0)])
    assert broken_rules(check(journal, {"one": log(b"a", partition=1)})) == {Rule.ACKED_IS_PRESENT}


def test_an_altered_value_is_reported_as_missing_and_as_invented(journal: Journal) -> None:
    journal.acked(journal.sending("p", "t", [b"a"]), [(0, 0)])
    assert broken_rules(check(journal, {"one": log(b"A")})) == {Rule.ACKED_IS_PRESENT, Rule.NOTHING_INVENTED}


def test_an_altered_key_is_reported(journal: Journal) -> None:
    journal.unknown(journal.sending("p", "t", [b"a"], [b"key"]), "connection lost")
    report = check(journal, {"one": [ReadRecord("t", 0, 0, b"other", b"a")]})
    assert broken_rules(report) == {Rule.NOTHING_INVENTED}
    assert "(key b'other'), whose value was sent with another key" in str(report)


def test_a_readable_refused_record_is_reported(journal: Journal) -> None:
    journal.failed(journal.sending("p", "t", [b"a"]), "no space")
    assert broken_rules(check(journal, {"one": log(b"a")})) == {Rule.FAILED_IS_ABSENT}


def test_a_duplicate_of_an_acknowledged_record_is_reported(journal: Journal) -> None:
    journal.acked(journal.sending("p", "t", [b"a"]), [(0, 0)])
    assert broken_rules(check(journal, {"one": log(b"a", b"a")})) == {Rule.NO_DUPLICATES}


def test_a_retried_unknown_record_may_be_there_twice_but_not_three_times(journal: Journal) -> None:
    journal.unknown(journal.sending("p", "t", [b"a"]), "connection lost")
    journal.acked(journal.sending("p again", "t", [b"a"]), [(0, 1)])
    assert check(journal, {"one": log(b"a", b"a")}).ok
    assert broken_rules(check(journal, {"one": log(b"a", b"a", b"a")})) == {Rule.NO_DUPLICATES}


def test_a_place_acknowledged_twice_is_reported(journal: Journal) -> None:
    journal.acked(journal.sending("p", "t", [b"a"]), [(0, 0)])
    journal.acked(journal.sending("q", "t", [b"b"]), [(0, 0)])
    report = check(journal, {"one": log(b"a")})
    assert broken_rules(report) == {Rule.ONE_RECORD_PER_PLACE, Rule.ACKED_IS_PRESENT}
    assert "t/0@0 was acknowledged for #0 b'a' and for #1 b'b'" in str(report)


def test_a_place_that_changes_while_it_is_read_is_reported(journal: Journal) -> None:
    journal.acked(journal.sending("p", "t", [b"a"]), [(0, 0)])
    journal.unknown(journal.sending("q", "t", [b"b"]), "connection lost")
    assert broken_rules(check(journal, {"one": [*log(b"a"), *log(b"b")]})) == {Rule.ONE_RECORD_PER_PLACE}


def test_a_record_delivered_again_unchanged_is_no_violation(journal: Journal) -> None:
    journal.acked(journal.sending("p", "t", [b"a"]), [(0, 0)])
    assert check(journal, {"one": [*log(b"a"), *log(b"a")]}).ok


def test_a_producers_acknowledged_records_out_of_order_are_reported(journal: Journal) -> None:
    journal.acked(journal.sending("p", "t", [b"a", b"b"]), [(0, 1), (0, 0)])
    report = check(journal, {"one": log(b"b", b"a")})
    assert broken_rules(report) == {Rule.ORDER_IS_KEPT}
    assert "p sent #0 b'a' before #1 b'b', yet they are at offsets 1 and 0 of t/0" in str(report)


def test_an_unknown_record_out_of_order_is_reported(journal: Journal) -> None:
    journal.unknown(journal.sending("p", "t", [b"a"]), "connection lost")
    journal.acked(journal.sending("p", "t", [b"b"]), [(0, 0)])
    assert broken_rules(check(journal, {"one": log(b"b", b"a")})) == {Rule.ORDER_IS_KEPT}


def test_order_is_checked_per_partition_and_per_producer(journal: Journal) -> None:
    journal.acked(journal.sending("p", "t", [b"a", b"b"]), [(0, 1), (1, 0)])
    journal.acked(journal.sending("q", "t", [b"c"]), [(0, 0)])
    assert check(journal, {"one": [*log(b"c", b"a"), *log(b"b", partition=1)]}).ok


@pytest.mark.parametrize(
    "second", [log(b"a"), log(b"a", b"b", b"b2"), log(b"a", b"B")], ids=["one fewer", "one more", "one altered"]
)
def test_readers_that_disagree_are_reported(journal: Journal, second: list[ReadRecord]) -> None:
    journal.acked(journal.sending("p", "t", [b"a", b"b"]), [(0, 0), (0, 1)])
    assert broken_rules(check(journal, {"one": log(b"a", b"b"), "two": second})) == {Rule.READERS_AGREE}


def test_a_record_that_was_never_sent_is_reported(journal: Journal) -> None:
    report = check(journal, {"one": log(b"garbage")})
    assert broken_rules(report) == {Rule.NOTHING_INVENTED}
    with pytest.raises(AssertionError, match="t/0@0 holds b'garbage'"):
        report.raise_for_violations()


def test_the_same_value_in_another_topic_counts_as_invented(journal: Journal) -> None:
    journal.acked(journal.sending("p", "t", [b"a"]), [(0, 0)])
    report = check(journal, {"one": [*log(b"a"), ReadRecord("u", 0, 0, None, b"a")]})
    assert broken_rules(report) == {Rule.NOTHING_INVENTED}


def test_a_long_report_stays_short(journal: Journal) -> None:
    text = str(check(journal, {"one": log(*[b"%d" % number * 100 for number in range(20)])}))
    assert "a record is readable that was never sent: 20" in text
    assert "and 15 more" in text
    assert len(text.splitlines()) == 8
    assert "... of 100 bytes" in text


def test_a_check_without_readers_is_refused(journal: Journal) -> None:
    with pytest.raises(ValueError, match="at least one reader"):
        check(journal, {})


def test_a_record_acknowledged_without_a_place_may_be_anywhere_but_must_be_somewhere(journal: Journal) -> None:
    journal.acked(journal.sending("p", "t", [b"a", b"b"]), [NO_PLACE, NO_PLACE])
    assert check(journal, {"one": log(b"a", b"b", first_offset=7)}).ok
    report = check(journal, {"one": log(b"a")})
    assert [(violation.rule, violation.detail) for violation in report.violations] == [
        (Rule.ACKED_IS_PRESENT, "#1 b'b' was acknowledged and is nowhere in t")
    ]
    assert broken_rules(check(journal, {"one": log(b"b", b"a")})) == {Rule.ORDER_IS_KEPT}
    assert broken_rules(check(journal, {"one": log(b"a", b"b", b"b")})) == {Rule.NO_DUPLICATES}


def test_violations_are_counted_as_lost_duplicated_and_wrong() -> None:
    report = Report()
    for rule in Rule:
        report.add(rule, "")
    assert (report.lost, report.duplicated, report.wrong) == (3, 1, len(Rule) - 4)
