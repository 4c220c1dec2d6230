"""The JSON dialect at the server: payloads to requests and replies to frames.

A payload is an object with one key that names the request; its value has these fields:

    Produce            topic, partition, records (arrays of bytes, each an array of numbers)
    Fetch              topic, partition, offset, max_bytes, group_id (may be null or absent)
    OffsetCommit       topic, partition, group_id, offset
    OffsetFetch        topic, partition, group_id
    CreateTopic        topic, partition_count
    DescribeTopic      topic
    DescribePartition  topic, partition
    ListTopics, MetricsFetch, Ping: none; the bare name as a string will do

The key is found by a pattern, so that the value is parsed once, by msgspec into a typed struct: numbers in their range, no floats, no
booleans for numbers. msgspec lets the last of several fields of one name win, where the contract's parser refuses: field names that
occur more than once, or text with escapes that could hide one, are examined again with every key noted. Unknown fields are ignored.

The records of a long Produce are decoded in steps: msgspec does not let other threads run before it is done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from penstock.errors import ProtocolViolation
from penstock.protocols.rustlog.codec import messages
from penstock.protocols.rustlog.wire import (
    DECODED_ON_LOOP_BYTES_MAX,
    JSON_NAMES,
    LENGTH_BYTES,
    RECORDS_PER_PRODUCE_MAX,
    U64_MAX,
    Dialect,
    Opcode,
    frame,
)

FIELDS_MAX = 10_000
"""In one payload, unknown ones too. Requests have five at most; a million of them would take seconds to look at."""

_U8 = Annotated[int, msgspec.Meta(ge=0, le=0xFF)]
_U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]
_U64 = Annotated[int, msgspec.Meta(ge=0)]  # msgspec has no bound above 2**63; `_check_u64` does the rest


class _Produce(msgspec.Struct):
    topic: str
    partition: _U32
    records: list[list[_U8]]


class _LongProduce(msgspec.Struct):
    topic: str
    partition: _U32
    records: msgspec.Raw


class _Fetch(msgspec.Struct):
    topic: str
    partition: _U32
    offset: _U64
    max_bytes: _U64
    group_id: str | None = None


class _OffsetCommit(msgspec.Struct):
    topic: str
    partition: _U32
    group_id: str
    offset: _U64


class _OffsetFetch(msgspec.Struct):
    topic: str
    partition: _U32
    group_id: str


class _CreateTopic(msgspec.Struct):
    topic: str
    partition_count: _U32


class _Topic(msgspec.Struct):
    topic: str


class _Partition(msgspec.Struct):
    topic: str
    partition: _U32


class _Nothing(msgspec.Struct):
    pass


class _Key:
    """A key of an object, told from every other even where both have one name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


_KEYED = msgspec.json.Decoder(dict[_Key, msgspec.Raw], dec_hook=lambda kind, name: kind(name))
_ENVELOPE = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"([A-Za-z]+)"[ \t\r\n]*:')
_WHITE_SPACE = b" \t\r\n"

_Reader = tuple[Opcode, msgspec.json.Decoder[Any], tuple[bytes, ...], Callable[[Any], messages.Body | list[bytes]]]


def _reader(opcode: Opcode, kind: Any, make: Callable[[Any], messages.Body | list[bytes]]) -> _Reader:
    fields = kind.__struct_fields__ if isinstance(kind, type(msgspec.Struct)) else ()
    names = tuple(f'"{field}"'.encode() for field in fields)
    return opcode, msgspec.json.Decoder(kind), names, make


_READERS: Mapping[bytes, _Reader] = {
    JSON_NAMES[reader[0]].encode(): reader
    for reader in (
        _reader(Opcode.PRODUCE, _Produce, lambda body: [bytes(record) for record in body.records]),
        _reader(
            Opcode.FETCH,
            _Fetch,
            lambda body: messages.Fetch(
                body.topic, body.partition, _check_u64(body.offset), _check_u64(body.max_bytes), body.group_id or ""
            ),
        ),
        _reader(
            Opcode.OFFSET_COMMIT,
            _OffsetCommit,
            lambda body: messages.OffsetCommit(body.topic, body.partition, body.group_id, _check_u64(body.offset)),
        ),
        _reader(
            Opcode.OFFSET_FETCH,
            _OffsetFetch,
            lambda body: messages.OffsetFetch(body.topic, body.partition, body.group_id),
        ),
        _reader(Opcode.CREATE_TOPIC, _CreateTopic, lambda body: messages.CreateTopic(body.topic, body.partition_count)),
        _reader(Opcode.LIST_TOPICS, _Nothing | None, lambda _: messages.ListTopics()),
        _reader(Opcode.DESCRIBE_TOPIC, _Topic, lambda body: messages.DescribeTopic(body.topic)),
        _reader(
            Opcode.DESCRIBE_PARTITION, _Partition, lambda body: messages.DescribePartition(body.topic, body.partition)
        ),
        _reader(Opcode.METRICS, _Nothing | None, lambda _: messages.Metrics()),
        _reader(Opcode.PING, _Nothing | None, lambda _: messages.Ping()),
    )
}
_LONG_PRODUCE = msgspec.json.Decoder(_LongProduce)
_RECORDS = msgspec.json.Decoder(list[list[_U8]])
_NUMBERS = msgspec.json.Decoder(list[_U8])
STEP_BYTES = 32 << 10
"""Of the text of records that are decoded at a time, which takes a millisecond or two."""
_BARE_NAMES = {b'"ListTopics"', b'"MetricsFetch"', b'"Ping"'}


