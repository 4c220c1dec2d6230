"""FlyMQ bytes to messages, in both directions, without I/O.

`feed` takes a whole read and returns the messages that are complete, up to a bound; the rest is kept (`more`). Producing is the hot path,
so consecutive PRODUCE frames for one topic become one `ProduceRun`, found in three steps: the first frame is read field by field; if the
frames after it look the same, all of them are checked and cut by one array operation, and their values stay one column; the rest are
matched one by one against the first frame's constant bytes. Frames that no step recognises go the long way, where every field is named
in the error.

A frame that is half received is kept as it came. Nothing is allocated by the length a peer announces, and the header of a kept
frame is examined once, so a peer that drips bytes costs no more than one that does not.

The end of a conversation is kept apart from its contents: frames in front of a broken header are still returned, then `violation`
is set and every later `feed` raises it.
"""

from __future__ import annotations

import struct
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.columns import UniformCells
from penstock.errors import ProtocolViolation
from penstock.protocols.bytes import I32, U16, U32
from penstock.protocols.flymq.codec.produce_once import decode_produce_once
from penstock.protocols.flymq.codec.record_layouts import ProduceRun, decode_produced
from penstock.protocols.flymq.operations.limits import (
    DECODED_ON_LOOP_BYTES_MAX,
    GZIP_MEMBERS_MAX,
    LOGIN_PAYLOAD_BYTES_MAX,
)
from penstock.protocols.flymq.operations.operation import OPERATIONS, BadRequest, Operation, decode_request
from penstock.protocols.flymq.operations.records import FetchRecords, Produce, ProduceOnce
from penstock.protocols.flymq.operations.transactions import TxnProduce, take_alike
from penstock.protocols.flymq.wire import (
    COMPRESSION_GZIP,
    COMPRESSION_MASK,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    PAYLOAD_BYTES_MAX,
    PRODUCE_FIXED_BYTES,
    RECORD_METADATA,
    VERSION,
)
from penstock.protocols.receive_buffer import UNBOUNDED, BufferingDecoder

_PRODUCE = Produce.opcode
_FETCH_RECORDS = FetchRecords.opcode
_FETCH_FIELDS = struct.Struct(">iQiH")
"""Of FETCH_RECORDS, between topic and filter, and the length of the filter."""
_PRODUCE_ONCE = ProduceOnce.opcode
_UNIFORM_FRAMES_MIN = 16
"""Below this many frames, setting up arrays costs more than it saves."""
_LONG_LISTS = frozenset(opcode for opcode, kind in OPERATIONS.items() if kind.long_lists)
_GZIP_WINDOW_BITS = 31
_GZIP_STEP_BYTES = 64 << 10
"""Of compressed input taken at a time, and of output made: a fraction of a millisecond."""

Message = TypeVar("Message")


@dataclass(slots=True)
class Undecoded:
    """A payload that takes too long for the event loop, and is decoded elsewhere when its turn comes. Several gzip payloads are thus
    never in memory inflated at once."""

    payload: bytes
    gzip: bool


@dataclass(slots=True)
class Call:
    """Any request but an uncompressed PRODUCE."""

    opcode: int
    body: Operation[Any] | BadRequest | Undecoded
    request_bytes: int
    frames: bytes | None = None
    """The request as it came, if it may have to be passed on."""


Request = ProduceRun | Call


@dataclass(frozen=True, slots=True)
class CodecLimits:
    """What one frame may make us hold."""

    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    inflated_bytes_max: int = PAYLOAD_BYTES_MAX
    """For a gzip payload once inflated: as much as it could have carried plain."""


