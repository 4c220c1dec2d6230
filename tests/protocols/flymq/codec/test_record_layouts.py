"""What is coded by hand: the same bytes, and the same messages, as the declarations make."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.flymq.codec.record_layouts import (
    VECTOR_ROWS_MIN,
    RawCells,
    Rows,
    WholeRows,
    decode_produce_once,
    decode_stored_together,
    encode_fetched,
    encode_fetched_records,
    encode_produce_once,
    encode_stored_together,
)
from penstock.protocols.flymq.operations.limits import PRODUCED_RECORDS_MAX
from penstock.protocols.flymq.operations.operation import decode_reply, decode_request, encode_reply, encode_request
from penstock.protocols.flymq.operations.records import (
    FetchedRecords,
    FetchRecords,
    ProduceOnce,
    RecordFailure,
    StoredOnce,
)
from penstock.protocols.flymq.wire import HEADER_BYTES, PAYLOAD_BYTES_MAX

Row = tuple[int, int, bytes | None, bytes | None, bytes | None]

cells = st.none() | st.binary(max_size=9)
numbers = st.integers(0, (1 << 63) - 1)
rows = st.lists(st.tuples(numbers, numbers, cells, cells, cells), min_size=1, max_size=5)


def part_of(rows: list[Row]) -> WholeRows:
    offsets, timestamps, keys, values, headers = (list(column) for column in zip(*rows, strict=True))
    return WholeRows(
        offsets,
        timestamps,
        _optional(keys),
        RawCells.of(values),
        _optional(headers),
    )


def _optional(cells: list[bytes | None]) -> RawCells | None:
    return RawCells.of(cells) if any(cell is not None for cell in cells) else None


def declared(rows: list[Row], next_offset: int) -> bytes:
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * 5
    offsets, timestamps, keys, values, headers = columns
    present = [column if any(cell is not None for cell in column) else [] for column in (keys, headers)]
    return encode_reply(FetchRecords, FetchedRecords(next_offset, offsets, timestamps, present[0], values, present[1]))


@given(st.lists(rows, max_size=4), numbers)
def test_parts_of_blocks_are_encoded_as_the_operation_declares(parts: list[list[Row]], next_offset: int) -> None:
    assert encode_fetched_records([part_of(part) for part in parts], next_offset) == declared(
        [row for part in parts for row in part], next_offset
    )


@given(rows, st.integers(0, 300))
def test_as_many_rows_fit_as_take_no_more_bytes(rows: list[Row], bytes_max: int) -> None:
    whole = part_of(rows)
    count = whole.fitting(bytes_max)
    assert whole.head(count).size_bytes <= bytes_max
    assert count == len(rows) or whole.head(count + 1).size_bytes > bytes_max
    assert whole.head(len(rows)).size_bytes == whole.size_bytes


@pytest.mark.parametrize("native", [True, False], ids=["deployed", "contract"])
@pytest.mark.parametrize("keyed", [True, False], ids=["keys", "no keys"])
def test_many_rows_are_the_same_bytes_as_a_few_at_a_time(native: bool, keyed: bool) -> None:
    chance = random.Random(7)

    def column() -> list[bytes | None]:
        return [chance.choice((None, b"", chance.randbytes(chance.randint(1, 300)))) for _ in range(5 * few)]

    few = VECTOR_ROWS_MIN - 1
    offsets, keys, values = range(1 << 40, (1 << 40) + 5 * few), column() if keyed else None, column()
    parts = [
        Rows(offsets[start : start + few], keys and keys[start : start + few], values[start : start + few])
        for start in range(0, len(values), few)
    ]
    whole = encode_fetched(7, [Rows(offsets, keys, values)], 99, native=native)
    assert whole == encode_fetched(7, parts, 99, native=native)


# --- PRODUCE_ONCE ---

texts = st.text(max_size=5)
alike = st.tuples(st.integers(1, 20), st.binary(min_size=1, max_size=9)).map(lambda each: [each[1]] * each[0])
requests = st.builds(
    ProduceOnce,
    st.binary(min_size=16, max_size=16) | st.binary(max_size=20),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, (1 << 64) - 1),
    st.booleans(),
    texts,
    alike | st.lists(cells, max_size=5),
    st.just([]) | st.lists(cells, max_size=3),
    st.just([]),
    st.integers(-1, 3),
    st.integers(0, (1 << 64) - 1),
    texts,
)


@given(texts, st.lists(st.binary(max_size=9), max_size=5), st.integers(-1, 9), st.integers(0, 9), texts)
def test_produce_once_is_encoded_as_it_is_declared(
    topic: str, values: list[bytes], partition: int, ttl_ms: int, schema: str
) -> None:
    declared = ProduceOnce(bytes(16), 0, 0, False, topic, values, (), (), partition, ttl_ms, schema)
    assert encode_produce_once(topic, values, partition, ttl_ms, schema) == encode_request(declared)


def test_what_no_short_form_of_produce_once_can_hold_is_left_to_its_declaration() -> None:
    assert encode_produce_once("t", [b"a", None], -1, 0, "") is None
    assert encode_produce_once("t", [bytes(PAYLOAD_BYTES_MAX)], -1, 0, "") is None
    assert encode_produce_once("t" * 70_000, [b"a"], -1, 0, "") is None


def told(payload: bytes) -> tuple[object, object]:
    """What the short way and the long one make of a payload, in the middle of other bytes."""
    data = b"before" + payload + b"behind"
    start, end = len(b"before"), len(data) - len(b"behind")
    return decode_produce_once(data, start, end), decode_request(ProduceOnce.opcode, data, start, end)


@given(requests)
def test_produce_once_is_decoded_as_it_is_declared(request: ProduceOnce) -> None:
    short, long = told(encode_request(request)[HEADER_BYTES:])
    assert long == request
    sizes = {0 if value is None else len(value) for value in request.values}
    if len(sizes) == 1 and 0 not in sizes and len(request.producer) == 16 and not request.keys:
        assert short == request
    else:
        assert short is None


@given(requests, st.data())
def test_a_damaged_produce_once_is_what_its_declaration_says(request: ProduceOnce, data: st.DataObject) -> None:
    payload = bytearray(encode_request(request)[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.sampled_from([0, 1, 2, 127, 255]))
    short, long = told(bytes(payload[: data.draw(st.integers(0, len(payload)))]))
    assert short is None or short == long


def test_more_values_than_a_produce_once_may_have_are_refused() -> None:
    for count, refused in ((PRODUCED_RECORDS_MAX, False), (PRODUCED_RECORDS_MAX + 1, True)):
        payload = encode_request(ProduceOnce(bytes(16), 0, 0, False, "t", [b"v"] * count))[HEADER_BYTES:]
        short, long = told(payload)
        assert (short is None) == refused
        assert isinstance(long, ProduceOnce) != refused


@given(st.integers(0, 9999), st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 63) - 1))
def test_the_reply_for_one_place_is_coded_as_it_is_declared(partition: int, offset: int, timestamp_ms: int) -> None:
    reply = encode_stored_together(partition, offset, timestamp_ms)
    assert reply == encode_reply(ProduceOnce, StoredOnce([], [(partition, offset, timestamp_ms)], []))
    assert decode_stored_together(reply[HEADER_BYTES:]) == (partition, offset, timestamp_ms)


@pytest.mark.parametrize(
    "reply",
    [
        StoredOnce([0, 1], [(0, 1, 2), (1, 1, 2)], []),
        StoredOnce([0, 65535], [(0, 1, 2)], [RecordFailure(1, "no")]),
        StoredOnce([65535], [], [RecordFailure(0, "refused by its size")]),
        StoredOnce([], [], []),
    ],
    ids=["two places", "one refused", "all refused", "nothing"],
)
def test_other_replies_are_left_to_their_declaration(reply: StoredOnce) -> None:
    payload = encode_reply(ProduceOnce, reply)[HEADER_BYTES:]
    assert decode_stored_together(payload) is None
    assert decode_reply(ProduceOnce, payload) == reply
