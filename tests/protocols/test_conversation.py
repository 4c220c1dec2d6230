"""What the sessions of all protocols share: bounded decoding, replies in order, background work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from penstock.broker.broker import Broker
from penstock.errors import PenstockError, ProtocolViolation
from penstock.protocols.blipmq import codec as blipmq_codec
from penstock.protocols.conversation import (
    BACKLOG_CHUNK_BYTES_MIN,
    GATHERED_BYTES_MAX,
    REQUEST_BYTES_MIN,
    ROOM_NEEDED_BYTES_MIN,
    Conversation,
    Decoder,
    ReplySlot,
)
from penstock.protocols.felix import wire as felix_wire
from penstock.protocols.felix.codec import frames as felix_frames
from penstock.protocols.flymq import wire as flymq_wire
from penstock.protocols.flymq.codec import frames as flymq_frames
from penstock.protocols.fujin import wire as fujin_wire
from penstock.protocols.fujin.codec import commands as fujin_commands
from penstock.protocols.rustlog.codec import frames as rustlog_frames
from penstock.stats import SessionStats
from tests.protocols.transport import MemoryTransport

PER_TURN = 3
READ_BYTES = 100_000


class Words:
    """Decodes words that end in a space, three in one `feed`; `bad ` is none."""

    def __init__(self) -> None:
        self._kept = b""
        self.more = False
        self.violation: ProtocolViolation | None = None

    @property
    def partial(self) -> bool:
        return bool(self._kept)

    @property
    def kept_bytes(self) -> int:
        return len(self._kept)

    def feed(self, data: bytes) -> list[bytes]:
        self._kept += data
        words: list[bytes] = []
        while b" " in self._kept and len(words) < PER_TURN:
            word, _, self._kept = self._kept.partition(b" ")
            if word == b"bad":
                self.violation = ProtocolViolation("a bad word")
                break
            words.append(word)
        self.more = b" " in self._kept and self.violation is None
        return words

    def forget(self) -> None:
        self._kept = b""


class Counts(SessionStats):
    def requests_by_name(self) -> dict[str, int]:
        return {}


class Wire(MemoryTransport):
    """What a session sees of a connection; steps run when the test lets the loop turn."""

    def __init__(self) -> None:
        super().__init__("words")
        self.writable = True
        self.sends: list[bytes] = []
        self.partial_bytes = 0
        self.room_bytes = 1 << 30
        self.violations: list[ProtocolViolation] = []

    def room_for(self, size_bytes: int) -> bool:
        self.writable = size_bytes <= self.room_bytes
        return self.writable

    def send(self, data: bytes) -> None:
        assert data
        self.sends.append(data)

    def close(self) -> None:
        raise AssertionError("nobody asked for it")

    def frame_pending(self, pending: bool, kept_bytes: int = 0) -> None:
        super().frame_pending(pending, kept_bytes)
        self.partial_bytes = kept_bytes

    def set_authenticated(self, authenticated: bool) -> None:
        raise AssertionError("nobody asked for it")

    def call_soon(self, step: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                step()
            except ProtocolViolation as violation:
                self.violations.append(violation)

        super().call_soon(guarded)


class Echo(Conversation[bytes]):
    """Answers each word with itself; `later` and `fails` in the background, `write` when the test says so."""

    def __init__(self, broker: Broker, wire: Wire, counts: Counts) -> None:
        super().__init__(broker, wire, Words(), counts)
        self.started: list[bytes] = []
        self.writes: list[ReplySlot] = []
        self.gate = asyncio.Event()

    def _held_bytes(self, message: bytes) -> int:
        return max(len(message), REQUEST_BYTES_MIN)

    def _must_wait(self, message: bytes) -> bool:
        return message != b"write"

    def _start(self, message: bytes) -> None:
        self.started.append(message)
        slot = self.reserve(self._held_bytes(message), late=message == b"late")
        if message in (b"later", b"fails"):
            self._answer_later(message, slot, self._work(message))
        elif message in (b"write", b"late"):
            self._writes_in_flight += 1
            self.writes.append(slot)
        else:
            self._answer_read(message, slot, message)

    def _reply_bytes_max(self, message: bytes) -> int:
        return READ_BYTES if message.startswith((b"read", b"later")) else 0

    async def _work(self, message: bytes) -> bytes:
        await self.gate.wait()
        if message == b"fails":
            raise RuntimeError("a bug")
        return message

    def _refusal(self, message: bytes, error: Exception) -> bytes:
        self._stats.errors += 1
        if not isinstance(error, PenstockError):
            self._log_bug(error)
        return b"!" + message

    def written(self) -> None:
        self._settle_write(self.writes.pop(0), b"written")


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
async def echo(broker: Broker, wire: Wire, counts: Counts) -> Echo:
    return Echo(broker, wire, counts)


async def turn() -> None:
    await asyncio.sleep(0)


# --- bounded decoding ---


async def test_a_turn_decodes_a_share_and_the_next_continues(echo: Echo, wire: Wire) -> None:
    echo.receive(b"1 2 3 4 5 6 7 hal")
    assert wire.sends == [b"123"]
    assert wire.held_bytes == len(b"4 5 6 7 hal")
    await turn()
    assert wire.sends == [b"123", b"456"]
    assert not wire.pending
    await turn()
    assert wire.sends == [b"123", b"456", b"7"]
    assert wire.held_bytes == 0
    assert (wire.pending, wire.partial_bytes) == (True, 3)


async def test_no_more_is_decoded_while_messages_wait(echo: Echo, wire: Wire) -> None:
    wire.writable = False
    echo.receive(b"1 2 3 4 5 6 ")
    for _ in range(5):
        await turn()
    assert wire.held_bytes == 3 * REQUEST_BYTES_MIN + len(b"4 5 6 ")
    wire.writable = True
    echo.resume()
    await turn()
    assert b"".join(wire.sends) == b"123456"


async def test_what_comes_meanwhile_waits_for_its_turn(echo: Echo, wire: Wire) -> None:
    echo.receive(b"1 2 3 4 5 6 7 ei")
    echo.receive(b"ght 9 ")
    echo.receive(b"10 11 ")
    assert wire.held_bytes == len(b"4 5 6 7 eight 9 10 11 ")
    for _ in range(5):
        await turn()
    assert b"".join(wire.sends) == b"1234567eight91011"
    assert wire.held_bytes == 0


async def test_small_reads_that_wait_are_joined(echo: Echo, wire: Wire) -> None:
    wire.writable = False
    echo.receive(b"1 2 3 4 ")
    for _ in range(1000):
        echo.receive(b"x")
    assert len(echo._backlog) == 1
    echo.receive(bytes(BACKLOG_CHUNK_BYTES_MIN))
    echo.receive(b"x")
    assert len(echo._backlog) == 2


async def test_a_violation_is_reported_after_what_came_before_it(echo: Echo, wire: Wire) -> None:
    echo.receive(b"1 2 3 4 bad 6 ")
    echo.receive(b"7 ")
    assert not wire.violations
    await turn()
    assert wire.sends == [b"123", b"4"]
    assert [str(violation) for violation in wire.violations] == ["a bad word"]
    assert wire.held_bytes == 0


async def test_a_violation_in_the_first_share_is_raised_at_once(echo: Echo, wire: Wire) -> None:
    with pytest.raises(ProtocolViolation, match="a bad word"):
        echo.receive(b"1 bad ")
    assert wire.sends == [b"1"]


async def test_what_waits_is_released_when_the_connection_is_gone(echo: Echo, wire: Wire) -> None:
    wire.writable = False
    echo.receive(b"1 2 3 4 5 ")
    echo.receive(b"6 ")
    echo.closed()
    assert wire.held_bytes == 0
    await turn()
    assert wire.sends == []


async def test_messages_behind_a_full_queue_keep_their_order(echo: Echo, wire: Wire) -> None:
    """Also those that come when some of it are started, and those that wait for room again."""
    read = b"read" + bytes(ROOM_NEEDED_BYTES_MIN)
    wire.writable, wire.room_bytes = False, 0
    for words in (b"0 1 ", read + b" 2 ", b"3 ", b"4 "):
        echo.receive(words)
    wire.writable = True
    echo.resume()
    assert echo.started == [b"0", b"1", read]
    assert not wire.writable
    echo.receive(b"5 ")
    wire.writable, wire.room_bytes = True, 1 << 20
    echo.resume()
    assert echo.started[3:] == [read, b"2", b"3", b"4", b"5"]
    assert wire.held_bytes == 0


async def test_everything_that_waits_is_released_with_its_connection(echo: Echo, wire: Wire) -> None:
    wire.writable = False
    for word in (b"1 ", b"2 ", b"3 "):
        echo.receive(word)
    echo.closed()
    assert wire.held_bytes == 0


async def test_a_small_read_behind_a_full_queue_moves_nothing_of_it(echo: Echo, wire: Wire) -> None:
    """A queue of 512 KiB took as long as fifty reads; here it is of 16 MiB, so that nothing else is as long."""

    def processor_s(reads: int = 100) -> float:
        begun_s = time.thread_time()
        for _ in range(reads):
            echo.receive(b"1 ")
        return time.thread_time() - begun_s

    wire.writable = False
    few_s = min(processor_s() for _ in range(5))
    echo._waiting[:0] = [b"1"] * (2 << 20)
    assert min(processor_s() for _ in range(5)) < 10 * few_s


# --- replies ---


async def test_half_a_message_is_freed_when_the_connection_is_gone(echo: Echo, wire: Wire) -> None:
    """The conversation itself may stay until the next garbage collection."""
    echo.receive(b"1 hal")
    assert echo._decoder.kept_bytes == len(b"hal")
    echo.closed()
    assert echo._decoder.kept_bytes == 0


@pytest.mark.parametrize(
    ("decoder", "half"),
    [
        (flymq_frames.RequestDecoder(), flymq_wire.HEADER.pack(flymq_wire.MAGIC, flymq_wire.VERSION, 1, 0, 100)),
        (blipmq_codec.Decoder(), (100).to_bytes(4, "big")),
        (rustlog_frames.RequestDecoder(), (100).to_bytes(4, "big")),
        (fujin_commands.Decoder(), bytes((fujin_wire.Request.CONNECT_READER, 0, 0))),
        (felix_frames.FrameDecoder(), felix_wire.HEADER.pack(felix_wire.MAGIC, felix_wire.VERSION, 0, 100)),
    ],
    ids=["flymq", "blipmq", "rustlog", "fujin", "felix"],
)
def test_every_decoder_frees_what_it_keeps(decoder: Decoder[object], half: bytes) -> None:
    assert decoder.feed(half) == []
    assert decoder.kept_bytes == len(half)
    decoder.forget()
    assert decoder.kept_bytes == 0


async def test_a_reply_that_is_ready_early_waits_for_those_before_it(echo: Echo, wire: Wire) -> None:
    echo.receive(b"write write ")
    first, second = echo.writes
    echo.answer(second, b"2")
    echo.flush()
    assert wire.sends == []
    echo.answer(first, b"1")
    echo.flush()
    assert wire.sends == [b"12"]


async def test_a_late_reply_keeps_no_place(echo: Echo, wire: Wire) -> None:
    echo.receive(b"late ")
    echo.answer(echo.reserve(0), b"2")
    echo.flush()
    echo.written()
    assert wire.sends == [b"2", b"written"]


async def test_writes_that_are_done_in_one_turn_are_answered_with_one_send(echo: Echo, wire: Wire) -> None:
    echo.receive(b"write write write ")
    echo.written()
    echo.written()
    assert wire.sends == []
    await turn()
    assert wire.sends == [b"writtenwritten"]


async def test_what_must_wait_for_writes_is_started_when_all_are_done(echo: Echo, wire: Wire) -> None:
    echo.receive(b"write write 3 ")
    assert echo.started == [b"write", b"write"]
    echo.written()
    assert echo.started == [b"write", b"write"]
    echo.written()
    assert wire.sends == [b"writtenwritten3"]


async def test_ready_replies_are_not_gathered_without_bound(echo: Echo, wire: Wire) -> None:
    echo.answer(echo.reserve(0), b"a")
    echo.answer(echo.reserve(0), bytes(GATHERED_BYTES_MAX))
    assert wire.sends == [b"a" + bytes(GATHERED_BYTES_MAX)]


# --- background work ---


async def test_what_follows_background_work_waits_for_it(echo: Echo, wire: Wire) -> None:
    echo.receive(b"later 2 ")
    await turn()
    assert echo.started == [b"later"]
    echo.gate.set()
    while wire.held_bytes:
        await turn()
    assert b"".join(wire.sends) == b"later2"


async def test_an_exception_in_background_work_is_answered_logged_once_and_the_next_request_is_started(
    echo: Echo, wire: Wire, counts: Counts
) -> None:
    echo.gate.set()
    with capture_logs() as logs:
        echo.receive(b"fails 2 fails ")
        while wire.held_bytes:
            await turn()
    assert b"".join(wire.sends) == b"!fails2!fails"
    assert (counts.errors, counts.internal_errors) == (2, 2)
    assert [entry["event"] for entry in logs] == ["request_failed"]


# --- room for replies ---


async def test_a_read_without_room_for_its_reply_is_made_again_when_there_is(echo: Echo, wire: Wire) -> None:
    read = b"read" + bytes(ROOM_NEEDED_BYTES_MIN)
    wire.room_bytes = ROOM_NEEDED_BYTES_MIN
    echo.receive(b"1 " + read + b" 3 ")
    assert wire.sends == [b"1"]
    assert echo.started == [b"1", read]
    assert wire.held_bytes == len(read) + REQUEST_BYTES_MIN
    wire.room_bytes, wire.writable = len(read), True
    echo.resume()
    assert echo.started == [b"1", read, read, b"3"]
    assert b"".join(wire.sends) == b"1" + read + b"3"
    assert wire.held_bytes == 0


async def test_small_replies_and_those_that_cannot_be_made_again_need_no_room(echo: Echo, wire: Wire) -> None:
    once = b"once" + bytes(ROOM_NEEDED_BYTES_MIN)
    wire.room_bytes = 0
    echo.receive(b"read " + once + b" ")
    assert b"".join(wire.sends) == b"read" + once


async def test_a_read_in_the_background_begins_when_there_is_room_for_its_reply(echo: Echo, wire: Wire) -> None:
    echo.gate.set()
    wire.room_bytes = READ_BYTES - 1
    echo.receive(b"later 2 ")
    await turn()
    assert wire.sends == []
    assert not echo._busy
    wire.room_bytes, wire.writable = READ_BYTES, True
    echo.resume()
    while wire.held_bytes:
        await turn()
    assert b"".join(wire.sends) == b"later2"
