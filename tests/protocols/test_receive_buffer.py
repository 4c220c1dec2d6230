"""Received bytes that are not decoded yet."""

from __future__ import annotations

from penstock.protocols.receive_buffer import ReceiveBuffer


def test_where_nothing_is_kept_data_is_checked_as_it_comes() -> None:
    buffer = ReceiveBuffer()
    buffer.needed_bytes = 100
    assert buffer.join(b"ab") == b"ab"
    assert buffer.kept_bytes == 0


def test_what_is_kept_is_checked_again_once_there_is_enough() -> None:
    buffer = ReceiveBuffer()
    buffer.keep(b"whole, rest", 7)
    buffer.needed_bytes = 6
    assert buffer.kept_bytes == 4
    assert buffer.join(b"-") is None
    assert buffer.join(b"and more") == b"rest-and more"
    assert buffer.kept_bytes == 0


def test_nothing_behind_the_end_is_kept() -> None:
    buffer = ReceiveBuffer()
    buffer.keep(b"whole", 5)
    assert buffer.kept_bytes == 0
