"""Records: produced, consumed, whole with their headers and times, delayed, with a time to live, and dead letters.

PRODUCE, CONSUME and FETCH are declared here for their opcodes and the reference. Their replies, and runs of PRODUCE, are coded by
hand in `codec` and `record_layouts`: they are the hot path. So is the usual form of PRODUCE_ONCE, in `codec.produce_once`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from penstock.frame_bounds import REPLY_ITEMS_MAX
from penstock.protocols.bytes import ByteReader
from penstock.protocols.flymq.operations.cells import Cells, HeaderCells
from penstock.protocols.flymq.operations.layout import (
    I32,
    I64,
    TAIL,
    U16,
    U32,
    U64,
    AtMost,
    Blob,
    Bool,
    Bytes,
    Columns,
    Flag,
    Key,
    Label,
    Layout,
    Nullable,
    Number,
    OneOf,
    Opaque,
    Pieces,
    Str,
    Tail,
    Text,
)
from penstock.protocols.flymq.operations.limits import (
    PRODUCED_HEADERS_MAX,
    PRODUCED_ONCE_HEADERS_MAX,
    PRODUCED_RECORDS_MAX,
)
from penstock.protocols.flymq.operations.operation import Operation
from penstock.protocols.flymq.operations.topics import Done
from penstock.protocols.flymq.wire import PARTITION_AUTO

OptionalI32 = Annotated[int | None, Nullable(Number("i32", "i"), -1)]
OptionalI64 = Annotated[int | None, Nullable(Number("i64", "q"), -1)]


@dataclass(slots=True)
class StoredRecord:
    """Where and when a record was stored."""

    topic: Str
    partition: I32
    offset: U64
    timestamp_ms: I64
    key_bytes: I32
    """-1 for no key."""
    value_bytes: I32

    @classmethod
    def of(cls, topic: str, partition: int, offset: int, timestamp_ms: int, key: bytes | None, value: bytes) -> Self:
        return cls(topic, partition, offset, timestamp_ms, len(key) if key else -1, len(value))


class Produce(Operation[StoredRecord], opcode=0x01, repeatable=False):
    """Store one record."""

    topic: Str
    key: Key
    """Empty for none."""
    value: Bytes
    partition: I32 = PARTITION_AUTO
    """-1: the broker chooses by the key, or in turn."""


class Consume(Operation[Annotated[bytes, Opaque("blob key, blob value")]], opcode=0x02):
    """Read one record."""

    topic: Str
    partition: I32
    offset: U64


class ConsumeZeroCopy(Consume, opcode=0x0A):
    """The same as CONSUME."""


class Fetch(
    Operation[
        Annotated[
            bytes,
            Opaque(
                "{blob key, blob value, u64 offset}*, u64 next offset; with a filter in the request: "
                "u32 count, u64 next offset, {u64 offset, blob key, blob value} count times"
            ),
        ]
    ],
    opcode=0x07,
):
    """Read records from an offset on. Deployed clients always send the filter, empty or not, and get a layout of their own."""

    topic: Str
    partition: I32
    offset: U64
    max_records: Annotated[I32, Label("max_messages")]
    filter: Annotated[str | None, Text(), TAIL] = None
    """If it is absent, the reply has the contract's layout."""


class FetchBinary(Fetch, opcode=0x0B):
    """The same as FETCH."""


# --- whole records ---


@dataclass(slots=True)
class RecordFailure:
    """A record that was not stored, and why, in the words of an ERROR."""

    row: U32
    error: Str


@dataclass(slots=True)
class ProducedRecords:
    """Where and when each record was stored; partition -1 for those among the failures."""

    partitions: Annotated[Sequence[I32], AtMost(PRODUCED_RECORDS_MAX)]
    offsets: Annotated[Sequence[I64], AtMost(PRODUCED_RECORDS_MAX)]
    timestamps_ms: Annotated[Sequence[I64], AtMost(PRODUCED_RECORDS_MAX)]
    failures: Annotated[Sequence[RecordFailure], AtMost(PRODUCED_RECORDS_MAX)]
    ids: Annotated[Sequence[Str], AtMost(PRODUCED_RECORDS_MAX)]
    """What cancels each record if there is a delay, else empty. Offsets are 0 then, and timestamps the times the records are due."""


