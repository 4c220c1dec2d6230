"""Replies as a client decodes them, in however many pieces they come."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from penstock.errors import ProtocolViolation
from penstock.protocols.fujin.codec.reply_decoding import (
    COUNT_MAX,
    Answer,
    Batch,
    Delivered,
    Done,
    Goodbye,
    ReplyDecoder,
    Settled,
)
from tests.protocols.fujin import requests

ROWS = 2000


def decoded(data: bytes, piece_bytes: int) -> list[Answer]:
    decoder = ReplyDecoder(with_ids=True)
    answers: list[Answer] = []
    for at in range(0, len(data), piece_bytes):
        answers += decoder.feed(data[at : at + piece_bytes])
    assert not decoder.partial
    return answers


def calls_to_decode(data: bytes, piece_bytes: int) -> int:
    """How many functions of Python are called."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        decoded(data, piece_bytes)
    finally:
        sys.setprofile(None)
    return calls


MANY_ROWS = {
    "fetched": requests.fetched(7, *[b"%04d" % row for row in range(ROWS)], first=0),
    "settled": requests.settled(8, 7, *[(requests.tag(row), b"no" if row % 2 else None) for row in range(ROWS)]),
}


@pytest.mark.parametrize("reply", MANY_ROWS.values(), ids=MANY_ROWS)
def test_each_row_is_decoded_once_in_however_many_pieces_a_reply_comes(reply: bytes) -> None:
    at_once = calls_to_decode(reply, len(reply))
    pieces = len(reply) // 20
    assert calls_to_decode(reply, 20) < 3 * at_once + 20 * pieces


def test_a_large_message_that_drips_is_not_copied_with_each_piece() -> None:
    """Copying a message of 4 MB with each 16 bytes of it would move 500 GB; the timeout of the test would tell."""
    value = bytes(4_000_000)
    assert decoded(requests.message(value, 3), 16) == [Delivered(requests.tag(3), value)]


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 5, 16, 1000])
def test_replies_of_all_kinds_come_out_whole(piece_bytes: int) -> None:
    data = b"".join(
        (
            requests.fetched(1, b"a", b"", b"ccc", first=5),
            requests.fetched(2),
            requests.failed(7, 3, b"no such topic"),
            requests.settled(9, 4, (b"x", None), (b"", b"unknown id")),
            requests.done(2, 5),
            b"\x0a",
        )
    )
    assert decoded(data, piece_bytes) == [
        Batch(
            1,
            None,
            [
                Delivered(requests.tag(5), b"a"),
                Delivered(requests.tag(6), b""),
                Delivered(requests.tag(7), b"ccc"),
            ],
        ),
        Batch(2, None, []),
        Batch(3, "no such topic", []),
        Settled(9, 4, None, [(b"x", None), (b"", "unknown id")]),
        Done(2, 5, None),
        Goodbye(),
    ]


def test_a_reply_between_two_rows_is_partial() -> None:
    decoder = ReplyDecoder()
    rows = requests.fetched(1, b"a", b"b")
    assert decoder.feed(rows[:-5]) == []
    assert decoder.partial
    assert decoder.feed(rows[-5:]) == [Batch(1, None, [Delivered(None, b"a"), Delivered(None, b"b")])]
    assert not decoder.partial


def test_more_rows_than_any_reply_has_are_refused_when_they_are_announced() -> None:
    with pytest.raises(ProtocolViolation, match=f"{COUNT_MAX + 1} rows"):
        ReplyDecoder().feed(requests.done(7, 1) + requests.u32(COUNT_MAX + 1))
