"""BlipMQ bytes to messages, in both directions, without I/O.

`feed` takes a whole read and returns the messages that are complete, up to a bound; the rest is kept (`more`). Consecutive PUBLISH frames
with the same QoS and topic become one `PublishRun`: behind the first, a frame is recognised by comparing its first bytes with the first
frame's, and costs one unpacking and one slice. Consecutive POLL frames for one subscription become one `IdRun`, and so do consecutive ACK
frames. Everything else is a `Frame`, whose payload is looked into when its turn comes: which of its faults counts depends on the state of
the conversation.

A frame that is half received is kept as it came, and nothing is allocated by the length it announces. Only framing can be broken (a
length out of bounds, a type that is none): what came before is still returned, then `violation` is set. A frame that is too large only
because its peer has not logged in is returned without its payload, so that it is answered before the connection ends.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from penstock.errors import InvalidRequest, ProtocolViolation
from penstock.protocols.blipmq.wire import (
    HEAD,
    HEAD_BYTES,
    ID_FRAME,
    LENGTH_BYTES,
    LENGTH_MAX,
    LENGTH_MIN,
    NACK_TEXT_BYTES_MAX,
    PUBLISH_FIXED_BYTES,
    QOS_MAX,
    FrameType,
)
from penstock.protocols.bytes import U16, U64
from penstock.protocols.receive_buffer import UNBOUNDED, BufferingDecoder

_PUBLISH = int(FrameType.PUBLISH)
_ID_KINDS = frozenset((int(FrameType.POLL), int(FrameType.ACK)))
_ID_FRAME_LENGTH = ID_FRAME.size - LENGTH_BYTES
_TYPES = frozenset(map(int, FrameType))
RUN_BYTES_MAX = 1 << 20
"""About how much one run holds, so that what waits for its commit is released in parts."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame other than a sound PUBLISH, POLL or ACK."""

    type: int
    correlation_id: int
    payload: bytes

    @property
    def size_bytes(self) -> int:
        return HEAD_BYTES + len(self.payload)


class PublishRun(msgspec.Struct, gc=False):
    """Consecutive publishes to one topic with one QoS."""

    qos: int
    topic: str
    correlation_ids: list[int]
    values: list[bytes]
    size_bytes: int
    """On the wire."""


class IdRun(msgspec.Struct, frozen=True, gc=False):
    """Consecutive POLL frames for one subscription, or ACK frames; the correlation ids of ACK frames are delivery tags."""

    type: int
    subscription_id: int
    correlation_ids: list[int]

    @property
    def size_bytes(self) -> int:
        return ID_FRAME.size * len(self.correlation_ids)


Message = Frame | PublishRun | IdRun