def _check_u64(number: int) -> int:
    if number > U64_MAX:
        raise ProtocolViolation(f"{number} does not fit into 64 bits")
    return number


# --- requests, as the server reads them ---


def decode_request(payload: bytes, check: Callable[[], None] = lambda: None) -> messages.ProduceRun | messages.Call:
    """The request in a payload. Long ones are for a thread: `check` is called between steps, and raises what it likes to end it."""
    request_bytes = LENGTH_BYTES + len(payload)
    opcode = 0
    try:
        _check_cost(payload)
        name, body = _take_apart(payload)
        if name not in _READERS:
            raise ProtocolViolation(f"unknown request {name.decode(errors='replace')[:64]!r}")
        opcode, decoder, fields, make = _READERS[name]
        if opcode == Opcode.PRODUCE and len(body) > DECODED_ON_LOOP_BYTES_MAX:
            decoder, make = _LONG_PRODUCE, lambda body: take_records(bytes(body.records), check)
        check()
        decoded = decoder.decode(body)
        check()
        if b"\\" in body or any(body.count(field) > 1 for field in fields):
            _refuse_duplicates(body, fields)
        made = make(decoded)
    except (ProtocolViolation, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return messages.Call(Dialect.JSON, opcode, messages.BadRequest(_fault(payload, error)), request_bytes)
    if not isinstance(made, list):
        return messages.Call(Dialect.JSON, opcode, made, request_bytes)
    held_bytes = request_bytes + messages.RECORD_BYTES_IN_MEMORY * len(made)
    return messages.ProduceRun(Dialect.JSON, decoded.topic, decoded.partition, made, [len(made)], held_bytes)


def take_records(text: bytes, check: Callable[[], None], step_bytes: int = STEP_BYTES) -> list[bytes]:
    """The records in the text of a JSON array, which is well-formed, decoded in steps of about `step_bytes`.

    One call for ten megabytes would keep Python's lock for half a second.
    """
    # Without numbers and white space nothing but brackets may be left: one pair around one for each record.
    brackets = text.translate(None, b"0123456789," + _WHITE_SPACE)
    if brackets != b"[]" and brackets.replace(b"[]", b"") != b"[]":
        raise ProtocolViolation("records must be arrays of numbers from 0 to 255")
    values: list[bytes] = []
    position, end = text.index(b"[") + 1, text.rindex(b"]")
    try:
        while position < end:
            check()
            close = text.find(b"]", position + step_bytes, end)
            if close < 0:
                values += _short_records(text[position:end])
                break
            if close - position <= 2 * step_bytes:
                values += _short_records(text[position : close + 1])
            else:
                # The last of these records ends far beyond the step; the others end within it.
                start = text.rindex(b"[", position, close)
                values += _short_records(text[position:start])
                values.append(_long_record(text, start + 1, close, check, step_bytes))
            position = close + 1
    except msgspec.ValidationError as error:
        reason, _, _ = str(error).partition(" - at ")
        raise ProtocolViolation(f"{reason} - at `$.records`") from None
    return values


def _short_records(text: bytes) -> list[bytes]:
    return [bytes(record) for record in _RECORDS.decode(b"[%b]" % text.strip(b"," + _WHITE_SPACE))]


def _long_record(text: bytes, position: int, end: int, check: Callable[[], None], step_bytes: int) -> bytes:
    parts: list[bytes] = []
    while position < end:
        check()
        stop = text.find(b",", position + step_bytes, end)
        stop = end if stop < 0 else stop
        parts.append(bytes(_NUMBERS.decode(b"[%b]" % text[position:stop])))
        position = stop + 1
    return b"".join(parts)


def _check_cost(payload: bytes) -> None:
    """Refuse what would be examined in vain, or take long to, by counting bytes: before anything is made of it."""
    if payload.count(b":") > FIELDS_MAX:
        raise ProtocolViolation(f"more than {FIELDS_MAX} fields in one frame")
    # One bracket opens the list of records, and one each of them.
    if payload.count(b"[") > RECORDS_PER_PRODUCE_MAX + 1:
        raise ProtocolViolation(f"more than {RECORDS_PER_PRODUCE_MAX} records in one frame: send them in several")
    if not payload.isascii():
        try:
            payload.decode()
        except UnicodeDecodeError as error:
            raise ProtocolViolation(f"not valid UTF-8 at byte {error.start}") from None


def _take_apart(payload: bytes) -> tuple[bytes, bytes]:
    """The request's name and its value, which is not examined yet."""
    text = payload.strip(_WHITE_SPACE)
    if text in _BARE_NAMES:
        return text[1:-1], b"null"
    envelope = _ENVELOPE.match(text)
    if envelope is not None and text.endswith(b"}"):
        return envelope[1], text[envelope.end() : -1]
    keyed = _KEYED.decode(text)
    if len(keyed) != 1:
        raise ProtocolViolation(_not_one_key(len(keyed)))
    ((key, value),) = keyed.items()
    return key.name.encode(), bytes(value)


def _not_one_key(count: int) -> str:
    return f"a request is an object with one key, this one has {count}"


def _refuse_duplicates(body: bytes, fields: tuple[bytes, ...]) -> None:
    if body.lstrip(_WHITE_SPACE)[:1] != b"{":
        return
    names = [key.name for key in _KEYED.decode(body)]
    for field in fields:
        name = field[1:-1].decode()
        if names.count(name) > 1:
            raise ProtocolViolation(f"duplicate field `{name}`")


def _fault(payload: bytes, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
        # What looks malformed may be a second request behind the first.
        try:
            count = len(_KEYED.decode(payload))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return str(error)
        if count != 1:
            return _not_one_key(count)
    return str(error)


# --- replies, as the server writes them ---

_encode = msgspec.json.Encoder().encode

_FETCHED_START = b'{"Fetch":{"records":['
_FETCHED_END = b'],"next_offset":%d}}'
_RECORD_END = b"]}"
FETCH_REPLY_FIXED_BYTES = len(_FETCHED_START) + len(_FETCHED_END % U64_MAX) + len(_RECORD_END)


def encode_reply(opcode: Opcode, fields: Mapping[str, object]) -> bytes:
    return frame(_encode({JSON_NAMES[opcode]: fields}))


def encode_produced(base_offset: int, count: int) -> bytes:
    return encode_reply(Opcode.PRODUCE, {"offsets": list(range(base_offset, base_offset + count))})


def encode_records(offsets: Sequence[int], cells: Sequence[bytes], *, first: bool) -> list[bytes]:
    """Each record without its last two characters, so that the next one can follow; `first` opens the array."""
    rows = [b']},{"offset":%d,"payload":[%b' % (offset, cell) for offset, cell in zip(offsets, cells, strict=True)]
    if first:
        rows[0] = rows[0].removeprefix(b"]},")
    return rows


def encode_fetched(records: Sequence[bytes], next_offset: int) -> bytes:
    """`records` are those of `encode_records`."""
    end = _RECORD_END if records else b""
    return frame(b"".join((_FETCHED_START, *records, end, _FETCHED_END % next_offset)))


def encode_offset_committed(success: bool) -> bytes:
    return encode_reply(Opcode.OFFSET_COMMIT, {"success": success})


def encode_committed_offset(offset: int | None) -> bytes:
    return encode_reply(Opcode.OFFSET_FETCH, {"offset": offset})


def encode_created() -> bytes:
    return encode_reply(Opcode.CREATE_TOPIC, {"success": True})


def encode_topics(topics: Sequence[tuple[str, int]]) -> bytes:
    rows = [{"topic": name, "partition_count": partitions} for name, partitions in topics]
    return encode_reply(Opcode.LIST_TOPICS, {"topics": rows})


def encode_topic(state: messages.TopicState) -> bytes:
    rows = [_partition_fields(each) for each in state.partitions]
    return encode_reply(Opcode.DESCRIBE_TOPIC, {"topic": state.topic, "partition_count": len(rows), "partitions": rows})


def encode_partition(topic: str, state: messages.PartitionState) -> bytes:
    return encode_reply(Opcode.DESCRIBE_PARTITION, {"topic": topic, **_partition_fields(state)})


def _partition_fields(state: messages.PartitionState) -> dict[str, int]:
    return {
        "partition": state.index,
        "high_watermark": state.high_watermark,
        "start_offset": state.start_offset,
    }


def encode_metrics(text: str) -> bytes:
    return encode_reply(Opcode.METRICS, {"metrics": text})


def encode_pong() -> bytes:
    return encode_reply(Opcode.PING, {})


def encode_error(message: str) -> bytes:
    return encode_reply(Opcode.ERROR, {"message": message.encode(errors="replace").decode()})
