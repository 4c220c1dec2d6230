"""RustLog bytes to messages, in both directions, without I/O.

`feed` takes a whole read and returns the messages that are complete, up to a bound; the rest is kept (`more`). Each frame is decoded in
its own dialect; consecutive PRODUCE frames of one dialect for one partition become one `ProduceRun`. A frame that is half received is
kept as it came: nothing is allocated by the length a peer announces, and a length that no frame may have is answered as soon as it is
read.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from penstock.errors import ProtocolViolation
from penstock.protocols.bytes import U32
from penstock.protocols.receive_buffer import UNBOUNDED, ReceiveBuffer
from penstock.protocols.rustlog.codec import binary_dialect, json_dialect
from penstock.protocols.rustlog.codec.messages import BrokenFrame, ProduceRun, Reply, Request, Undecoded
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
_NAMES_START = {f'{{"{name}"'.encode(): opcode for opcode, name in JSON_NAMES.items()}


class _Frames:
    """Cuts a stream into payloads. `broken` is the length that no frame may have, once one was found; then nothing more is cut."""

    __slots__ = ("_buffer", "broken", "more", "payload_bytes_max")

    def __init__(self, payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
        self.payload_bytes_max = payload_bytes_max
        self.more = False
        self._buffer = ReceiveBuffer()
        self.broken: int | None = None

    @property
    def kept_bytes(self) -> int:
        return self._buffer.kept_bytes

    def forget(self) -> None:
        self._buffer.forget()

    def cut(self, data: bytes, frames_max: int = UNBOUNDED) -> Generator[bytes]:
        """Yield payloads. What is left when the caller stops, or after `frames_max`, is kept, and `more` says that there is some."""
        if self.broken is not None:
            return
        whole = self._buffer.join(data)
        if whole is None:
            return
        position, end = 0, len(whole)
        self.more = True
        try:
            for _ in range(frames_max):
                if end - position < LENGTH_BYTES:
                    self.more, self._buffer.needed_bytes = False, LENGTH_BYTES
                    return
                (length,) = U32.unpack_from(whole, position)
                if not 1 <= length <= self.payload_bytes_max:
                    self.more, self.broken, position = False, length, end
                    return
                frame_end = position + LENGTH_BYTES + length
                if frame_end > end:
                    self.more, self._buffer.needed_bytes = False, frame_end - position
                    return
                start, position = position + LENGTH_BYTES, frame_end
                yield whole[start:frame_end]
        finally:
            if self.more:
                self._buffer.needed_bytes = 0
                self.more = position < end
            self._buffer.keep(whole, position)


class RequestDecoder:
    """The server's side. `payload_bytes_max` is below the protocol's own maximum where the peer should have authenticated and has not."""

    __slots__ = ("_ended", "_frames", "_frames_max", "_last_dialect", "_requests_max")

    violation: Final = None
    """A broken frame is a message here, because it is answered."""

    def __init__(
        self,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
        *,
        requests_max: int = UNBOUNDED,
        frames_max: int = UNBOUNDED,
    ) -> None:
        """Decode at most `requests_max` requests or runs of them in one `feed`, from at most `frames_max` frames."""
        self._frames = _Frames(payload_bytes_max)
        self._requests_max = requests_max
        self._frames_max = frames_max
        self._last_dialect: Dialect | None = None
        self._ended = False

    @property
    def partial(self) -> bool:
        """Whether a frame has begun that is not complete."""
        return self._frames.kept_bytes > 0

    @property
    def kept_bytes(self) -> int:
        """Bytes received and not decoded."""
        return self._frames.kept_bytes

    @property
    def more(self) -> bool:
        """Whether frames were left undecoded because of a bound: `feed(b"")` goes on with them."""
        return self._frames.more

    def feed(self, data: bytes) -> list[Request]:
        """Return requests that are complete; long JSON as it came. A BrokenFrame is the last message there is."""
        requests: list[Request] = []
        payloads = self._frames.cut(data, self._frames_max)
        for payload in payloads:
            request = self._decode(payload)
            if not (isinstance(request, ProduceRun) and requests and _join(requests[-1], request)):
                requests.append(request)
                if len(requests) == self._requests_max:
                    payloads.close()
                    break
        if self._frames.broken is not None and not self._ended:
            self._ended = True
            requests.append(_broken_frame(self._frames.broken, self._frames.payload_bytes_max, self._last_dialect))
        return requests

    def forget(self) -> None:
        """Free what is kept: nothing is decoded any more."""
        self._frames.forget()

    def _decode(self, payload: bytes) -> Request:
        dialect = self._last_dialect = dialect_of(payload)
        if dialect is Dialect.BINARY:
            return binary_dialect.decode_request(payload)
        if len(payload) > DECODED_ON_LOOP_BYTES_MAX:
            return Undecoded(payload)
        return json_dialect.decode_request(payload)


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


def _broken_frame(length: int, payload_bytes_max: int, last_dialect: Dialect | None) -> BrokenFrame:
    """The contract says what a frame that is too long gets; of empty ones it says nothing, deployed brokers do."""
    if payload_bytes_max < length <= PAYLOAD_BYTES_MAX:
        required = f"authentication required: without a client certificate a frame has at most {payload_bytes_max} bytes, not {length}"
        if last_dialect is Dialect.BINARY:
            return BrokenFrame(Dialect.BINARY, f"Frame error: {required}")
        return BrokenFrame(Dialect.JSON, required)
    if length:
        size = f"{length} bytes (max: {PAYLOAD_BYTES_MAX})"
        if last_dialect is Dialect.BINARY:
            return BrokenFrame(Dialect.BINARY, f"Frame error: frame too large: {size}")
        return BrokenFrame(Dialect.JSON, f"max frame size exceeded: {size}")
    if last_dialect is Dialect.JSON:
        return BrokenFrame(Dialect.JSON, "failed to parse request: zero-length frame")
    return BrokenFrame(Dialect.BINARY, "Frame error: invalid protocol: zero-length frame")


class ReplyDecoder:
    """The client's side: replies in the order of the requests, their contents left to whoever asked."""

    __slots__ = ("_frames", "violation")

    def __init__(self) -> None:
        self._frames = _Frames()
        self.violation: ProtocolViolation | None = None

    def feed(self, data: bytes) -> list[Reply]:
        if self.violation is not None:
            raise self.violation
        replies: list[Reply] = []
        try:
            replies.extend(map(_reply, self._frames.cut(data)))
        except ProtocolViolation as violation:
            self.violation = violation
        if self._frames.broken is not None:
            self.violation = ProtocolViolation(
                f"a frame of {self._frames.broken} bytes, 1 to {PAYLOAD_BYTES_MAX} are allowed"
            )
        return replies


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
