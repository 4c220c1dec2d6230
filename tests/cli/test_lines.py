"""Lines as records, however the bytes arrive."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli import lines
from penstock.cli.lines import lines_of, split_keys, whole
from penstock.errors import InvalidRequest, RecordTooLarge


class Dripping(io.BytesIO):
    """A stream whose reads return what has arrived: chunk after chunk."""

    def __init__(self, chunks: list[bytes]) -> None:
        super().__init__()
        self._chunks = iter(chunks)

    def read1(self, size: int | None = -1, /) -> bytes:
        return next(self._chunks, b"")


def test_each_line_is_a_record_and_the_last_needs_no_newline() -> None:
    assert list(lines_of(io.BytesIO(b"one\ntwo\n\nfour"))) == [[b"one", b"two", b""], [b"four"]]


def test_no_input_is_no_record() -> None:
    assert list(lines_of(io.BytesIO(b""))) == []


def test_any_bytes_but_the_newline_stay_as_they_are() -> None:
    assert list(lines_of(io.BytesIO(b"\xff\x00\r\n"))) == [[b"\xff\x00\r"]]


def test_lines_are_handed_on_as_they_arrive() -> None:
    batches = lines_of(Dripping([b"one\nt", b"w", b"o\n"]))
    assert next(batches) == [b"one"]
    assert next(batches) == [b"two"]
    assert list(batches) == []


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=20))
def test_how_the_bytes_are_cut_does_not_matter(chunks: list[bytes]) -> None:
    data = b"".join(chunks)
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert [line for batch in lines_of(Dripping(chunks)) for line in batch] == expected


def test_a_line_without_end_is_refused_before_memory_is_full() -> None:
    with pytest.raises(RecordTooLarge, match="a line is longer than 8 B: no record may be"):
        list(lines_of(Dripping([b"x" * 5] * 3), 8))


def test_the_whole_input_may_be_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    assert whole(io.BytesIO(b"one\ntwo\n")) == b"one\ntwo\n"
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 3)
    with pytest.raises(RecordTooLarge, match="the input is larger than 3 B"):
        whole(io.BytesIO(b"four"))


def test_keys_end_at_the_first_separator() -> None:
    assert list(split_keys([b"a:1", b"b:2:3", b":4", b"c:"], b":", 1)) == [
        (b"a", b"1", ()),
        (b"b", b"2:3", ()),
        (None, b"4", ()),
        (b"c", b"", ()),
    ]


def test_a_line_without_a_separator_is_named() -> None:
    with pytest.raises(InvalidRequest, match="line 12 has no '::' between key and value: correct it, or leave out"):
        list(split_keys([b"a::1", b"b:2"], b"::", 11))
