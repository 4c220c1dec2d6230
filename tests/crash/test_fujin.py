"""kill -9 under Fujin's own load over QUIC: acknowledged writes and whole transactions are there afterwards, open transactions are not,
and what a reader acknowledged does not come again."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

import penstock
from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.errors import PenstockError
from penstock.net.certificates import CERTIFICATE_FILE
from penstock.protocols.fujin.sync import FujinClient
from penstock.testing.process import BrokerProcess

ROUNDS = 4
BATCH_RECORDS = 50
OPTIONS = ClientOptions(retry=NO_RETRY, request_timeout_s=20.0)
CONFIG = """
[listeners.fujin]
bind = "127.0.0.1:0"
fetch_wait_s = 0.2
idle_s_max = "3s"
[log]
segment_bytes = "64 KiB"
journal_bytes = "1 MiB"
"""


class Lives:
    """Three clients over several lives of a broker, and what each was told."""

    def __init__(self, directory: Path) -> None:
        self.broker = BrokerProcess(directory, config=CONFIG)
        self.written: set[bytes] = set()
        self.committed: set[bytes] = set()
        self.read: set[bytes] = set()
        self._number = 0
        self._threads: list[threading.Thread] = []
        self._begun: list[threading.Event] = []

    @property
    def url(self) -> str:
        return f"fujin://{self.broker.addresses['fujin']}?ca={self.broker.data_dir / CERTIFICATE_FILE}"

    def start(self) -> None:
        self._begun = [threading.Event() for _ in range(3)]
        work = (self._write, self._transact, self._read)
        self._threads = [
            threading.Thread(target=self._until_it_dies, args=(each, begun, self.url))
            for each, begun in zip(work, self._begun, strict=True)
        ]
        for thread in self._threads:
            thread.start()
        assert all(begun.wait(30) for begun in self._begun)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _until_it_dies(self, work: object, begun: threading.Event, url: str) -> None:
        assert callable(work)
        try:
            with penstock.connect(url, options=OPTIONS) as client:
                while True:
                    work(client)
                    begun.set()
        except PenstockError:
            return  # the broker is gone, which is what this test is about

    def _values(self, kind: bytes) -> list[bytes]:
        self._number += BATCH_RECORDS
        return [b"%s-%d" % (kind, self._number + row) for row in range(BATCH_RECORDS)]

    def _write(self, client: FujinClient) -> None:
        values = self._values(b"w")
        client.send_many("plain", values)
        self.written.update(values)

    def _transact(self, client: FujinClient) -> None:
        values = self._values(b"t")
        with client.transaction() as transaction:
            transaction.send_many("left", values)
            transaction.send_many("right", values)
        self.committed.update(values)

    def _read(self, client: FujinClient) -> None:
        with client.reader("plain", pull=True) as reader:
            while batch := reader.fetch(BATCH_RECORDS):
                for message in batch:
                    assert message.value not in self.read, "acknowledged, and delivered again"
                reader.ack(*batch)
                self.read.update(message.value for message in batch)
                for begun in self._begun[2:]:
                    begun.set()

    def check(self) -> None:
        with self.broker.connect() as client:
            topics = {name: [record.value for record in client.records(name)] for name in ("plain", "left", "right")}
        for name, values in topics.items():
            assert len(set(values)) == len(values), name
        assert self.written <= set(topics["plain"])
        assert self.committed <= set(topics["left"])
        assert topics["left"] == topics["right"], "a transaction is whole"
        assert len(topics["left"]) % BATCH_RECORDS == 0


@pytest.mark.timeout(180)
def test_nothing_acknowledged_is_lost_and_nothing_half_done_is_kept(tmp_path: Path) -> None:
    chance = random.Random(5)
    lives = Lives(tmp_path / "data")
    with lives.broker:
        for _ in range(ROUNDS):
            lives.start()
            time.sleep(chance.uniform(0.01, 0.3))  # the moment of the kill is the thing that varies
            lives.broker.kill9()
            lives.join()
            lives.broker.start()
            lives.check()