class _FrameDecoder(BufferingDecoder[Message]):
    """Cuts a stream into frames; subclasses say what a frame means."""

    __slots__ = ("payload_bytes_max",)

    def __init__(self, limits: CodecLimits | None = None, *, frames_max: int = UNBOUNDED) -> None:
        """Decode at most `frames_max` frames or runs of frames in one `feed`."""
        super().__init__(frames_max)
        self.payload_bytes_max = (limits or CodecLimits()).payload_bytes_max

    def _decode(self, data: bytes, messages: list[Message]) -> int:
        position, end = 0, len(data)
        payload_bytes_max = self.payload_bytes_max
        frames_left = self._messages_max
        self.more = False
        while end - position >= HEADER_BYTES:
            if not frames_left:
                self.more = True
                self._buffer.needed_bytes = 0
                return position
            frames_left -= 1
            magic, version, opcode, flags, length = HEADER.unpack_from(data, position)
            if magic != MAGIC or version != VERSION:
                raise ProtocolViolation(
                    f"not a FlyMQ frame: it begins with {data[position : position + 2].hex(' ')}, af 01 is expected"
                )
            if length > payload_bytes_max:
                self._refuse(opcode, length, messages)
                raise ProtocolViolation(f"frame of {length} payload bytes, at most {payload_bytes_max} are allowed")
            frame_end = position + HEADER_BYTES + length
            if frame_end > end:
                self._buffer.needed_bytes = frame_end - position
                return position
            position = self._take(opcode, flags, data, position, frame_end, messages)
        if position < end:
            self._check_start(data[position:])
        self._buffer.needed_bytes = HEADER_BYTES if end - position >= 2 else 2
        return position

    @staticmethod
    def _check_start(start: bytes) -> None:
        """Refuse a stranger at the first byte: what speaks another protocol may wait for our answer before it sends eight."""
        if start[0] != MAGIC or (len(start) > 1 and start[1] != VERSION):
            raise ProtocolViolation(f"not a FlyMQ frame: it begins with {start[:2].hex(' ')}, af 01 is expected")

    def _refuse(self, opcode: int, length: int, messages: list[Message]) -> None:
        """Add what answers a frame that is too large, if anything does."""

    @abstractmethod
    def _take(
        self, opcode: int, flags: int, data: bytes, position: int, frame_end: int, messages: list[Message]
    ) -> int:
        """Handle the frame `data[position:frame_end]`, and more after it if that is cheaper; returns where it stopped."""


class RequestDecoder(_FrameDecoder[Request]):
    """The server's side."""

    __slots__ = ("_limits", "_login_required")

    def __init__(
        self, limits: CodecLimits | None = None, *, login_required: bool = False, frames_max: int = UNBOUNDED
    ) -> None:
        """Where a login is required, `authenticated` lifts the smaller bound that holds before it."""
        super().__init__(limits, frames_max=frames_max)
        self._limits = limits or CodecLimits()
        self._login_required = login_required
        if login_required:
            self.payload_bytes_max = min(self.payload_bytes_max, LOGIN_PAYLOAD_BYTES_MAX)

    @property
    def limits(self) -> CodecLimits:
        """What a request may make us hold now."""
        if not self._login_required:
            return self._limits
        return CodecLimits(self.payload_bytes_max, min(self._limits.inflated_bytes_max, LOGIN_PAYLOAD_BYTES_MAX))

    def authenticated(self) -> None:
        self._login_required = False
        self.payload_bytes_max = self._limits.payload_bytes_max

    def _refuse(self, opcode: int, length: int, messages: list[Request]) -> None:
        if self._login_required and length <= self._limits.payload_bytes_max:
            fault = f"authentication required: a request before the login has at most {self.payload_bytes_max} bytes, not {length}"
            messages.append(Call(opcode, BadRequest(fault), HEADER_BYTES))

    def _take(
        self, opcode: int, flags: int, data: bytes, position: int, frame_end: int, messages: list[Request]
    ) -> int:
        if flags & COMPRESSION_MASK in COMPRESSION_GZIP:
            payload = data[position + HEADER_BYTES : frame_end]
            messages.append(Call(opcode, Undecoded(payload, gzip=True), frame_end - position))
            return frame_end
        if opcode in _LONG_LISTS and frame_end - position > DECODED_ON_LOOP_BYTES_MAX:
            payload = data[position + HEADER_BYTES : frame_end]
            messages.append(Call(opcode, Undecoded(payload, gzip=False), frame_end - position))
            return frame_end
        if opcode == _FETCH_RECORDS:
            body = _fetch_records(data, position + HEADER_BYTES, frame_end)
            messages.append(Call(opcode, body, frame_end - position))
            return frame_end
        if opcode == _PRODUCE_ONCE:
            start = position + HEADER_BYTES
            body = decode_produce_once(data, start, frame_end) or decode_request(opcode, data, start, frame_end)
            messages.append(Call(opcode, body, frame_end - position))
            return frame_end
        if opcode != _PRODUCE:
            body = decode_request(opcode, data, position + HEADER_BYTES, frame_end)
            first, position = position, frame_end
            if isinstance(body, TxnProduce) and len(data) > frame_end:
                position = take_alike(body, data, first, frame_end, self.payload_bytes_max)
            messages.append(Call(opcode, body, position - first))
            return position
        run, topic_field_bytes = _first_of_run(data, position, frame_end)
        if isinstance(run, Call):
            messages.append(run)
            return frame_end
        last = messages[-1] if messages else None
        if isinstance(last, ProduceRun) and last.topic == run.topic:
            _join(last, run)
            run = last
        else:
            messages.append(run)
        if len(data) == frame_end:
            return frame_end
        frame_end = _take_uniform(run, data, position, frame_end, topic_field_bytes)
        return _take_alike(run, data, position, frame_end, topic_field_bytes, self.payload_bytes_max)


