"""Blocks from clients against any change of any byte: what is let in can be read by every reader, and the rest is refused."""

from __future__ import annotations

from unittest.mock import patch

import google_crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.limits import BrokerLimits
from penstock.broker.transactions import blocks as checking
from penstock.broker.transactions.blocks import check_parts
from penstock.errors import InvalidRequest, RecordTooLarge
from penstock.log.api import BlockBatch, TopicConfig, TopicInfo
from penstock.log.block import SUMMED_AT, Block, encode_block, place_block
from penstock.record_headers import decode_headers, encode_headers

INFO = TopicInfo("orders", "0" * 32, TopicConfig(), 0)
LIMITS = BrokerLimits(record_bytes_max=200, key_bytes_max=20)

cells = st.none() | st.binary(max_size=24)
headers = st.lists(st.tuples(st.text(max_size=3), cells), max_size=3).map(encode_headers)
blocks = st.lists(st.tuples(cells, cells, headers | cells), min_size=1, max_size=6).map(
    lambda rows: encode_block(0, 0, *(list(column) for column in zip(*rows, strict=True)))
)
changes = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4)


@settings(max_examples=400)
@given(blocks, changes, st.booleans(), st.sampled_from((1, checking._CELLS_MIN)))
def test_what_is_let_in_can_be_read(
    data: bytes, changed: list[tuple[int, int]], summed_again: bool, cells_min: int
) -> None:
    damaged = bytearray(data)
    for at, byte in changed:
        damaged[at % len(damaged)] = byte
    if summed_again:
        damaged[4:8] = google_crc32c.value(bytes(damaged[SUMMED_AT:])).to_bytes(4, "little")
    try:
        with patch.object(checking, "_CELLS_MIN", cells_min):
            [(_, block)] = check_parts(INFO, [(0, bytes(damaged))], LIMITS)
    except (InvalidRequest, RecordTooLarge):
        return
    stored = Block(place_block(BlockBatch([block]).blocks[0], 1000, 5))
    assert len(stored.values()) == len(list(stored.offsets())) == stored.count
    for key in stored.keys() or []:
        assert key is None or len(key) <= LIMITS.key_bytes_max
    for cell in stored.headers() or []:
        decode_headers(cell or b"")
    assert stored.columns().values.offsets[-1] == stored.value_bytes


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_and_nothing_else(data: bytes) -> None:
    try:
        check_parts(INFO, [(0, data)], LIMITS)
    except InvalidRequest:
        return
    raise AssertionError("nonsense was taken for a block")
