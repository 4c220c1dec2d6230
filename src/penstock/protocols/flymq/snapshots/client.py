"""Snapshots as clients ask for them: `client.snapshots` of the async client and of its twin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.clients.loop_thread import LoopThread
from penstock.protocols.flymq.snapshots import layouts
from penstock.protocols.flymq.snapshots.messages import SnapshotDescription
from penstock.protocols.flymq.wire import Opcode, frame

Ask = Callable[[bytes], Awaitable[bytes]]


class AsyncSnapshots:
    """A request may be sent again if a connection was lost: a snapshot that nobody reads is removed after a minute."""

    def __init__(self, read: Ask) -> None:
        self._read = read

    async def create(self) -> SnapshotDescription:
        """Have the broker keep every topic as it is now, for a reader on its machine that locks the snapshot within a minute."""
        return layouts.decode_snapshot(await self._read(frame(Opcode.SNAPSHOT_CREATE)))

    async def release(self, snapshot_id: str) -> None:
        """Tell the broker that a snapshot is not needed any more. Once nobody holds its lock, its files are removed."""
        await self._read(layouts.encode_release(snapshot_id))


class Snapshots:
    """The same calls as `AsyncSnapshots`, each waiting for its answer."""

    def __init__(self, thread: LoopThread, snapshots: AsyncSnapshots) -> None:
        self._thread = thread
        self._snapshots = snapshots

    def create(self) -> SnapshotDescription:
        """Have the broker keep every topic as it is now, for a reader on its machine that locks the snapshot within a minute."""
        return self._thread.run(self._snapshots.create())

    def release(self, snapshot_id: str) -> None:
        """Tell the broker that a snapshot is not needed any more. Once nobody holds its lock, its files are removed."""
        self._thread.run(self._snapshots.release(snapshot_id))