class KeepingDecoder(RequestDecoder):
    """The same for a node that passes some requests on: those are kept as they came, too."""

    __slots__ = ("_kept",)

    def __init__(
        self, kept: frozenset[int], limits: CodecLimits, *, login_required: bool = False, frames_max: int = UNBOUNDED
    ) -> None:
        """`kept` are opcodes."""
        super().__init__(limits, login_required=login_required, frames_max=frames_max)
        self._kept = kept

    def _take(
        self, opcode: int, flags: int, data: bytes, position: int, frame_end: int, messages: list[Request]
    ) -> int:
        end = super()._take(opcode, flags, data, position, frame_end, messages)
        if opcode in self._kept and isinstance(last := messages[-1], Call):
            last.frames = data[position:end]
        return end


def _fetch_records(data: bytes, start: int, end: int) -> Operation[Any] | BadRequest:
    """The FETCH_RECORDS request whose payload is `data[start:end]`, or what is wrong with it."""
    try:
        # A length that lies may lead out of the frame here; then the sum of all of them does not fit.
        topic_end = start + 2 + U16.unpack_from(data, start)[0]
        partition, offset, max_records, filter_bytes = _FETCH_FIELDS.unpack_from(data, topic_end)
        filter_at = topic_end + _FETCH_FIELDS.size
        if filter_at + filter_bytes == end:
            topic, wanted = data[start + 2 : topic_end].decode(), data[filter_at:end].decode()
            return FetchRecords(topic, partition, offset, max_records, wanted)
    except (struct.error, UnicodeDecodeError):
        pass
    # Something is wrong with it: read it again, slowly, to say what.
    return decode_request(_FETCH_RECORDS, data, start, end)


