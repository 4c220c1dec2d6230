"""Snapshots over a real connection: files that are there, and an entry in the audit trail."""

from __future__ import annotations

from pathlib import Path

from penstock.log.embedded.manifest import read_manifest
from penstock.protocols.flymq.operations.access import AuditQuery
from penstock.testing import RunningBroker


def test_a_snapshot_is_made_audited_and_released() -> None:
    with RunningBroker() as broker:
        client = broker.connect()
        client.send("orders", b"one")
        snapshot = client.snapshots.create()
        manifest = read_manifest(Path(snapshot.directory))
        assert manifest is not None
        assert manifest.id == snapshot.id
        ends = {topic.name: topic.ends for topic in manifest.topics}
        assert ends["orders"] == [1]
        assert "__groups" in ends
        [event] = client.access.audit(AuditQuery(types=["snapshot.create"])).events
        assert event.resource == snapshot.id
        client.snapshots.release(snapshot.id)
        assert not Path(snapshot.directory).exists()
        client.snapshots.release(snapshot.id)
