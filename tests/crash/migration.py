"""Move a log to Kafka and back under load, with a command that is killed again and again.

    python -m tests.crash.migration --records 10000000 --kills 6

A topic with four partitions is filled, and a client keeps writing to it throughout. `penstock migrate` is killed with SIGKILL at
random moments of its first pass, and started again until it ends by itself. Then the broker is stopped, the command finishes, and a broker
on the new engine starts at the same address: that is the cut-over. The same again on the way back. In the end every record that was ever
acknowledged must be where its acknowledgement says, once; ends with 1 otherwise, and if a kill came too late to be one.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.kafka import Kafka
from penstock.clients.options import ClientOptions
from penstock.clients.retry import RetryPolicy
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing.process import BrokerProcess

TOPIC = "orders"
PARTITIONS = 4
FILLER = b"." * 90
CHUNK = 10_000
LIVE_CHUNK = 50
LIVE_PAUSE_S = 0.025
LIVE = b"live "
COPIED_PER_S = 200_000
"""More than any machine copies: kills come before a first pass has ended."""
OPTIONS = ClientOptions(retry=RetryPolicy(attempts_max=10_000, elapsed_s_max=300.0, delay_s_max=0.2))


class Place(NamedTuple):
    partition: int
    offset: int


class Writer(threading.Thread):
    """Writes numbered records until it is stopped; keeps where each was stored."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._stopping = threading.Event()
        self.stored: dict[Place, bytes] = {}
        self.longest_s = 0.0
        """For one answer."""
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with FlyMQClient(self._url, options=OPTIONS) as client:
                while not self._stopping.is_set():
                    first = len(self.stored)
                    values = [LIVE + b"%d" % number for number in range(first, first + LIVE_CHUNK)]
                    at = time.monotonic()
                    for value, given in zip(values, client.send_many(TOPIC, values), strict=True):
                        self.stored[Place(given.partition, given.offset)] = value
                    self.longest_s = max(self.longest_s, time.monotonic() - at)
                    time.sleep(LIVE_PAUSE_S)
        except BaseException as error:
            self.failure = error
            raise

    def stop(self) -> None:
        self._stopping.set()
        self.join()


class Move:
    """One direction."""

    def __init__(self, old: BrokerProcess, new: BrokerProcess, chance: random.Random) -> None:
        self._old = old
        self._new = new
        self._configs = str(old.config_file), str(new.write_config())
        self._chance = chance

    def copy_through(self, kills: int, within_s: float) -> None:
        """Copy while the broker serves."""
        for _ in range(kills):
            process = self._start("--server", self._old.url)
            time.sleep(self._chance.uniform(0.1, 1.0) * within_s)
            if process.poll() is not None:
                raise RuntimeError(f"the copy ended before it could be killed: {process.communicate()}")
            process.kill()
            process.communicate()
        _answer(self._start("--server", self._old.url))

    def cut_over(self) -> tuple[float, dict[str, Any]]:
        """Returns how long nobody served, and what the command said."""
        at = time.monotonic()
        self._old.terminate()
        said = _answer(self._start("--finish"))
        self._new.start()
        return time.monotonic() - at, said

    def _start(self, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "penstock", "migrate", *self._configs, "--json", *options]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    stdout, stderr = process.communicate()
    if process.returncode:
        raise RuntimeError(f"penstock migrate ended with {process.returncode}: {stderr}")
    said: dict[str, Any] = json.loads(stdout)
    return said


def fill(url: str, records: int) -> None:
    with FlyMQClient(url, options=OPTIONS) as client:
        client.create_topic(TOPIC, PARTITIONS)
        for first in range(0, records, CHUNK):
            client.send_many(
                TOPIC, [b"%010d" % number + FILLER for number in range(first, min(first + CHUNK, records))]
            )


def what_is_wrong(url: str, records: int, stored: dict[Place, bytes]) -> Iterator[str]:
    found = np.zeros(records, dtype=np.uint8)
    misplaced, strange, missing = 0, 0, dict(stored)
    with FlyMQClient(url, options=OPTIONS) as client:
        for record in client.records(TOPIC):
            assert record.value is not None
            if record.value.startswith(LIVE):
                misplaced += missing.pop(Place(record.partition, record.offset), None) != record.value
            elif record.value.endswith(FILLER):
                found[int(record.value[: -len(FILLER)])] += 1
            else:
                strange += 1
    counts = {
        "records of the start are lost": int(np.count_nonzero(found == 0)),
        "records of the start are there more than once": int(np.count_nonzero(found > 1)),
        "records written meanwhile are not where they were acknowledged": len(missing),
        "records written meanwhile are where nobody was told": misplaced,
        "records were written by nobody": strange,
    }
    yield from (f"{count:,} {what}" for what, count in counts.items() if count)


def run(records: int, kills: int, seed: int) -> int:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="penstock-migration-") as name, ExitStack() as running:
        directory = Path(name)
        kafka = running.enter_context(Kafka(directory / "kafka", 1))
        first = running.enter_context(BrokerProcess(directory / "first"))
        settings = f'engine = "kafka"\n[kafka]\nbootstrap = ["{kafka.bootstrap}"]\n'
        second = BrokerProcess(directory / "second", config=settings, bind=first.address, start_s_max=120.0)
        third = BrokerProcess(directory / "third", bind=first.address, start_s_max=120.0)
        running.callback(second.close)
        running.callback(third.close)
        fill(first.url, records)
        _say(f"{records:,} records of {10 + len(FILLER)} bytes in {PARTITIONS} partitions")
        writer = Writer(first.url)
        writer.start()
        for old, new, where in ((first, second, "to Kafka"), (second, third, "to a data directory")):
            move = Move(old, new, chance)
            at = time.monotonic()
            move.copy_through(kills, records / COPIED_PER_S / max(1, kills))
            copy_s = time.monotonic() - at
            cut_s, finished = move.cut_over()
            if writer.failure is not None:
                raise RuntimeError(f"the client that writes gave up: {writer.failure}")
            _say(
                f"{where}: copied and verified by checksum in {copy_s:.1f} s, through {kills} kills; the last pass took "
                f"{finished['passes'][-1]['seconds']:.1f} s, the whole cut-over {cut_s:.1f} s"
            )
        writer.stop()
        _say(f"{len(writer.stored):,} records were written meanwhile, the longest wait was {writer.longest_s:.1f} s")
        wrong = list(what_is_wrong(third.url, records, writer.stored))
        _say("\n".join(wrong) or "0 lost, 0 twice, all at their offsets")
    return bool(wrong)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    _say(f"seed {arguments.seed}")
    sys.exit(run(arguments.records, arguments.kills, arguments.seed))


if __name__ == "__main__":
    main()
