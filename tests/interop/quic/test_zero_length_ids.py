"""Clients without connection ids of their own, as `quic.DialAddr` of quic-go makes them, on both listeners of a broker."""

from __future__ import annotations

import asyncio
import secrets
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.clock import SystemClock
from penstock.protocols.felix.codec.frames import FrameDecoder, Reply, decode_reply, encode_message
from penstock.protocols.felix.codec.messages import (
    Event,
    EventBatch,
    EventStreamHello,
    Message,
    Ok,
    PublishBatch,
    Subscribe,
)
from penstock.testing import RunningBroker
from tests.interop.quic.aioquic_peer import AioquicPeer, aioquic_connection, aioquic_peer
from tests.interop.quic.go_peer import GoPeer, go_peer
from tests.interop.quic.relay import lose, relay_to
from tests.net.line_session import until
from tests.protocols.fujin import requests

pytestmark = pytest.mark.timeout(120)

WAIT_S_MAX = 30.0
HALF_OPEN = 30
NAME = "default"

AnyPeer = AioquicPeer | GoPeer
Dial = Callable[..., AbstractAsyncContextManager[AnyPeer]]


class Talk(ABC):
    """A writer and a reader of one topic over one connection."""

    alpn: ClassVar[str]

    def __init__(self, peer: AnyPeer, topic: str) -> None:
        self.peer = peer
        self.topic = topic

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def write(self, values: Sequence[bytes]) -> None:
        """Write values and wait until they are acknowledged."""

    @abstractmethod
    async def read(self, count: int) -> list[bytes]:
        """Return the next values that are pushed."""

    async def round_trip(self, count: int, size_bytes: int = 100) -> None:
        values = [(b"%d " % number).ljust(size_bytes, b".") for number in range(count)]
        async with asyncio.timeout(WAIT_S_MAX):
            await self.write(values)
            assert await self.read(count) == values


class FujinTalk(Talk):
    alpn = "fujin"

    async def open(self) -> None:
        self._pushed, connecting = await self.peer.open_stream()
        connecting.write(requests.connect_reader(self.topic.encode(), kind=1, auto_commit=1))
        assert await self._pushed.readexactly(2) == b"\1\0"
        self._replies, self._requests = await self.peer.open_stream()
        self._requests.write(requests.CONNECT_WRITER)

    async def write(self, values: Sequence[bytes]) -> None:
        for number, value in enumerate(values):
            self._requests.write(requests.write(number, self.topic.encode(), value))
        expected = requests.written(*range(len(values)))
        assert await self._replies.readexactly(len(expected)) == expected

    async def read(self, count: int) -> list[bytes]:
        return [await self._next() for _ in range(count)]

    async def _next(self) -> bytes:
        header = await self._pushed.readexactly(5)
        assert header[0] == 6
        return await self._pushed.readexactly(int.from_bytes(header[1:], "big"))


