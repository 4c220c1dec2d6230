"""RustLog bytes to messages, in both directions, without I/O.

`feed` takes a whole read and returns the messages that are complete, up to a bound; the rest is kept (`more`). Each frame is decoded in
its own dialect; consecutive PRODUCE frames of one dialect for one partition become one `ProduceRun`. A frame that is half received is
kept as it came: nothing is allocated by the length a peer announces, and a length that no frame may have is answered as soon as it is
read.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TypeVar

from penstock.errors import ProtocolViolation
from penstock.protocols.bytes import U32
from penstock.protocols.receive_buffer import UNBOUNDED, BufferingDecoder
from penstock.protocols.rustlog.codec import binary_dialect, json_dialect
from penstock.protocols.rustlog.codec.messages import MalformedFrame, ProduceRun, Reply, Request, Undecoded
from penstock.protocols.rustlog.wire import (
    DECODED_ON_LOOP_BYTES_MAX,
    JSON_NAMES,
    LENGTH_BYTES,
    PAYLOAD_BYTES_MAX,
    Dialect,
    Opcode,
    dialect_of,
)

RUN_RECORDS_MAX = 100_000
"""A run that has this many records is not joined with the next frame: one append should not keep others waiting."""
Message = TypeVar("Message")
_NAMES_START = {f'{{"{name}"'.encode(): opcode for opcode, name in JSON_NAMES.items()}


class _FrameDecoder(BufferingDecoder[Message]):
    """Cuts a stream into payloads; subclasses say what a payload means."""

    __slots__ = ("_ended", "_frames_max", "payload_bytes_max")

    def __init__(self, payload_bytes_max: int, messages_max: int, frames_max: int) -> None:
        super().__init__(messages_max)
        self.payload_bytes_max = payload_bytes_max
        self._frames_max = frames_max
        self._ended = False
        """Whether there was a length that no frame may have: nothing behind it is read."""

    def _decode(self, data: bytes, messages: list[Message]) -> int:
        position, end = 0, len(data)
        frames_left = self._frames_max
        self.more = False
        while end - position >= LENGTH_BYTES and not self._ended:
            if not frames_left or len(messages) == self._messages_max:
                self.more = True
                self._buffer.needed_bytes = 0
                return position
            frames_left -= 1
            (length,) = U32.unpack_from(data, position)
            if not 1 <= length <= self.payload_bytes_max:
                self._ended = True
                self._refuse(length, messages)
                break
            frame_end = position + LENGTH_BYTES + length
            if frame_end > end:
                self._buffer.needed_bytes = frame_end - position
                return position
            self._take(data[position + LENGTH_BYTES : frame_end], messages)
            position = frame_end
        self._buffer.needed_bytes = LENGTH_BYTES
        return end if self._ended else position

    @abstractmethod
    def _take(self, payload: bytes, messages: list[Message]) -> None:
        """Add what a payload says."""

    @abstractmethod
    def _refuse(self, length: int, messages: list[Message]) -> None:
        """Add what answers a frame of impossible length, or raise ProtocolViolation."""


class RequestDecoder(_FrameDecoder[Request]):
    """The server's side. `payload_bytes_max` is below the protocol's own maximum where the peer should have authenticated and has not.

    Long JSON is returned as it came. A MalformedFrame is the last message there is.
    """

    __slots__ = ("_last_dialect",)

    def __init__(
        self,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
        *,
        requests_max: int = UNBOUNDED,
        frames_max: int = UNBOUNDED,
    ) -> None:
        """Decode at most `requests_max` requests or runs of them in one `feed`, from at most `frames_max` frames."""
        super().__init__(payload_bytes_max, requests_max, frames_max)
        self._last_dialect: Dialect | None = None

    def _take(self, payload: bytes, messages: list[Request]) -> None:
        dialect = self._last_dialect = dialect_of(payload)
        request: Request
        if dialect is Dialect.BINARY:
            request = binary_dialect.decode_request(payload)
        elif len(payload) > DECODED_ON_LOOP_BYTES_MAX:
            request = Undecoded(payload)
        else:
            request = json_dialect.decode_request(payload)
        if not (messages and isinstance(request, ProduceRun) and _join(messages[-1], request)):
            messages.append(request)

    def _refuse(self, length: int, messages: list[Request]) -> None:
        messages.append(_broken_frame(length, self.payload_bytes_max, self._last_dialect))


def _join(last: Request, run: ProduceRun) -> bool:
    """Add a frame to the run before it, where both go to one place."""
    if (
        not isinstance(last, ProduceRun)
        or last.topic != run.topic
        or last.partition != run.partition
        or last.dialect is not run.dialect
        or not last.values
        or not run.values
        or len(last.values) + len(run.values) > RUN_RECORDS_MAX
    ):
        return False
    last.values += run.values
    last.counts += run.counts
    last.request_bytes += run.request_bytes
    return True


def _broken_frame(length: int, payload_bytes_max: int, last_dialect: Dialect | None) -> MalformedFrame:
    """The contract says what a frame that is too long gets; of empty ones it says nothing, deployed brokers do."""
    if payload_bytes_max < length <= PAYLOAD_BYTES_MAX:
        required = f"authentication required: without a client certificate a frame has at most {payload_bytes_max} bytes, not {length}"
        if last_dialect is Dialect.BINARY:
            return MalformedFrame(Dialect.BINARY, f"Frame error: {required}")
        return MalformedFrame(Dialect.JSON, required)
    if length:
        size = f"{length} bytes (max: {PAYLOAD_BYTES_MAX})"
        if last_dialect is Dialect.BINARY:
            return MalformedFrame(Dialect.BINARY, f"Frame error: frame too large: {size}")
        return MalformedFrame(Dialect.JSON, f"max frame size exceeded: {size}")
    if last_dialect is Dialect.JSON:
        return MalformedFrame(Dialect.JSON, "failed to parse request: zero-length frame")
    return MalformedFrame(Dialect.BINARY, "Frame error: invalid protocol: zero-length frame")


class ReplyDecoder(_FrameDecoder[Reply]):
    """The client's side: replies in the order of the requests, their contents left to the callers."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(PAYLOAD_BYTES_MAX, UNBOUNDED, UNBOUNDED)

    def _take(self, payload: bytes, messages: list[Reply]) -> None:
        messages.append(_reply(payload))

    def _refuse(self, length: int, messages: list[Reply]) -> None:
        raise ProtocolViolation(f"a frame of {length} bytes, 1 to {PAYLOAD_BYTES_MAX} are allowed")


def _reply(payload: bytes) -> Reply:
    if payload[0] == 0x7B:
        opcode = _NAMES_START.get(payload[: payload.find(b":")])
        if opcode is None:
            raise ProtocolViolation(f"an unknown reply begins with {payload[:32]!r}")
        return Reply(Dialect.JSON, opcode, payload)
    try:
        return Reply(Dialect.BINARY, Opcode(payload[0]), payload)
    except ValueError:
        raise ProtocolViolation(f"an unknown reply begins with {payload[:1].hex()}") from None
