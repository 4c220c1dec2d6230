"""Load over BlipMQ: a client that behaves as deployed ones do, and pairs of a publisher and a reader that pipeline."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Final

from penstock.protocols.blipmq import codec
from penstock.protocols.blipmq.codec import Decoder, Frame
from penstock.protocols.blipmq.wire import FrameType

CHUNK_BYTES: Final = 64 << 10
POLLS_IN_FLIGHT: Final = 256
ANSWER_S_MAX: Final = 30.0


def poll_and_acknowledge(host: str, port: int, key: str, messages: int, payload_bytes: int) -> float:
    """Seconds to poll and acknowledge messages one by one, the ACK and the next POLL each a small write of its own, with Nagle's
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
        started = time.perf_counter()
        for number in range(messages):
            connection.sendall(codec.encode_poll(number, subscription))
            delivery = answer()
            assert delivery.type == FrameType.PUBLISH
            connection.sendall(codec.encode_ack(delivery.correlation_id, subscription))
        return time.perf_counter() - started


def publish_to_delivery(
    host: str, port: int, key: str, *, pairs: int, messages: int, qos: int, payload_bytes: int
) -> float:
    """Seconds from the first publish to the last delivery, each pair with a topic of its own. Raises where a message is lost."""
    return asyncio.run(_all_pairs(host, port, key, pairs, messages // pairs, qos, payload_bytes))


async def _all_pairs(host: str, port: int, key: str, pairs: int, messages: int, qos: int, payload_bytes: int) -> float:
    readers = [_Peer() for _ in range(pairs)]
    publishers = [_Peer() for _ in range(pairs)]
    for peer in (*readers, *publishers):
        await peer.open(host, port, key)
    topics = [f"pair-{qos}-{number}" for number in range(pairs)]
    subscriptions = [await reader.subscribe(topic, qos) for reader, topic in zip(readers, topics, strict=True)]
    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(pairs):
            group.create_task(publishers[number].publish(topics[number], messages, qos, payload_bytes))
            group.create_task(readers[number].read(subscriptions[number], messages))
    elapsed = time.perf_counter() - started
    for peer in (*readers, *publishers):
        peer.close()
    return elapsed


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

    async def publish(self, topic: str, messages: int, qos: int, payload_bytes: int) -> None:
        frame = codec.encode_publish(4, qos, topic, bytes(payload_bytes))
        per_chunk = max(1, CHUNK_BYTES // len(frame))
        for first in range(0, messages, per_chunk):
            self._output.write(frame * min(per_chunk, messages - first))
            await self._output.drain()

    async def read(self, subscription: int, messages: int) -> None:
        polls = codec.encode_poll(5, subscription) * POLLS_IN_FLIGHT + codec.encode_ping(6)
        received = 0
        tags: list[int] = []
        async with asyncio.timeout(ANSWER_S_MAX * 4):
            while received < messages:
                self._output.write(b"".join([codec.encode_ack(tag, subscription) for tag in tags]) + polls)
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
