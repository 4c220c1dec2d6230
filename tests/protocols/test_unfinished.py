"""What has come of a frame that is not whole."""

from __future__ import annotations

from penstock.protocols.unfinished import Unfinished


def test_where_nothing_is_kept_data_is_looked_at_as_it_comes() -> None:
    unfinished = Unfinished()
    unfinished.needed_bytes = 100
    assert unfinished.join(b"ab") == b"ab"
    assert not unfinished


def test_what_is_kept_is_looked_at_again_once_there_is_enough() -> None:
    unfinished = Unfinished()
    unfinished.keep(b"whole, rest", 7)
    unfinished.needed_bytes = 6
    assert len(unfinished) == 4
    assert unfinished.join(b"-") is None
    assert unfinished.join(b"and more") == b"rest-and more"
    assert not unfinished


def test_nothing_behind_the_end_is_kept() -> None:
    unfinished = Unfinished()
    unfinished.keep(b"whole", 5)
    assert not unfinished
