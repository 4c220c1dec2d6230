"""Bytes to commands: the same however they are cut, both forms of everything that has two, and bounds that hold."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.fujin.codec.commands import RUN_BYTES_MAX, Decoder, SharedForm, WriteForm
from penstock.protocols.fujin.codec.messages import (
    BadCommand,
    Command,
    ConnectReader,
    ConnectWriter,
    Disconnect,
    Fetch,
    RefusedWrite,
    Settle,
    Transact,
    WriteRun,
)
from tests.protocols.fujin.requests import (
    CONNECT_WRITER,
    DISCONNECT,
    ack,
    begin,
    commit,
    connect_reader,
    fetch,
    nack,
    rollback,
    text,
    u32,
    write,
    write_table,
)


def flat(commands: list[Command]) -> list[object]:
    """Runs as single writes, because where a run ends depends on where a read does; and no sizes of those."""
    single: list[object] = []
    for command in commands:
        if isinstance(command, WriteRun):
            headers = command.headers or [()] * len(command.values)
            rows = zip(command.correlation_ids, command.values, headers, strict=True)
            single += [(command.topic, *row) for row in rows]
        else:
            single.append(command)
    return single


def decode(data: bytes, decoder: Decoder | None = None) -> list[object]:
    return flat((decoder or Decoder()).feed(data))


def decode_in_pieces(data: bytes, cuts: list[int], decoder: Decoder | None = None) -> list[object]:
    decoder = decoder or Decoder()
    commands: list[Command] = []
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, stop in pairwise(edges):
        commands += decoder.feed(data[start:stop])
    return flat(commands)


topics = st.binary(max_size=6) | st.sampled_from([b"orders", b"pub"])
bodies = st.binary(max_size=40) | st.sampled_from([b"", b"\0" * 6, bytes(70_000)])
ids = st.lists(st.binary(max_size=12), max_size=5)
numbers = st.integers(0, 0xFFFFFFFF)
strings = st.lists(st.binary(max_size=5), max_size=6)
writer_commands = st.one_of(
    st.builds(write, numbers, topics, bodies),
    st.builds(begin, numbers),
    st.builds(commit, numbers),
    st.builds(rollback, numbers),
)
table_commands = st.one_of(
    st.builds(
        lambda number, topic, body, more: write_table(number, topic, body, *more), numbers, topics, bodies, strings
    ),
    st.builds(begin, numbers),
)
reader_commands = st.one_of(
    st.builds(fetch, numbers, numbers), st.builds(ack, numbers, ids), st.builds(nack, numbers, ids)
)
ends = st.sampled_from([b"", DISCONNECT, b"\0", b"\x0b", b"\3\0\0\0\1\xff\xff\xff\xff"])
writer_talks = st.builds(
    lambda connect, commands, end: connect + b"".join(commands) + end,
    st.sampled_from([CONNECT_WRITER, b"\1\0\0\0\3abc", b"\1\0\0\0\7"]),
    st.lists(writer_commands | table_commands, max_size=8),
    ends,
)
reader_talks = st.builds(
    lambda connect, commands, end: connect + b"".join(commands) + end,
    st.builds(connect_reader, topics, kind=st.integers(0, 3), auto_commit=st.integers(0, 2)),
    st.lists(reader_commands, max_size=8),
    ends,
)
cuts = st.lists(st.integers(0, 1 << 30), max_size=12)


@given(writer_talks | reader_talks | st.binary(max_size=200), cuts, st.sampled_from([None, *WriteForm]))
def test_any_cutting_gives_the_same_commands(data: bytes, cuts: list[int], form: WriteForm | None) -> None:
    whole = decode(data, Decoder(body_bytes_max=60_000, shared=SharedForm(form)))
    assert decode_in_pieces(data, cuts, Decoder(body_bytes_max=60_000, shared=SharedForm(form))) == whole


@given(writer_talks | reader_talks | st.binary(max_size=200))
def test_byte_by_byte_is_like_all_at_once(data: bytes) -> None:
    data = data[:2000]
    assert decode_in_pieces(data, list(range(len(data)))) == decode(data)


@given(
    st.lists(st.tuples(numbers, st.sampled_from([b"a", b"orders"]), st.binary(min_size=1, max_size=2000)), max_size=20),
    cuts,
)
def test_writes_of_deployed_clients_arrive_as_they_were_sent(
    writes: list[tuple[int, bytes, bytes]], cuts: list[int]
) -> None:
    data = CONNECT_WRITER + b"".join(write(*each) for each in writes)
    expected = [(topic.decode(), u32(number), body, ()) for number, topic, body in writes]
    assert decode_in_pieces(data, cuts)[1:] == expected


pairs = st.lists(st.tuples(st.text(min_size=1, max_size=5), st.binary(max_size=9)), max_size=4)


@given(st.lists(st.tuples(numbers, pairs, st.binary(min_size=1, max_size=2000)), max_size=20), cuts)
def test_writes_with_headers_arrive_as_they_were_sent(
    writes: list[tuple[int, list[tuple[str, bytes]], bytes]], cuts: list[int]
) -> None:
    data = CONNECT_WRITER
    for number, headers, body in writes:
        data += write_table(
            number, b"orders", body, *(each for key, value in headers for each in (key.encode(), value))
        )
    expected = [("orders", u32(number), body, tuple(headers)) for number, headers, body in writes]
    assert decode_in_pieces(data, cuts)[1:] == expected


# -- connecting --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("following", [3, 4, 5, 6, 10])
def test_a_number_for_a_writer_id_is_told_by_the_command_after_it(following: int) -> None:
    decoder = Decoder()
    assert decoder.feed(b"\1\0\0\0\7") == []
    assert decoder.announces_writer
    assert not decoder.partial
    (connected, *_) = decoder.feed(bytes((following, 0, 0, 0, 1)))
    assert connected == ConnectWriter(7, 5)
    assert not decoder.announces_writer


def test_a_text_for_a_writer_id_follows_its_length() -> None:
    commands = Decoder().feed(b"\1\0\0\0\3wid" + begin(1))
    assert commands == [ConnectWriter(b"wid", 8), Transact(4, u32(1))]


def test_a_writer_id_longer_than_any_is_no_command() -> None:
    (bad,) = Decoder().feed(b"\1\0\1\0\0x")
    assert isinstance(bad, BadCommand)
    assert bad.fresh


def test_a_number_for_a_writer_id_may_be_large() -> None:
    assert Decoder().feed(b"\1\xff\xff\xff\xff" + begin(1))[0] == ConnectWriter(0xFFFFFFFF, 5)


def test_readers_say_what_they_want() -> None:
    commands = Decoder().feed(connect_reader(b"t", kind=2, auto_commit=1) + fetch(1, 5))
    assert commands == [ConnectReader(2, 1, b"t", 8), Fetch(u32(1), 5)]


def test_a_reader_that_announces_more_than_a_name_is_told_at_once() -> None:
    decoder = Decoder()
    assert decoder.feed(b"\2\1\0\xff\xff\xff\xff" + bytes(100)) == [ConnectReader(1, 0, None, 7)]
    assert decoder.feed(bytes(100)) == []
    assert not decoder.partial


@pytest.mark.parametrize("first", [0, *range(3, 256)])
def test_what_does_not_connect_is_no_beginning(first: int) -> None:
    (bad,) = Decoder().feed(bytes((first, 0, 0, 0, 0)))
    assert isinstance(bad, BadCommand)
    assert bad.fresh


@pytest.mark.parametrize("number", [0, 1, 2, 7, 8, 9, *range(11, 256)])
def test_a_writer_may_not_say_what_readers_do(number: int) -> None:
    decoder = Decoder()
    commands = decoder.feed(CONNECT_WRITER + begin(1) + bytes((number,)) + begin(2))
    assert commands[:2] == [ConnectWriter(None, 5), Transact(4, u32(1))]
    assert isinstance(commands[2], BadCommand)
    assert not commands[2].fresh
    assert len(commands) == 3
    assert decoder.feed(begin(3)) == []


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 5, 6, *range(11, 256)])
def test_a_reader_may_not_say_what_writers_do(number: int) -> None:
    commands = Decoder().feed(connect_reader(b"t") + bytes((number,)) + fetch(1, 1))
    assert isinstance(commands[1], BadCommand)
    assert len(commands) == 2


def test_nothing_is_heard_after_disconnect() -> None:
    decoder = Decoder()
    assert decoder.feed(CONNECT_WRITER + DISCONNECT + begin(1)) == [ConnectWriter(None, 5), Disconnect()]
    assert decoder.feed(begin(1) + b"\xff") == []
    assert not decoder.partial


# -- writes ------------------------------------------------------------------------------------------------------------------


def test_writes_to_one_topic_in_one_read_are_one_run() -> None:
    writes = [write(number, b"orders", b"%d" % number) for number in range(100)]
    _, run = Decoder().feed(CONNECT_WRITER + b"".join(writes))
    assert isinstance(run, WriteRun)
    assert run.values == [b"%d" % number for number in range(100)]
    assert run.correlation_ids == [u32(number) for number in range(100)]
    assert run.headers is None
    assert run.size_bytes == sum(map(len, writes))


@pytest.mark.parametrize("strings", [(), (b"k", b"v")])
def test_writes_of_the_table_form_are_one_run_too(strings: tuple[bytes, ...]) -> None:
    writes = [write_table(number, b"orders", b"%d" % number, *strings) for number in range(100)]
    _, run = Decoder().feed(CONNECT_WRITER + b"".join(writes))
    assert isinstance(run, WriteRun)
    assert len(run.values) == 100
    assert run.headers == ([(("k", b"v"),)] * 100 if strings else None)
    assert run.size_bytes == sum(map(len, writes))


def test_a_run_may_have_headers_here_and_there() -> None:
    shapes: list[tuple[bytes, ...]] = [(), (b"k", b"v"), (), (), (b"a", b"b", b"c", b"")]
    data = b"".join(write_table(number, b"orders", b"x", *strings) for number, strings in enumerate(shapes))
    _, run = Decoder().feed(CONNECT_WRITER + data)
    assert isinstance(run, WriteRun)
    assert run.headers == [(), (("k", b"v"),), (), (), (("a", b"b"), ("c", b""))]
    assert run.size_bytes == len(data)


def test_another_topic_begins_another_run() -> None:
    order = [b"a", b"a", b"bb", b"a"]
    commands = Decoder().feed(CONNECT_WRITER + b"".join(write(1, topic, b"x") for topic in order))
    assert [(run.topic, len(run.values)) for run in commands if isinstance(run, WriteRun)] == [
        ("a", 2),
        ("bb", 1),
        ("a", 1),
    ]


def test_a_run_is_bounded() -> None:
    body = bytes(100_000)
    commands = Decoder().feed(CONNECT_WRITER + write(1, b"a", body) * 40)
    runs = [run for run in commands if isinstance(run, WriteRun)]
    assert sum(len(run.values) for run in runs) == 40
    assert len(runs) > 1
    assert max(run.size_bytes for run in runs) < RUN_BYTES_MAX + 3 * len(body)


def test_a_body_beyond_the_bound_is_refused_when_announced_and_skipped() -> None:
    decoder = Decoder(body_bytes_max=10)
    first = decoder.feed(CONNECT_WRITER + write(1, b"a", b"x" * 10) + write(2, b"a", b"x" * 1000)[:40])
    assert isinstance(first[-1], RefusedWrite)
    assert first[-1].correlation_id == u32(2)
    assert "1000 bytes" in first[-1].reason
    assert decoder.partial
    assert decoder.feed(b"x" * 900) == []
    rest = write(2, b"a", b"x" * 1000)[940:] + write(3, b"a", b"y")
    assert flat(decoder.feed(rest)) == [("a", u32(3), b"y", ())]
    assert not decoder.partial


def test_a_body_of_four_gigabytes_costs_nothing() -> None:
    decoder = Decoder()
    commands = decoder.feed(CONNECT_WRITER + b"\3" + u32(1) + text(b"a") + b"\xff\xff\xff\xff")
    assert isinstance(commands[-1], RefusedWrite)
    for _ in range(100):
        assert decoder.feed(bytes(1 << 16)) == []
    assert len(decoder._kept) == 0


def test_an_empty_topic_is_refused_and_the_conversation_continues() -> None:
    _, refused, *rest = Decoder().feed(CONNECT_WRITER + write(1, b"", b"x") + write(2, b"a", b"y"))
    assert refused == RefusedWrite(u32(1), "writer topic len arg not provided", 13)
    assert flat(rest) == [("a", u32(2), b"y", ())]


def test_a_topic_that_is_no_text_is_refused_and_the_conversation_continues() -> None:
    _, refused, *rest = Decoder().feed(CONNECT_WRITER + write(1, b"\xff", b"x") + write(2, b"a", b"y"))
    assert isinstance(refused, RefusedWrite)
    assert flat(rest) == [("a", u32(2), b"y", ())]


def test_a_topic_longer_than_can_be_waited_for_ends_the_conversation() -> None:
    _, refused, bad = Decoder().feed(CONNECT_WRITER + b"\3" + u32(1) + b"\xff\xff\xff\xff")
    assert isinstance(refused, RefusedWrite)
    assert isinstance(bad, BadCommand)
    assert not bad.fresh


@pytest.mark.parametrize(
    "headers",
    [
        (300).to_bytes(2, "big") + text(b"k") * 300,
        (2).to_bytes(2, "big") + text(b"k") + b"\xff\xff\xff\xff",
        (2).to_bytes(2, "big") + text(b"k") + text(bytes(70_000)),
    ],
)
def test_headers_beyond_their_bounds_end_the_conversation(headers: bytes) -> None:
    decoder = Decoder(shared=SharedForm(WriteForm.TABLE))
    _, refused, bad = decoder.feed(CONNECT_WRITER + b"\3" + u32(1) + text(b"a") + headers + text(b"x"))
    assert isinstance(refused, RefusedWrite)
    assert "headers" in refused.reason
    assert isinstance(bad, BadCommand)


def test_a_key_without_a_value_is_refused_and_the_conversation_continues() -> None:
    decoder = Decoder(shared=SharedForm(WriteForm.TABLE))
    commands = decoder.feed(CONNECT_WRITER + write_table(1, b"a", b"x", b"k") + write_table(2, b"a", b"y"))
    assert isinstance(commands[1], RefusedWrite)
    assert flat(commands[2:]) == [("a", u32(2), b"y", ())]


def test_a_key_that_is_no_text_is_refused() -> None:
    commands = Decoder().feed(CONNECT_WRITER + write_table(1, b"a", b"x", b"\xff", b"v"))
    assert isinstance(commands[1], RefusedWrite)


# -- the two forms -----------------------------------------------------------------------------------------------------------

SIZES = [1, 2, 3, 5, 255, 256, 257, 1024, 3000, 65_535, 65_536, 65_537, 131_072, 200_000, 1 << 20]
FILLS = [b"a", b"\0", b"\3", b"\xff"]


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("size", SIZES)
def test_a_first_write_of_a_deployed_client_is_understood_whatever_its_size(size: int, fill: bytes) -> None:
    if fill == b"\3" and size % 131_072 == 0:
        fill = b"x"  # would be taken for the length of a header's key
    body = fill * size
    assert decode(CONNECT_WRITER + write(1, b"pub", body))[1:] == [("pub", u32(1), body, ())]


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("size", [size for size in SIZES if size < 65_536])
@pytest.mark.parametrize("strings", [(), (b"k", b"v"), (b"k" * 1024, b"v") * 3])
def test_a_first_write_of_the_table_form_is_understood(size: int, fill: bytes, strings: tuple[bytes, ...]) -> None:
    body = fill * size
    headers = tuple(zip(map(bytes.decode, strings[::2]), strings[1::2], strict=True))
    assert decode(CONNECT_WRITER + write_table(1, b"pub", body, *strings))[1:] == [("pub", u32(1), body, headers)]


@pytest.mark.parametrize("size", [65_536, 70_000, 1 << 20])
def test_once_known_the_table_form_may_have_large_bodies(size: int) -> None:
    data = CONNECT_WRITER + write_table(1, b"pub", b"x") + write_table(2, b"pub", bytes(size))
    assert decode(data)[2:] == [("pub", u32(2), bytes(size), ())]


def test_once_known_an_empty_body_is_refused_at_once() -> None:
    decoder = Decoder()
    decoder.feed(CONNECT_WRITER + write(1, b"pub", b"x"))
    assert decoder.feed(write(2, b"pub", b"")) == [RefusedWrite(u32(2), "write size arg not provided", 16)]
    decoder = Decoder()
    decoder.feed(CONNECT_WRITER + write_table(1, b"pub", b"x"))
    assert decoder.feed(write_table(2, b"pub", b"")) == [RefusedWrite(u32(2), "write size arg not provided", 18)]


def test_what_one_stream_shows_holds_for_the_others_of_its_connection() -> None:
    shared = SharedForm()
    first, second = Decoder(shared=shared), Decoder(shared=shared)
    first.feed(CONNECT_WRITER + write_table(1, b"pub", b"x"))
    large = bytes(70_000)
    assert flat(second.feed(CONNECT_WRITER + write_table(1, b"pub", large)))[1:] == [("pub", u32(1), large, ())]


@pytest.mark.parametrize("form", list(WriteForm))
def test_a_form_that_is_set_is_not_doubted(form: WriteForm) -> None:
    body = b"\0\0\0\2" + bytes(100)
    make = write if form is WriteForm.CODE else write_table
    decoder = Decoder(shared=SharedForm(form))
    assert flat(decoder.feed(CONNECT_WRITER + make(1, b"pub", body)))[1:] == [("pub", u32(1), body, ())]


def is_undecided(decoder: Decoder) -> bool:
    return decoder.is_undecided


def test_an_empty_first_body_without_the_field_is_known_by_the_silence_after_it() -> None:
    decoder = Decoder()
    assert decode(CONNECT_WRITER + write(9, b"pub", b""), decoder) == [ConnectWriter(None, 5)]
    assert is_undecided(decoder)
    assert decoder.decide_empty() == [RefusedWrite(u32(9), "write size arg not provided", 16)]
    assert not is_undecided(decoder)
    assert not decoder.partial
    assert flat(decoder.feed(write(10, b"pub", b"x"))) == [("pub", u32(10), b"x", ())]


def test_what_another_stream_shows_meanwhile_decides_it() -> None:
    shared = SharedForm()
    first, second = Decoder(shared=shared), Decoder(shared=shared)
    said = write_table(9, b"pub", b"x")
    assert first.feed(CONNECT_WRITER + said[:16]) == [ConnectWriter(None, 5)]
    assert is_undecided(first)
    second.feed(CONNECT_WRITER + write_table(1, b"pub", b"y"))
    assert not is_undecided(first)
    assert first.decide_empty() == []
    assert flat(first.feed(said[16:])) == [("pub", u32(9), b"x", ())]


def test_a_byte_more_and_it_is_no_longer_undecided() -> None:
    decoder = Decoder()
    data = write_table(9, b"pub", b"xyz")
    decoder.feed(CONNECT_WRITER + data[:16])
    assert is_undecided(decoder)
    assert decoder.feed(data[16:17]) == []
    assert not is_undecided(decoder)
    assert decoder.decide_empty() == []
    assert flat(decoder.feed(data[17:])) == [("pub", u32(9), b"xyz", ())]


# -- settling ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "number"), [(ack, 8), (nack, 9)])
def test_ids_come_as_they_are(make: object, number: int) -> None:
    assert callable(make)
    data = make(5, [b"", b"!", b"12345678"])
    assert Decoder().feed(connect_reader(b"t") + data)[1:] == [
        Settle(number, u32(5), [b"", b"!", b"12345678"], len(data))
    ]


def test_more_ids_than_can_be_waited_for_end_the_conversation() -> None:
    commands = Decoder().feed(connect_reader(b"t") + b"\x08" + u32(1) + u32(0xFFFFFFFF))
    assert isinstance(commands[-1], BadCommand)


def test_an_id_longer_than_can_be_waited_for_ends_the_conversation() -> None:
    commands = Decoder().feed(connect_reader(b"t") + b"\x08" + u32(1) + u32(1) + u32(0xFFFFFFFF))
    assert isinstance(commands[-1], BadCommand)


def test_what_is_beyond_the_bound_of_one_feed_is_decoded_by_the_next() -> None:
    data = CONNECT_WRITER + b"".join(map(begin, range(7))) + write(8, b"orders", b"x") * 100 + commit(9)[:3]
    decoder = Decoder(commands_max=3)
    feeds = [decoder.feed(data)]
    while decoder.more:
        feeds.append(decoder.feed(b""))
    assert [len(commands) for commands in feeds] == [3, 3, 3, 0]
    assert [command for commands in feeds for command in commands] == Decoder().feed(data)
    assert decoder.partial
    assert decoder.kept_bytes == 3
