"""A record's headers as one cell of bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptBlock, InvalidRequest
from penstock.record_headers import HEADER_NAME_BYTES_MAX, decode_headers, encode_headers

pairs = st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=5)


@given(pairs)
def test_headers_come_back_in_order_with_names_that_repeat(headers: list[tuple[str, bytes | None]]) -> None:
    assert decode_headers(encode_headers(headers)) == headers


@given(pairs.filter(bool))
def test_a_cell_that_is_cut_short_is_refused_or_has_fewer_headers(headers: list[tuple[str, bytes | None]]) -> None:
    cell = encode_headers(headers)
    try:
        assert len(decode_headers(cell[:-1])) < len(headers)
    except CorruptBlock:
        pass


def test_a_name_that_has_no_room_is_refused() -> None:
    assert decode_headers(encode_headers([("n" * HEADER_NAME_BYTES_MAX, b"")])) == [("n" * HEADER_NAME_BYTES_MAX, b"")]
    with pytest.raises(InvalidRequest, match="the name of a header has 65536 bytes of UTF-8: at most 65535"):
        encode_headers([("n" * (HEADER_NAME_BYTES_MAX + 1), b"")])
