"""kill -9 with delayed records waiting and becoming due, and with dead letters being replayed: each arrives exactly once."""

from __future__ import annotations

import json
import random
import threading
import time
from base64 import b64encode
from collections import Counter
from pathlib import Path

import pytest

from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.errors import EntryNotFound, PenstockError
from penstock.testing.crashing import CRASHED, CrashAt
from penstock.testing.diskfaults import Crash
from penstock.testing.process import BrokerProcess
from tests.crash import crash_targets

TOPIC = "orders"
CONFIG = f"""
[log]
segment_bytes = "64 KiB"
journal_bytes = "1 MiB"
maintenance_interval_s = 0.1
[[topics]]
name = "{TOPIC}"
partitions = 3
"""
DELAY_S_MAX = 0.6
WRITERS = 3
ROUNDS = 8
TARGETS = (*crash_targets.APPEND, *crash_targets.JOURNAL, *crash_targets.CHECKPOINT)
# Large enough that the journal is full, and retired, many times.
VALUE_BYTES = 4_000
OPTIONS = ClientOptions(retry=NO_RETRY, request_timeout_s=20.0)


class Delays:
    """Clients that send delayed records and cancel some, over several lives of a broker, and what came of it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self._chance = random.Random(4)
        self._lock = threading.Lock()
        self._number = 0
        self._accepted: set[bytes] = set()
        self._cancelled: set[bytes] = set()
        self._unsure: set[bytes] = set()

    def write_until_it_dies(self, seconds: float) -> None:
        """Ends after a time, or with the broker."""
        until_s = time.monotonic() + seconds
        threads = [threading.Thread(target=self._write, args=(until_s,)) for _ in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _write(self, until_s: float) -> None:
        try:
            with self.broker.connect(OPTIONS) as client:
                while time.monotonic() < until_s:
                    with self._lock:
                        self._number += 1
                        value = (b"%d" % self._number).ljust(VALUE_BYTES, b".")
                        delay_s, cancel = self._chance.uniform(0.001, DELAY_S_MAX), self._chance.random() < 0.2
                        self._unsure.add(value)
                    delayed = client.send_later(TOPIC, value, delay_s, key=value)
                    with self._lock:
                        self._unsure.discard(value)
                        self._accepted.add(value)
                    if cancel:
                        self._cancel(client, value, delayed.id)
        except PenstockError:
            return  # the broker is gone, which is what these tests are about

    def _cancel(self, client: object, value: bytes, delayed_id: str) -> None:
        with self._lock:
            self._accepted.discard(value)
            self._unsure.add(value)
        try:
            client.cancel(TOPIC, delayed_id)  # type: ignore[attr-defined]
        except EntryNotFound:
            with self._lock:
                self._accepted.add(value)  # it was on its way already
        else:
            with self._lock:
                self._cancelled.add(value)
        with self._lock:
            self._unsure.discard(value)

    def check(self) -> None:
        """Every accepted record is there once, no cancelled one is, and nothing is there twice."""
        with self.broker.connect() as client:
            deadline_s = time.monotonic() + DELAY_S_MAX + 10
            found: Counter[bytes] = Counter()
            while time.monotonic() < deadline_s:
                found = Counter(record.value or b"" for record in client.records(TOPIC))
                if self._accepted <= set(found):
                    break
                time.sleep(0.05)
            time.sleep(DELAY_S_MAX)  # what should not come has had its time
            found = Counter(record.value or b"" for record in client.records(TOPIC))
        assert not self._accepted - set(found), "delayed records were lost"
        assert not [value for value, count in found.items() if count > 1], "delayed records came twice"
        assert not self._cancelled & set(found), "cancelled records came"
        assert set(found) <= self._accepted | self._unsure, "records came that nobody sent"
        assert self._accepted, "nothing was tested"


@pytest.mark.timeout(180)
def test_delayed_records_arrive_exactly_once_over_many_kills(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", config=CONFIG)
    delays, chance = Delays(broker), random.Random(7)
    try:
        for _ in range(ROUNDS):
            broker.start()
            killer = threading.Timer(chance.uniform(0.3, 1.2), broker.kill9)
            killer.start()
            delays.write_until_it_dies(5)
            killer.join()
        broker.start()
        delays.check()
    finally:
        broker.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("at", TARGETS, ids=crash_targets.named)
def test_delayed_records_arrive_exactly_once_whatever_the_crash_interrupts(tmp_path: Path, at: CrashAt) -> None:
    broker = BrokerProcess(tmp_path / "data", config=CONFIG)
    delays = Delays(broker)
    try:
        broker.start(disk=Crash(str(at._replace(nth=3))), wait=False)
        try:
            broker.wait_ready()
            delays.write_until_it_dies(25)
        except Exception:
            if broker.running:
                raise
        assert broker.wait_exit() == CRASHED, broker.output
        broker.start()
        delays.write_until_it_dies(0.2)
        broker.kill9()
        broker.start()
        delays.check()
    finally:
        broker.close()


@pytest.mark.timeout(120)
def test_dead_letters_are_replayed_exactly_once_over_many_kills(tmp_path: Path) -> None:
    letters = [b"%d" % number for number in range(400)]
    broker = BrokerProcess(tmp_path / "data", config=CONFIG)
    chance = random.Random(11)
    try:
        with broker.start().connect() as client:
            entries = [
                {"id": value.decode(), "original_topic": TOPIC, "payload": b64encode(value).decode()}
                for value in letters
            ]
            client.send_many(f"{TOPIC}.dlq", [json.dumps(entry).encode() for entry in entries])
        for _ in range(ROUNDS):
            killer = threading.Timer(chance.uniform(0.02, 0.2), broker.kill9)
            killer.start()
            _replay_until_it_dies(broker, letters, chance)
            killer.join()
            broker.start()
        with broker.connect() as client:
            client.dead_letters.replay_all(TOPIC)
            assert client.dead_letters.list(TOPIC) == []
            found = Counter(record.value for record in client.records(TOPIC))
        assert found == Counter(letters)
    finally:
        broker.close()


def _replay_until_it_dies(broker: BrokerProcess, letters: list[bytes], chance: random.Random) -> None:
    try:
        with broker.connect(OPTIONS) as client:
            while True:
                try:
                    client.dead_letters.replay(TOPIC, chance.choice(letters).decode())
                except EntryNotFound:
                    pass
    except PenstockError:
        return
