"""Felix bytes to messages, in both directions, without I/O.

`feed` takes a whole read and returns what is complete in it. Only a frame header can break a conversation (`violation`): once the
boundaries of frames are lost, nothing after them can be trusted. A frame that is complete but invalid becomes a `BadRequest`,
which is answered, and the next frame is read as if nothing had happened.

A frame that is half received is kept as it came: nothing is allocated by the length it announces, and a length above the bound is refused
as soon as the header is there.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw

from penstock.errors import ProtocolViolation
from penstock.protocols.felix.codec import binary
from penstock.protocols.felix.codec.binary import Events, PublishAck
from penstock.protocols.felix.codec.messages import (
    BATCH_EVENTS_MAX,
    SERVER_TYPES,
    Auth,
    BadRequest,
    CacheDelete,
    CacheGet,
    CachePut,
    FromClient,
    FromServer,
    GroupAck,
    GroupNack,
    GroupPoll,
    Id,
    Message,
    Publish,
    PublishBatch,
    Request,
    StreamShards,
    Subscribe,
)
from penstock.protocols.felix.wire import (
    ACKED,
    BASE_OFFSET,
    EVENT_BATCH,
    FROM_CLIENT,
    HEADER,
    HEADER_BYTES,
    ID_MAX,
    JSON,
    KNOWN,
    MAGIC,
    PAYLOAD_BYTES_MAX,
    PUBLISH_ACK,
    PUBLISH_BATCH,
    SHARED_EVENT_BATCH,
    VERSION,
)
from penstock.protocols.receive_buffer import UNBOUNDED, BufferingDecoder


class Frame(msgspec.Struct, frozen=True, gc=False):
    flags: int
    payload: bytes


class FrameDecoder(BufferingDecoder[Frame]):
    """One direction of one stream."""

    __slots__ = ("payload_bytes_max",)

    def __init__(self, *, frames_max: int = UNBOUNDED, payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
        """Decode at most `frames_max` frames in one `feed`. There is `more` also if one is too large unless one before it is a login."""
        super().__init__(frames_max)
        self.payload_bytes_max = payload_bytes_max
        """Below the protocol's own maximum until a client has logged in that must."""

    @property
    def payload_begun(self) -> bool:
        """Whether the stream would end inside a frame whose header is there."""
        return self._buffer.kept_bytes >= HEADER_BYTES

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete. After a `violation` nothing is read any more."""
        try:
            return super().feed(data)
        except ProtocolViolation:
            return []

    def _decode(self, data: bytes, messages: list[Frame]) -> int:
        position, end = 0, len(data)
        self._buffer.needed_bytes = HEADER_BYTES
        self.more = False
        while end - position >= HEADER_BYTES:
            if len(messages) == self._messages_max:
                self.more = True
                self._buffer.needed_bytes = 0
                break
            magic, version, flags, length = HEADER.unpack_from(data, position)
            if magic != MAGIC or version != VERSION or length > PAYLOAD_BYTES_MAX:
                raise _violation(magic, version, length)
            if length > self.payload_bytes_max:
                if messages:
                    self.more = True
                    self._buffer.needed_bytes = 0
                    break
                raise ProtocolViolation(
                    f"authentication required: a frame before the login has at most {self.payload_bytes_max} bytes, not {length}"
                )
            frame_end = position + HEADER_BYTES + length
            if frame_end > end:
                self._buffer.needed_bytes = frame_end - position
                break
            messages.append(Frame(flags, data[position + HEADER_BYTES : frame_end]))
            position = frame_end
        return position


def _violation(magic: int, version: int, length: int) -> ProtocolViolation:
    if magic != MAGIC:
        return ProtocolViolation(f"a frame begins with {magic:#010x} instead of {MAGIC:#010x}: this is not Felix")
    if version != VERSION:
        return ProtocolViolation(f"protocol version {version} is not known: use {VERSION}")
    return ProtocolViolation(f"a frame of {length} bytes is too long: at most {PAYLOAD_BYTES_MAX} are allowed")


# -- from the client ------------------------------------------------------------------------------------------------------


class _Loose(msgspec.Struct):
    """What can be said of an object that is no message. Nothing is made of the two fields before their size is known."""

    type: Raw = Raw()
    request_id: Raw = Raw()


QUOTED_BYTES_MAX: Final = 256
"""A type or an id of something that is no message is looked into up to this size."""
JSON_COMMAS_MAX: Final = BATCH_EVENTS_MAX + 100
"""In one message, those in strings included: more elements than a batch may have, and all other fields. Counting them is much cheaper than
decoding millions of elements, which anyone can send, only to find that they are too many."""
_NUMBERS: Final[dict[type[Message], tuple[str, ...]]] = {
    Auth: ("client_flags", "client_features"),
    Publish: ("request_id", "shard"),
    PublishBatch: ("request_id", "shard"),
    Subscribe: ("request_id", "subscription_id", "shard"),
    CachePut: ("request_id", "ttl_ms"),
    CacheGet: ("request_id",),
    CacheDelete: ("request_id",),
    StreamShards: ("request_id",),
    GroupPoll: ("request_id", "shard", "max_records", "wait_ms", "visibility_ms"),
    GroupAck: ("request_id", "shard", "offset"),
    GroupNack: ("request_id", "shard", "offset", "delay_ms", "attempts"),
}
"""Fields whose numbers are of 64 bits; a JSON number may be of any size."""
_CLIENT_TYPES: Final = tuple(str(kind.__struct_config__.tag) for kind in _NUMBERS)

_requests: msgspec.json.Decoder[FromClient] = msgspec.json.Decoder(FromClient)
_loose = msgspec.json.Decoder(_Loose)
_anything = msgspec.json.Decoder()


def decode_request(frame: Frame) -> Request:
    """What a client says with one frame. Faults come back as a BadRequest."""
    flags, payload = frame.flags, frame.payload
    known = flags & KNOWN
    if known == JSON:
        return _decode_json_request(payload)
    if known & ~FROM_CLIENT or not known & PUBLISH_BATCH:
        return BadRequest(f"unsupported frame flags {flags:#06x}: a client sends 0x0001, 0x0009, 0x0041 or 0x0049")
    try:
        return binary.decode_publish(known, payload)
    except ProtocolViolation as fault:
        bad = BadRequest(f"malformed publish batch: {fault}")
        if known & ACKED and len(payload) >= 8:
            bad.request_id, bad.binary = binary.decode_request_id(payload), True
        return bad


def _decode_json_request(payload: bytes) -> Request:
    if len(payload) > JSON_COMMAS_MAX and payload.count(b",") > JSON_COMMAS_MAX:
        return BadRequest(f"a message has too many elements: at most {BATCH_EVENTS_MAX} are allowed, send several")
    try:
        request = _requests.decode(payload)
    except msgspec.ValidationError as error:
        return _not_a_message(payload, error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return BadRequest(f"malformed JSON: {error}")
    for name in _NUMBERS[type(request)]:
        number = getattr(request, name)
        if type(number) is int and not 0 <= number <= ID_MAX:
            text = f"{name} {number} is out of range: numbers from 0 to {ID_MAX} are allowed"
            return BadRequest(text, _answerable(getattr(request, "request_id", UNSET)))
    return request


def _not_a_message(payload: bytes, error: msgspec.ValidationError) -> BadRequest:
    try:
        found = _loose.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return BadRequest(f"malformed message: {error}")
    kind, id_ = _quoted(found.type), _answerable(_quoted(found.request_id))
    if kind in _CLIENT_TYPES:
        return BadRequest(f"malformed {kind}: {error}", id_)
    if isinstance(kind, str) and kind in SERVER_TYPES:
        return BadRequest(f"unexpected message type {kind}: only a broker sends it", id_)
    return BadRequest(f"unknown message type {kind!r}: {', '.join(_CLIENT_TYPES)} are known", id_)


def _quoted(raw: Raw) -> object:
    """What a field says, None if it is missing or too long to say it again."""
    if not 0 < memoryview(raw).nbytes <= QUOTED_BYTES_MAX:
        return None
    try:
        return _anything.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _answerable(id_: object) -> Id:
    """An id as it came, if it is one."""
    if isinstance(id_, str) or (type(id_) is int and 0 <= id_ <= ID_MAX):
        return id_
    return UNSET


# -- from the server ------------------------------------------------------------------------------------------------------

Reply = FromServer | PublishAck | Events
_replies: msgspec.json.Decoder[FromServer] = msgspec.json.Decoder(FromServer)


def decode_reply(frame: Frame) -> Reply:
    """What a server says with one frame. Raises ProtocolViolation."""
    flags, payload = frame.flags, frame.payload
    known = flags & KNOWN
    if known == JSON:
        try:
            return _replies.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolViolation(f"the server sent an invalid message: {error}") from None
    if known & PUBLISH_ACK:
        return binary.decode_ack(known, payload)
    if known & ~BASE_OFFSET in (EVENT_BATCH, SHARED_EVENT_BATCH):
        return binary.decode_events(known, payload)
    raise ProtocolViolation(f"the server sent a frame with unexpected flags {flags:#06x}")


# -- writing --------------------------------------------------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode


def encode_frame(flags: int, payload: bytes) -> bytes:
    return HEADER.pack(MAGIC, VERSION, flags, len(payload)) + payload


def encode_message(message: Message) -> bytes:
    """A message as one frame."""
    return encode_frame(JSON, _encode(message))
