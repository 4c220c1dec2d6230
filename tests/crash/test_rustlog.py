"""kill -9 under RustLog's own load, in both dialects: topics, acknowledged records and committed offsets are there afterwards."""

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
from penstock.testing.process import BrokerProcess

ROUNDS = 6
BATCH_RECORDS = 50
SCHEMES = ("rustlog", "rustlog+json")
OPTIONS = ClientOptions(retry=NO_RETRY, request_timeout_s=20.0)


class Writer:
    """Writes to a topic of its own and commits what it wrote, over several lives of a broker."""

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        self.topic = scheme.replace("+", "-")
        self.acknowledged: dict[int, bytes] = {}
        self.offset_sent = self.offset_acknowledged = 0
        self.begun = threading.Event()
        self._number = 0

    def write_until_it_dies(self, address: str) -> None:
        try:
            with penstock.connect(f"{self.scheme}://{address}", options=OPTIONS) as client:
                client.create_topic(self.topic, 2)
                while True:
                    values = [b"%d" % (self._number + row) for row in range(BATCH_RECORDS)]
                    self._number += BATCH_RECORDS
                    stored = client.send_many(self.topic, values, 1)
                    self.acknowledged.update(zip((each.offset for each in stored), values, strict=True))
                    self.offset_sent = stored[-1].offset + 1
                    client.commit(self.topic, "g", 1, self.offset_sent)
                    self.offset_acknowledged = self.offset_sent
                    self.begun.set()
        except PenstockError:
            return  # the broker is gone, which is what this test is about

    def check(self, address: str) -> None:
        with penstock.connect(f"{self.scheme}://{address}", options=OPTIONS) as client:
            there = {record.offset: record.value for record in client.records(self.topic, 1)}
            assert {offset: there.get(offset) for offset in self.acknowledged} == self.acknowledged
            assert len(set(there.values())) == len(there)
            assert client.committed(self.topic, "g", 1) in range(self.offset_acknowledged, self.offset_sent + 1)
            assert len(client.describe_topic(self.topic).partitions) == 2


@pytest.mark.timeout(180)
def test_nothing_acknowledged_is_lost_over_many_kills(tmp_path: Path) -> None:
    chance = random.Random(9)
    writers = [Writer(scheme) for scheme in SCHEMES]
    config = '[listeners.rustlog]\nbind = "127.0.0.1:0"\n[log]\nsegment_bytes = "64 KiB"\njournal_bytes = "1 MiB"\n'
    with BrokerProcess(tmp_path / "data", config=config) as broker:
        for _ in range(ROUNDS):
            address = broker.addresses["rustlog"]
            threads = [threading.Thread(target=writer.write_until_it_dies, args=(address,)) for writer in writers]
            for writer, thread in zip(writers, threads, strict=True):
                writer.begun.clear()
                thread.start()
            assert all(writer.begun.wait(20) for writer in writers)
            time.sleep(chance.uniform(0.01, 0.3))  # the moment of the kill is the thing that varies
            broker.kill9()
            for thread in threads:
                thread.join()
            broker.start()
            for writer in writers:
                writer.check(broker.addresses["rustlog"])
