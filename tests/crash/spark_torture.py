"""Exactly once, from a topic through Spark to a topic, while everything that can be killed is killed.

    python -m tests.crash.spark_torture --rounds 200

A writer feeds the topic `in`; a query copies it to `out`; each round ends something at a moment of its own: the broker, one of Spark's
Python processes (workers, what runs the source, what commits the sink), the whole driver; or it ends the query, or makes it repeat a batch
whose commit it has forgotten. In the end `out` holds every record of `in`, and each of them once.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.errors import PenstockError
from penstock.testing import BrokerProcess

IN_PARTITIONS, OUT_PARTITIONS = 2, 3
FED_AT_ONCE_MAX = 20
FEED_S = 0.05
PROGRESS_S_MAX = 180.0
LOOK_S = 0.05
# A driver takes as long to come back as everything else takes for ten rounds.
WEIGHTS = {"broker": 30, "worker": 30, "replay": 20, "stop": 12, "driver": 8}
# The virtual machine, and those that have done their work when a query has begun.
NOT_WORKERS = ("java", "lookup_data_sources", "create_data_source", "plan_data_source_read")
OPTIONS = ClientOptions(retry=NO_RETRY, request_timeout_s=10.0)


class NoProgress(AssertionError):
    """The query wrote nothing for a long time."""


class Spark:
    """The driver's process, and those it has started."""

    def __init__(self, address: str, directory: Path) -> None:
        self._command = [
            sys.executable,
            "-m",
            "tests.crash.spark_torture_driver",
            address,
            str(directory / "checkpoint"),
            str(directory / "scratch"),
        ]
        self._errors = (directory / "driver.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise NoProgress("the driver did not start; driver.log says why")

    def tell(self, command: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        self._process.stdin.flush()

    def kill(self) -> None:
        """The driver with its virtual machine and all Python processes, at once."""
        if self._process is None:
            return
        for pid in (*self._descendants(), self._process.pid):
            _kill(pid)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process = None

    def kill_worker(self, chance: random.Random) -> str:
        """One of the Python processes that the virtual machine has started."""
        assert self._process is not None
        found = [
            (pid, command)
            for pid in self._descendants()
            if "pyspark" in (command := _command_of(pid)) and not any(each in command for each in NOT_WORKERS)
        ]
        if not found:
            return "no worker"
        pid, command = chance.choice(found)
        _kill(pid)
        return command.split("pyspark")[-1].strip(".").split()[0] or "worker"

    def close(self) -> None:
        self.kill()
        self._errors.close()

    def _descendants(self) -> list[int]:
        assert self._process is not None
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError, IndexError):
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    children.setdefault(parent, []).append(int(entry.name))
        found, waiting = [], [self._process.pid]
        while waiting:
            offspring = children.get(waiting.pop(), [])
            found += offspring
            waiting += offspring
        return found


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Feeder:
    """Writes to the source topic, whatever happens to the broker. What it holds in the end is what counts."""

    def __init__(self, broker: BrokerProcess, chance: random.Random) -> None:
        self._broker = broker
        self._chance = chance
        self._number = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._feed)
        self._thread.start()

    def _feed(self) -> None:
        while not self._stopping.is_set():
            with suppress(PenstockError), self._broker.connect(OPTIONS) as client:
                while not self._stopping.wait(FEED_S):
                    numbers = range(self._number, self._number + self._chance.randrange(1, FED_AT_ONCE_MAX))
                    self._number = numbers.stop
                    client.send_many(
                        "in", [(b"%d" % (number % 97) if number % 3 else None, b"%d" % number) for number in numbers]
                    )
            self._stopping.wait(LOOK_S)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


class Torture:
    def __init__(self, directory: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        self._broker = BrokerProcess(directory / "data")
        self._broker.start()
        with self._broker.connect() as client:
            client.create_topic("in", IN_PARTITIONS)
            client.create_topic("out", OUT_PARTITIONS)
        self._spark = Spark(self._broker.address, directory)
        self._feeder: Feeder | None = None

    def __enter__(self) -> Self:
        self._feeder = Feeder(self._broker, random.Random(1))
        self._spark.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._feeder is not None:
            self._feeder.stop()
        self._spark.close()
        self._broker.close()

    def round(self, kind: str | None = None) -> str:
        """Wait until something was written since the last round, then end something."""
        self._wait_for_more()
        time.sleep(self._chance.uniform(0, 0.4))  # the moment is the thing that varies
        kind = kind or self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if kind == "broker":
            self._broker.kill9()
            self._broker.start()
        elif kind == "worker":
            kind = f"worker ({self._spark.kill_worker(self._chance)})"
        elif kind == "driver":
            self._spark.kill()
            self._spark.start()
        else:
            self._spark.tell(kind)
        return kind

    def finish(self) -> int:
        """Let the query catch up; how many records there were. Raises AssertionError where one is missing or there twice."""
        assert self._feeder is not None
        self._feeder.stop()
        self._wait_until(lambda: self._written() >= self._end("in"))
        with self._broker.connect() as client:
            expected = Counter(record.value for record in client.records("in"))
            found = Counter(record.value for record in client.records("out"))
        lost, twice = expected - found, found - expected
        assert not lost, f"{len(lost)} records of {len(expected)} are lost, as {next(iter(lost))!r}"
        assert not twice, f"{len(twice)} records of {len(expected)} are there twice, as {next(iter(twice))!r}"
        return len(expected)

    def _wait_for_more(self) -> None:
        before = self._written()
        self._wait_until(lambda: self._written() > before)

    def _wait_until(self, true: Callable[[], bool]) -> None:
        until_s = time.monotonic() + PROGRESS_S_MAX
        while not true():
            if time.monotonic() > until_s:
                raise NoProgress(f"the query stands still at {self._written()} records of {self._end('in')}")
            time.sleep(LOOK_S)

    def _written(self) -> int:
        return self._end("out")

    def _end(self, topic: str) -> int:
        with self._broker.connect() as client:
            return sum(partition.next_offset for partition in client.describe_topic(topic).partitions)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    say = sys.stdout.write
    say(f"seed {seed}\n")
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="penstock-torture-") as directory:
        with Torture(Path(directory), seed) as torture:
            for number in range(1, given.rounds + 1):
                kind = torture.round()
                counts[kind.split()[0]] += 1
                say(f"{number:4d}  {kind}\n")
                sys.stdout.flush()
            records = torture.finish()
    kinds = ", ".join(f"{count} of {kind}" for kind, count in sorted(counts.items()))
    say(f"{records} records, 0 lost, 0 there twice, over {given.rounds} rounds ({kinds})\n")


if __name__ == "__main__":
    main()
