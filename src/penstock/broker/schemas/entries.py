"""What the table `__schemas` holds: the head and the versions of each schema, bindings of topics, and the last registry id."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from penstock.broker.schemas.bundling import Link
from penstock.broker.schemas.reference import Compatibility, Reference, SchemaType
from penstock.broker.schemas.worker import Stored


class EntryKey(NamedTuple):
    kind: str
    name: str
    version: int


class Head(msgspec.Struct, frozen=True, array_like=True, tag="head"):
    last_version: int
    compatibility: Compatibility


class Version(msgspec.Struct, frozen=True, array_like=True, tag="version"):
    type_: SchemaType
    text: str
    form: bytes
    cost: int
    fingerprint: bytes
    created_ms: int
    registry_id: int = 0
    """0 in entries of brokers that gave none: `Registry.start` gives them one."""
    crc64: bytes = b""
    """Of Avro: CRC-64-AVRO, as single-object encoding has it."""
    deleted: bool = False
    """Softly."""
    given: str = ""
    """As it was sent, where it refers to others: `text` has those in it."""
    links: tuple[Link, ...] = ()

    @property
    def stored(self) -> Stored:
        return Stored(self.text, self.form, self.cost)

    @property
    def size_bytes(self) -> int:
        return len(self.text) + len(self.form) + len(self.given)


class Binding(msgspec.Struct, frozen=True, array_like=True, tag="binding"):
    name: str
    version: int
    message: str
    topic_id: str
    """Empty while the topic is being created."""

    @property
    def reference(self) -> Reference:
        return Reference(self.name, self.version, self.message)


class Ids(msgspec.Struct, frozen=True, array_like=True, tag="ids"):
    last_id: int


Entry = Head | Version | Binding | Ids

IDS_KEY: Final = EntryKey("ids", "", 0)


def head_key(name: str) -> EntryKey:
    return EntryKey("schema", name, 0)


def binding_key(topic: str) -> EntryKey:
    return EntryKey("binding", topic, 0)
