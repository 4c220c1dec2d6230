"""Snapshots of the whole log, for a backup or a check on the same machine."""

from __future__ import annotations

from penstock.broker.access.checks import Operation, Principal, on_broker
from penstock.broker.part import Part
from penstock.log.api import Snapshot


class Snapshots(Part):
    @on_broker(Operation.ADMIN)
    async def create(self, principal: Principal) -> Snapshot:
        """Keep every topic, internal ones too, as it is between two commits.

        Raises LimitExceeded, NotSupported on a log that is not in files.
        """
        snapshot = await self._engine.snapshot()
        self._audit.note(principal, "snapshot.create", snapshot.id)
        return snapshot

    @on_broker(Operation.ADMIN)
    async def release(self, principal: Principal, snapshot_id: str) -> None:
        """Remove a snapshot, as soon as no reader holds it; one that is gone already is no error."""
        await self._engine.release_snapshot(snapshot_id)
