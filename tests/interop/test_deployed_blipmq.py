"""A client that behaves as deployed BlipMQ ones do: an ACK and the next POLL are two small writes, Nagle's algorithm is on, and an answer
that does not come soon is taken for an empty queue.

Without the server's immediate TCP acknowledgements each message would take some 40 ms, the time after which the kernel sends them.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.clock import SystemClock
from penstock.protocols.blipmq.codec import (
    Decoder,
    Frame,
    encode_ack,
    encode_auth,
    encode_hello,
    encode_ping,
    encode_poll,
    encode_publish,
    encode_subscribe,
    parse_id,
    parse_publish,
)
from penstock.protocols.blipmq.wire import FrameType
from penstock.testing import RunningBroker
from penstock.testing.broker import TEST_API_KEY

ANSWER_S_MAX = 0.05
EMPTY_POLLS_MAX = 200


class DeployedClient:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._decoder = Decoder(runs=False)
        self._frames: list[Frame] = []
        self._id = 0

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self, s_max: float | None = None) -> Frame | None:
        deadline_s = None if s_max is None else time.monotonic() + s_max
        while not self._frames:
            if deadline_s is not None:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return None
                self._socket.settimeout(left_s)
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                return None
            finally:
                self._socket.settimeout(10)
            assert data, "the broker hung up"
            for message in self._decoder.feed(data):
                assert isinstance(message, Frame)
                self._frames.append(message)
        return self._frames.pop(0)

    def log_in(self) -> None:
        self.send(encode_hello(1, 1))
        assert self.answer() == Frame(FrameType.ACK, 1, bytes(8))
        self.send(encode_auth(2, TEST_API_KEY))
        assert self.answer() == Frame(FrameType.ACK, 2, bytes(8))

    def subscribe(self, topic: str) -> int:
        self.send(encode_subscribe(3, topic, 1))
        answer = self.answer()
        assert answer is not None
        subscription = parse_id(answer.payload)
        assert subscription
        return subscription

    def wait_until_published(self) -> None:
        self.send(encode_ping(4))
        assert self.answer() == Frame(FrameType.PONG, 4, b"")

    def poll(self, subscription: int) -> bytes | None:
        """One message, acknowledged; the acknowledgement is a write of its own."""
        self._id += 1
        self.send(encode_poll(self._id, subscription))
        answer = self.answer(ANSWER_S_MAX)
        if answer is None:
            return None
        assert answer.type == FrameType.PUBLISH
        parsed = parse_publish(answer.payload)
        assert parsed is not None
        self.send(encode_ack(answer.correlation_id, subscription))
        return parsed[2]

    def flood(self, data: bytes) -> None:
        """Send without end and without reading. Raises BlockingIOError once nobody takes it."""
        self._socket.setblocking(False)
        while True:
            self._socket.sendall(data)

    def close(self) -> None:
        self._socket.close()


@contextmanager
def deployed(broker: RunningBroker) -> Iterator[DeployedClient]:
    client = DeployedClient(broker.addresses["blipmq"])
    client.log_in()
    try:
        yield client
    finally:
        client.close()


def received(client: DeployedClient, subscription: int, count: int) -> list[bytes]:
    values: list[bytes] = []
    empty = 0
    while len(values) < count and empty < EMPTY_POLLS_MAX:
        value = client.poll(subscription)
        if value is None:
            empty += 1
        else:
            values.append(value)
    return values


@pytest.mark.timeout(60)
def test_polling_and_acknowledging_does_not_wait_for_the_kernels_delayed_acknowledgement() -> None:
    with RunningBroker(clock=SystemClock()) as broker, deployed(broker) as reader, deployed(broker) as publisher:
        subscription = reader.subscribe("orders")
        for number in range(1000):
            publisher.send(encode_publish(number, 1, "orders", b"%d" % number))
        publisher.wait_until_published()
        started_s = time.monotonic()
        assert received(reader, subscription, 1000) == [b"%d" % number for number in range(1000)]
        # 40 s without; a fraction of a second with it. The bound only tells the two apart.
        assert time.monotonic() - started_s < 20
        assert reader.poll(subscription) is None


@pytest.mark.timeout(120)
def test_nothing_is_dropped_when_much_is_published_before_the_first_poll() -> None:
    count = 100_000
    with (
        RunningBroker(clock=SystemClock(), subscriptions={"backoff_ms": "10m"}) as broker,
        deployed(broker) as reader,
        deployed(broker) as publisher,
    ):
        subscription = reader.subscribe("orders")
        for first in range(0, count, 1000):
            publisher.send(b"".join(encode_publish(n, 1, "orders", b"%0256d" % n) for n in range(first, first + 1000)))
        publisher.wait_until_published()
        values: list[int] = []
        acknowledgements: list[bytes] = []
        for _ in range(0, count, 1000):
            polls = [encode_poll(n, subscription) for n in range(1000)]
            reader.send(b"".join((*acknowledgements, *polls, encode_ping(7))))
            acknowledgements.clear()
            while (answer := reader.answer()) is not None and answer.type == FrameType.PUBLISH:
                values.append(int(answer.payload[-256:]))
                acknowledgements.append(encode_ack(answer.correlation_id, subscription))
        assert values == list(range(count))


@pytest.mark.timeout(60)
def test_a_publisher_that_ignores_every_refusal_harms_no_one() -> None:
    """It sends and never reads. The broker stops reading from it when its answers fill what they may, and serves the others."""
    settings = {"send_buffer_bytes_max": 1 << 14}
    with RunningBroker(clock=SystemClock(), limits=settings) as broker, deployed(broker) as rude:
        with pytest.raises(BlockingIOError):
            rude.flood(encode_publish(1, 1, "a//b", bytes(200)) * 1000)
        with deployed(broker) as polite:
            subscription = polite.subscribe("orders")
            polite.send(encode_publish(1, 1, "orders", b"through"))
            assert received(polite, subscription, 1) == [b"through"]