class Decoder(BufferingDecoder[Message]):
    """One direction of one connection."""

    __slots__ = ("_runs", "length_max")

    def __init__(self, *, runs: bool = True, length_max: int = LENGTH_MAX, messages_max: int = UNBOUNDED) -> None:
        """Without `runs` everything is a `Frame`: a client's side of the conversation, where each PUBLISH answers a POLL.

        Decode at most `messages_max` messages in one `feed`; each frame of an `IdRun` counts as one.
        """
        super().__init__(messages_max)
        self._runs = runs
        self.length_max = length_max
        """Below the protocol's own maximum until the peer has logged in."""

    def _decode(self, data: bytes, messages: list[Message]) -> int:
        position, end = 0, len(data)
        unpack = HEAD.unpack_from
        self.more = False
        messages_left = self._messages_max
        while end - position >= LENGTH_BYTES:
            if not messages_left:
                self.more = True
                self._buffer.needed_bytes = 0
                return position
            if end - position < HEAD_BYTES:
                length = int.from_bytes(data[position : position + LENGTH_BYTES], "big")
                kind = correlation_id = 0
            else:
                length, kind, correlation_id = unpack(data, position)
            if not LENGTH_MIN <= length <= LENGTH_MAX:
                raise ProtocolViolation(
                    f"frame length {length} is out of bounds: {LENGTH_MIN} to {LENGTH_MAX} are allowed"
                )
            if length > self.length_max:
                self._buffer.needed_bytes = HEAD_BYTES
                if messages or end - position < HEAD_BYTES:
                    return position  # one of the messages may be the login that allows it
                if kind in _TYPES:
                    messages.append(Frame(kind, correlation_id, b""))
                raise ProtocolViolation(
                    f"frame length {length} is out of bounds: at most {self.length_max} before the peer has authenticated"
                )
            frame_end = position + LENGTH_BYTES + length
            if frame_end > end:
                self._buffer.needed_bytes = frame_end - position
                return position
            if kind == _PUBLISH and self._runs:
                run = self._publish(data, position, frame_end, correlation_id)
                if run is not None:
                    run_end = self._extend(run, data, position, frame_end)
                    run.size_bytes = run_end - position
                    messages.append(run)
                    messages_left -= 1
                    position = run_end
                    continue
            elif kind in _ID_KINDS and length == _ID_FRAME_LENGTH and self._runs:
                ids = _id_run(data, position, messages_left)
                messages.append(ids)
                messages_left -= len(ids.correlation_ids)
                position += ids.size_bytes
                continue
            elif kind not in _TYPES:
                raise ProtocolViolation(f"unknown frame type {kind:#04x}")
            messages.append(Frame(kind, correlation_id, data[position + HEAD_BYTES : frame_end]))
            messages_left -= 1
            position = frame_end
        self._buffer.needed_bytes = LENGTH_BYTES
        return position

    def _publish(self, data: bytes, position: int, frame_end: int, correlation_id: int) -> PublishRun | None:
        """A run of the first frame; None if it is not as a publish should be, which is for the session to say."""
        found = parse_publish(data[position + HEAD_BYTES : frame_end])
        if found is None:
            return None
        qos, topic, value = found
        if not topic or qos > QOS_MAX:
            return None
        return PublishRun(qos, topic, [correlation_id], [value], 0)

    def _extend(self, run: PublishRun, data: bytes, first: int, position: int) -> int:
        """Take the frames that follow and are like the first; returns where the run ends."""
        prefix = data[first + HEAD_BYTES : position - len(run.values[0])]
        head_bytes = HEAD_BYTES + len(prefix)
        length_min = head_bytes - LENGTH_BYTES
        end, stop, length_max = len(data), first + RUN_BYTES_MAX, self.length_max
        unpack, add_id, add_value = HEAD.unpack_from, run.correlation_ids.append, run.values.append
        while end - position >= head_bytes and position < stop:
            length, kind, correlation_id = unpack(data, position)
            frame_end = position + LENGTH_BYTES + length
            if (
                kind != _PUBLISH
                or not length_min <= length <= length_max
                or frame_end > end
                or not data.startswith(prefix, position + HEAD_BYTES)
            ):
                break
            add_id(correlation_id)
            add_value(data[position + head_bytes : frame_end])
            position = frame_end
        return position


