"""Backups of a broker under load: what was acknowledged before one began is in it, and transactions are whole."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.log.embedded.backup import Backup, back_up
from penstock.log.embedded.restore import restore
from penstock.log.embedded.verify import verify
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing.process import BrokerProcess
from tests.crash.transaction_load import TransactionLoad

BACKUPS = 3
CHURNED = "churned"
BATCH = 500
BATCHES_BETWEEN = 20


@pytest.fixture
def load(tmp_path: Path) -> Iterator[TransactionLoad]:
    load = TransactionLoad(tmp_path)
    try:
        load.broker.start()
        yield load
    finally:
        load.close()


def take(broker: BrokerProcess, target: Path) -> Backup:
    with FlyMQClient(broker.url) as client:
        snapshot = client.snapshots.create()
        return back_up(Path(snapshot.directory), snapshot.id, target)


def test_transactions_are_in_a_backup_as_a_whole_or_not_at_all(load: TransactionLoad, tmp_path: Path) -> None:
    acked: list[set[int]] = []
    taken: list[Backup] = []
    with load.running():
        for _ in range(BACKUPS):
            load.wait_until_acked(2)
            acked.append({attempt.number for attempt in load.attempts if attempt.state == "acked"})
            taken.append(take(load.broker, tmp_path / "backups"))
    load.broker.close()
    for number, (backup, before) in enumerate(zip(taken, acked, strict=True)):
        assert verify(backup.path).findings == []
        restored = TransactionLoad(tmp_path / f"restored-{number}")
        assert restore(backup, restored.broker.data_dir).findings == []
        restored.attempts = load.attempts
        states = [attempt.state for attempt in load.attempts]
        for attempt in load.attempts:
            # Those that came later were acknowledged by a broker that this one is a copy of from before.
            attempt.state = "acked" if attempt.number in before else "committing"
        try:
            restored.broker.start()
            restored.check()
        finally:
            restored.close()
            for attempt, state in zip(load.attempts, states, strict=True):
                attempt.state = state


class Churn:
    """Records in order to a topic of many small segments, which retention, rewrites and deletion work on all the time."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._over = threading.Event()
        self._more = threading.Condition()
        self.acked = 0
        self._threads = [threading.Thread(target=work) for work in (self._append, self._create_and_delete)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait(self, batches: int) -> int:
        """Wait for some more acknowledged batches; returns how many records are acknowledged by then."""
        with self._more:
            enough = self.acked + batches * BATCH
            assert self._more.wait_for(lambda: self.acked >= enough, 60), "the broker acknowledges nothing"
            return self.acked

    def _append(self) -> None:
        with FlyMQClient(self._broker.url) as client:
            while not self._over.is_set():
                client.send_many(CHURNED, [(b"%d" % (self.acked + row), b"v" * 50) for row in range(BATCH)])
                with self._more:
                    self.acked += BATCH
                    self._more.notify_all()

    def _create_and_delete(self) -> None:
        with FlyMQClient(self._broker.url, options=ClientOptions(retry=NO_RETRY)) as client:
            while not self._over.is_set():
                client.create_topic("passing", 2)
                client.send_many("passing", [b"x"] * BATCH)
                client.delete_topic("passing")


def test_retention_rewrites_and_deletions_do_not_break_a_backup(tmp_path: Path) -> None:
    config = f"""
    [log]
    segment_bytes = "64 KiB"
    maintenance_interval_s = 0.1
    [admin]
    bind = "127.0.0.1:0"
    [[topics]]
    name = "{CHURNED}"
    retention_bytes = "1 MiB"
    """
    taken: list[tuple[int, Backup]] = []
    with BrokerProcess(tmp_path / "data", config=config) as broker, Churn(broker) as churn:
        for _ in range(2 * BACKUPS):
            acked = churn.wait(BATCHES_BETWEEN)
            taken.append((acked, take(broker, tmp_path / "backups")))
    spans = []
    for acked, backup in taken:
        assert verify(backup.path).findings == []
        [topic] = [topic for topic in backup.manifest.topics if topic.name == CHURNED]
        assert topic.ends[0] >= acked
        spans.append(range(topic.starts[0], topic.ends[0]))
    assert spans[-1].start > 0, "retention has removed nothing"
    restore(taken[-1][1], tmp_path / "restored")
    with BrokerProcess(tmp_path / "restored") as broker, FlyMQClient(broker.url) as client:
        keys = [int(record.key or b"") for record in client.records(CHURNED)]
        assert keys == list(spans[-1])