def _first_of_run(data: bytes, position: int, frame_end: int) -> tuple[ProduceRun | Call, int]:
    """The PRODUCE frame `data[position:frame_end]` as a run of one, and the size of its topic field."""
    topic_at = position + HEADER_BYTES + 2
    try:
        # A length that lies may lead out of the frame here; then the sum of all of them does not fit.
        topic_end = topic_at + U16.unpack_from(data, topic_at - 2)[0]
        key_at = topic_end + 4
        key_end = key_at + U32.unpack_from(data, topic_end)[0]
        value_end = key_end + 4 + U32.unpack_from(data, key_end)[0]
        (partition,) = I32.unpack_from(data, value_end)
        if value_end + 4 == frame_end:
            topic = data[topic_at:topic_end].decode()
            keys: list[bytes | None] | None = [data[key_at:key_end]] if key_end > key_at else None
            value = data[key_end + 4 : value_end]
            return ProduceRun(topic, partition, keys, [value], frame_end - position), topic_end - topic_at + 2
    except (struct.error, UnicodeDecodeError):
        pass
    # Something is wrong with it: read it again, slowly, to say what.
    fault = decode_request(_PRODUCE, data, position + HEADER_BYTES, frame_end)
    return Call(_PRODUCE, fault, frame_end - position), 0


def _join(run: ProduceRun, more: ProduceRun) -> None:
    _add_partitions(run, len(run.values), [more.partition] * len(more.values))
    _add_keys(run, more.keys, len(more.values))
    run.values = [*run.values, *more.values]
    run.request_bytes += more.request_bytes


def _add_keys(run: ProduceRun, keys: list[bytes | None] | None, count: int) -> None:
    """Called before the values are added: the keys column appears with the first key."""
    if keys is not None:
        if run.keys is None:
            run.keys = [None] * len(run.values)
        run.keys += keys
    elif run.keys is not None:
        run.keys += [None] * count


def _add_partitions(run: ProduceRun, count_before: int, partitions: list[int]) -> None:
    """Note the partition fields of more frames; the column appears with the first that differs."""
    if run.partitions is None:
        if partitions.count(run.partition) == len(partitions):
            return
        run.partitions = [run.partition] * count_before
    run.partitions += partitions


def _take_uniform(run: ProduceRun, data: bytes, first: int, position: int, topic_field_bytes: int) -> int:
    """Take the frames from `position` that equal the one at `first` in everything but the bytes of key and value and the partition.

    Equal headers and lengths mean that each frame ends where the next begins, so what is equal needs no further check.
    """
    size = position - first
    count = (len(data) - position) // size
    key_at = HEADER_BYTES + topic_field_bytes + 4
    # Two probes keep frames of mixed sizes from paying for arrays they cannot use.
    last_probe = position + (_UNIFORM_FRAMES_MIN - 1) * size
    if count < _UNIFORM_FRAMES_MIN or not (
        _probe(data, first, position, key_at) and _probe(data, first, last_probe, key_at)
    ):
        return position
    (key_bytes,) = U32.unpack_from(data, first + key_at - 4)
    dtype = _produce_dtype(key_at, key_bytes, size)
    frames = np.frombuffer(data, dtype, count, position)
    model = np.frombuffer(data, dtype, 1, first)
    taken = 0
    for start, stop in _growing_steps(count):
        rows = frames[start:stop]
        rows = rows[: _leading_true((rows["head"] == model["head"]) & (rows["value_size"] == model["value_size"]))]
        taken += len(rows)
        if start + len(rows) < stop:
            break
    rows = frames[:taken]
    value_bytes = dtype["value"].itemsize
    _add_partitions(run, len(run.values), rows["partition"].tolist())
    _add_keys(run, rows["key"].tolist() if key_bytes else None, taken)
    values = UniformCells(value_bytes, taken, rows["value"].tobytes() if value_bytes else b"")
    if len(run.values) == 1:  # the model, with which they become one column
        run.values = UniformCells(value_bytes, 1 + taken, run.values[0] + values.data)
    else:
        run.values = [*run.values, *values]
    run.request_bytes += taken * size
    return position + taken * size


def _probe(data: bytes, first: int, other: int, key_at: int) -> bool:
    """Whether the frames at `first` and `other` agree in header, topic and key length."""
    return data[other : other + key_at] == data[first : first + key_at]


def _growing_steps(count: int) -> Iterator[tuple[int, int]]:
    """Cut `count` rows into steps, each larger than the last: looking at many rows must be earned by many that were alike."""
    start, step = 0, _UNIFORM_FRAMES_MIN
    while start < count:
        stop = min(start + step, count)
        yield start, stop
        start, step = stop, step * 8


