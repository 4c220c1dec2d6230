"""Requests that are passed on to a node that does not answer them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.leading import Leading
from penstock.errors import OutcomeUnknown
from penstock.log.block import encode_block
from penstock.net.session import Introduction, Streams
from penstock.protocols.flymq.operations.operation import BadRequest, encode_reply, encode_request
from penstock.protocols.flymq.operations.records import ProduceOnce, StoredOnce
from penstock.protocols.flymq.operations.spark import StageCommit, Unstaged
from penstock.protocols.flymq.operations.topics import DeleteTopic, ListTopics
from penstock.protocols.flymq.server.dispatch import Node
from penstock.protocols.flymq.server.forwarding import ASKED_MAX, NodeSession, sent_again
from penstock.protocols.flymq.session import FlyMQ
from penstock.testing.clock import ManualClock
from tests.protocols.flymq.conversation import Conversation


class Leader:
    """A node that takes a request and closes the connection, with a reply or without."""

    def __init__(self) -> None:
        self.reply = b""
        self.asked: list[bytes] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._ask, "127.0.0.1", 0)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await reader.readexactly(4))
        writer.write(self.reply)
        writer.close()

    def owner(self, shard: int | None) -> str:
        return "one"

    async def dial(self, introduction: Introduction) -> Streams:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return await asyncio.open_connection(host, port)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()


@pytest.fixture
async def leader() -> AsyncIterator[Leader]:
    leader = Leader()
    await leader.start()
    yield leader
    await leader.stop()


@pytest.mark.parametrize(
    ("again", "asked"), [(lambda: b"pong", [b"ping", *[b"pong"] * (ASKED_MAX - 1)]), (None, [b"ping"])]
)
async def test_a_request_that_no_leader_survives_is_asked_a_few_times_at_most(
    leader: Leader, again: Callable[[], bytes] | None, asked: list[bytes]
) -> None:
    with pytest.raises(OutcomeUnknown, match="the node that was asked was lost before it answered"):
        await NodeSession(leader).ask(ANONYMOUS, None, b"ping", 1, again=again)
    assert leader.asked == asked


def test_a_request_of_an_idempotent_producer_is_asked_again_as_one_that_was_sent_before() -> None:
    request = ProduceOnce(bytes(16), 7, 5, False, "t", [b"v"])
    again = sent_again(request, encode_request(request))
    assert again is not None
    assert again() == encode_request(replace(request, resent=True))
    again = sent_again(ListTopics(), b"as it came")
    assert again is not None
    assert again() == b"as it came"
    assert sent_again(DeleteTopic("t"), b"as it came") is None
    assert sent_again(BadRequest("no"), b"as it came") is None


async def test_records_that_are_passed_on_are_counted_where_they_are_answered(
    leader: Leader, broker: Broker, clock: ManualClock, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Leading, "leads", False)
    leader.reply = encode_reply(ProduceOnce, StoredOnce([], [(0, 0, 0)], []))
    flymq = FlyMQ(broker, clock=clock, node=node, dial_node=leader)
    talk = Conversation(flymq)
    await talk.ask(encode_request(ProduceOnce(bytes(16), 0, 0, False, "t", [b"v"])))
    assert (flymq.stats.requests[ProduceOnce.opcode], flymq.stats.received_records) == (1, 0)
    talk.session.closed()


async def test_a_commit_with_its_records_is_passed_on_and_asked_again_if_the_leader_is_lost(
    leader: Leader, broker: Broker, clock: ManualClock, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Leading, "leads", False)
    flymq = FlyMQ(broker, clock=clock, node=node, dial_node=leader)
    talk = Conversation(flymq)
    unstaged = [Unstaged("t", "id", [(0, encode_block(0, 0, [b"v"]))])]
    request = encode_request(StageCommit("app", 1, 0, [], unstaged))
    assert (await talk.ask(request)).error.startswith("outcome unknown")
    assert leader.asked == [request[:4]] * ASKED_MAX
    leader.reply = encode_reply(StageCommit, 1)
    assert (await talk.ask(request)).opcode == StageCommit.opcode
    assert not broker.topics.exists("t")
    assert flymq.stats.received_records == 0
    talk.session.closed()
