"""What crash tests do to a broker before it dies, and what must hold afterwards.

Four kinds of topic: `single` (one partition: commits flush its own segment), `spread` (six: commits go through the journal), `compacted`
and `retained`, whose small segments are sealed, rewritten and deleted all the time. The first two are checked record by record; of the
others, the part that they promise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.errors import PenstockError
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing.checker import ReadRecord, check
from penstock.testing.journal import Journal
from penstock.testing.load import ProducerLoad, read_everything
from penstock.testing.process import BrokerProcess

SINGLE, SPREAD, COMPACTED, RETAINED = "single", "spread", "compacted", "retained"
GROUP = "group"
KEYS = 50
# Small enough that every kind of file is begun, finished, rewritten and deleted within a second of load.
CONFIG = f"""
[log]
segment_bytes = "64 KiB"
journal_bytes = "1 MiB"
checkpoint_bytes = "1 MiB"
maintenance_interval_s = 0.1
compact_dirty_ratio = 0.1
[[topics]]
name = "{SINGLE}"
[[topics]]
name = "{SPREAD}"
partitions = 6
[[topics]]
name = "{COMPACTED}"
cleanup = "compact"
[[topics]]
name = "{RETAINED}"
retention_bytes = "128 KiB"
"""

_OPTIONS = ClientOptions(retry=NO_RETRY, request_timeout_s=20.0)


class Workload:
    """Load on one broker over several lives. Everything is noted outside its directory, so the check believes no one else."""

    def __init__(self, directory: Path) -> None:
        self.broker = BrokerProcess(directory / "data", config=CONFIG)
        self.journal = Journal(directory / "journal")
        self._compacted: dict[bytes, list[bytes]] = {}
        self._compacted_acked: dict[bytes, int] = {}
        self._offset_sent = 0
        self._offset_acked = 0
        self._round = 0

    def close(self) -> None:
        self.broker.close()
        self.journal.close()

    @contextmanager
    def running(self) -> Iterator[ProducerLoad]:
        """Every kind of load at once, until the block ends or the broker does."""
        self._round += 1
        over = threading.Event()
        with (
            ProducerLoad(self.broker.url, self.journal, SINGLE, producers=2, batch_records=20) as load,
            ProducerLoad(self.broker.url, self.journal, SPREAD, producers=2, batch_records=30, keys=40),
        ):
            chores = [
                threading.Thread(target=self._until_over, args=(over, chore))
                for chore in (self._write_compacted, self._write_retained, self._commit_offsets, self._churn_topics)
            ]
            for thread in chores:
                thread.start()
            try:
                yield load
            finally:
                over.set()
                for thread in chores:
                    thread.join()

    def _until_over(self, over: threading.Event, chore: Callable[[FlyMQClient, int], None]) -> None:
        try:
            with FlyMQClient(self.broker.url, options=_OPTIONS) as client:
                turn = 0
                while not over.is_set():
                    chore(client, turn)
                    turn += 1
        except PenstockError:
            return  # the broker is gone, which is what these tests are about

    def _write_compacted(self, client: FlyMQClient, turn: int) -> None:
        key = f"key-{turn % KEYS}".encode()
        values = self._compacted.setdefault(key, [])
        value = f"{self._round}/{turn}".encode().ljust(500, b"+")
        values.append(value)
        client.send(COMPACTED, value, key=key)
        self._compacted_acked[key] = len(values) - 1

    def _write_retained(self, client: FlyMQClient, turn: int) -> None:
        client.send_many(RETAINED, [f"{self._round}/{turn}/{row}".encode().ljust(400, b"-") for row in range(50)])

    def _commit_offsets(self, client: FlyMQClient, turn: int) -> None:
        self._offset_sent += 1
        client.commit(SINGLE, GROUP, 0, self._offset_sent)
        self._offset_acked = self._offset_sent

    def _churn_topics(self, client: FlyMQClient, turn: int) -> None:
        name = f"short-lived-{turn % 3}"
        client.create_topic(name, 2)
        client.send(name, b"gone soon")
        client.delete_topic(name)

    def check(self) -> None:
        """The broker runs again: does it hold what it promised?"""
        report = check(self.journal, {"flymq": read_everything(self.broker.url, [SINGLE, SPREAD])})
        report.raise_for_violations()
        with FlyMQClient(self.broker.url) as client:
            self._check_compacted(client)
            self._check_retained(client)
            if self._offset_acked:
                assert self._offset_acked <= (client.committed(SINGLE, GROUP, 0) or 0) <= self._offset_sent

    def _check_compacted(self, client: FlyMQClient) -> None:
        latest: dict[bytes | None, bytes] = {record.key: record.value for record in client.records(COMPACTED)}
        for key, acked in self._compacted_acked.items():
            sent = self._compacted[key]
            assert latest.get(key) in sent[acked:], f"{key!r} fell back behind its last acknowledged value"

    def _check_retained(self, client: FlyMQClient) -> None:
        before = -1
        for record in client.records(RETAINED):
            assert record.offset > before, "offsets of the retained topic go back"
            assert record.value.endswith(b"-"), "a value of the retained topic is not what was sent"
            before = record.offset

    def read_all(self) -> list[ReadRecord]:
        return list(read_everything(self.broker.url, [SINGLE, SPREAD]))