def _leading_true(flags: npt.NDArray[np.bool_]) -> int:
    return len(flags) if flags.all() else int(flags.argmin())


@lru_cache(maxsize=64)
def _produce_dtype(key_at: int, key_bytes: int, frame_bytes: int) -> np.dtype[np.void]:
    """A PRODUCE frame; the head ends with the key's length."""
    value_bytes = frame_bytes - key_at - key_bytes - 8
    return np.dtype(
        [
            ("head", f"V{key_at}"),
            ("key", f"V{key_bytes}"),
            ("value_size", "V4"),
            ("value", f"V{value_bytes}"),
            ("partition", ">i4"),
        ]
    )


@lru_cache(maxsize=256)
def _between_values(topic_field_bytes: int) -> struct.Struct:
    """What stands between two values: partition; frame start, length, topic, key length, value length if there is no key."""
    return struct.Struct(f">i4sI{topic_field_bytes}sII")


def _take_alike(
    run: ProduceRun, data: bytes, first: int, position: int, topic_field_bytes: int, payload_bytes_max: int
) -> int:
    """Take the frames from `position` that have the topic of the one at `first`, whatever their sizes and partitions.

    A frame's start is read together with the partition of the frame before it, so partitions come one frame late.
    """
    unpack = _between_values(topic_field_bytes).unpack_from
    head_bytes = HEADER_BYTES + topic_field_bytes + 8
    topic_field = data[first + HEADER_BYTES : first + HEADER_BYTES + topic_field_bytes]
    frame_start = data[first : first + 4]
    fixed_bytes = topic_field_bytes + PRODUCE_FIXED_BYTES
    values: list[bytes] = []
    keys = run.keys
    add_value = values.append
    partitions: list[int] = []
    add_partition = partitions.append
    end = len(data)
    last_head = end - head_bytes
    count_before = len(run.values)
    started = position
    while position <= last_head:
        partition_before, found_start, length, found_topic, key_bytes, value_bytes = unpack(data, position - 4)
        frame_end = position + HEADER_BYTES + length
        if found_start != frame_start or found_topic != topic_field or frame_end > end or length > payload_bytes_max:
            break
        value_at = position + head_bytes
        if key_bytes:
            key_end = value_at - 4 + key_bytes
            if key_end + 8 > frame_end:
                break
            (value_bytes,) = U32.unpack_from(data, key_end)
            if length != fixed_bytes + key_bytes + value_bytes:
                break
            if keys is None:
                keys = run.keys = [None] * (count_before + len(values))
            keys.append(data[value_at - 4 : key_end])
            value_at = key_end + 4
        elif length != fixed_bytes + value_bytes:
            break
        elif keys is not None:
            keys.append(None)
        add_value(data[value_at : value_at + value_bytes])
        add_partition(partition_before)
        position = frame_end
    if partitions:
        partitions[:1] = []
        partitions += I32.unpack_from(data, position - 4)
        _add_partitions(run, count_before, partitions)
        run.values = [*run.values, *values]
        run.request_bytes += position - started
    return position


def decode_undecoded(call: Call, limits: CodecLimits, check: Callable[[], None]) -> Request:
    """Decode a request whose payload was left as it came; its size is that of the payload inflated.

    Made for a thread: `check` is called between pieces of work, and raises what it likes to end it.
    """
    assert isinstance(call.body, Undecoded)
    payload = call.body.payload
    if call.body.gzip:
        try:
            payload = _gunzip(payload, limits.inflated_bytes_max, check)
        except ProtocolViolation as violation:
            return Call(call.opcode, BadRequest(violation.message), call.request_bytes, call.frames)
    check()
    request_bytes = HEADER_BYTES + len(payload)
    if call.opcode == _PRODUCE:
        return _first_of_run(bytes(HEADER_BYTES) + payload, 0, request_bytes)[0]
    return Call(call.opcode, decode_request(call.opcode, payload), request_bytes, call.frames)


