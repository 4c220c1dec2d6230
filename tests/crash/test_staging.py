"""The process dies at every step of staging, publishing and continuing it, and of commits with all their records: each is there once."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.errors import PenstockError
from penstock.log.block import encode_block
from penstock.protocols.flymq.operations.spark import Unstaged
from penstock.testing.crashing import CRASHED, CrashAt
from penstock.testing.diskfaults import Crash
from penstock.testing.process import BrokerProcess
from tests.crash import crash_targets

ROUNDS = 5
PARTITIONS = 3
REQUESTS = 6
VALUE_BYTES = 9_000
# Of twelve requests, a chunk takes four: commits are long ones, but for every fourth.
CONFIG = f"""
[limits]
staged_chunk_bytes = "100 KiB"
[log]
segment_bytes = "64 KiB"
journal_bytes = "1 MiB"
maintenance_interval_s = 0.1
[[topics]]
name = "out"
partitions = {PARTITIONS}
"""
OPTIONS = ClientOptions(retry=NO_RETRY, request_timeout_s=20.0)
RARE = (*crash_targets.CHECKPOINT, *crash_targets.ROLL)
OFTEN = (*crash_targets.APPEND, *crash_targets.JOURNAL)
DECIDED = CrashAt("commit flush journal", moment="after")


class Writer:
    """Writes epoch after epoch, each again until it hears that it is done, as a query does that is started again after each crash."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.epoch = 0
        self._runs = 0
        self._chance = random.Random(3)

    def write_until_it_dies(self) -> None:
        """In a new run where a request failed and the broker lives: on a busy machine one may come too late."""
        while self.broker.running:
            with suppress(PenstockError):
                self.write(1 << 30)

    def write(self, epochs: int) -> None:
        self._runs += 1
        with self.broker.connect(OPTIONS) as client:
            run = client.staging.begin_run("app", f"run-{self._runs}").number
            for _ in range(epochs):
                requests = 1 if self.epoch % 4 == 3 else REQUESTS
                if self._chance.random() < 0.25:
                    parts = [
                        each for task in range(2) for number in range(requests) for each in self._parts(task, number)
                    ]
                    topic_id = client.staging.begin_run("app", f"run-{self._runs}", topic="out").topic_id
                    client.staging.commit("app", run, self.epoch, [], [Unstaged("out", topic_id, parts)])
                    self.epoch += 1
                    continue
                winners = []
                for task in range(2):
                    attempts = []
                    for attempt in range(self._chance.choice((1, 1, 2))):
                        name = f"{self._runs}-{task}-{attempt}"
                        staged = client.staging.attempt("app", run, self.epoch, name)
                        for request in range(requests):
                            staged.stage("out", self._parts(task, request))
                        attempts.append(staged.finish())
                    winners.append(attempts[-1])
                if self._chance.random() < 0.1:
                    client.staging.abort("app", run, self.epoch)
                    continue
                client.staging.commit("app", run, self.epoch, winners)
                self.epoch += 1

    def _parts(self, task: int, request: int) -> list[tuple[int, bytes]]:
        return [
            (partition, encode_block(0, 0, [b"%d %d %d " % (self.epoch, task, request) + bytes(VALUE_BYTES)]))
            for partition in range(PARTITIONS)
        ]

    def check(self) -> None:
        """What was committed is there once and in order; of what was not, at most the last epoch, and that whole."""
        assert self.epoch, "nothing was tested"
        with self.broker.connect() as client:
            # An epoch that was decided continues by itself; the next run waits for it.
            run = client.staging.begin_run("app", f"check-{self._runs}")
            assert run.epoch in (self.epoch - 1, self.epoch)
            client.staging.commit("app", run.number, run.epoch, [])
            for partition in range(PARTITIONS):
                found = [
                    (record.value or b"")[:-VALUE_BYTES].decode().split() for record in client.records("out", partition)
                ]
                expected = [
                    [str(epoch), str(task), str(request)]
                    for epoch in range(run.epoch + 1)
                    for task in range(2)
                    for request in range(1 if epoch % 4 == 3 else REQUESTS)
                ]
                assert Counter(map(tuple, found)) == Counter(map(tuple, expected))
                assert found == expected
            self.epoch = run.epoch + 1


@pytest.mark.timeout(180)
def test_every_epoch_is_published_once_over_many_kills(tmp_path: Path) -> None:
    chance = random.Random(5)
    with BrokerProcess(tmp_path / "data", config=CONFIG) as broker:
        writer = Writer(broker)
        writer.write(2)
        for _ in range(ROUNDS):
            killer = threading.Timer(chance.uniform(0.05, 0.6), broker.kill9)
            killer.start()
            writer.write_until_it_dies()
            killer.join()
            broker.start()
        writer.check()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("at", [*OFTEN, *RARE], ids=crash_targets.named)
def test_a_crash_at_any_step_leaves_each_epoch_whole_or_out(tmp_path: Path, at: CrashAt) -> None:
    chance = random.Random(str(at))
    with BrokerProcess(tmp_path / "data", config=CONFIG) as broker:
        writer = Writer(broker)
        writer.write(1)
        broker.kill9()
        nth = chance.randrange(1, 3 if at in RARE else 12)
        broker.start(disk=Crash(str(at._replace(nth=nth))), wait=False)
        try:
            broker.wait_ready()
            writer.write_until_it_dies()
        except Exception:
            if broker.running:
                raise
        assert broker.wait_exit() == CRASHED, broker.output
        broker.start()
        writer.check()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("at", [crash_targets.JOURNAL[0], *crash_targets.JOURNAL[2:]], ids=crash_targets.named)
def test_a_commit_continues_after_a_crash_in_the_middle(tmp_path: Path, at: CrashAt) -> None:
    with BrokerProcess(tmp_path / "data", config=CONFIG) as broker:
        writer = Writer(broker)
        writer.write(1)
        broker.kill9()
        # An epoch has three chunks. It dies with the first, which is the decision; and twice more on its own way through the others.
        broker.start(disk=Crash(str(DECIDED)))
        writer.write_until_it_dies()
        assert broker.wait_exit() == CRASHED
        for _ in range(2):
            broker.start(disk=Crash(str(at)), wait=False)
            assert broker.wait_exit() == CRASHED, broker.output
        broker.start()
        writer.check()
        assert writer.epoch == 2
