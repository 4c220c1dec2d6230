"""What an endpoint must know of QUIC packets before there is a connection: their destination, and the two stateless replies."""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest
from typing import Any, Final, NamedTuple

from qh3._hazmat import pull_quic_header
from qh3.quic.packet import (
    QuicPacketType,
    QuicProtocolVersion,
    encode_quic_retry,
    encode_quic_version_negotiation,
    get_retry_integrity_tag,
)

Address = tuple[Any, ...]
"""What a socket gives and takes: (host, port), or with flow information and scope for IPv6."""

VERSION: Final = int(QuicProtocolVersion.VERSION_1)
CID_BYTES: Final = 8
"""Ours. In a short header nothing says how long the id is, so all of an endpoint's are of one length."""
CID_BYTES_MAX: Final = 20
INITIAL_BYTES_MIN: Final = 1_200
"""A first datagram is at least so long, so that an answer to a forged address is no larger than what was asked."""
LONG_HEADER: Final = 0x80
FIXED_BIT: Final = 0x40
SHORT_HEADER_BYTES_MIN: Final = 1 + CID_BYTES + 20
"""Flags, id, packet number and what encryption adds; shorter ones cannot be ours."""


RESET_BYTES: Final = 43
RESET_BYTES_MIN: Final = 21


class LongHeader(NamedTuple):
    """The readable part of a packet that opens or negotiates a connection."""

    version: int
    is_initial: bool
    destination_cid: bytes
    source_cid: bytes
    token: bytes


class RetryPacket(NamedTuple):
    """What a server asks a client to begin again with."""

    source_cid: bytes
    token: bytes


def short_destination(datagram: bytes) -> bytes | None:
    """The destination connection ID of a datagram of an established connection; None if it is something else."""
    if len(datagram) < SHORT_HEADER_BYTES_MIN or datagram[0] & (LONG_HEADER | FIXED_BIT) != FIXED_BIT:
        return None
    return datagram[1 : 1 + CID_BYTES]


def long_header(datagram: bytes) -> LongHeader | None:
    """The header of a datagram that begins with a long one; None for garbage and everything else."""
    if len(datagram) < 7 or not datagram[0] & LONG_HEADER:
        return None
    version = int.from_bytes(datagram[1:5], "big")
    if version != VERSION:
        return _unknown_version_header(version, datagram)
    try:
        _, kind, _, destination, source, token, _, _, _, _ = pull_quic_header(datagram, 0, CID_BYTES)
    except ValueError:
        return None
    return LongHeader(version, kind == QuicPacketType.INITIAL, destination, source, token)


def next_packet(datagram: bytes, start: int) -> tuple[int, bytes | None]:
    """Return where the packet that begins at `start` ends, and its source connection id; None for a short header, which has none."""
    try:
        _, kind, _, _, source_cid, _, _, _, _, end = pull_quic_header(datagram, start, CID_BYTES)
    except ValueError:
        return len(datagram), None
    return (end if end > start else len(datagram)), (None if kind == QuicPacketType.ONE_RTT else source_cid)


def read_versions(datagram: bytes, destination_cid: bytes, source_cid: bytes) -> list[int] | None:
    """Return the versions of a Version Negotiation packet between these ids; None for anything else."""
    try:
        _, kind, _, destination, source, _, _, versions, _, end = pull_quic_header(datagram, 0, CID_BYTES)
    except ValueError:
        return None
    is_ours = (destination, source, end) == (destination_cid, source_cid, len(datagram))
    return list(versions) if kind == QuicPacketType.VERSION_NEGOTIATION and is_ours else None


def read_retry(datagram: bytes, destination_cid: bytes, original_destination_cid: bytes) -> RetryPacket | None:
    """Return what a Retry packet says, if it answers a first packet between these ids; None for anything else, and for a forgery."""
    try:
        version, kind, _, destination, source, token, tag, _, _, end = pull_quic_header(datagram, 0, CID_BYTES)
    except ValueError:
        return None
    if kind != QuicPacketType.RETRY or (version, destination, end) != (VERSION, destination_cid, len(datagram)):
        return None
    expected = get_retry_integrity_tag(datagram[: end - len(tag)], original_destination_cid, version=VERSION)
    return RetryPacket(source, token) if compare_digest(tag, expected) else None


def version_negotiation(header: LongHeader) -> bytes:
    """The answer to a version we do not speak: the one we do."""
    return encode_quic_version_negotiation(
        source_cid=header.destination_cid, destination_cid=header.source_cid, supported_versions=[VERSION]
    )


def retry(header: LongHeader, source_cid: bytes, token: bytes) -> bytes:
    """Ask the client to come again with a token, under the connection id `source_cid`."""
    return encode_quic_retry(
        version=VERSION,
        source_cid=source_cid,
        destination_cid=header.source_cid,
        original_destination_cid=header.destination_cid,
        retry_token=token,
    )


def stateless_reset(datagram: bytes, token: bytes, random_bytes: Callable[[int], bytes]) -> bytes | None:
    """Tell a client that its connection is forgotten; None if the datagram is too short to be answered by a shorter one.

    It looks like any other datagram but for its last bytes, and is shorter than what it answers, so that two servers that
    take each other for clients fall silent.
    """
    size = min(len(datagram) - 1, RESET_BYTES)
    if size < RESET_BYTES_MIN:
        return None
    unpredictable = random_bytes(size - len(token))
    return bytes([unpredictable[0] & ~LONG_HEADER & 0xFF | FIXED_BIT]) + unpredictable[1:] + token


def _unknown_version_header(version: int, datagram: bytes) -> LongHeader | None:
    """Only the ids stand where every version has them."""
    if version == 0:
        return None  # a version negotiation, which nobody sends to a server
    destination_end = 6 + datagram[5]
    if datagram[5] > CID_BYTES_MAX or len(datagram) <= destination_end:
        return None
    source_end = destination_end + 1 + datagram[destination_end]
    if datagram[destination_end] > CID_BYTES_MAX or len(datagram) < source_end:
        return None
    return LongHeader(version, False, datagram[6:destination_end], datagram[destination_end + 1 : source_end], b"")
