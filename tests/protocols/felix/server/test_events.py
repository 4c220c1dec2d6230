"""Blocks laid out as frames: every form, every cut, and what fits into no frame."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.block import Block, encode_block
from penstock.protocols.felix.codec.binary import Events
from penstock.protocols.felix.codec.frames import FrameDecoder, Reply, decode_reply
from penstock.protocols.felix.codec.messages import Event, EventBatch
from penstock.protocols.felix.codec.scopes import Scope
from penstock.protocols.felix.server.events import (
    CHUNK_BYTES_MAX,
    FRAME_BYTES_MAX,
    FRAME_EVENTS_MAX,
    Chunk,
    Form,
    Kind,
    encode_chunk,
)

SCOPE = Scope("t", "n", "s")
FORMS = [
    Form(Kind.EVENTS, SCOPE),
    Form(Kind.BATCHES, SCOPE),
    Form(Kind.SHARED),
    Form(Kind.SHARED, offsets=True),
    Form(Kind.ADDRESSED),
    Form(Kind.ADDRESSED, offsets=True),
]
ADDRESS = (7).to_bytes(8, "big")
NOW_MS = 1_000


def block(base_offset: int, *values: bytes | None, **given: Any) -> Block:
    return Block(encode_block(base_offset, 1, values, **given))


def frames_of(chunk: Chunk) -> list[Reply]:
    decoder = FrameDecoder()
    frames = [decode_reply(frame) for frame in decoder.feed(chunk.addressed_to(ADDRESS))]
    assert decoder.violation is None
    assert not decoder.partial
    return frames


def values_of(frames: list[Reply]) -> list[bytes]:
    values: list[bytes] = []
    for frame in frames:
        if isinstance(frame, Event):
            values.append(frame.payload)
        else:
            assert isinstance(frame, Events | EventBatch)
            assert 1 <= len(frame.payloads) <= FRAME_EVENTS_MAX
            assert len(frame.payloads) == 1 or sum(map(len, frame.payloads)) <= FRAME_BYTES_MAX
            values += frame.payloads
    return values


@pytest.mark.parametrize("form", FORMS, ids=str)
@given(
    sizes=st.lists(st.lists(st.sampled_from([0, 1, 5, 5000, 100_000]), min_size=1, max_size=90), max_size=6),
    start=st.integers(0, 120),
)
def test_everything_comes_once_and_in_order_in_every_form(form: Form, sizes: list[list[int]], start: int) -> None:
    blocks: list[Block] = []
    values: list[bytes] = []
    for block_sizes in sizes:
        some = [b"%d" % (len(values) + row) + bytes(size) for row, size in enumerate(block_sizes)]
        blocks.append(block(len(values), *some))
        values += some
    offset = start = min(start, len(values))
    found: list[bytes] = []
    while offset < len(values):
        chunk = encode_chunk(form, [each for each in blocks if each.next_offset > offset], offset, NOW_MS)
        frames = frames_of(chunk)
        if form.offsets:
            assert [values[frame.base_offset or 0] for frame in frames if isinstance(frame, Events)] == [
                frame.payloads[0] for frame in frames if isinstance(frame, Events)
            ]
        if form.kind is Kind.ADDRESSED:
            assert {frame.subscription_id for frame in frames if isinstance(frame, Events)} <= {7}
        some = values_of(frames)
        assert chunk.events == len(some)
        assert chunk.next_offset == offset + len(some)
        found += some
        offset = chunk.next_offset
    assert found == values[start:]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_events_of_one_size_come_as_others_do(form: Form) -> None:
    values = [b"%05d" % row for row in range(200)]
    ends = [20, 50, 53, 180, 200]
    blocks = [block(start, *values[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    with_null = block(200, *values[:30], None, *values[:30])
    found = values_of(frames_of(encode_chunk(form, [*blocks, with_null], 7, NOW_MS)))
    assert found == [*values[7:], *values[:30], b"", *values[:30]]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_chunk_ends_soon_after_its_bound(form: Form) -> None:
    large = block(0, *[bytes(10_000)] * 500)
    chunk = encode_chunk(form, [large], 0, NOW_MS)
    assert CHUNK_BYTES_MAX <= chunk.events * 10_000 <= CHUNK_BYTES_MAX + FRAME_BYTES_MAX


@pytest.mark.parametrize("form", [*FORMS, Form(Kind.EVENTS, Scope("t" * 80, "n" * 80, "s" * 80))], ids=str)
@pytest.mark.parametrize("value", [b"", b"x"])
def test_a_chunk_of_tiny_events_is_as_bounded_as_others(form: Form, value: bytes) -> None:
    count = 100_000
    tiny = block(0, *[value] * count)
    chunk = encode_chunk(form, [tiny], 0, NOW_MS)
    assert len(chunk.addressed_to(ADDRESS)) <= CHUNK_BYTES_MAX + 2 * FRAME_EVENTS_MAX * 400
    assert chunk.events == chunk.next_offset
    assert chunk.next_offset < count


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_an_event_that_fits_into_no_frame_is_left_out(form: Form) -> None:
    chunk = encode_chunk(form, [block(0, b"before", bytes(form.event_bytes_max + 1), b"after")], 0, NOW_MS)
    assert values_of(frames_of(chunk)) == [b"before", b"after"]
    assert (chunk.events, chunk.oversized, chunk.next_offset) == (2, 1, 3)
    if form.offsets:
        assert [frame.base_offset for frame in frames_of(chunk) if isinstance(frame, Events)] == [0, 2]
    largest = encode_chunk(form, [block(0, bytes(form.event_bytes_max))], 0, NOW_MS)
    assert len(values_of(frames_of(largest))[0]) == form.event_bytes_max


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_gaps_cut_batches_only_where_they_carry_offsets(form: Form) -> None:
    compacted = block(0, b"0", b"3", b"4", b"9", offsets=[0, 3, 4, 9])
    expiring = block(10, b"10", b"11", b"12", expiries=[0, NOW_MS, 0])
    chunk = encode_chunk(form, [compacted, expiring], 0, NOW_MS)
    frames = frames_of(chunk)
    assert values_of(frames) == [b"0", b"3", b"4", b"9", b"10", b"12"]
    assert chunk.next_offset == 13
    if form.offsets:
        assert [frame.base_offset for frame in frames if isinstance(frame, Events)] == [0, 3, 9, 12]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_block_of_which_nothing_may_be_shown_is_passed_by(form: Form) -> None:
    chunk = encode_chunk(form, [block(0, b"gone", b"too", expiries=[1, 1])], 0, NOW_MS)
    assert (chunk.events, chunk.next_offset, chunk.addressed_to(ADDRESS)) == (0, 2, b"")
