"""Records on their way to a broker: checked, cut into requests, and what became of each.

Records without headers go as PRODUCE, which every FlyMQ server knows. Headers, null values and empty keys need PRODUCE_RECORDS, which
is Penstock's own: a server that does not know it gets none of the records, rather than a part of each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from penstock.clients.arguments import CHUNK_BYTES, CHUNK_RECORDS_MAX, Values, check_bytes, chunks, columns
from penstock.clients.pipeline import Exchange
from penstock.clients.records import RecordMetadata
from penstock.errors import InvalidRequest, NotSupported, PenstockError, ProtocolViolation, RecordTooLarge
from penstock.protocols.flymq.client.exchanges import Produces, Replies, mismatch
from penstock.protocols.flymq.codec.frames import Reply
from penstock.protocols.flymq.codec.record_layouts import check_record, encode_produce_many
from penstock.protocols.flymq.errors import decode_error, error_for
from penstock.protocols.flymq.operations.operation import decode_reply, encode_request
from penstock.protocols.flymq.operations.records import ProduceRecords
from penstock.protocols.flymq.operations.schemas import ProduceWithSchema, SchemaReading
from penstock.protocols.flymq.wire import ERROR, PAYLOAD_BYTES_MAX
from penstock.record_headers import HEADERS_PER_RECORD_MAX, encode_headers

Headers = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]
"""Names and values. Pairs keep names that repeat."""
Records = Values | Iterable[tuple[bytes | None, bytes | None, Headers]]
"""Values, pairs of key and value, or triples of key, value and headers."""

_RECORD_FIXED_BYTES = 12
"""Per record in PRODUCE_RECORDS: three lengths."""
_REQUEST_BYTES_MAX = 512 << 10
"""In a PRODUCE_RECORDS request besides its records: names of topic and schema, and fixed fields."""
Result = RecordMetadata | PenstockError


def header_cell(headers: Headers) -> bytes | None:
    """Headers as they are sent; None for none. Raises InvalidRequest."""
    if not headers:
        return None
    pairs: list[object] = list(headers.items() if isinstance(headers, Mapping) else headers)
    if len(pairs) > HEADERS_PER_RECORD_MAX:
        raise InvalidRequest(f"a record has {len(pairs)} headers: at most {HEADERS_PER_RECORD_MAX} are allowed")
    return encode_headers(map(_header, pairs)) or None


def _header(pair: object) -> tuple[str, bytes | None]:
    match pair:
        case (str(name), bytes() | None as value):
            return name, value
    raise InvalidRequest(
        f'{pair!r} is not a header: headers are names with values, a str with bytes or None, as in {{"trace": b"4711"}}'
    )


@dataclass(slots=True)
class Outgoing:
    """Records for one topic, as columns; `keys` and `headers` are None if no record has one."""

    topic: str
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[bytes | None] | None
    partition: int
    schema: str | None = None
    ttl_ms: int | None = None
    delay_ms: int = 0

    @classmethod
    def of(cls, topic: str, records: Records, partition: int, schema: str | None) -> Outgoing:
        """Check records. Raises InvalidRequest, RecordTooLarge."""
        rows = list(records)
        headers = None
        if rows and isinstance(rows[0], tuple) and len(rows[0]) == 3:
            if any(not isinstance(row, tuple) or len(row) != 3 for row in rows):
                raise InvalidRequest(
                    "records are values, pairs of key and value, or triples with headers: use one form"
                )
            headers = [header_cell(row[2]) for row in rows]  # type: ignore[arg-type]
            rows = [row[:2] for row in rows]
        keys, values = columns(rows)  # type: ignore[arg-type]
        outgoing = cls(topic, values, keys, headers if headers and any(headers) else None, partition, schema)
        outgoing.check()
        return outgoing

    def check(self) -> None:
        check_bytes((value for value in self.values if value is not None), self.keys or ())
        if self.whole:
            largest_bytes = max(self._sizes(), default=0)
            if largest_bytes > PAYLOAD_BYTES_MAX - _REQUEST_BYTES_MAX:
                raise RecordTooLarge(
                    f"a record of {largest_bytes} bytes with its key and headers does not fit into a FlyMQ frame: "
                    f"at most {PAYLOAD_BYTES_MAX - _REQUEST_BYTES_MAX} bytes are allowed"
                )
        else:
            check_record(
                self.topic,
                max(map(len, self._present_values()), default=0)
                + max(map(len, filter(None, self.keys or ())), default=0),
            )

    @classmethod
    def single(
        cls,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        partition: int,
        schema: str | None = None,
    ) -> Outgoing:
        """One record. Raises InvalidRequest, RecordTooLarge."""
        cell = header_cell(headers)
        outgoing = cls(
            topic,
            [value],
            None if key is None else [key],
            None if cell is None else [cell],
            partition,
            schema,
        )
        outgoing.check()
        return outgoing

    @property
    def whole(self) -> bool:
        """Whether PRODUCE would lose something."""
        return (
            self.headers is not None
            or None in self.values
            or (self.keys is not None and b"" in self.keys)
            or self.ttl_ms is not None
            or self.delay_ms > 0
        )

    def chunks(self, first: int) -> Iterator[tuple[int, int]]:
        """Bounds of what is sent at a time, from row `first` on."""
        if not self.whole:
            yield from chunks(self._present_values(), first, self.keys)
            return
        sizes = self._sizes()
        while first < len(sizes):
            ends = list(accumulate(sizes[first : first + CHUNK_RECORDS_MAX]))
            count = max(1, bisect_right(ends, CHUNK_BYTES))
            yield first, first + count
            first += count

    def exchange(self, first: int, last: int, timeout_s: float) -> Produces | ProducesTogether:
        """The requests for some of the records."""
        if self.whole:
            return ProducesTogether(self.request(first, last), timeout_s=timeout_s)
        keys = self.keys and self.keys[first:last]
        if self.schema is not None:
            data = _encode_with_schema(
                self.topic, self.schema, self._present_values()[first:last], keys, self.partition
            )
        else:
            data = encode_produce_many(self.topic, self._present_values()[first:last], keys, self.partition)
        return Produces(data, records=last - first, timeout_s=timeout_s)

    def request(self, first: int, last: int) -> ProduceRecords:
        """The PRODUCE_RECORDS request for some of the records."""
        return ProduceRecords(
            self.topic,
            self.values[first:last],
            self.keys[first:last] if self.keys else (),
            self.headers[first:last] if self.headers else (),
            self.partition,
            self.ttl_ms or 0,
            self.schema or "",
            self.delay_ms,
        )

    def _present_values(self) -> Sequence[bytes]:
        """The values, of which none is null."""
        return self.values  # type: ignore[return-value]

    def _sizes(self) -> list[int]:
        columns = [column for column in (self.values, self.keys, self.headers) if column is not None]
        return [
            _RECORD_FIXED_BYTES + sum(len(cell) for cell in row if cell is not None)
            for row in zip(*columns, strict=True)
        ]


class ProducesTogether(Exchange[Replies]):
    """One PRODUCE_RECORDS; `results` gathers the metadata or the error of each record, in order."""

    __slots__ = ("_records", "_topic", "ids", "results")

    def __init__(self, request: ProduceRecords, *, timeout_s: float) -> None:
        super().__init__(encode_request(request), replies=1, timeout_s=timeout_s, repeatable=False)
        self._topic = request.topic
        self._records = len(request.values)
        self.results: list[Result] = []
        self.ids: Sequence[str] = ()
        """What cancels each record, if there is a delay."""

    def accept(self, message: Replies, first: int, count: int) -> None:
        if isinstance(message, Reply) and message.opcode == ProduceRecords.opcode:
            self.results = self._results(message.payload)
        elif isinstance(message, Reply) and message.opcode == ERROR:
            error = error_for(decode_error(message.payload))
            if isinstance(error, NotSupported):
                error = NotSupported(
                    "not supported: this server cannot store headers, null values or empty keys (it does not know "
                    f"PRODUCE_RECORDS: {error}); send the records without them, or to a Penstock broker"
                )
            self.results = [error] * self._records
        else:
            raise mismatch(ProduceRecords.opcode, message)

    def _results(self, payload: bytes) -> list[Result]:
        stored = decode_reply(ProduceRecords, payload)
        if {len(stored.partitions), len(stored.offsets), len(stored.timestamps_ms)} != {self._records}:
            raise ProtocolViolation(f"the reply to {self._records} records does not tell where each of them is")
        self.ids = stored.ids
        results: list[Result] = [
            RecordMetadata(self._topic, *place)
            for place in zip(stored.partitions, stored.offsets, stored.timestamps_ms, strict=True)
        ]
        for failure in stored.failures:
            if failure.row >= len(results):
                raise ProtocolViolation(f"the reply to {self._records} records has an error for record {failure.row}")
            results[failure.row] = error_for(failure.error)
        return results


def _encode_with_schema(
    topic: str, schema: str, values: Sequence[bytes], keys: Sequence[bytes | None] | None, partition: int
) -> bytes:
    """One PRODUCE_WITH_SCHEMA frame a record, back to back."""
    readings = [
        SchemaReading(schema, value, key, partition)
        for value, key in zip(values, keys or [None] * len(values), strict=True)
    ]
    return b"".join(encode_request(ProduceWithSchema(topic, [reading])) for reading in readings)
