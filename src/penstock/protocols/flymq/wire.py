"""FlyMQ on the wire: frames and numbers.

A frame is `AF 01 opcode flags u32-length` and a payload of that length. All integers are big-endian. Replies carry the opcode of
their request (AUTH is answered with 0x71) or 0xFF, in the order of the requests; nothing is sent unasked.

The operations are declared in `operations`, with the layouts of their payloads; docs/flymq-protocol.md lists them.
"""

from __future__ import annotations

from struct import Struct

from penstock import frame_bounds
from penstock.errors import LimitExceeded

MAGIC = 0xAF
VERSION = 0x01
HEADER = Struct(">BBBBI")
HEADER_BYTES = 8
PAYLOAD_BYTES_MAX = frame_bounds.PAYLOAD_BYTES_MAX

FLAG_BINARY = 0x01
COMPRESSION_MASK = 0x0E
COMPRESSION_GZIP = (0x02, 0x06)
"""The selectors that mean gzip. Deployed brokers take 0x06 (zstd by name) for gzip and ignore 0x04 and 0x08; so must we."""

PARTITION_AUTO = -1
RECORD_METADATA = Struct(">iQqii")
"""Partition, offset, timestamp, key size, value size: a PRODUCE reply behind its topic."""
PRODUCE_FIXED_BYTES = 12
"""In a PRODUCE payload, besides topic, key and value: two lengths and the partition."""
ROW_FIXED_BYTES = 16
"""Per record in a FETCH reply: two lengths and the offset."""
WHOLE_ROW_FIXED_BYTES = 28
"""Per record in a FETCH_RECORDS reply: offset, timestamp and three lengths."""
FETCH_RECORDS_DEFAULT = 10
"""What a fetch with a maximum of zero or less asks for."""

ERROR_CODE = 1
"""The only code that deployed brokers send."""
ERROR_MARK = "E: "
"""Begins every error text in the contract's form: deployed Python and Java clients drop six bytes of an ERROR payload that is not in
their own form, and the contract's fields take only three."""
ERROR_TEXT_BYTES_MAX = 8_000
"""Above some 14 KB those clients would take the mark for a length that fits."""


AUTH_RESPONSE = 0x71
"""The opcode of the reply to AUTH."""
ERROR = 0xFF


def frame(opcode: int, payload: bytes = b"", flags: int = FLAG_BINARY) -> bytes:
    return header(opcode, len(payload), flags) + payload


def header(opcode: int, payload_bytes: int, flags: int = FLAG_BINARY) -> bytes:
    """The header of a request or reply. Raises LimitExceeded if the contract allows no frame of that size."""
    if payload_bytes > PAYLOAD_BYTES_MAX:
        raise LimitExceeded(
            f"opcode 0x{opcode:02x} takes a frame of {payload_bytes} bytes, at most {PAYLOAD_BYTES_MAX} are allowed: "
            "ask for less at a time"
        )
    return HEADER.pack(MAGIC, VERSION, opcode, flags, payload_bytes)
