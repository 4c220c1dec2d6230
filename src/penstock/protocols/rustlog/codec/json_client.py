"""The JSON dialect at the client: requests to frames and payloads to replies. `json_dialect` has the fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from penstock.errors import ProtocolViolation
from penstock.protocols.rustlog.codec import messages
from penstock.protocols.rustlog.codec.byte_arrays import cuts_of, encode_byte_arrays
from penstock.protocols.rustlog.codec.json_dialect import encode_reply
from penstock.protocols.rustlog.wire import JSON_NAMES, Code, Opcode, frame

# --- requests ---


def encode_produce(topic: str, partition: int, values: Sequence[bytes]) -> bytes:
    cells = encode_byte_arrays(b"".join(values), cuts_of(values))
    records = b"],[".join(cells)
    return frame(
        b'{"Produce":{"topic":%b,"partition":%d,"records":[%b]}}'
        % (msgspec.json.encode(topic), partition, b"[" + records + b"]" if values else b"")
    )


def encode_call(body: messages.Body) -> bytes:
    opcode, fields = _WRITERS[type(body)](body)
    return encode_reply(opcode, fields)


_WRITERS: Mapping[type, Callable[..., tuple[Opcode, dict[str, object]]]] = {
    messages.Fetch: lambda body: (
        Opcode.FETCH,
        {
            "topic": body.topic,
            "partition": body.partition,
            "offset": body.offset,
            "max_bytes": body.max_bytes,
            "group_id": body.group or None,
        },
    ),
    messages.OffsetCommit: lambda body: (
        Opcode.OFFSET_COMMIT,
        {"topic": body.topic, "partition": body.partition, "group_id": body.group, "offset": body.offset},
    ),
    messages.OffsetFetch: lambda body: (
        Opcode.OFFSET_FETCH,
        {"topic": body.topic, "partition": body.partition, "group_id": body.group},
    ),
    messages.CreateTopic: lambda body: (Opcode.CREATE_TOPIC, {"topic": body.topic, "partition_count": body.partitions}),
    messages.ListTopics: lambda _: (Opcode.LIST_TOPICS, {}),
    messages.DescribeTopic: lambda body: (Opcode.DESCRIBE_TOPIC, {"topic": body.topic}),
    messages.DescribePartition: lambda body: (
        Opcode.DESCRIBE_PARTITION,
        {"topic": body.topic, "partition": body.partition},
    ),
    messages.Metrics: lambda _: (Opcode.METRICS, {}),
    messages.Ping: lambda _: (Opcode.PING, {}),
}


# --- replies ---

_U8 = Annotated[int, msgspec.Meta(ge=0, le=0xFF)]


class _Produced(msgspec.Struct):
    offsets: list[int]


class _Record(msgspec.Struct, gc=False):
    offset: int
    payload: list[_U8]


class _Fetched(msgspec.Struct):
    records: list[_Record]
    next_offset: int


class _Success(msgspec.Struct):
    success: bool


class _Offset(msgspec.Struct):
    offset: int | None


class _TopicRow(msgspec.Struct):
    topic: str
    partition_count: int


class _Topics(msgspec.Struct):
    topics: list[_TopicRow]


class _PartitionRow(msgspec.Struct):
    partition: int
    high_watermark: int
    start_offset: int


class _Topic(msgspec.Struct):
    topic: str
    partitions: list[_PartitionRow]


class _Metrics(msgspec.Struct):
    metrics: str


class _Error(msgspec.Struct):
    message: str


Kind = TypeVar("Kind")


def _decoder(opcode: Opcode, kind: type[Kind]) -> Callable[[bytes], Kind]:
    name = JSON_NAMES[opcode]
    decoder = msgspec.json.Decoder(dict[str, kind])  # type: ignore[valid-type]

    def decode(payload: bytes) -> Kind:
        try:
            reply: dict[str, Any] = decoder.decode(payload)
            body: Kind = reply[name]
        except (msgspec.DecodeError, KeyError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolViolation(f"not a {name} reply: {error}") from None
        return body

    return decode


_NEXT_OFFSET = re.compile(rb'"next_offset":(\d{1,20})\}\}$')
_NEXT_OFFSET_BYTES_MAX = 40
_decode_produced = _decoder(Opcode.PRODUCE, _Produced)
_decode_fetched = _decoder(Opcode.FETCH, _Fetched)
_decode_success = _decoder(Opcode.OFFSET_COMMIT, _Success)
_decode_offset = _decoder(Opcode.OFFSET_FETCH, _Offset)
_decode_topics = _decoder(Opcode.LIST_TOPICS, _Topics)
_decode_topic = _decoder(Opcode.DESCRIBE_TOPIC, _Topic)
_decode_metrics = _decoder(Opcode.METRICS, _Metrics)
_decode_error = _decoder(Opcode.ERROR, _Error)


def decode_produced(payload: bytes) -> messages.Produced:
    return messages.Produced(_decode_produced(payload).offsets)


def decode_fetched(payload: bytes) -> messages.Fetched:
    fetched = _decode_fetched(payload)
    offsets = [record.offset for record in fetched.records]
    return messages.Fetched(offsets, [bytes(record.payload) for record in fetched.records], fetched.next_offset)


def next_offset(payload: bytes) -> int:
    """For a Fetch reply whose records are not examined: it is the last field."""
    found = _NEXT_OFFSET.search(payload, max(0, len(payload) - _NEXT_OFFSET_BYTES_MAX))
    if found is None:
        raise ProtocolViolation("not a Fetch reply: it does not end with its next offset")
    return int(found[1])


def decode_success(payload: bytes) -> bool:
    return _decode_success(payload).success


def decode_committed_offset(payload: bytes) -> int | None:
    return _decode_offset(payload).offset


def decode_topics(payload: bytes) -> list[tuple[str, int]]:
    return [(row.topic, row.partition_count) for row in _decode_topics(payload).topics]


def decode_topic(payload: bytes) -> messages.TopicState:
    described = _decode_topic(payload)
    partitions = [
        messages.PartitionState(row.partition, row.high_watermark, row.start_offset) for row in described.partitions
    ]
    return messages.TopicState(described.topic, partitions)


def decode_metrics(payload: bytes) -> str:
    return _decode_metrics(payload).metrics


def decode_error(payload: bytes) -> messages.Failure:
    return messages.Failure(Code.SERVER, _decode_error(payload).message)
