"""The pipelined connection on its own, with a toy protocol: one line a request, one line a reply."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from penstock.clients.pipeline import Exchange, Pipeline
from penstock.errors import ConnectionLost, ProtocolViolation, RequestTimeout


class Lines:
    """Bytes to a list of lines: all lines of one read are one message."""

    def __init__(self) -> None:
        self._rest = b""
        self.violation: ProtocolViolation | None = None

    def feed(self, data: bytes) -> Sequence[list[bytes]]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [whole] if whole else []


class Ask(Exchange[list[bytes]]):
    def __init__(self, data: bytes, replies: int = 1, timeout_s: float = 30.0) -> None:
        super().__init__(data, replies=replies, timeout_s=timeout_s, repeatable=False)
        self.lines: list[bytes] = []

    def accept(self, message: list[bytes], first: int, count: int) -> None:
        taken = message[first : first + count]
        if b"?" in taken:
            raise ProtocolViolation("a question is no answer")
        self.lines += taken


class Wire:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.ended = ""

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Setup:
    def __init__(self) -> None:
        self.lost: list[Pipeline[list[bytes]]] = []
        self.pipeline: Pipeline[list[bytes]] = Pipeline("peer", Lines(), len, self.lost.append)
        self.wire = Wire()
        self.pipeline.connection_made(cast(asyncio.BaseTransport, self.wire))

    def submit(self, *exchanges: Ask) -> None:
        for exchange in exchanges:
            self.pipeline.submit(exchange)


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@pytest.fixture
async def setup() -> Setup:
    return Setup()


async def test_what_is_submitted_in_one_turn_leaves_in_one_write(setup: Setup) -> None:
    setup.submit(Ask(b"a\n"), Ask(b"b\n"))
    assert setup.wire.written == []
    await turn()
    setup.submit(Ask(b"c\n"))
    await turn()
    assert setup.wire.written == [b"a\nb\n", b"c\n"]


async def test_replies_are_dealt_out_in_order_however_they_arrive(setup: Setup) -> None:
    one, three, last = Ask(b"a\n"), Ask(b"b\n", replies=3), Ask(b"c\n")
    setup.submit(one, three, last)
    await turn()
    setup.pipeline.data_received(b"1\n2\n3")
    assert one.finished.done()
    assert not three.finished.done()
    setup.pipeline.data_received(b"3\n4\n5\n")
    await asyncio.gather(one.finished, three.finished, last.finished)
    assert [one.lines, three.lines, last.lines] == [[b"1"], [b"2", b"33", b"4"], [b"5"]]


async def test_while_the_peer_takes_nothing_requests_wait_unwritten(setup: Setup) -> None:
    setup.pipeline.pause_writing()
    waiting = Ask(b"a\n")
    setup.submit(waiting)
    await turn()
    assert (setup.wire.written, waiting.written) == ([], False)
    setup.pipeline.resume_writing()
    assert (setup.wire.written, waiting.written) == ([b"a\n"], True)


async def test_a_request_that_is_cancelled_in_time_is_never_written(setup: Setup) -> None:
    given_up, wanted = Ask(b"a\n"), Ask(b"b\n")
    setup.submit(given_up, wanted)
    given_up.finished.cancel()
    await turn()
    assert setup.wire.written == [b"b\n"]
    only = Ask(b"c\n")
    setup.submit(only)
    only.finished.cancel()
    await turn()
    assert setup.wire.written == [b"b\n"]


async def test_a_lost_connection_fails_everything_and_tells_what_was_written(setup: Setup) -> None:
    written, unwritten = Ask(b"a\n"), Ask(b"b\n")
    setup.submit(written)
    await turn()
    setup.submit(unwritten)
    setup.pipeline.connection_lost(ConnectionResetError("reset by peer"))
    for exchange in (written, unwritten):
        with pytest.raises(ConnectionLost, match="reset by peer"):
            await exchange.finished
    assert (written.written, unwritten.written) == (True, False)
    assert setup.lost == [setup.pipeline]
    late = Ask(b"c\n")
    setup.submit(late)
    with pytest.raises(ConnectionLost):
        await late.finished
    assert late.finished.exception() is not setup.pipeline.lost


@pytest.mark.parametrize("data", [b"1\n2\n", b"?\n"], ids=["a reply too many", "no reply at all"])
async def test_an_answer_that_fits_nothing_ends_the_connection(setup: Setup, data: bytes) -> None:
    exchange = Ask(b"a\n")
    setup.submit(exchange)
    await turn()
    setup.pipeline.data_received(data)
    assert setup.wire.ended == "aborted"
    assert isinstance(setup.pipeline.lost, ProtocolViolation)
    setup.pipeline.data_received(b"more\n")
    await asyncio.wait([exchange.finished])
    assert exchange.finished.exception() is None or isinstance(exchange.finished.exception(), ProtocolViolation)


async def test_only_a_peer_that_has_answered_nothing_may_be_another_protocols(setup: Setup) -> None:
    answered = Setup()
    answered.submit(Ask(b"a\n"))
    await turn()
    answered.pipeline.data_received(b"A\n")
    for each in (setup, answered):
        each.pipeline.connection_lost(None)
    assert "wrong port" in str(setup.pipeline.lost)
    assert "wrong port" not in str(answered.pipeline.lost)


async def test_what_a_decoder_finds_wrong_behind_good_replies_counts_after_them() -> None:
    class Broken(Lines):
        def feed(self, data: bytes) -> Sequence[list[bytes]]:
            self.violation = ProtocolViolation("garbage")
            return super().feed(data)

    setup = Setup()
    setup.pipeline = Pipeline("peer", Broken(), len, setup.lost.append)
    setup.pipeline.connection_made(cast(asyncio.BaseTransport, setup.wire))
    first, second = Ask(b"a\n"), Ask(b"b\n")
    setup.submit(first, second)
    await turn()
    setup.pipeline.data_received(b"1\n")
    await first.finished
    with pytest.raises(ProtocolViolation, match="garbage"):
        await second.finished


async def test_the_oldest_request_is_the_one_that_is_late(setup: Setup) -> None:
    late, behind = Ask(b"a\n", timeout_s=0.01), Ask(b"b\n")
    setup.submit(late, behind)
    with pytest.raises(RequestTimeout, match=r"within 0\.01 s"):
        await late.finished
    with pytest.raises(ConnectionLost, match="an answer was late"):
        await behind.finished
    assert setup.wire.ended == "aborted"


async def test_the_watch_moves_on_to_the_next_request(setup: Setup) -> None:
    first, second = Ask(b"a\n", timeout_s=0.01), Ask(b"b\n", timeout_s=0.05)
    setup.submit(first, second)
    await turn()
    setup.pipeline.data_received(b"1\n")
    with pytest.raises(RequestTimeout, match=r"within 0\.05 s"):
        await second.finished
    assert first.lines == [b"1"]


async def test_closing_writes_what_was_queued_and_waits_until_the_connection_is_gone(setup: Setup) -> None:
    exchange = Ask(b"a\n")
    setup.submit(exchange)
    closing = asyncio.create_task(setup.pipeline.close())
    await turn()
    assert setup.wire.written == [b"a\n"]
    assert setup.wire.ended == "closed"
    assert not closing.done()
    setup.pipeline.connection_lost(None)
    await closing
    with pytest.raises(ConnectionLost):
        await exchange.finished
