"""A BlipMQ session in memory: say bytes, get frames."""

from __future__ import annotations

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
    parse_nack,
    parse_publish,
)
from penstock.protocols.blipmq.session import BlipMQ
from penstock.protocols.blipmq.wire import FrameType
from tests.protocols.transport import MemoryConnection

BARRIER = 0xBA44
"""The correlation id of the PING whose PONG tells that everything before it was answered."""


class Conversation:
    def __init__(self, blipmq: BlipMQ) -> None:
        self.connection = MemoryConnection("blipmq")
        self.session = blipmq(self.connection)
        self._decoder = Decoder(runs=False)
        self._frames: list[Frame] = []

    def say(self, *data: bytes) -> None:
        """One read."""
        self.session.receive(b"".join(data))

    async def reply(self) -> bytes:
        """The next frame, as bytes."""
        while not self._frames:
            await self.connection.arrived.wait()
            self._collect()
        frame = self._frames.pop(0)
        head = (9 + len(frame.payload)).to_bytes(4, "big") + bytes((frame.type,))
        return head + frame.correlation_id.to_bytes(8, "big") + frame.payload

    async def ask(self, *data: bytes) -> bytes:
        """One read, one answer."""
        self.say(*data)
        return await self.reply()

    async def answers(self, *data: bytes) -> list[Frame]:
        """All replies to one read: what comes before the PONG of a PING sent after it."""
        self.say(*data, encode_ping(BARRIER))
        while True:
            for at, frame in enumerate(self._frames):
                if frame == Frame(FrameType.PONG, BARRIER, b""):
                    found, self._frames = self._frames[:at], self._frames[at + 1 :]
                    return found
            await self.connection.arrived.wait()
            self._collect()

    async def nack(self, *data: bytes) -> tuple[int, int, str]:
        """Correlation id, code and reason of the only answer, a NACK."""
        [frame] = await self.answers(*data)
        assert frame.type == FrameType.NACK, frame
        parsed = parse_nack(frame.payload)
        assert parsed is not None
        return frame.correlation_id, *parsed

    async def log_in(self, key: str = "dev-key") -> None:
        assert await self.ask(encode_hello(1, 1)) == encode_ack(1)
        assert await self.ask(encode_auth(2, key)) == encode_ack(2)

    async def subscribe(self, topic: str, qos: int = 1) -> int:
        [frame] = await self.answers(encode_subscribe(3, topic, qos))
        assert (frame.type, frame.correlation_id) == (FrameType.ACK, 3)
        subscription_id = parse_id(frame.payload)
        assert subscription_id
        return subscription_id

    async def publish(self, topic: str, *values: bytes, qos: int = 1) -> None:
        """Published, committed, and nothing answered. A PING does not wait for QoS 0, a POLL does."""
        frames = [encode_publish(n, qos, topic, value) for n, value in enumerate(values)]
        assert await self.answers(*frames, encode_poll(0, 1 << 60)) == []

    async def poll(self, subscription_id: int, correlation_id: int = 7) -> tuple[int, int, str, bytes] | None:
        """Correlation id, QoS, topic and message of the delivery, if there is one."""
        found = await self.answers(encode_poll(correlation_id, subscription_id))
        if not found:
            return None
        [frame] = found
        assert frame.type == FrameType.PUBLISH, frame
        parsed = parse_publish(frame.payload)
        assert parsed is not None
        return frame.correlation_id, *parsed

    async def message(self, subscription_id: int) -> bytes | None:
        """The next message, if there is one."""
        delivery = await self.poll(subscription_id)
        return None if delivery is None else delivery[3]

    def _collect(self) -> None:
        self.connection.arrived.clear()
        sends, self.connection.sends = self.connection.sends, []
        for data in sends:
            for message in self._decoder.feed(data):
                assert isinstance(message, Frame)
                self._frames.append(message)
