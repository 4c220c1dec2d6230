from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing.journal import Attempt, Journal, read_attempts


def test_outcomes_are_read_back_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        ids = journal.sending("p", "orders", [b"a", b"b", b"c", b"\x00\xff"], [b"k", None, None, None])
        journal.acked(ids[:1], [(2, 7)])
        journal.failed(ids[1:2], "no space")
        journal.unknown(ids[2:3], "connection lost")
    assert read_attempts(path) == [
        Attempt(0, "p", "orders", b"k", b"a", "acked", 2, 7),
        Attempt(1, "p", "orders", None, b"b", "failed"),
        Attempt(2, "p", "orders", None, b"c", "unknown"),
        Attempt(3, "p", "orders", None, b"\x00\xff", "unknown"),
    ]


def test_a_journal_opened_again_continues_with_new_ids(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        assert journal.sending("p", "t", [b"a", b"b"]) == range(2)
    with Journal(path) as journal:
        assert journal.sending("p", "t", [b"c"]) == range(2, 3)
        assert [attempt.value for attempt in journal.attempts()] == [b"a", b"b", b"c"]


def test_a_line_cut_short_by_a_crash_is_ignored_and_swallows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.sending("p", "t", [b"a"])
        whole = path.read_bytes()
        journal.sending("p", "t", [b"b"])
    path.write_bytes(path.read_bytes()[: len(whole) + 20])
    with Journal(path) as journal:
        journal.sending("p", "t", [b"c"])
        assert [attempt.value for attempt in journal.attempts()] == [b"a", b"c"]


def test_keys_and_places_must_match_the_records(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        with pytest.raises(ValueError, match="1 values came with 2 keys"):
            journal.sending("p", "t", [b"a"], [b"k", b"l"])
        ids = journal.sending("p", "t", [b"a"])
        with pytest.raises(ValueError, match="1 records came with 0 places"):
            journal.acked(ids, [])
