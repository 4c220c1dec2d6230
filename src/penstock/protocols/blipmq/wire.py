"""BlipMQ on the wire: numbers and layouts. Every integer is big-endian.

    frame       u32 length (of what follows: 9 to 16 777 216), u8 type, u64 correlation id, payload

    HELLO       u16 protocol version                                        client
    AUTH        u16 length, API key in UTF-8                                client
    PUBLISH     u8 QoS, u16 length, topic in UTF-8, message to the end      both: a publish, or the delivery that answers a POLL
    SUBSCRIBE   u16 length, topic in UTF-8, u8 QoS; more bytes are ignored  client
    ACK         u64 subscription id (0: of a handshake)                     both
    NACK        u16 code, u16 length, reason in UTF-8                       server
    PING        anything                                                    client
    PONG        nothing                                                     server
    POLL        u64 subscription id                                         client

A delivery with QoS 1 has its delivery tag as correlation id, to be sent back in an ACK; one with QoS 0 has that of the POLL. Every other
answer has the correlation id of its request. PUBLISH and ACK are answered only where something is wrong, POLL only where there is a
record.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final


class FrameType(IntEnum):
    HELLO = 0x01
    AUTH = 0x02
    PUBLISH = 0x03
    SUBSCRIBE = 0x04
    ACK = 0x05
    NACK = 0x06
    PING = 0x07
    PONG = 0x08
    POLL = 0x09


class NackCode(IntEnum):
    """The code of a NACK frame."""

    INVALID = 400
    """The request is invalid, or a limit is reached."""
    UNAUTHENTICATED = 401
    """The API key is missing, unknown, or has no permission."""
    UNKNOWN = 404
    """The topic, subscription or delivery does not exist."""
    VERSION = 426
    """The protocol version of HELLO is not supported."""
    INTERNAL = 500
    """The broker failed; the request cannot succeed by changing it."""


PROTOCOL_VERSION: Final = 1
HEAD: Final = Struct(">IBQ")
HEAD_BYTES: Final = HEAD.size
ID_FRAME: Final = Struct(">IBQQ")
"""A whole POLL or ACK: what it holds is the id of a subscription."""
LENGTH_BYTES: Final = 4
LENGTH_MIN: Final = 9
"""Type and correlation id."""
LENGTH_MAX: Final = 16 << 20
LOGIN_LENGTH_MAX: Final = 64 << 10
"""Until AUTH has succeeded. The longest AUTH there can be has nine bytes and a few more than that; keys have 46."""
PUBLISH_FIXED_BYTES: Final = 3
"""QoS and the length of the topic."""
QOS_MAX: Final = 1
NACK_TEXT_BYTES_MAX: Final = 1024
"""Reasons of ours are shorter; those that quote a name may not be."""

HELLO_ALREADY_PERFORMED: Final = "HELLO already performed"
INVALID_HELLO: Final = "invalid HELLO payload"
UNSUPPORTED_VERSION: Final = "unsupported protocol version"
HELLO_NOT_PERFORMED: Final = "HELLO not performed"
ALREADY_AUTHENTICATED: Final = "already authenticated"
INVALID_AUTH: Final = "invalid AUTH payload"
INVALID_API_KEY: Final = "invalid API key"
UNAUTHENTICATED: Final = "unauthenticated"
INVALID_PUBLISH: Final = "invalid PUBLISH payload"
EMPTY_TOPIC: Final = "empty topic"
INVALID_QOS: Final = "invalid QoS value"
DURABLE_PUBLISH_FAILED: Final = "durable publish failed: "
INVALID_SUBSCRIBE: Final = "invalid SUBSCRIBE payload"
INVALID_ACK: Final = "invalid ACK payload"
SUBSCRIPTION_ID_ZERO: Final = "subscription_id must be non-zero"
UNKNOWN_DELIVERY: Final = "unknown subscription or delivery tag"
INVALID_POLL: Final = "invalid POLL payload"
