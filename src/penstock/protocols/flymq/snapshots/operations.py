"""What FlyMQ requests about snapshots do. The rest is in `operations`, which this extends."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from penstock.protocols.flymq.access.operations import Caller
from penstock.protocols.flymq.snapshots.layouts import encode_snapshot
from penstock.protocols.flymq.snapshots.messages import SnapshotCreate, SnapshotDescription, SnapshotRelease
from penstock.protocols.flymq.wire import Opcode, frame


async def _create(caller: Caller, opcode: int, body: SnapshotCreate) -> bytes:
    snapshot = await caller.broker.snapshot(caller.principal)
    return encode_snapshot(SnapshotDescription(snapshot.id, snapshot.directory))


async def _release(caller: Caller, opcode: int, body: SnapshotRelease) -> bytes:
    await caller.broker.release_snapshot(caller.principal, body.id)
    return frame(Opcode.SNAPSHOT_RELEASE)


METHODS: Mapping[type, Callable[[Caller, int, Any], bytes | Coroutine[Any, Any, bytes]]] = {
    SnapshotCreate: _create,
    SnapshotRelease: _release,
}