def _gunzip(data: bytes, bytes_max: int, check: Callable[[], None]) -> bytes:
    """Inflate in small steps, so that neither input nor output is copied more than once and `check` is called often."""
    view = memoryview(data)
    parts: list[bytes] = []
    room, position = bytes_max, 0
    for _ in range(GZIP_MEMBERS_MAX):
        member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        while not member.eof:
            check()
            step: bytes | memoryview = member.unconsumed_tail
            if not step:
                step = view[position : position + _GZIP_STEP_BYTES]
                position += len(step)
            try:
                # One byte more than allowed tells a payload that is exactly full from one that continues.
                part = member.decompress(step, min(room + 1, _GZIP_STEP_BYTES))
            except zlib.error as error:
                raise ProtocolViolation(f"gzip: invalid header or data: {error}") from None
            if not part and not step:
                raise ProtocolViolation("gzip: unexpected end of the compressed payload")
            parts.append(part)
            room -= len(part)
            if room < 0:
                raise ProtocolViolation(f"gzip: the payload inflates to more than {bytes_max} bytes")
        position -= len(member.unused_data)
        if position == len(data):
            return b"".join(parts)
    raise ProtocolViolation(f"gzip: more than {GZIP_MEMBERS_MAX} members: compress the payload as one")


# --- the client's side ---


@dataclass(slots=True)
class ProducedRun:
    """Consecutive PRODUCE replies for one topic, one entry a record."""

    topic: str
    partitions: list[int]
    offsets: list[int]
    timestamps_ms: list[int]


@dataclass(slots=True)
class Reply:
    """Any reply but that of a PRODUCE; ERROR too."""

    opcode: int
    payload: bytes


class ReplyDecoder(_FrameDecoder[ProducedRun | Reply]):
    """The client's side: replies in the order of the requests."""

    __slots__ = ()

    def _take(
        self,
        opcode: int,
        flags: int,
        data: bytes,
        position: int,
        frame_end: int,
        messages: list[ProducedRun | Reply],
    ) -> int:
        payload = data[position + HEADER_BYTES : frame_end]
        if opcode != _PRODUCE:
            messages.append(Reply(opcode, payload))
            return frame_end
        topic, partition, offset, timestamp_ms = decode_produced(payload)
        last = messages[-1] if messages else None
        if not isinstance(last, ProducedRun) or last.topic != topic:
            last = ProducedRun(topic, [], [], [])
            messages.append(last)
        last.partitions.append(partition)
        last.offsets.append(offset)
        last.timestamps_ms.append(timestamp_ms)
        return _take_produced(last, data, position, frame_end)


def _take_produced(run: ProducedRun, data: bytes, first: int, position: int) -> int:
    """Take the replies from `position` that have the header and topic of the one at `first`; they all have one size."""
    size = position - first
    head_bytes = size - RECORD_METADATA.size
    count = (len(data) - position) // size
    if not count or data[position : position + head_bytes] != data[first : first + head_bytes]:
        return position
    replies = np.frombuffer(data, _produced_dtype(head_bytes), count, position)
    model = np.frombuffer(data, f"V{head_bytes}", 1, first)
    taken = 0
    for start, stop in _growing_steps(count):
        rows = replies[start:stop]
        rows = rows[: _leading_true(rows["head"] == model)]
        run.partitions += rows["partition"].tolist()
        run.offsets += rows["offset"].tolist()
        run.timestamps_ms += rows["timestamp"].tolist()
        taken += len(rows)
        if start + len(rows) < stop:
            break
    return position + taken * size


@lru_cache(maxsize=256)
def _produced_dtype(head_bytes: int) -> np.dtype[np.void]:
    return np.dtype(
        [("head", f"V{head_bytes}"), ("partition", ">i4"), ("offset", ">u8"), ("timestamp", ">i8"), ("sizes", ">u8")]
    )