class ProduceRecords(
    Operation[ProducedRecords], opcode=0xC8, long_lists=True, repeatable=False, smaller="send fewer records at a time"
):
    """Store records with headers, and records without a value. Each is stored, or fails, by itself.

    Records have no times of their own: their timestamp is when the broker commits them.
    """

    topic: Str
    values: Annotated[Sequence[bytes | None], Cells(PRODUCED_RECORDS_MAX)]
    """Null for a tombstone."""
    keys: Annotated[Sequence[bytes | None], Cells(PRODUCED_RECORDS_MAX)] = ()
    headers: Annotated[Sequence[bytes | None], HeaderCells(PRODUCED_RECORDS_MAX, PRODUCED_HEADERS_MAX)] = ()
    partition: I32 = PARTITION_AUTO
    """-1: the broker chooses by the key, or in turn."""
    ttl_ms: U64 = 0
    """Zero: no limit."""
    schema: Str = ""
    """What the records must look like, as in "orders:3"; empty: what the topic is bound to."""
    delay_ms: U64 = 0
    """Zero: at once. A delay goes with no schema but that of the topic."""


# --- records of idempotent producers ---


@dataclass(slots=True)
class RegisteredProducer:
    producer: Bytes
    """Of 16 bytes."""
    in_flight_max: U32
    """Requests of one producer that may wait for their answers."""


class RegisterProducer(Operation[RegisteredProducer], opcode=0xCA):
    """Return the id of a new producer. It belongs to the principal, whatever connection it uses.

    Sent twice, it registers two, of which one is never used and is forgotten in time.
    """


@dataclass(slots=True)
class StoredOnce:
    """Where and when the records of a request are stored: those of one partition at consecutive offsets, in their order."""

    partitions: Annotated[Sequence[U16], AtMost(PRODUCED_RECORDS_MAX)]
    """For each record, 65535 for those among the failures; empty if all are in the one place."""
    places: Annotated[Sequence[tuple[I32, I64, I64]], AtMost(PRODUCED_RECORDS_MAX)]
    """Partition, offset of the first record in it, timestamp."""
    failures: Annotated[Sequence[RecordFailure], AtMost(PRODUCED_RECORDS_MAX)]


class ProduceOnce(Operation[StoredOnce], opcode=0xCB, smaller="send fewer records at a time"):
    """Store records once, however often the request is sent. Each is stored, or fails, by itself.

    A producer numbers its requests from 0 and sends them in that order, over one connection at a time. A request that was stored gets its
    answer again. One of which nothing was stored, as its answer or error says, may be sent again or left.
    """

    producer: Bytes
    sequence: U64
    floor: U64
    """The lowest sequence number without an answer: what is below will not be sent again."""
    resent: Bool
    """Whether the request was sent before."""
    topic: Str
    values: Annotated[Sequence[bytes | None], Cells(PRODUCED_RECORDS_MAX)]
    """Null for a tombstone."""
    keys: Annotated[Sequence[bytes | None], Cells(PRODUCED_RECORDS_MAX)] = ()
    headers: Annotated[Sequence[bytes | None], HeaderCells(PRODUCED_RECORDS_MAX, PRODUCED_ONCE_HEADERS_MAX)] = ()
    partition: I32 = PARTITION_AUTO
    """-1: the broker chooses by the key, or in turn."""
    ttl_ms: U64 = 0
    """Zero: no limit."""
    schema: Str = ""
    """What the records must look like, as in "orders:3"; empty: what the topic is bound to."""


# --- whole records, read ---


@dataclass(slots=True)
class FetchedRecords:
    """Records of one partition, as columns of one length; a column of keys or headers is empty if no record has one."""

    next_offset: U64
    offsets: Annotated[Sequence[I64], AtMost(REPLY_ITEMS_MAX)]
    timestamps_ms: Annotated[Sequence[I64], AtMost(REPLY_ITEMS_MAX)]
    keys: Annotated[Sequence[bytes | None], Cells(REPLY_ITEMS_MAX)]
    values: Annotated[Sequence[bytes | None], Cells(REPLY_ITEMS_MAX)]
    headers: Annotated[Sequence[bytes | None], Cells(REPLY_ITEMS_MAX)]
    """Each as in header cells."""


class FetchRecords(Operation[FetchedRecords], opcode=0xC9, smaller="ask for fewer records"):
    """Read records from an offset on, with headers, timestamps and null values."""

    topic: Str
    partition: I32
    offset: U64
    max_records: I32
    filter: Str = ""
    """As in FETCH; empty for all records."""


# --- delay and time to live ---