class FelixReplies:
    """The messages on one stream."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self._decoder = FrameDecoder()
        self._replies: list[Reply] = []

    async def next(self) -> Reply:
        while not self._replies:
            data = await self._stream.read(65_536)
            assert data, "the broker ended the stream"
            self._replies += [decode_reply(frame) for frame in self._decoder.feed(data)]
        return self._replies.pop(0)


class FelixTalk(Talk):
    alpn = "felix/1"

    async def open(self) -> None:
        answers, self._control = await self.peer.open_stream()
        self._answers = FelixReplies(answers)
        await self._ask(Subscribe(tenant_id=NAME, namespace=NAME, stream=self.topic))
        self._events = FelixReplies(await self.peer.accept_stream())
        assert isinstance(await self._events.next(), EventStreamHello)

    async def _ask(self, message: Message) -> None:
        self._control.write(encode_message(message))
        assert await self._answers.next() == Ok()

    async def write(self, values: Sequence[bytes]) -> None:
        batch = PublishBatch(tenant_id=NAME, namespace=NAME, stream=self.topic, payloads=list(values), ack="per_batch")
        await self._ask(batch)

    async def read(self, count: int) -> list[bytes]:
        values: list[bytes] = []
        while len(values) < count:
            message = await self._events.next()
            assert isinstance(message, Event | EventBatch)
            values += [message.payload] if isinstance(message, Event) else message.payloads
        return values


TALKS: dict[str, type[Talk]] = {"fujin": FujinTalk, "felix": FelixTalk}


def serving(**fujin: Any) -> RunningBroker:
    both = {"retry_above": 1}
    return RunningBroker(clock=SystemClock(), listeners={"fujin": {**both, **fujin}, "felix": both})


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with serving(ping_interval_s=60.0) as broker:
        yield broker


@pytest.fixture(params=list(TALKS))
def listener(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=["aioquic", "quic-go"])
def dial(request: pytest.FixtureRequest, quic_go: Path) -> Dial:
    """Connect with ids of zero length."""

    def with_aioquic(address: str, alpn: str, idle_s: float = 30.0) -> AbstractAsyncContextManager[AnyPeer]:
        return aioquic_peer(address, alpn=alpn, connection_id_length=0, idle_timeout=idle_s, initial_rtt=0.02)

    def with_quic_go(address: str, alpn: str, idle_s: float = 30.0) -> AbstractAsyncContextManager[AnyPeer]:
        return go_peer(quic_go, address, alpn=alpn, connection_id_bytes=0, idle_timeout=f"{idle_s}s")

    return with_aioquic if request.param == "aioquic" else with_quic_go


async def talk(broker: RunningBroker, listener: str, peer: AnyPeer) -> Talk:
    """Begin to write to and to read from a topic that nobody else uses."""
    topic = f"topic-{secrets.token_hex(4)}"
    with broker.connect() as client:
        client.create_topic(topic)
    opened = TALKS[listener](peer, topic)
    await asyncio.wait_for(opened.open(), WAIT_S_MAX)
    return opened


async def test_streams_carry_data_both_ways(broker: RunningBroker, listener: str, dial: Dial) -> None:
    async with dial(broker.addresses[listener], TALKS[listener].alpn) as peer:
        opened = await talk(broker, listener, peer)
        await opened.round_trip(2_000)
        await opened.round_trip(30, 60_000)


async def test_several_connections_are_kept_apart(broker: RunningBroker, listener: str, dial: Dial) -> None:
    async with (
        dial(broker.addresses[listener], TALKS[listener].alpn) as first,
        dial(broker.addresses[listener], TALKS[listener].alpn) as second,
    ):
        await (await talk(broker, listener, first)).round_trip(50)
        await (await talk(broker, listener, second)).round_trip(50)


async def test_a_client_gets_in_while_many_handshakes_are_under_way(
    broker: RunningBroker, listener: str, dial: Dial
) -> None:
    host, _, port = broker.addresses[listener].rpartition(":")
    with socket.socket(type=socket.SOCK_DGRAM) as stranger:
        for _ in range(HALF_OPEN):
            abandoned = aioquic_connection(alpn=TALKS[listener].alpn)
            abandoned.connect((host, int(port)), now=0.0)
            for datagram, address in abandoned.datagrams_to_send(now=0.0):
                stranger.sendto(datagram, address)
        async with dial(broker.addresses[listener], TALKS[listener].alpn) as peer:
            await (await talk(broker, listener, peer)).round_trip(100)


async def test_keys_are_updated(broker: RunningBroker, listener: str, dial: Dial) -> None:
    async with dial(broker.addresses[listener], TALKS[listener].alpn) as peer:
        opened = await talk(broker, listener, peer)
        for _ in range(3):
            await opened.round_trip(50, 4_000)  # quic-go updates its keys after a hundred packets
            if isinstance(peer, AioquicPeer):
                peer.request_key_update()
        await opened.round_trip(50)
        if isinstance(peer, GoPeer):
            assert {"event": "key_updated", "phase": 1, "remote": False} in peer.events


async def test_loss_and_reordering_are_made_up_for(broker: RunningBroker, listener: str, dial: Dial) -> None:
    async with relay_to(broker.addresses[listener], late=0.3) as relay:
        relay.to_server.drops, relay.to_client.drops = lose(0.1, 1), lose(0.1, 2)
        async with dial(relay.address, TALKS[listener].alpn) as peer:
            opened = await talk(broker, listener, peer)
            for _ in range(4):
                await opened.round_trip(50, 1_000)
        assert relay.to_server.dropped
        assert relay.to_client.dropped


async def test_a_connection_survives_a_change_of_address(broker: RunningBroker, listener: str, dial: Dial) -> None:
    async with relay_to(broker.addresses[listener]) as relay:
        async with dial(relay.address, TALKS[listener].alpn) as peer:
            opened = await talk(broker, listener, peer)
            for _ in range(3):
                await opened.round_trip(20)
                relay.rebind()
            await opened.round_trip(20)


async def test_an_idle_connection_ends_by_its_time_out(broker: RunningBroker, listener: str, dial: Dial) -> None:
    async with relay_to(broker.addresses[listener]) as relay:
        async with dial(relay.address, TALKS[listener].alpn, 0.6) as peer:
            await (await talk(broker, listener, peer)).round_trip(1)
            if isinstance(peer, AioquicPeer):
                assert "idle" in (await peer.ended()).reason_phrase.lower()
            else:
                assert (await peer.event("closed"))["kind"] == "idle_timeout"


async def test_a_broker_that_stops_closes_the_connection(listener: str, dial: Dial) -> None:
    with serving() as broker:
        async with dial(broker.addresses[listener], TALKS[listener].alpn) as peer:
            stopping = asyncio.ensure_future(asyncio.to_thread(broker.stop))
            if isinstance(peer, AioquicPeer):
                ended = await peer.ended()
                assert (ended.error_code, ended.reason_phrase) == (0, "the server stops")
            else:
                closed = await peer.event("closed")
                assert (closed["code"], closed["remote"], closed["reason"]) == (0, True, "the server stops")
            await stopping


async def test_pings_of_fujin_are_answered(dial: Dial) -> None:
    with serving(ping_interval_s=0.05, ping_timeout_s=20.0) as broker:
        async with dial(broker.addresses["fujin"], "fujin") as peer:
            if isinstance(peer, AioquicPeer):
                peer.answers_pings = True
                await until(lambda: peer.pings >= 5)
            else:
                assert (await peer.event("ping", number=5))["answered"]
            await (await talk(broker, "fujin", peer)).round_trip(10)
