"""Fujin on the wire: numbers and layouts. Every integer is big-endian; `str` is a u32 length and bytes; `cid` a u32 correlation id.

    client                                                     server
     1 CONNECT WRITER  str or u32 writer id                    -
     2 CONNECT READER  u8 kind, u8 auto commit, str topic       1  error?
     3 WRITE           cid, str topic, [headers], str body      2  cid, error?
     4 BEGIN           cid                                      3  cid, error?
     5 COMMIT          cid                                      4  cid, error?
     6 ROLLBACK        cid                                      5  cid, error?
     7 FETCH           cid, u32 records at most                 7  cid, error?, u32 count, messages
     8 ACK             cid, u32 count, ids (each a str)         8  cid, error?, u32 count, of each: str id, error?
     9 NACK            as ACK                                   9  as ACK
    10 DISCONNECT                                              10, and the stream ends
       -                                                        6  MSG: [str id], str value
    11 PONG, or just the end of the stream                     11 PING, on a stream of its own, which ends with it
       -                                                       12 STOP: please disconnect

`error?` is 0, or 1 and a str. An id stands before a value where auto commit is off. `headers` is a u16 count of `str`, keys and values in
turn; deployed clients leave the field out (the "code" form, after the code that is deployed), the contract's table has it (the "table"
form). A writer id is a `str` in the former and a u32 in the latter.

Numbers of requests and replies differ: a WRITE is 3 and its reply 2.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final


class Request(IntEnum):
    CONNECT_WRITER = 1
    CONNECT_READER = 2
    WRITE = 3
    BEGIN = 4
    COMMIT = 5
    ROLLBACK = 6
    FETCH = 7
    ACK = 8
    NACK = 9
    DISCONNECT = 10


class Reply(IntEnum):
    CONNECT_READER = 1
    WRITE = 2
    BEGIN = 3
    COMMIT = 4
    ROLLBACK = 5
    MSG = 6
    FETCH = 7
    ACK = 8
    NACK = 9
    DISCONNECT = 10
    STOP = 12


class ReaderKind(IntEnum):
    PUSH = 1
    PULL = 2


ALPN: Final = "fujin"
PORT: Final = 4848
PING: Final = b"\x0b"
CLOSED_BY_PING: Final = 3
"""The code with which a connection is closed whose peer does not answer pings."""
CORRELATED: Final = Struct(">BI")
"""A number and a correlation id: how most of both directions begins."""
ID: Final = Struct(">Q")

WRITER_ID_BYTES_MAX: Final = 1024
TOPIC_BYTES_MAX: Final = 64 << 10
"""What deployed peers can take; no topic has a name so long, but it can be refused by its name."""
HEADER_STRINGS_MAX: Final = 256
HEADERS_BYTES_MAX: Final = 64 << 10
HEADER_KEY_BYTES_MAX: Final = 1024
"""By which a header's key is told from a body; see the codec."""
IDS_MAX: Final = 16_384
"""In one ACK or NACK."""
ID_BYTES_MAX: Final = 1024
ERROR_BYTES_MAX: Final = 480
"""With what stands before it a reply stays under 500 bytes: deployed clients expect the answer to CONNECT READER in one read of 512."""
LOGIN_BODY_BYTES_MAX: Final = 64 << 10
"""For a message of a client that nothing identifies, where something must."""
BODY_BYTES_MAX_DEFAULT: Final = 1 << 20
PUSHED_BYTES_DEPLOYED_MAX: Final = 64 << 10
"""The largest body that deployed subscribers survive; their consumers, which fetch, have no such bound."""

WRITER_NOT_FOUND: Final = "writer not found"
READER_NOT_FOUND: Final = "reader not found"
INVALID_TX_STATE: Final = "invalid tx state"
INVALID_READER_TYPE: Final = "invalid reader type"
INVALID_AUTO_COMMIT: Final = "connect reader is auto commit arg invalid"
EMPTY_READER_TOPIC: Final = "reader name size arg not provided"
EMPTY_WRITER_TOPIC: Final = "writer topic len arg not provided"
EMPTY_BODY: Final = "write size arg not provided"
EMPTY_FETCH: Final = "fetch arg not provided"
UNKNOWN_ID: Final = "unknown id"
STOPPING: Final = "the server is stopping: connect again"
NOTHING_TO_FETCH: Final = "no messages"
INTERNAL_ERROR: Final = "internal error: the server's log has the details"
