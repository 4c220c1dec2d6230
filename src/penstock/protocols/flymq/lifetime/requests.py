"""FlyMQ requests about delayed records, records with a time to live and dead letters, both ways. Layouts are in `wire`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.errors import RecordTooLarge
from penstock.protocols.bytes import I32, U64, ByteReader, blob32, text16
from penstock.protocols.flymq.lifetime.messages import (
    CancelDelayed,
    FetchDlq,
    LifetimeBody,
    ProduceDelayed,
    ProduceWithTtl,
    PurgeDlq,
    ReplayDlq,
    ReplayDlqAll,
    ReplayDlqAt,
)
from penstock.protocols.flymq.wire import PARTITION_AUTO, PAYLOAD_BYTES_MAX, Opcode, frame

# In front of what no deployed client sends: an offset that would begin so is beyond any log, an id that long would fill the payload.
ALL_LETTERS: Final = b"\xff\xff"

# --- the server's side ---


def _produce_delayed(reader: ByteReader) -> ProduceDelayed:
    # Negative delays arrive as what they are in two's complement.
    body = ProduceDelayed(reader.text16("topic"), reader.blob32("value"), reader.i64("delay"))
    if reader.remaining:
        body.key, body.partition = reader.blob32("key") or None, reader.i32("partition")
        body.ttl_ms = reader.u64("ttl")
    reader.finish("ttl")
    return body


def _produce_with_ttl(reader: ByteReader) -> ProduceWithTtl:
    body = ProduceWithTtl(reader.text16("topic"), reader.blob32("value"), reader.u64("ttl"))
    if reader.remaining:
        body.key, body.partition = reader.blob32("key") or None, reader.i32("partition")
    reader.finish("partition")
    return body


def _cancel_delayed(reader: ByteReader) -> CancelDelayed:
    body = CancelDelayed(reader.text16("topic"), reader.text16("id"))
    reader.finish("id")
    return body


def _fetch_dlq(reader: ByteReader) -> FetchDlq:
    body = FetchDlq(reader.text16("topic"), reader.i32("max_messages"))
    reader.finish("max_messages")
    return body


def _replay_dlq(reader: ByteReader) -> ReplayDlq | ReplayDlqAt | ReplayDlqAll:
    topic = reader.text16("topic")
    start = reader.peek(2)
    if len(start) == 2 and int.from_bytes(start, "big") == reader.remaining - 2:
        return ReplayDlq(topic, reader.text16("id"))
    if start == ALL_LETTERS:
        reader.take(2, "mark")
        body = ReplayDlqAll(topic, reader.text16("filter"), reader.boolean("dry run"))
        reader.finish("dry run")
        return body
    offset = reader.u64("id or offset")
    reader.finish("offset")
    return ReplayDlqAt(topic, offset)


def _purge_dlq(reader: ByteReader) -> PurgeDlq:
    body = PurgeDlq(reader.text16("topic"))
    reader.finish("topic")
    return body


READERS: Mapping[int, Callable[[ByteReader], LifetimeBody]] = {
    Opcode.PRODUCE_DELAYED: _produce_delayed,
    Opcode.PRODUCE_WITH_TTL: _produce_with_ttl,
    Opcode.CANCEL_DELAYED: _cancel_delayed,
    Opcode.FETCH_DLQ: _fetch_dlq,
    Opcode.REPLAY_DLQ: _replay_dlq,
    Opcode.PURGE_DLQ: _purge_dlq,
}

# --- the client's side ---


def encode_produce_delayed(
    topic: str,
    value: bytes,
    delay_ms: int,
    key: bytes | None = None,
    partition: int = PARTITION_AUTO,
    ttl_ms: int = 0,
) -> bytes:
    """The tail is sent only where it says something: a deployed broker gets what its own clients send."""
    payload = text16(topic) + blob32(value) + U64.pack(delay_ms)
    if key or partition != PARTITION_AUTO or ttl_ms:
        payload += blob32(key or b"") + I32.pack(partition) + U64.pack(ttl_ms)
    return _write_frame(Opcode.PRODUCE_DELAYED, payload)


def encode_produce_with_ttl(
    topic: str, value: bytes, ttl_ms: int, key: bytes | None = None, partition: int = PARTITION_AUTO
) -> bytes:
    payload = text16(topic) + blob32(value) + U64.pack(ttl_ms)
    if key or partition != PARTITION_AUTO:
        payload += blob32(key or b"") + I32.pack(partition)
    return _write_frame(Opcode.PRODUCE_WITH_TTL, payload)


def _write_frame(opcode: Opcode, payload: bytes) -> bytes:
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise RecordTooLarge(
            f"a request of {len(payload)} bytes does not fit into a frame: at most {PAYLOAD_BYTES_MAX}"
        )
    return frame(opcode, payload)


def encode_cancel_delayed(topic: str, entry_id: str) -> bytes:
    return frame(Opcode.CANCEL_DELAYED, text16(topic) + text16(entry_id))


def encode_fetch_dlq(topic: str, max_records: int) -> bytes:
    return frame(Opcode.FETCH_DLQ, text16(topic) + I32.pack(max_records))


def encode_replay_dlq(topic: str, letter_id: str) -> bytes:
    return frame(Opcode.REPLAY_DLQ, text16(topic) + text16(letter_id))


def encode_replay_dlq_at(topic: str, offset: int) -> bytes:
    return frame(Opcode.REPLAY_DLQ, text16(topic) + U64.pack(offset))


def encode_replay_dlq_all(topic: str, wanted: str, *, dry_run: bool) -> bytes:
    return frame(Opcode.REPLAY_DLQ, text16(topic) + ALL_LETTERS + text16(wanted) + bytes((dry_run,)))


def encode_purge_dlq(topic: str) -> bytes:
    return frame(Opcode.PURGE_DLQ, text16(topic))