@dataclass(slots=True)
class ScheduledRecord(StoredRecord):
    """A delayed record: its offset is 0, its timestamp the time it is due. Without a delay: as it is stored, and no id."""

    id: Annotated[Str, Tail(always_sent=True)] = ""


class ProduceDelayed(Operation[ScheduledRecord], opcode=0x30, repeatable=False):
    """Store one record after a delay. The reply has offset 0, the time it is due, and the id that cancels it; without a delay it is
    that of PRODUCE with an empty id."""

    topic: Str
    value: Bytes
    delay_ms: I64
    """Zero or less: at once."""
    key: Annotated[Key, TAIL] = None
    partition: Annotated[I32, TAIL] = PARTITION_AUTO
    ttl_ms: Annotated[U64, TAIL] = 0


class CancelDelayed(Operation[Done], opcode=0x31, repeatable=False):
    """Cancel a delayed record."""

    topic: Str
    id: Str


class ProduceWithTtl(Operation[StoredRecord], opcode=0x35, repeatable=False):
    """Store one record that no reader sees once its time to live is over."""

    topic: Str
    value: Bytes
    ttl_ms: U64
    """Zero: no limit."""
    key: Annotated[Key, TAIL] = None
    partition: Annotated[I32, TAIL] = PARTITION_AUTO


# --- dead letters ---


@dataclass(slots=True)
class DeadLetterHead:
    id: Str
    value: Bytes
    reason: Str
    attempts: U32


@dataclass(slots=True)
class DeadLetterDetails:
    """Where the record came from and when it failed; -1 for what is not known."""

    key: Key
    partition: OptionalI32
    offset: OptionalI64
    first_failed_ms: OptionalI64
    failed_ms: OptionalI64


class FetchDlq(
    Operation[
        Annotated[
            Iterable[tuple[DeadLetterHead, DeadLetterDetails | None]],
            Columns(DeadLetterHead, DeadLetterDetails, REPLY_ITEMS_MAX),
        ]
    ],
    opcode=0x20,
    smaller="ask for fewer dead letters",
):
    """The dead letters of a topic, oldest first."""

    topic: Str
    max_records: Annotated[I32, Label("max_messages")]


@dataclass(frozen=True, slots=True)
class ReplayFilter:
    """All dead letters whose record or reason matches."""

    filter: str
    """Empty for all."""
    dry_run: bool = False


class ReplayTarget(Layout):
    """An id, an offset of the dead-letter topic, or a filter after 0xFFFF.

    No deployed client sends what begins so: an offset would be beyond any log, an id of that length would fill the payload.
    """

    notation = "str id; or u64 offset; or u16 0xFFFF, str filter, bool dry run"
    bytes_min = 2
    describes_itself = True
    FILTER_MARK: Final = b"\xff\xff"

    def write(self, value: Any, pieces: Pieces) -> None:
        if isinstance(value, str):
            Text().write(value, pieces)
        elif isinstance(value, ReplayFilter):
            pieces.add(self.FILTER_MARK)
            Text().write(value.filter, pieces)
            Flag().write(value.dry_run, pieces)
        else:
            Number("u64", "Q").write(value, pieces)

    def read(self, reader: ByteReader, name: str) -> str | int | ReplayFilter:
        start = reader.peek(2)
        if len(start) == 2 and int.from_bytes(start, "big") == reader.remaining - 2:
            return reader.text16("id")
        if start == self.FILTER_MARK:
            reader.take(2, "mark")
            return ReplayFilter(reader.text16("filter"), reader.boolean("dry run"))
        return reader.u64("id or offset")


@dataclass(slots=True)
class Replayed:
    """The reply to a replay by id, or by filter, which has the count."""

    success: Bool
    message: Str
    count: Annotated[int | None, Number("u32", "I"), TAIL] = None


@dataclass(slots=True)
class ReplayedAt:
    """The reply that deployed clients read if they named an offset."""

    success: Bool
    message: Annotated[bytes, Blob()]


class ReplayDlq(
    Operation[Annotated[Replayed | ReplayedAt, OneOf(Replayed, ReplayedAt)]], opcode=0x21, repeatable=False
):
    """Write dead letters to their topic again. The second form of reply is for a request by offset."""

    topic: Str
    target: Annotated[str | int | ReplayFilter, ReplayTarget()]


class PurgeDlq(Operation[Done], opcode=0x22, repeatable=False):
    """Delete all dead letters of a topic."""

    topic: Str
