"""Requests and replies about snapshots as bytes, both ways. Layouts are in `wire`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.protocols.bytes import ByteReader, text16
from penstock.protocols.flymq.snapshots.messages import (
    SnapshotBody,
    SnapshotCreate,
    SnapshotDescription,
    SnapshotRelease,
)
from penstock.protocols.flymq.wire import Opcode, frame


def _snapshot_create(reader: ByteReader) -> SnapshotCreate:
    reader.finish("SNAPSHOT_CREATE")
    return SnapshotCreate()


def _snapshot_release(reader: ByteReader) -> SnapshotRelease:
    snapshot_id = reader.text16("id")
    reader.finish("SNAPSHOT_RELEASE")
    return SnapshotRelease(snapshot_id)


READERS: Mapping[int, Callable[[ByteReader], SnapshotBody]] = {
    Opcode.SNAPSHOT_CREATE: _snapshot_create,
    Opcode.SNAPSHOT_RELEASE: _snapshot_release,
}


def encode_snapshot(snapshot: SnapshotDescription) -> bytes:
    return frame(Opcode.SNAPSHOT_CREATE, text16(snapshot.id) + text16(snapshot.directory))


def encode_release(snapshot_id: str) -> bytes:
    return frame(Opcode.SNAPSHOT_RELEASE, text16(snapshot_id))


def decode_snapshot(payload: bytes) -> SnapshotDescription:
    reader = ByteReader(payload)
    return SnapshotDescription(reader.text16("id"), reader.text16("directory"))
