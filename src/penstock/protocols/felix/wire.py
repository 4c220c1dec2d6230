"""Felix on the wire: numbers and layouts. Every integer is big-endian.

    frame       u32 magic "FLX1", u16 version (1), u16 flags, u32 length of the payload (0 to 16 777 216), payload

Without flags a payload is a JSON object whose `type` says which message it is (see `messages`). With flags it is binary:

    0x0001      publish batch    names, payloads                                                             client
    + 0x0008    ... with an ack  u64 request id, u8 mode (1 per message, 2 per batch), then as above         client
    + 0x0040    ... with a key   [request id and mode], u16 length, key, then as above                       client
    0x0010      publish ack      u8 status (0 ok, 1 error), u64 request id, u16 length, text                 server
    + 0x1000    ... of an ok     as above, then u64 offset of the first record                               server
    + 0x0200    ... of an error  as above, then u16 code, u8 what to do (see `refusals`)                     server
    0x0002      event batch      u64 subscription id, payloads                                               server
    0x0004      event batch      payloads                                                                    server
    + 0x0020    of either batch  u64 offset of the first event, in front of the payloads                     server

    names       three times (tenant, namespace, stream): u16 length, UTF-8
    payloads    u32 count, then for each u32 length, bytes

The contract knows 0x0001 only and reserves the others; the rest is what deployed clients send and read. Bits that deployed software
gives a meaning we do not implement (`KNOWN` without `FROM_CLIENT`) change a payload's layout, so they are refused; what nobody has given a
meaning yet is ignored, as the contract asks.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

MAGIC: Final = 0x464C5831
VERSION: Final = 1
HEADER: Final = Struct(">IHHI")
HEADER_BYTES: Final = HEADER.size
LOGIN_PAYLOAD_BYTES_MAX: Final = 64 << 10
"""For a frame of a client that must log in and has not."""
PAYLOAD_BYTES_MAX: Final = 16 << 20
"""What the contract calls 16 MB is this many bytes in every deployed broker and client; exactly that many are allowed."""

JSON: Final = 0x0000
PUBLISH_BATCH: Final = 0x0001
EVENT_BATCH: Final = 0x0002
SHARED_EVENT_BATCH: Final = 0x0004
ACKED: Final = 0x0008
PUBLISH_ACK: Final = 0x0010
BASE_OFFSET: Final = 0x0020
KEYED: Final = 0x0040
ACK_CODE: Final = 0x0200
ACK_OFFSET: Final = 0x1000
KNOWN: Final = 0x7FFF
"""Every bit that some deployed release uses."""
FROM_CLIENT: Final = PUBLISH_BATCH | ACKED | KEYED
SUPPORTED: Final = FROM_CLIENT | EVENT_BATCH | SHARED_EVENT_BATCH | PUBLISH_ACK | BASE_OFFSET | ACK_CODE | ACK_OFFSET
"""What we announce to clients that announce theirs."""

CACHE_DELETE: Final = 0x0000_0004
CONSUMER_GROUPS: Final = 0x0000_0008
STREAM_SHARDS: Final = 0x0000_0020
ERROR_CODES: Final = 0x0000_0800
PUBLISH_PIPELINE: Final = 0x0000_8000
STREAM_PUBLISH_WINDOW: Final = 0x0002_0000
ACK_ON_COMMIT: Final = 0x0008_0000
FEATURES: Final = (
    CACHE_DELETE
    | CONSUMER_GROUPS
    | STREAM_SHARDS
    | ERROR_CODES
    | PUBLISH_PIPELINE
    | STREAM_PUBLISH_WINDOW
    | ACK_ON_COMMIT
)
"""Of the requests and promises that releases after the contract added, those we announce to clients that announce theirs: a client asks
for nothing that its broker has not announced. `docs/protocols/felix.md` lists them all."""
PUBLISH_WINDOW: Final = 256
"""Acked publishes that a client which pipelines may have unanswered on one stream; they are answered in order."""

CODE: Final = Struct(">HB")
"""For an error, and what to do about it."""
MODE_PER_MESSAGE: Final = 1
MODE_PER_BATCH: Final = 2
STATUS_OK: Final = 0
STATUS_ERROR: Final = 1

ID_MAX: Final = (1 << 64) - 1
ACK_TEXT_BYTES_MAX: Final = 1024
"""Error texts of ours are shorter; those that quote a name may not be."""

ALPN: Final = "felix/1"
"""Agreed on with clients that offer it. Most offer nothing."""
CLOSE_PROTOCOL_ERROR: Final = 1
"""The code a connection is closed with when a frame header cannot be one."""
CLOSE_SLOW: Final = 2
"""The code with which the stream of a subscriber that was too slow is reset."""
CLOSE_GONE: Final = 3
"""The same where the topic was deleted, cannot be read, or may not be read any more."""
