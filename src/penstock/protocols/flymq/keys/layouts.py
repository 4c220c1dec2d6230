"""Requests and replies about API keys as bytes, both ways. Layouts are in `wire`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.protocols.bytes import I64, ByteReader, text16, texts16
from penstock.protocols.flymq.keys.messages import KeyBody, KeyCreate, KeyDescription, KeyList, KeyRevoke
from penstock.protocols.flymq.limits import REPLY_ITEMS_MAX, ROLES_MAX
from penstock.protocols.flymq.wire import Opcode, counted_rows, frame

# --- requests ---


def _key_create(reader: ByteReader) -> KeyCreate:
    body = KeyCreate(reader.text16("name"), reader.texts16("roles", ROLES_MAX))
    reader.finish("roles")
    return body


def _key_list(reader: ByteReader) -> KeyList:
    reader.finish("KEY_LIST")
    return KeyList()


def _key_revoke(reader: ByteReader) -> KeyRevoke:
    body = KeyRevoke(reader.text16("name"))
    reader.finish("name")
    return body


READERS: Mapping[int, Callable[[ByteReader], KeyBody]] = {
    Opcode.KEY_CREATE: _key_create,
    Opcode.KEY_LIST: _key_list,
    Opcode.KEY_REVOKE: _key_revoke,
}


def encode_key_create(name: str, roles: Sequence[str]) -> bytes:
    return frame(Opcode.KEY_CREATE, text16(name) + texts16(roles))


def encode_key_revoke(name: str) -> bytes:
    return frame(Opcode.KEY_REVOKE, text16(name))


# --- replies ---


def encode_key_created(key: str) -> bytes:
    return frame(Opcode.KEY_CREATE, text16(key))


def decode_key_created(payload: bytes) -> str:
    return ByteReader(payload).text16("key")


def encode_keys(keys: Iterable[KeyDescription]) -> bytes:
    rows = (
        text16(each.name) + texts16(each.roles) + I64.pack(each.created_ms) + text16(each.created_by) for each in keys
    )
    return frame(Opcode.KEY_LIST, counted_rows(Opcode.KEY_LIST, rows))


def decode_keys(payload: bytes) -> list[KeyDescription]:
    reader = ByteReader(payload)
    return [
        KeyDescription(
            reader.text16("name"),
            reader.texts16("roles", ROLES_MAX),
            reader.i64("time of creation"),
            reader.text16("creator"),
        )
        for _ in range(reader.count32("keys", 16, REPLY_ITEMS_MAX))
    ]


def encode_key_revoked() -> bytes:
    return frame(Opcode.KEY_REVOKE, b"\x01")
