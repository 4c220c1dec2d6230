"""Exactly once, from a topic through Spark to a topic, while everything that can be killed is killed.

    python -m tests.crash.spark_torture --kills 200

A writer feeds the topic `in`; a query copies it to `out`; each round ends something at a moment of its own: the broker, one of Spark's
Python processes (workers, what runs the source, what commits the sink), the whole driver; or it ends the query, or makes it repeat a batch
whose commit it has forgotten. In the end `out` holds every record of `in`, and each of them once; so does `in` of all that its writer heard
are stored. Ends with 1, and leaves its files where they are, where that is not so or the query stands still.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.errors import PenstockError
from penstock.testing import BrokerProcess
from tests.crash.spark_torture_report import Deeds, Verdict, judge

IN_PARTITIONS, OUT_PARTITIONS = 2, 3
FED_AT_ONCE_MAX = 20
FEED_S = 0.05
PROGRESS_S_MAX = 180.0
LOOK_S = 0.05
ANSWER_S_MAX = 120.0
# A driver takes as long to come back as everything else takes for ten rounds.
WEIGHTS = {"broker": 30, "worker": 30, "replay": 20, "stop": 12, "driver": 8}
# The virtual machine, and those that have done their work when a query has begun.
NOT_WORKERS = ("java", "lookup_data_sources", "create_data_source", "plan_data_source_read")
MakeRecord = Callable[[int], tuple[bytes | None, bytes | None]]
OPTIONS = ClientOptions(retry=NO_RETRY, request_timeout_s=10.0)


class NoProgress(Exception):
    """The query wrote nothing for a long time, or its driver does not answer."""


class Spark:
    """The driver's process, and those it has started."""

    def __init__(self, module: str, directory: Path, *arguments: str) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
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
        if self._answer() != "ready":
            raise NoProgress("the driver did not start; driver.log says why")

    def tell(self, command: str, wait_s: float = ANSWER_S_MAX) -> str:
        """What the driver says it did."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        self._process.stdin.flush()
        return self._answer(wait_s)

    def _answer(self, wait_s: float = ANSWER_S_MAX) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        # One line is asked for at a time, so none waits in the buffer of the pipe.
        ready, _, _ = select.select([self._process.stdout], [], [], wait_s)
        if not ready:
            raise NoProgress("the driver does not answer; driver.log may say why")
        return self._process.stdout.readline().decode().strip()

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
            return "no worker found"
        pid, command = chance.choice(found)
        _kill(pid)
        module = command.split("pyspark")[-1].split()[0]
        return f"{module.rpartition('.')[2] or 'worker'} killed"

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

    def __init__(self, broker: BrokerProcess, chance: random.Random, topic: str, record: MakeRecord) -> None:
        self._broker = broker
        self._chance = chance
        self._topic = topic
        self._record = record
        self._number = 0
        self.acknowledged: list[bytes] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._feed)
        self._thread.start()

    def _feed(self) -> None:
        while not self._stopping.is_set():
            with suppress(PenstockError), self._broker.connect(OPTIONS) as client:
                while not self._stopping.wait(FEED_S):
                    numbers = range(self._number, self._number + self._chance.randrange(1, FED_AT_ONCE_MAX))
                    self._number = numbers.stop
                    records = [self._record(number) for number in numbers]
                    client.send_many(self._topic, [(key, value, {}) for key, value in records])
                    self.acknowledged += [value for _, value in records if value is not None]
            self._stopping.wait(LOOK_S)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def _record(number: int) -> tuple[bytes | None, bytes | None]:
    return (b"%d" % (number % 97) if number % 3 else None), b"%d" % number


class Torture:
    def __init__(self, directory: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        self._broker = BrokerProcess(directory / "data")
        self._broker.start()
        with self._broker.connect() as client:
            client.create_topic("in", IN_PARTITIONS)
            client.create_topic("out", OUT_PARTITIONS)
        self._spark = Spark(
            "tests.crash.spark_torture_driver",
            directory,
            self._broker.address,
            str(directory / "checkpoint"),
            str(directory / "scratch"),
        )
        self._feeder: Feeder | None = None

    def __enter__(self) -> Self:
        self._feeder = Feeder(self._broker, random.Random(1), "in", _record)
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
        """Wait until something was written since the last round, then end something; says what it was."""
        self._wait_for_more()
        time.sleep(self._chance.uniform(0, 0.4))  # the moment is the thing that varies
        kind = kind or self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if kind == "broker":
            self._broker.kill9()
            self._broker.start()
            return "broker killed"
        if kind == "worker":
            return self._spark.kill_worker(self._chance)
        if kind == "driver":
            self._spark.kill()
            self._spark.start()
            return "driver killed"
        return self._spark.tell(kind)

    def finish(self) -> Verdict:
        """Let the query catch up, and compare."""
        assert self._feeder is not None
        self._feeder.stop()
        self._wait_until(lambda: self._written() >= self._end("in"))
        # Where something is there twice it looks caught up too soon. So once more from the checkpoint, and to the end of a batch.
        self._spark.tell("stop")
        self._spark.tell("quit")
        with self._broker.connect() as client:
            source, sink = ([record.value or b"" for record in client.records(topic)] for topic in ("in", "out"))
        return judge(self._feeder.acknowledged, source, sink)

    def progress(self) -> str:
        return f"{self._end('in'):8d} records in the source, {self._written():8d} in the sink"

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


def torture(directory: Path, seed: int, kills: int, say: Callable[[str], None]) -> bool:
    """Whether every record arrived once."""
    deeds, verdict = Deeds(), None
    began_s = time.monotonic()
    try:
        with Torture(directory, seed) as running:
            rounds = 0
            while deeds.kills_and_replays < kills:
                done = running.round()
                deeds.add(done)
                rounds += 1
                passed_s = time.monotonic() - began_s
                say(f"{passed_s:6.0f} s {deeds.kills_and_replays:5d}/{kills}  {done:40s} {running.progress()}")
            say("waiting for the query to catch up")
            verdict = running.finish()
    except NoProgress as error:
        say(f"stopped: {error}")
    for line in deeds.lines():
        say(line)
    for line in () if verdict is None else verdict.lines():
        say(line)
    return verdict is not None and verdict.flawless


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--kills", type=int, default=200, help="kills and repeated batches; a query stopped in peace is none"
    )
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    say(f"seed {seed}")
    directory = Path(tempfile.mkdtemp(prefix="penstock-torture-"))
    flawless = torture(directory, seed, given.kills, say)
    if not flawless:
        say(f"FAILED: what there was to see is in {directory}")
        return 1
    shutil.rmtree(directory)
    say("every record arrived once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
