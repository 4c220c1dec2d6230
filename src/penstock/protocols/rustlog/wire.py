"""RustLog on the wire: layouts, numbers and limits.

A frame is a u32 length and that many bytes of payload, 1 to 10 485 760. Integers are big-endian. `str` is a u16 length and UTF-8,
`blob` a u32 length and raw bytes. What the payload holds is one of two dialects, which the first byte tells, frame by frame:

    first byte         dialect
    { " [              JSON
    space, CR          JSON
    LF                 JSON where { " or [ follows the white space, else binary (an opcode nobody knows)
    TAB                JSON where { follows the white space, else binary (METRICS)
    any other          binary

Binary payloads, as deployed clients send them. What follows a complete request is ignored.

    opcode  request                                                    reply, behind the same opcode
    01      PRODUCE             str topic, u32 partition, u32 count,   u64 base offset, u32 count
                                count x blob
    02      FETCH               str group ("" is none), str topic,     u32 count, count x blob, u64 next offset
                                u32 partition, u64 offset, u32 bytes
    03      OFFSET_COMMIT       str group, str topic, u32 partition,   u8 success
                                u64 offset
    04      OFFSET_FETCH        str group, str topic, u32 partition    u8 has, u64 offset where has is 1
    05      CREATE_TOPIC        str topic, u32 partitions              u8 success
    06      LIST_TOPICS         -                                      u32 count, count x (str topic, u32 partitions)
    07      DESCRIBE_TOPIC      str topic                              str topic, u32 partitions, u32 count,
                                                                       count x (u32 partition, u64 high watermark)
    08      DESCRIBE_PARTITION  str topic, u32 partition               str topic, u32 partition, u64 high watermark
    09      METRICS             -                                      u32 length, text
    ff      PING                -                                      -
    fe      -                                                          ERROR: u16 code, str message

JSON payloads are objects with one key, the request's name, as in `{"Fetch":{"topic":"t","partition":0,"offset":0,"max_bytes":1024}}`;
`json_dialect` has their fields.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from struct import Struct
from typing import Final

from penstock.protocols.bytes import U32

PORT: Final = 9292
LENGTH_BYTES: Final = U32.size
PAYLOAD_BYTES_MAX: Final = 10_485_760
"""Of requests and replies, as the contract has it."""
LOGIN_PAYLOAD_BYTES_MAX: Final = 64 << 10
"""Of requests from clients without a certificate, where the listener requires one."""
RECORDS_PER_PRODUCE_MAX: Final = 100_000
"""A frame has room for millions of empty records. This many take 20 ms to split and to check, and fill a frame at 100 bytes each."""
DECODED_ON_LOOP_BYTES_MAX: Final = 64 << 10
"""Longer JSON is decoded in a thread: it takes up to 70 ns a byte."""
PARTITIONS_MAX: Final = 1000
"""For a topic created here, as the documentation of deployed brokers has it."""
TOPICS_MAX: Final = 1 << 20
"""In a list that a client reads: a hundred times what a broker holds by default."""
U32_MAX: Final = 0xFFFF_FFFF
U64_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF
ERROR_TEXT_BYTES_MAX: Final = 0xFFFF


class Opcode(IntEnum):
    PRODUCE = 0x01
    FETCH = 0x02
    OFFSET_COMMIT = 0x03
    OFFSET_FETCH = 0x04
    CREATE_TOPIC = 0x05
    LIST_TOPICS = 0x06
    DESCRIBE_TOPIC = 0x07
    DESCRIBE_PARTITION = 0x08
    METRICS = 0x09
    ERROR = 0xFE
    PING = 0xFF


class Code(IntEnum):
    """The code of an ERROR in the binary dialect."""

    FRAME = 1
    """The frame is too long or empty. The connection is closed."""
    DECODE = 2
    """The request cannot be decoded."""
    FETCH = 4
    """FETCH failed: records that cannot be read or fit into no reply, or access is denied."""
    OFFSET = 5
    """OFFSET_COMMIT or OFFSET_FETCH failed: an empty group name, no such partition, an offset beyond 63 bits."""
    NOT_FOUND = 10
    """The topic or partition of a PRODUCE or FETCH does not exist."""
    TOPIC_EXISTS = 11
    """The topic of a CREATE_TOPIC exists."""
    PARTITION_COUNT = 12
    """CREATE_TOPIC with 0 partitions, or more than 1000."""
    DESCRIBE_TOPIC = 13
    """DESCRIBE_TOPIC failed: no such topic."""
    DESCRIBE_PARTITION = 14
    """DESCRIBE_PARTITION failed: no such topic or partition."""
    SERVER = 500
    """PRODUCE, CREATE_TOPIC or another request failed, or the broker has an internal error."""


class Dialect(Enum):
    JSON = "json"
    BINARY = "binary"


JSON_NAMES: Final[dict[Opcode, str]] = {
    Opcode.PRODUCE: "Produce",
    Opcode.FETCH: "Fetch",
    Opcode.OFFSET_COMMIT: "OffsetCommit",
    Opcode.OFFSET_FETCH: "OffsetFetch",
    Opcode.CREATE_TOPIC: "CreateTopic",
    Opcode.LIST_TOPICS: "ListTopics",
    Opcode.DESCRIBE_TOPIC: "DescribeTopic",
    Opcode.DESCRIBE_PARTITION: "DescribePartition",
    Opcode.METRICS: "MetricsFetch",
    Opcode.PING: "Ping",
    Opcode.ERROR: "Error",
}
"""What JSON calls each opcode."""

PRODUCED = Struct(">BQI")
COUNT = Struct(">BI")

FETCH_REPLY_FIXED_BYTES: Final = COUNT.size + 8
"""In a binary FETCH reply, besides its records."""
FETCH_RECORD_COST_BYTES: Final = 12
"""What each record counts for against a binary request's bytes, besides its payload: the header deployed brokers store it with."""

_JSON_STARTS: Final = b'{"['
_WHITE_SPACE: Final = b" \t\r\n"


def dialect_of(payload: bytes) -> Dialect:
    """The dialect of a payload of at least one byte."""
    first = payload[0]
    if first in b'{"[ \r':
        return Dialect.JSON
    if first == 0x0A:
        start = payload.lstrip(_WHITE_SPACE)[:1]
        return Dialect.JSON if start and start in _JSON_STARTS else Dialect.BINARY
    if first == 0x09:
        return Dialect.JSON if payload.lstrip(_WHITE_SPACE)[:1] == b"{" else Dialect.BINARY
    return Dialect.BINARY


def frame(payload: bytes) -> bytes:
    return U32.pack(len(payload)) + payload