def _id_run(data: bytes, position: int, frames_max: int) -> IdRun:
    """The POLL or ACK at a position, and those after it that differ from it only in the correlation id."""
    count = min((len(data) - position) // ID_FRAME.size, frames_max)
    frames = ID_FRAME.iter_unpack(memoryview(data)[position : position + count * ID_FRAME.size])
    length, kind, correlation_id, subscription_id = next(frames)
    correlation_ids = [correlation_id]
    for other_length, other_kind, correlation_id, other_id in frames:
        if other_id != subscription_id or other_kind != kind or other_length != length:
            break
        correlation_ids.append(correlation_id)
    return IdRun(kind, subscription_id, correlation_ids)


# -- payloads -------------------------------------------------------------------------------------------------------------


def parse_publish(payload: bytes) -> tuple[int, str, bytes] | None:
    """QoS, topic and message; None if it is malformed. An empty topic and any QoS are well-formed."""
    if len(payload) < PUBLISH_FIXED_BYTES:
        return None
    topic_end = PUBLISH_FIXED_BYTES + U16.unpack_from(payload, 1)[0]
    if topic_end > len(payload):
        return None
    topic = _text(payload[PUBLISH_FIXED_BYTES:topic_end])
    return None if topic is None else (payload[0], topic, payload[topic_end:])


def parse_subscribe(payload: bytes) -> tuple[str, int] | None:
    """Topic and QoS; None if it is malformed. What follows is ignored."""
    if len(payload) < 3:
        return None
    topic_end = 2 + U16.unpack_from(payload)[0]
    if topic_end >= len(payload):
        return None
    topic = _text(payload[2:topic_end])
    return None if topic is None else (topic, payload[topic_end])


def parse_auth(payload: bytes) -> str | None:
    """The key; None if the payload is malformed."""
    if len(payload) < 2 or U16.unpack_from(payload)[0] != len(payload) - 2:
        return None
    return _text(payload[2:])


def parse_hello(payload: bytes) -> int | None:
    """The protocol version; None if the payload is malformed."""
    version: int | None = U16.unpack(payload)[0] if len(payload) == 2 else None
    return version


def parse_id(payload: bytes) -> int | None:
    """The subscription id of an ACK; None if the payload is malformed."""
    number: int | None = U64.unpack(payload)[0] if len(payload) == 8 else None
    return number


def parse_nack(payload: bytes) -> tuple[int, str] | None:
    """Code and reason; None if the payload is malformed."""
    if len(payload) < 4 or U16.unpack_from(payload, 2)[0] != len(payload) - 4:
        return None
    return U16.unpack_from(payload)[0], payload[4:].decode(errors="replace")


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


# -- frames ---------------------------------------------------------------------------------------------------------------


def encode_frame(kind: int, correlation_id: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(LENGTH_MIN + len(payload), kind, correlation_id) + payload


def encode_hello(correlation_id: int, version: int) -> bytes:
    return encode_frame(FrameType.HELLO, correlation_id, U16.pack(version))


def encode_auth(correlation_id: int, key: str) -> bytes:
    return encode_frame(FrameType.AUTH, correlation_id, _text16(key, "API key"))


def encode_subscribe(correlation_id: int, topic: str, qos: int) -> bytes:
    return encode_frame(FrameType.SUBSCRIBE, correlation_id, _text16(topic, "topic") + bytes((qos,)))


def encode_publish(correlation_id: int, qos: int, topic: str, value: bytes) -> bytes:
    """A publish, or a delivery. Raises InvalidRequest if the frame would be too large."""
    prefix = publish_prefix(qos, topic)
    length = LENGTH_MIN + len(prefix) + len(value)
    if length > LENGTH_MAX:
        raise InvalidRequest(
            f"a message of {len(value)} bytes does not fit a BlipMQ frame: with its topic it may have {LENGTH_MAX - LENGTH_MIN}"
        )
    return b"".join((HEAD.pack(length, _PUBLISH, correlation_id), prefix, value))


@lru_cache(4096)
def publish_prefix(qos: int, topic: str) -> bytes:
    """What stands before the message; the same for every message of a topic."""
    return bytes((qos,)) + _text16(topic, "topic")


def encode_ack(correlation_id: int, subscription_id: int = 0) -> bytes:
    return encode_frame(FrameType.ACK, correlation_id, U64.pack(subscription_id))


def encode_poll(correlation_id: int, subscription_id: int) -> bytes:
    return encode_frame(FrameType.POLL, correlation_id, U64.pack(subscription_id))


def encode_ping(correlation_id: int) -> bytes:
    return encode_frame(FrameType.PING, correlation_id)


def encode_pong(correlation_id: int) -> bytes:
    return encode_frame(FrameType.PONG, correlation_id)


def encode_nack(correlation_id: int, code: int, reason: str) -> bytes:
    text = reason.encode(errors="replace")[:NACK_TEXT_BYTES_MAX].decode(errors="ignore").encode()
    return encode_frame(FrameType.NACK, correlation_id, U16.pack(code) + U16.pack(len(text)) + text)


def _text16(text: str, what: str) -> bytes:
    data = text.encode()
    if len(data) > 0xFFFF:
        raise InvalidRequest(f"{what} has {len(data)} bytes of UTF-8: at most {0xFFFF} fit")
    return U16.pack(len(data)) + data
