"""The binary payloads of Felix: publish batches, their acknowledgements, and event batches; see `wire` for the layouts.

Payloads that all have one size, as they commonly do, stay one piece: none of them is taken out or put in by itself. Counts and lengths
are held against the bytes that are there before anything is made of them; bytes behind the last payload are ignored, as deployed
brokers do.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from penstock.columns import UniformCells
from penstock.errors import InvalidRequest, ProtocolViolation
from penstock.protocols.bytes import U16, U32, U64, ByteReader, text16
from penstock.protocols.felix.codec.messages import BATCH_EVENTS_MAX, BinaryPublish
from penstock.protocols.felix.wire import (
    ACK_OFFSET,
    ACK_TEXT_BYTES_MAX,
    ACKED,
    BASE_OFFSET,
    EVENT_BATCH,
    KEYED,
    MODE_PER_BATCH,
    MODE_PER_MESSAGE,
    STATUS_ERROR,
    STATUS_OK,
)

UNIFORM_PAYLOADS_MIN = 16
"""From this many payloads on it pays to check whether all have one size."""
LENGTH_BYTES = 4
_ACKED = struct.Struct(">QB")
"""What an acked publish begins with: request id and ack mode."""
REMEMBERED_NAMES_MAX = 4096
REMEMBERED_NAMES_BYTES_MAX = 256
"""Together 4 MB at most."""


class PublishAck(NamedTuple):
    """What became of one acked publish; `error` is None if it is committed."""

    request_id: int
    error: str | None
    offset: int | None = None


class Events(NamedTuple):
    """An event batch that came as bytes."""

    payloads: Sequence[bytes]
    base_offset: int | None
    subscription_id: int | None


# -- publishing -----------------------------------------------------------------------------------------------------------


def decode_request_id(payload: bytes) -> int:
    """The id of an acked publish, found even where the rest makes no sense."""
    return ByteReader(payload).u64("request id")


def decode_publish(flags: int, payload: bytes) -> BinaryPublish:
    """Raises ProtocolViolation if the payload is not what its flags say."""
    request_id: int | None = None
    key: bytes | None = None
    names_at = 0
    if flags & ACKED:
        if len(payload) < _ACKED.size:
            reader = ByteReader(payload)
            reader.u64("request id")
            reader.u8("ack mode")
        request_id, mode = _ACKED.unpack_from(payload)
        names_at = _ACKED.size
        if mode not in (MODE_PER_MESSAGE, MODE_PER_BATCH):
            raise ProtocolViolation(f"ack mode {mode} is not known: 1 is per message, 2 per batch")
    if flags & KEYED:
        reader = ByteReader(payload, names_at)
        key = reader.take(reader.u16("length of the key"), "key")
        names_at = reader.position
    names_end = _end_of_names(payload, names_at)
    tenant_id, namespace, stream = _names(payload[names_at:names_end])
    payloads_at = names_end + LENGTH_BYTES
    count: int = U32.unpack_from(payload, names_end)[0] if payloads_at <= len(payload) else BATCH_EVENTS_MAX
    if count >= BATCH_EVENTS_MAX or count * LENGTH_BYTES > len(payload) - payloads_at:
        count = ByteReader(payload, names_end).count32("payloads", LENGTH_BYTES, BATCH_EVENTS_MAX)
    payloads = split_payloads(payload, payloads_at, count)
    return BinaryPublish(tenant_id, namespace, stream, payloads, key, request_id)


def _end_of_names(payload: bytes, at: int) -> int:
    """Where the three names end, as far as they are there."""
    end = len(payload)
    for _ in range(3):
        if at + 2 > end:
            return end
        at += 2 + U16.unpack_from(payload, at)[0]
    return min(at, end)


def _names(data: bytes) -> tuple[str, str, str]:
    """The same three names come again and again."""
    return _remembered_names(data) if len(data) <= REMEMBERED_NAMES_BYTES_MAX else _decoded_names(data)


def _decoded_names(data: bytes) -> tuple[str, str, str]:
    reader = ByteReader(data)
    return reader.text16("tenant_id"), reader.text16("namespace"), reader.text16("stream")


_remembered_names = lru_cache(REMEMBERED_NAMES_MAX)(_decoded_names)


def split_payloads(data: bytes, at: int, count: int) -> Sequence[bytes]:
    """`count` payloads, each behind its length."""
    if count >= UNIFORM_PAYLOADS_MIN:
        (size,) = U32.unpack_from(data, at)
        if size and count * (LENGTH_BYTES + size) <= len(data) - at:
            rows = np.frombuffer(data, _payload_dtype(size), count, at)
            if (rows["size"] == size).all():
                return UniformCells(size, count, rows["payload"].tobytes())
    payloads: list[bytes] = []
    unpack, end = U32.unpack_from, len(data)
    for _ in range(count):
        start = at + LENGTH_BYTES
        at = start + unpack(data, at)[0] if start <= end else end + 1
        if at > end:
            raise ProtocolViolation(
                f"payload {len(payloads)} of {count} runs past the end of its frame: check the lengths"
            )
        payloads.append(data[start:at])
    return payloads


def encode_publish_prefix(request_id: int | None, key: bytes | None, per_message: bool = False) -> bytes:
    """What stands in front of the names, as the flags ACKED and KEYED announce it."""
    prefix = b""
    if request_id is not None:
        prefix = U64.pack(request_id) + bytes((MODE_PER_MESSAGE if per_message else MODE_PER_BATCH,))
    if key is not None:
        if len(key) > 0xFFFF:
            raise InvalidRequest(f"a key of {len(key)} bytes does not fit: at most {0xFFFF}")
        prefix += U16.pack(len(key)) + key
    return prefix


def encode_publish(
    tenant_id: str,
    namespace: str,
    stream: str,
    payloads: Sequence[bytes],
    *,
    key: bytes | None = None,
    request_id: int | None = None,
    per_message: bool = False,
) -> bytes:
    names = text16(tenant_id) + text16(namespace) + text16(stream)
    return encode_publish_prefix(request_id, key, per_message) + names + join_payloads(payloads)


def join_payloads(payloads: Sequence[bytes]) -> bytes:
    """A count, and the payloads, each behind its length."""
    return b"".join([U32.pack(len(payloads)), *lay_out(payloads)])


def lay_out(payloads: Sequence[bytes]) -> list[bytes | memoryview]:
    """Each payload behind its length, in pieces to join; payloads of one size are two pieces, or one if they lie together."""
    if not payloads:
        return []
    if type(payloads) is UniformCells:
        rows = np.empty(payloads.rows, _payload_dtype(payloads.cell_bytes))
        rows["size"] = payloads.cell_bytes
        rows["payload"] = np.frombuffer(payloads.data, rows.dtype["payload"])
        return [rows.view(np.uint8).data]
    size = len(payloads[0])
    if all(map(size.__eq__, map(len, payloads))):
        length = U32.pack(size)
        return [length, length.join(payloads)]
    pieces: list[bytes | memoryview] = []
    for payload in payloads:
        pieces += (U32.pack(len(payload)), payload)
    return pieces


@lru_cache(1024)
def _payload_dtype(size_bytes: int) -> np.dtype[np.void]:
    return np.dtype([("size", ">u4"), ("payload", np.void, size_bytes)])


# -- acknowledging --------------------------------------------------------------------------------------------------------


def encode_ack(request_id: int, offset: int | None) -> bytes:
    """For a publish that is committed. Without an offset ACK_OFFSET must not be among its flags."""
    ok = bytes((STATUS_OK,)) + U64.pack(request_id) + U16.pack(0)
    return ok if offset is None else ok + U64.pack(offset)


def encode_failed_ack(request_id: int, error: str) -> bytes:
    text = error.encode(errors="replace")[:ACK_TEXT_BYTES_MAX].decode(errors="ignore").encode()
    return bytes((STATUS_ERROR,)) + U64.pack(request_id) + U16.pack(len(text)) + text


def decode_ack(flags: int, payload: bytes) -> PublishAck:
    reader = ByteReader(payload)
    status = reader.u8("status")
    request_id = reader.u64("request id")
    text = reader.text16("error text")
    if status == STATUS_OK:
        return PublishAck(request_id, None, reader.u64("offset") if flags & ACK_OFFSET else None)
    return PublishAck(request_id, text)


# -- events ---------------------------------------------------------------------------------------------------------------


def decode_events(flags: int, payload: bytes) -> Events:
    reader = ByteReader(payload)
    subscription_id = reader.u64("subscription id") if flags & EVENT_BATCH else None
    base_offset = reader.u64("base offset") if flags & BASE_OFFSET else None
    count = reader.count32("payloads", LENGTH_BYTES, BATCH_EVENTS_MAX)
    return Events(split_payloads(payload, reader.position, count), base_offset, subscription_id)
