"""What is said in bytes, at the edges; the layouts are in the examples on the wire."""

from __future__ import annotations

import pytest

from penstock.protocols.fujin.codec import reply_encoding
from penstock.protocols.fujin.wire import ERROR_BYTES_MAX, Reply


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("", b"unknown error"),
        ("x", b"x"),
        ("x" * 10_000, b"x" * ERROR_BYTES_MAX),
        ("ü" * 10_000, "ü".encode() * (ERROR_BYTES_MAX // 2)),
        ("x" + "ü" * 10_000, b"x" + "ü".encode() * ((ERROR_BYTES_MAX - 1) // 2)),
        ("\udc80", b"?"),
    ],
)
def test_a_reason_is_never_empty_never_too_long_and_always_text(reason: str, text: bytes) -> None:
    """Deployed clients stop reading at an empty one, and expect the answer to a connect within 512 bytes."""
    expected = len(text).to_bytes(4, "big") + text
    assert reply_encoding.refused_reader(reason) == b"\1\1" + expected
    assert reply_encoding.failed(Reply.WRITE, b"\0\0\0\7", reason) == b"\2\0\0\0\7\1" + expected
    assert reply_encoding.settled(Reply.ACK, b"\0\0\0\7", [b"id"], [reason]).endswith(b"id\1" + expected)
    assert len(reply_encoding.refused_reader(reason)) <= 500


def test_many_writes_are_answered_in_one_buffer() -> None:
    ids = [number.to_bytes(4, "big") for number in (1, 2, 0xFFFFFFFF)]
    assert reply_encoding.written(ids) == b"".join(b"\2" + each + b"\0" for each in ids)
