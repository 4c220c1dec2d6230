"""Whatever a client says, in whatever pieces: the session answers or ends, releases what it holds, and never fails.

A writer's replies come in the order of its requests, one each; a stream has at most one DISCONNECT, which is its last reply.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.broker import Broker
from penstock.protocols.fujin.codec.reply_decoding import Answer, Batch, Done, Goodbye, ReplyDecoder, Settled
from penstock.protocols.fujin.server.settings import FujinSettings
from penstock.protocols.fujin.session import Fujin
from penstock.testing.clock import ManualClock
from tests.fuzz.stage import Stage, a_stage
from tests.protocols.fujin.memory import Client, Timers, settle, until
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
    tag,
    write,
)

numbers = st.integers(0, 0xFFFFFFFF)
topics = st.sampled_from([b"a", b"b", b"__groups", b"", b"\xff"])
bodies = st.binary(max_size=20) | st.just(bytes(2000))
ids = st.lists(st.binary(max_size=9) | st.integers(0, 20).map(tag), max_size=4)
OF_WRITERS = st.one_of(
    st.builds(write, numbers, topics, bodies),
    st.builds(begin, numbers),
    st.builds(commit, numbers),
    st.builds(rollback, numbers),
)
OF_READERS = st.one_of(
    st.builds(fetch, numbers, st.integers(0, 5)), st.builds(ack, numbers, ids), st.builds(nack, numbers, ids)
)
ENDS = st.sampled_from([b"", DISCONNECT, b"\xff", b"\3\0"])
CUTS = st.lists(st.integers(0, 1 << 16), max_size=6)


groups = map("group {}".format, count())


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with a_stage(tmp_path_factory.mktemp("fujin") / "data") as stage:
        yield stage


def converse(stage: Stage, data: bytes, cuts: list[int], *, with_ids: bool = False) -> list[Answer]:
    """The answers; readers are of a group of their own, and find two records."""
    return stage.run(_converse(stage.broker, stage.clock, data, cuts, with_ids))


async def _converse(broker: Broker, clock: ManualClock, data: bytes, cuts: list[int], with_ids: bool) -> list[Answer]:
    timers = Timers(clock)
    settings = FujinSettings(body_bytes_max=1000, ping_interval_s=1e6, group=next(groups), start="latest")
    fujin = Fujin(broker, settings=settings, after=timers.after)
    client = Client(fujin, timers)
    first = await client.reader(b"a")
    await client.writer().ask(write(1, b"a", b"one") + write(2, b"a", b"two"), size=12)
    first.session.aborted(0)
    side = client.open()
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, stop in pairwise(edges):
        side.say(data[start:stop])
    for _ in range(5):
        await settle()
        timers.advance(0.06)
    await settle()
    side.session.ended()
    await until(lambda: _passed(timers) and side.stream.has_ended)
    await until(lambda: side.stream.held_bytes == 0)
    side.session.closed()
    client.hang_up()
    assert fujin.stats.internal_errors == 0
    assert client.connection.closed_with is None
    assert broker.transactions.stats.open == 0
    return ReplyDecoder(with_ids=with_ids).feed(side.stream.sent)


def _passed(timers: Timers) -> bool:
    """Some time, so that what waits for a moment comes."""
    timers.advance(0.001)
    return True


@settings(max_examples=100)
@given(st.lists(OF_WRITERS, max_size=12), ENDS, CUTS)
def test_writers_are_answered_in_order(stage: Stage, commands: list[bytes], end: bytes, cuts: list[int]) -> None:
    """Behind a first write that shows their form, so that an empty body is one."""
    data = CONNECT_WRITER + write(0, b"a", b"x") + b"".join(commands) + end
    answers = converse(stage, data, cuts)
    assert answers[-1] == Goodbye()
    done = [answer for answer in answers[:-1] if isinstance(answer, Done)]
    assert len(done) == len(answers) - 1
    replies = [(command[0] - 1, int.from_bytes(command[1:5], "big")) for command in commands]
    assert [(answer.reply, answer.correlation_id) for answer in done] == [(2, 0), *replies]


@settings(max_examples=100)
@given(st.lists(OF_READERS, max_size=12), st.booleans(), st.integers(1, 2), CUTS)
def test_readers_are_answered_once_each(
    stage: Stage, commands: list[bytes], auto_commit: bool, kind: int, cuts: list[int]
) -> None:
    data = connect_reader(b"a", kind=kind, auto_commit=auto_commit) + b"".join(commands)
    answers = converse(stage, data, cuts, with_ids=not auto_commit)
    assert answers.count(Goodbye()) == 1
    assert answers[-1] == Goodbye()
    asked = sorted((command[0], int.from_bytes(command[1:5], "big")) for command in commands)
    settled = [(answer.reply, answer.correlation_id) for answer in answers if isinstance(answer, Settled)]
    fetched = [(7, answer.correlation_id) for answer in answers if isinstance(answer, Batch)]
    assert sorted(settled) == [each for each in asked if each[0] != 7]
    assert set(fetched) <= set(asked)


@settings(max_examples=100)
@given(st.sampled_from([b"", CONNECT_WRITER, connect_reader(b"a")]), st.binary(max_size=60), CUTS)
def test_any_bytes_are_lived_through(stage: Stage, begins: bytes, data: bytes, cuts: list[int]) -> None:
    converse(stage, begins + data or b"\0", cuts, with_ids=True)
