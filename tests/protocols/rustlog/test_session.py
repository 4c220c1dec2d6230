"""The session on its own: order, back-pressure, what is held and released, and who is asking."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.broker.access.checks import ANONYMOUS, UNAUTHENTICATED
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.broker.topics.operations import Topics
from penstock.log.api import TopicConfig
from penstock.protocols.conversation import ROOM_NEEDED_BYTES_MIN
from penstock.protocols.rustlog.codec import binary_client, json_client, json_dialect, messages
from penstock.protocols.rustlog.codec.frames import ReplyDecoder
from penstock.protocols.rustlog.session import REQUESTS_PER_TURN_MAX, RustLog, RustLogSession
from penstock.protocols.rustlog.wire import DECODED_ON_LOOP_BYTES_MAX, Opcode, frame
from penstock.testing.clock import ManualClock
from tests.engines import make_engine
from tests.open_access import OpenAccess
from tests.protocols.endless import Endless
from tests.protocols.transport import MemoryConnection

PING = binary_client.encode_call(messages.Ping())


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    clock = ManualClock()
    engine = make_engine(tmp_path / "data", clock=clock)
    await engine.start()
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess())
    await broker.start()
    yield broker
    await broker.close()
    await engine.close()


@pytest.fixture
async def rustlog(broker: Broker) -> RustLog:
    return RustLog(broker, clock=ManualClock())


class Conversation:
    def __init__(self, rustlog: RustLog) -> None:
        self.connection = MemoryConnection("rustlog")
        self.session: RustLogSession = rustlog(self.connection)
        self._decoder = ReplyDecoder()
        self._replies: list[messages.Reply] = []

    async def hear(self, count: int) -> list[Opcode]:
        """What the next replies are."""
        while True:
            for data in self.connection.sends:
                self._replies += self._decoder.feed(data)
            self.connection.sends.clear()
            if len(self._replies) >= count:
                break
            await self.connection.arrived.wait()
            self.connection.arrived.clear()
        heard, self._replies = self._replies[:count], self._replies[count:]
        return [reply.opcode for reply in heard]


@pytest.fixture
async def talk(rustlog: RustLog) -> Conversation:
    return Conversation(rustlog)


async def test_replies_come_in_order_and_everything_held_is_released(talk: Conversation) -> None:
    requests = [
        binary_client.encode_produce("t", 0, [b"x"]),
        binary_client.encode_call(messages.CreateTopic("t", 1)),
        binary_client.encode_produce("t", 0, [b"x"]),
        json_client.encode_produce("t", 0, [b"y"]),
        PING,
        binary_client.encode_call(messages.Fetch("t", 0, 0, 100, "")),
        b"\x00\x00\x00\x01\x63",
    ]
    talk.session.receive(b"".join(requests))
    assert talk.connection.held_bytes >= sum(map(len, requests[1:]))
    assert await talk.hear(len(requests)) == [
        Opcode.ERROR,
        Opcode.CREATE_TOPIC,
        Opcode.PRODUCE,
        Opcode.PRODUCE,
        Opcode.PING,
        Opcode.FETCH,
        Opcode.ERROR,
    ]
    assert talk.connection.held_bytes == 0


@pytest.mark.dense
async def test_long_json_keeps_its_place_among_the_others(talk: Conversation, broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig())
    large = json_client.encode_produce("t", 0, [bytes(100_000), b"x"])
    small = json_client.encode_produce("t", 0, [b"y"])
    refused = json_client.encode_produce("t", 7, [bytes(100_000)])
    padded = b'{"Ping":{}}' + b" " * DECODED_ON_LOOP_BYTES_MAX
    fetch = binary_client.encode_call(messages.Fetch("t", 0, 0, 1 << 20, ""))
    talk.session.receive(b"".join([small, large, refused, small, frame(padded), fetch, large, PING]))
    replies = await talk.hear(8)
    assert replies[:4] == [Opcode.PRODUCE, Opcode.PRODUCE, Opcode.ERROR, Opcode.PRODUCE]
    assert replies[4:] == [Opcode.PING, Opcode.FETCH, Opcode.PRODUCE, Opcode.PING]
    assert broker.records.partition(ANONYMOUS, "t", 0).committed_end == 6
    assert talk.connection.held_bytes == 0


@pytest.mark.embedded
async def test_a_read_that_waits_for_room_counts_once(talk: Conversation, rustlog: RustLog, broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig())
    talk.session.receive(binary_client.encode_produce("t", 0, [bytes(ROOM_NEEDED_BYTES_MIN)]))
    await talk.hear(1)
    talk.connection.has_room = False
    fetch = binary_client.encode_call(messages.Fetch("t", 0, 0, 1 << 20, ""))
    talk.session.receive(fetch)
    assert not talk.connection.writable, "it waits for room"
    assert talk.connection.sends == []
    talk.connection.has_room = talk.connection.writable = True
    talk.session.resume()
    reply_bytes = len(talk.connection.sends[0])
    assert await talk.hear(1) == [Opcode.FETCH]
    stats = rustlog.stats
    assert stats.requests[Opcode.FETCH] == stats.sent_records == stats.fetch_seconds.count == 1
    assert stats.fetched_bytes == reply_bytes
    talk.session.receive(fetch)
    assert await talk.hear(1) == [Opcode.FETCH]
    assert stats.requests[Opcode.FETCH] == stats.sent_records == stats.fetch_seconds.count == 2


async def test_decoding_ends_with_its_connection(talk: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Endless()
    monkeypatch.setattr(json_dialect, "decode_request", lambda payload, check: endless.run(check))
    talk.session.receive(json_client.encode_produce("t", 0, [bytes(100_000)]) + PING)
    await endless.started()
    talk.session.closed()
    assert await endless.ends()
    while talk.connection.held_bytes:
        await asyncio.sleep(0)


async def test_an_exception_out_of_decoding_is_answered_and_the_conversation_continues(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(json_dialect, "decode_request", broken)
    talk.session.receive(json_client.encode_produce("t", 0, [bytes(100_000)]) + PING)
    assert await talk.hear(2) == [Opcode.ERROR, Opcode.PING]
    assert talk.connection.held_bytes == 0


async def test_nothing_is_started_while_the_peer_takes_no_replies(talk: Conversation) -> None:
    talk.connection.writable = False
    talk.session.receive(PING * 3)
    assert talk.connection.sends == []
    assert talk.connection.held_bytes > 0
    talk.connection.writable = True
    talk.session.resume()
    assert await talk.hear(3) == [Opcode.PING] * 3
    assert talk.connection.held_bytes == 0


async def test_a_long_queue_lets_others_have_their_turn(talk: Conversation) -> None:
    count = REQUESTS_PER_TURN_MAX * 3 + 1
    talk.session.receive(PING * count)
    assert len(b"".join(talk.connection.sends)) == REQUESTS_PER_TURN_MAX * len(PING)
    assert await talk.hear(count) == [Opcode.PING] * count


async def test_a_connection_that_goes_gives_back_what_its_queue_held(talk: Conversation, rustlog: RustLog) -> None:
    assert rustlog.stats.sessions_open == 1
    talk.connection.writable = False
    talk.session.receive(PING * 3)
    talk.session.closed()
    assert talk.connection.held_bytes == 0
    assert rustlog.stats.sessions_open == 0


async def test_a_broken_frame_is_answered_after_what_came_before_it(talk: Conversation, broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig())
    talk.session.receive(binary_client.encode_produce("t", 0, [b"x"]) + bytes(4))
    closing_before = talk.connection.closing
    assert await talk.hear(2) == [Opcode.PRODUCE, Opcode.ERROR]
    assert (closing_before, talk.connection.closing) == (False, True)
    assert talk.connection.held_bytes == 0


async def test_half_a_frame_is_told_to_the_connection(talk: Conversation) -> None:
    talk.session.receive(PING[:3])
    talk.session.receive(PING[3:])
    assert talk.connection.pending_calls == [True, False]


async def test_a_bug_is_logged_once_and_answered_each_time(talk: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> bytes:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Topics, "names", broken)
    with capture_logs() as logs:
        talk.session.receive(
            binary_client.encode_call(messages.ListTopics()) + json_client.encode_call(messages.ListTopics()) + PING
        )
        assert await talk.hear(3) == [Opcode.ERROR, Opcode.ERROR, Opcode.PING]
    assert [entry["event"] for entry in logs] == ["request_failed"]


async def test_a_certificate_names_who_is_asking(broker: Broker) -> None:
    rustlog = RustLog(broker, clock=ManualClock(), principal=UNAUTHENTICATED)
    connection = MemoryConnection("rustlog")
    assert rustlog(connection)._principal.name == ""
    connection.principal_hint = "CN=alice"
    principal = rustlog(connection)._principal
    assert (principal.name, principal.trusted, principal.address) == ("CN=alice", False, connection.peer)
