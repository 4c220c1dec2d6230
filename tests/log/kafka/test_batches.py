from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from penstock.columns import UniformCells
from penstock.errors import CorruptBlock
from penstock.log.api import Batch, BlockBatch, PlacedBatch
from penstock.log.block import Block, encode_block
from penstock.log.kafka.batches import (
    EXPIRES,
    GAP,
    HEADER,
    NO_PRODUCER,
    RecordBatch,
    encode_batch,
    encode_placed,
    join_batches,
    split,
    visible,
)
from penstock.log.kafka.client import ProducerId
from penstock.record_headers import encode_headers

cells = st.none() | st.binary(max_size=200)
names = st.text(max_size=10) | st.sampled_from([EXPIRES, GAP])
header_cells = st.none() | st.lists(st.tuples(names, cells), min_size=1, max_size=3).map(encode_headers)
rows = st.lists(st.tuples(cells, cells, header_cells, st.integers(0, 1 << 50)), min_size=1, max_size=70)


def only(data: bytes) -> RecordBatch:
    [batch] = split(data)
    return batch


def block_of(data: bytes) -> Block:
    block = only(data).block()
    assert block is not None
    return block


@given(rows, st.booleans())
def test_any_records_come_back_as_they_were_given(
    records: list[tuple[bytes | None, bytes | None, bytes | None, int]], compress: bool
) -> None:
    values, keys, headers, expiries = (list(column) for column in zip(*records, strict=True))
    block = block_of(encode_batch(Batch(values, keys, headers, expiries), 1234, compress=compress))
    count = len(records)
    assert block.values() == values
    assert (block.keys() or [None] * count) == keys
    assert (block.headers() or [None] * count) == headers
    assert list(block.expiries() or [0] * count) == expiries
    assert set(block.timestamps()) == {1234}
    assert list(block.offsets()) == list(range(count))


def test_a_record_that_looks_like_a_gap_is_none() -> None:
    """As a user of Penstock writes it, which is kept apart; one of Kafka's own clients must have copied every byte of it."""
    header = encode_headers([(GAP, None)])
    block = block_of(encode_batch(Batch([None, b"mine"], [GAP.encode()] * 2, [header] * 2), 1))
    assert block.values() == [None, b"mine"]
    assert block.headers() == [header] * 2
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    builder.append(0, 1, b"key", None, [(GAP, None)])
    builder.append(1, 1, GAP.encode(), b"theirs", [(GAP, None)])
    assert block_of(bytes(builder.build())).values() == [None, b"theirs"]


def test_gaps_between_records_are_not_seen() -> None:
    placed = PlacedBatch([3, 7], [1, 2], [b"three", b"seven"])
    batch = only(encode_placed(placed, 1, compress=False).batch(NO_PRODUCER, 0))
    block = batch.block()
    assert block is not None
    assert (list(block.offsets()), block.values()) == ([2, 6], [b"three", b"seven"])  # behind the batch's own
    assert batch.count == 7


@pytest.mark.parametrize("count", [1, 7, 8, 64, 65, 8192, 8193])
@pytest.mark.parametrize("size", [0, 1, 63, 64, 100])
def test_records_of_one_size_take_the_short_way_and_are_the_same_bytes(count: int, size: int) -> None:
    values: list[bytes | None] = [bytes([number % 256]) * size for number in range(count)]
    uniform = UniformCells(size, count, b"".join(value for value in values if value is not None))
    one_by_one = encode_batch(Batch(values, keys=[None] * count), 1)
    assert encode_batch(Batch(values), 1) == encode_batch(Batch(uniform), 1) == one_by_one
    assert block_of(one_by_one).values() == values
    assert only(one_by_one)._any_block().data == block_of(one_by_one).data  # type: ignore[union-attr]


def test_a_batch_that_only_looks_uniform_is_read_one_by_one() -> None:
    values: list[bytes | None] = [b"0123456789"] * 20
    values[7], values[8] = b"01234567", b"0123456789ab"  # as long together
    assert block_of(encode_batch(Batch(values), 1)).values() == values
    values = [b"x"] * 20
    values[3] = None
    assert block_of(encode_batch(Batch(values), 1)).values() == values


def test_several_appends_make_one_batch() -> None:
    block = Block(encode_block(0, 0, [b"c", None], [b"k", None], None, [7, 0]))
    batch = join_batches([Batch([b"a"]), Batch([b"b"], headers=[encode_headers([("h", None)])]), BlockBatch([block])])
    found = block_of(encode_batch(batch, 1))
    assert found.values() == [b"a", b"b", b"c", None]
    assert found.keys() == [None, None, b"k", None]
    assert found.headers() == [None, encode_headers([("h", None)]), None, None]
    assert found.expiries() == [0, 0, 7, 0]


def test_damage_is_told_with_the_offset_to_continue_at() -> None:
    data = bytearray(encode_batch(Batch([b"value"] * 3), 1))
    data[-2] ^= 1
    with pytest.raises(CorruptBlock, match="checksum") as told:
        only(bytes(data)).block()
    assert told.value.next_offset == 3


@given(st.binary(max_size=300))
def test_any_bytes_are_batches_or_damage(data: bytes) -> None:
    whole = encode_batch(Batch([b"value"] * 3), 1)
    for broken in (data, whole[: HEADER.size] + data, whole[:20] + data):
        try:
            for batch in split(broken):
                batch.block()
        except CorruptBlock:
            pass


def test_an_incomplete_last_batch_is_left_out() -> None:
    whole = encode_batch(Batch([b"a"]), 1)
    assert [batch.base_offset for batch in split(whole + whole[:-1])] == [0]


def test_records_of_aborted_transactions_are_hidden_until_the_end_of_them() -> None:
    def batch(producer: int, *, transactional: bool = True) -> RecordBatch:
        return only(encode_batch(Batch([b"x"]), 1, ProducerId(producer, 0), 0, transactional=transactional))

    aborted, committed, plain = batch(1), batch(2), batch(1, transactional=False)
    for place, each in enumerate((aborted, committed, plain)):
        each.base_offset, each.next_offset = place, place + 1
    assert list(visible([aborted, committed, plain], [(1, 0)])) == [committed, plain]
    assert list(visible([aborted, committed, plain], [])) == [aborted, committed, plain]


def foreign(header: tuple[str, bytes]) -> bytes:
    """A record as another client writes it."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    builder.append(0, 1, b"key", b"value", [header])
    return bytes(builder.build())


def test_a_time_of_expiry_that_is_no_number_of_ours_is_a_header_of_the_user() -> None:
    header = (EXPIRES, b"9999999999999999999")
    block = block_of(foreign(header))
    assert block.headers() == [encode_headers([header])]
    assert not any(block.expiries() or ())


def test_a_record_that_has_no_place_in_a_block_is_damage_with_the_offset_after_it() -> None:
    with pytest.raises(CorruptBlock, match="at offset 0 cannot be stored") as raised:
        only(foreign(("n" * 70_000, b""))).block()
    assert raised.value.next_offset == 1
