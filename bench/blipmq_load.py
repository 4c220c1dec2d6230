"""Load over BlipMQ: a client that behaves as deployed ones do, and pairs of a publisher and a reader that pipeline."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import Final

from bench.load import Meter
from bench.rounds import Measured
from penstock.protocols.blipmq import codec
from penstock.protocols.blipmq.codec import Decoder, Frame
from penstock.protocols.blipmq.wire import FrameType

CHUNK_BYTES: Final = 64 << 10
POLLS_IN_FLIGHT: Final = 256
ANSWER_S_MAX: Final = 30.0


def poll_and_acknowledge(
    host: str, port: int, key: str, *, messages: int, payload_bytes: int, server_pid: int
) -> Measured:
    """Poll and acknowledge messages one by one, the ACK and the next POLL each a small write of its own, with Nagle's
    algorithm on. All were published before the first poll; one that does not come is an error."""
    with socket.create_connection((host, port), timeout=ANSWER_S_MAX) as connection:
        decoder = Decoder(runs=False)
        frames: list[object] = []

        def answer() -> Frame:
            while not frames:
                frames.extend(decoder.feed(connection.recv(1 << 16)))
            frame = frames.pop(0)
            assert isinstance(frame, Frame)
            return frame

        connection.sendall(codec.encode_hello(1, 1) + codec.encode_auth(2, key))
        answer(), answer()
        connection.sendall(codec.encode_subscribe(3, "deployed", 1))
        subscription = codec.parse_id(answer().payload)
        assert subscription
        value = bytes(payload_bytes)
        connection.sendall(b"".join(codec.encode_publish(n, 1, "deployed", value) for n in range(messages)))
        connection.sendall(codec.encode_ping(4))
        answer()
        meter = Meter(server_pid)
        for number in range(messages):
            connection.sendall(codec.encode_poll(number, subscription))
            delivery = answer()
            assert delivery.type == FrameType.PUBLISH
            connection.sendall(codec.encode_ack(delivery.correlation_id, subscription))
        return meter.measured(messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Publishers and readers, each pair with a topic of its own."""

    host: str
    port: int
    key: str
    server_pid: int
    pairs: int
    messages: int
    """Of each pair."""
    qos: int
    payload_bytes: int
    polls_in_flight: int = POLLS_IN_FLIGHT
    """With 1, the acknowledgement and the next POLL are two small writes, as deployed clients make them."""
    prefix: str = "pair"
    """Of the names of topics."""


def publish_to_delivery(job: Pairs) -> Measured:
    """From the first publish to the last delivery. Raises if a message is lost."""
    return asyncio.run(_all_pairs(job))


async def _all_pairs(job: Pairs) -> Measured:
    readers = [_Peer() for _ in range(job.pairs)]
    publishers = [_Peer() for _ in range(job.pairs)]
    for peer in (*readers, *publishers):
        await peer.open(job.host, job.port, job.key)
    topics = [f"{job.prefix}-{job.qos}-{number}" for number in range(job.pairs)]
    subscriptions = [await reader.subscribe(topic, job.qos) for reader, topic in zip(readers, topics, strict=True)]
    meter = Meter(job.server_pid)
    async with asyncio.TaskGroup() as group:
        for number in range(job.pairs):
            group.create_task(publishers[number].publish(topics[number], job))
            group.create_task(readers[number].read(subscriptions[number], job))
    measured = meter.measured(job.pairs * job.messages)
    for peer in (*readers, *publishers):
        peer.close()
    return measured


class _Peer:
    """One connection."""

    async def open(self, host: str, port: int, key: str) -> None:
        self._input, self._output = await asyncio.open_connection(host, port)
        self._decoder = Decoder(runs=False)
        self._frames: list[Frame] = []
        self._output.write(codec.encode_hello(1, 1) + codec.encode_auth(2, key))
        assert (await self._answer()).type == (await self._answer()).type == FrameType.ACK

    async def subscribe(self, topic: str, qos: int) -> int:
        self._output.write(codec.encode_subscribe(3, topic, qos))
        subscription = codec.parse_id((await self._answer()).payload)
        assert subscription
        return subscription

    async def publish(self, topic: str, job: Pairs) -> None:
        frame = codec.encode_publish(4, job.qos, topic, bytes(job.payload_bytes))
        per_chunk = max(1, CHUNK_BYTES // len(frame))
        for first in range(0, job.messages, per_chunk):
            self._output.write(frame * min(per_chunk, job.messages - first))
            await self._output.drain()

    async def read(self, subscription: int, job: Pairs) -> None:
        polls = codec.encode_poll(5, subscription) * job.polls_in_flight + codec.encode_ping(6)
        received = 0
        tags: list[int] = []
        async with asyncio.timeout(ANSWER_S_MAX * 4):
            while received < job.messages:
                acknowledgements = b"".join([codec.encode_ack(tag, subscription) for tag in tags])
                if job.polls_in_flight == 1:
                    self._output.write(acknowledgements)
                    acknowledgements = b""
                self._output.write(acknowledgements + polls)
                tags = []
                while (frame := await self._answer()).type == FrameType.PUBLISH:
                    received += 1
                    if frame.payload[0]:
                        tags.append(frame.correlation_id)
                assert frame.type == FrameType.PONG, frame

    def close(self) -> None:
        self._output.close()

    async def _answer(self) -> Frame:
        while not self._frames:
            data = await self._input.read(1 << 18)
            if not data:
                raise RuntimeError("the broker hung up")
            for message in self._decoder.feed(data):
                assert isinstance(message, Frame)
                self._frames.append(message)
            self._frames.reverse()
        return self._frames.pop()
