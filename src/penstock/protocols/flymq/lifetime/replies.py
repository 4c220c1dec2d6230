"""FlyMQ replies about delayed records, records with a time to live and dead letters, both ways. Layouts are in `wire`.

What deployed clients do not know stands behind what they do: they stop reading there.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from penstock.clients.records import RecordMetadata
from penstock.protocols.bytes import U32, ByteReader, blob32, text16
from penstock.protocols.flymq.lifetime.messages import DeadLetterInfo, DelayedRecord
from penstock.protocols.flymq.limits import REPLY_ITEMS_MAX
from penstock.protocols.flymq.wire import RECORD_METADATA, Opcode, frame

_STORY = Struct(">iqqq")
"""Partition, offset, first and last failure in ms; -1 for what is not known."""
_UNKNOWN = -1
_LETTER_BYTES_MIN = 12

# --- the server's side ---


def encode_delayed(topic: str, partition: int, due_ms: int, key: bytes | None, value: bytes, entry_id: str) -> bytes:
    """The offset is 0, as deployed brokers have it: it is not known yet."""
    metadata = RECORD_METADATA.pack(partition, 0, due_ms, len(key) if key else -1, len(value))
    return frame(Opcode.PRODUCE_DELAYED, text16(topic) + metadata + text16(entry_id))


def encode_stored(
    opcode: Opcode, topic: str, partition: int, offset: int, timestamp_ms: int, key: bytes | None, value: bytes
) -> bytes:
    metadata = RECORD_METADATA.pack(partition, offset, timestamp_ms, len(key) if key else -1, len(value))
    return frame(opcode, text16(topic) + metadata + (text16("") if opcode is Opcode.PRODUCE_DELAYED else b""))


def encode_ok(opcode: int, message: str) -> bytes:
    return frame(opcode, b"\x01" + text16(message))


def encode_replayed_at(message: str) -> bytes:
    """The form that deployed clients read where they named an offset."""
    return frame(Opcode.REPLAY_DLQ, b"\x01" + blob32(message.encode()))


def encode_replayed_all(message: str, count: int) -> bytes:
    return frame(Opcode.REPLAY_DLQ, b"\x01" + text16(message) + U32.pack(min(count, 0xFFFFFFFF)))


def encode_letters(letters: Sequence[DeadLetterInfo]) -> bytes:
    parts = [U32.pack(len(letters))]
    for letter in letters:
        parts += text16(letter.id), blob32(letter.value), text16(letter.reason), U32.pack(letter.attempts)
    for letter in letters:
        story = (letter.partition, letter.offset, letter.first_failed_ms, letter.failed_ms)
        parts += blob32(letter.key or b""), _STORY.pack(*(_UNKNOWN if each is None else each for each in story))
    return frame(Opcode.FETCH_DLQ, b"".join(parts))


# --- the client's side ---


def decode_delayed(payload: bytes) -> DelayedRecord:
    reader = ByteReader(payload)
    stored = _metadata(reader)
    entry_id = reader.text16("id") if reader.remaining else ""
    return DelayedRecord(stored.topic, stored.partition, stored.timestamp_ms, entry_id)


def decode_stored(payload: bytes) -> RecordMetadata:
    return _metadata(ByteReader(payload))


def _metadata(reader: ByteReader) -> RecordMetadata:
    topic = reader.text16("topic")
    fields = RECORD_METADATA.unpack(reader.take(RECORD_METADATA.size, "record metadata"))
    return RecordMetadata(topic, *fields[:3])


def decode_replayed_all(payload: bytes) -> int:
    reader = ByteReader(payload)
    reader.boolean("success")
    reader.text16("message")
    return reader.u32("count")


def decode_letters(payload: bytes) -> list[DeadLetterInfo]:
    reader = ByteReader(payload)
    letters = [
        (reader.text16("id"), reader.blob32("payload"), reader.text16("error"), reader.u32("retries"))
        for _ in range(reader.count32("dead letters", _LETTER_BYTES_MIN, REPLY_ITEMS_MAX))
    ]
    if not reader.remaining:
        return [DeadLetterInfo(*letter) for letter in letters]
    told = []
    for letter in letters:
        key = reader.blob32("key") or None
        story = _STORY.unpack(reader.take(_STORY.size, "story"))
        told.append(DeadLetterInfo(*letter, key, *(None if each == _UNKNOWN else each for each in story)))
    return told
