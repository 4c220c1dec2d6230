"""Any bytes in any pieces, for both ends of Fujin: commands or replies, no error but the one there is for it, and a bounded buffer."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import ProtocolViolation
from penstock.protocols.fujin.codec.commands import Decoder, SharedForm, WriteForm
from penstock.protocols.fujin.codec.messages import BadCommand, Command, Settle
from penstock.protocols.fujin.codec.reply_decoding import Answer, ReplyDecoder
from tests.protocols.fujin import requests
from tests.protocols.fujin.requests import CONNECT_WRITER, connect_reader, tag, text, u32, write, write_table

KIB, MIB = 1 << 10, 1 << 20
CUTS = st.lists(st.integers(0, 1 << 16), max_size=8)
NUMBERS = st.integers(0, 0xFFFFFFFF)
SMALL = st.binary(max_size=30)
TOPICS = st.sampled_from([b"a", b"orders", b"\xff"])
IDS = st.lists(st.binary(max_size=9), max_size=6)
TALKS = st.one_of(
    st.lists(
        st.one_of(
            st.builds(write, NUMBERS, TOPICS, SMALL),
            st.builds(write_table, NUMBERS, TOPICS, SMALL, SMALL, SMALL),
            st.builds(requests.begin, NUMBERS),
            st.builds(requests.commit, NUMBERS),
        ),
        max_size=8,
    ).map(lambda parts: CONNECT_WRITER + b"".join(parts)),
    st.lists(
        st.one_of(
            st.builds(requests.fetch, NUMBERS, NUMBERS),
            st.builds(requests.ack, NUMBERS, IDS),
            st.builds(requests.nack, NUMBERS, IDS),
        ),
        max_size=8,
    ).map(lambda parts: connect_reader(b"a") + b"".join(parts)),
)
REPLIES = st.one_of(
    st.builds(requests.done, st.integers(2, 5), NUMBERS),
    st.builds(requests.failed, st.integers(2, 5), NUMBERS, SMALL),
    st.builds(lambda value: requests.message(value, 7), SMALL),
    st.builds(lambda number, values: requests.fetched(number, *values, first=3), NUMBERS, st.lists(SMALL, max_size=5)),
    st.builds(lambda number, ids: requests.settled(8, number, *((each, b"why") for each in ids)), NUMBERS, IDS),
    st.sampled_from([b"\1\0", b"\x0a", b"\x0c"]),
)
FORMS = st.sampled_from([None, *WriteForm])


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges)]


def replies(data: bytes, cuts: list[int]) -> tuple[list[Answer], bool]:
    """What a client makes of it, and whether it ended in a violation."""
    decoder = ReplyDecoder(with_ids=True)
    answers: list[Answer] = []
    try:
        for piece in pieces(data, cuts):
            answers += decoder.feed(piece)
    except ProtocolViolation:
        return answers, True
    return answers, False


@given(TALKS, st.integers(0), st.integers(0, 255), CUTS, FORMS)
def test_a_byte_that_is_wrong_never_breaks_a_server(
    data: bytes, at: int, byte: int, cuts: list[int], form: WriteForm | None
) -> None:
    changed = bytearray(data)
    changed[at % len(changed)] = byte
    decoder = Decoder(body_bytes_max=KIB, shared=SharedForm(form))
    commands: list[Command] = []
    for piece in pieces(bytes(changed), cuts):
        commands += decoder.feed(piece)
    assert sum(isinstance(command, BadCommand) for command in commands) <= 1


@given(st.binary(max_size=400), CUTS, FORMS)
def test_any_bytes_are_commands_or_the_end_of_the_conversation(
    data: bytes, cuts: list[int], form: WriteForm | None
) -> None:
    decoder = Decoder(body_bytes_max=100, shared=SharedForm(form))
    commands: list[Command] = []
    for piece in pieces(data, cuts):
        commands += decoder.feed(piece)
    for bad in (command for command in commands[:-1] if isinstance(command, BadCommand)):
        raise AssertionError(f"something was understood behind {bad}")


@given(st.lists(REPLIES, max_size=8), CUTS)
def test_replies_come_out_whole_however_they_are_cut(parts: list[bytes], cuts: list[int]) -> None:
    answers, violated = replies(b"".join(parts), cuts)
    assert not violated
    assert len(answers) == len(parts)


@given(st.lists(REPLIES | SMALL, max_size=8), CUTS)
@example([b"\7" + bytes(5) + b"\xff\xff\xff\xff"], [])
@example([b"\x08" + bytes(5) + b"\xff\xff\xff\xff"], [3])
@example([b"\6\xff\xff\xff\xff"], [])
def test_any_bytes_are_replies_or_a_violation_for_a_client(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    whole, cut = replies(data, []), replies(data, cuts)
    assert whole[1] == cut[1]
    assert cut[0][: len(whole[0])] == whole[0]


@pytest.mark.parametrize("number", [0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 16_385, 65_537])
def test_nothing_is_allocated_by_what_is_announced(number: int) -> None:
    lies = [
        b"\1" + u32(number) + b"\xee",
        b"\2\1\0" + u32(number),
        CONNECT_WRITER + b"\3" + u32(1) + u32(number),
        CONNECT_WRITER + b"\3" + u32(1) + text(b"a") + u32(number) + bytes(100),
        CONNECT_WRITER + b"\3" + u32(1) + text(b"a") + b"\xff\xff" + u32(number) + bytes(100),
        CONNECT_WRITER + b"\3" + u32(1) + text(b"a") + b"\0\2\0\0\0\1x" + u32(number) + bytes(100),
        connect_reader(b"a") + b"\x08" + u32(1) + u32(number),
        connect_reader(b"a") + b"\x09" + u32(1) + u32(1) + u32(number),
        connect_reader(b"a", kind=2) + b"\7" + u32(1) + u32(number),
    ]
    tracemalloc.start()
    try:
        for lie in lies:
            decoder = Decoder()
            decoder.feed(lie)
            decoder.feed(bytes(KIB))
        for reply in (b"\7" + bytes(5) + u32(number), b"\6" + u32(number), b"\x08" + bytes(5) + u32(number)):
            try:
                ReplyDecoder(with_ids=True).feed(reply + bytes(KIB))
            except ProtocolViolation:
                pass
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


@pytest.mark.timeout(30)
def test_what_drips_costs_no_more_than_what_pours() -> None:
    """An ACK of as many ids as there may be, one id at a time: walked again with each of them, it would take minutes."""
    ids = [tag(number) for number in range(16_384)]
    data = connect_reader(b"a") + requests.ack(7, ids) + requests.ack(8, ids[:2])
    decoder = Decoder()
    commands: list[Command] = []
    for at in range(0, len(data), 12):
        commands += decoder.feed(data[at : at + 12])
    settled = [command for command in commands if isinstance(command, Settle)]
    assert [command.ids for command in settled] == [ids, ids[:2]]
    assert not decoder.partial
