"""What the tortures of Spark share: its processes, writers, rounds in which something is killed, and the command that runs many of them."""

from __future__ import annotations

import argparse
import random
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from bench.kafka import Kafka
from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.errors import PenstockError
from penstock.testing import BrokerProcess
from tests.crash.engine_option import add_engine_option, engine_of, log_in_kafka
from tests.crash.process_tree import command_of, descendants, kill, kill_with_descendants
from tests.crash.spark_torture_report import Deeds, Verdict

FED_AT_ONCE_MAX = 20
FEED_S = 0.05
PROGRESS_S_MAX = 240.0
LOOK_S = 0.05
ANSWER_S_MAX = 120.0
MINUTES_MAX = 120.0
START_S_MAX = 120.0
KAFKA_WEIGHT = 10
"""Of the broker of Kafka, if there is one, as with `Torture.WEIGHTS`."""
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
        kill_with_descendants(self._process)
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
            for pid in descendants(self._process.pid)
            if "pyspark" in (command := command_of(pid)) and not any(each in command for each in NOT_WORKERS)
        ]
        if not found:
            return "no worker found"
        pid, command = chance.choice(found)
        kill(pid)
        module = command.split("pyspark")[-1].split()[0]
        return f"{module.rpartition('.')[2] or 'worker'} killed"

    def close(self) -> None:
        self.kill()
        self._errors.close()


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


class Torture(ABC):
    """A broker that is fed, and a driver that reads what it stores, with a round for each thing that is done to them."""

    WEIGHTS: ClassVar[Mapping[str, int]]
    """How often each kind of round is chosen."""
    FED: ClassVar[Mapping[str, MakeRecord]]
    """Topics, and what is written to them by number."""

    def __init__(self, directory: Path, seed: int, kafka: Kafka | None = None) -> None:
        """With `kafka`, the broker has its log there, and it is killed too."""
        self._chance = random.Random(seed)
        self._seed = seed
        self._directory = directory
        self._kafka = kafka
        self._weights = {**self.WEIGHTS, **({"kafka": KAFKA_WEIGHT} if kafka is not None else {})}
        config = "" if kafka is None else log_in_kafka(kafka)
        self._broker = BrokerProcess(directory / "data", config=config, start_s_max=START_S_MAX)
        self._broker.start()
        self._create_topics()
        self._spark = self._driver()
        self._feeders: list[Feeder] = []

    @abstractmethod
    def _create_topics(self) -> None: ...

    @abstractmethod
    def _driver(self) -> Spark:
        """Return a driver that is not started."""

    @abstractmethod
    def _written(self) -> int:
        """Return how much of the first topic has arrived."""

    @abstractmethod
    def progress(self) -> str: ...

    @abstractmethod
    def finish(self) -> dict[str, Verdict]:
        """Let the driver catch up, and compare what arrived with what was sent."""

    def __enter__(self) -> Self:
        self._feeders += [Feeder(self._broker, random.Random(1), topic, make) for topic, make in self.FED.items()]
        self._spark.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_feeding()
        self._spark.close()
        self._broker.close()

    def _stop_feeding(self) -> None:
        for feeder in self._feeders:
            feeder.stop()

    def round(self, kind: str | None = None) -> str:
        """Wait until something has arrived since the last round, then do something; returns what it was."""
        self._wait_for_more()
        time.sleep(self._chance.uniform(0, 0.4))  # the moment is the thing that varies
        kind = kind or self._chance.choices(list(self._weights), list(self._weights.values()))[0]
        match kind:
            case "broker":
                self._broker.kill9()
                self._broker.start()
                return "broker killed"
            case "kafka":
                assert self._kafka is not None
                self._kafka.kill()
                self._kafka.start()
                return "kafka killed"
            case "worker":
                return self._spark.kill_worker(self._chance)
            case "driver":
                self._spark.kill()
                self._spark.start()
                return "driver killed"
            case _:
                return self._do(kind)

    def _do(self, kind: str) -> str:
        """Do what only this torture knows; by default, what the driver is told to."""
        return self._spark.tell(kind)

    def _wait_for_more(self) -> None:
        before = self._written()
        self._wait_until(lambda: self._written() > before)

    def _wait_until(self, true: Callable[[], bool]) -> None:
        until_s = time.monotonic() + PROGRESS_S_MAX
        while not true():
            if time.monotonic() > until_s:
                raise NoProgress(f"nothing more arrives: {self.progress()}")
            time.sleep(LOOK_S)

    def _end(self, topic: str) -> int:
        """Return where a topic ends, all partitions together: with gaps between its offsets, more than its records."""
        with self._broker.connect() as client:
            return sum(partition.next_offset for partition in client.describe_topic(topic).partitions)

    def _values(self, topic: str) -> list[bytes]:
        with self._broker.connect() as client:
            return [record.value or b"" for record in client.records(topic)]


MakeTorture = Callable[[Path, int, Kafka | None], Torture]


def torture(
    make: MakeTorture, directory: Path, seed: int, kills: int, minutes: float, kafka: Kafka | None = None
) -> bool:
    """Return whether every record arrived once."""
    deeds, verdicts = Deeds(), dict[str, Verdict]()
    began_s = time.monotonic()
    try:
        with make(directory, seed, kafka) as running:
            while deeds.kills_and_replays < kills and time.monotonic() - began_s < minutes * 60:
                done = running.round()
                deeds.add(done)
                passed_s = time.monotonic() - began_s
                _say(f"{passed_s:6.0f} s {deeds.kills_and_replays:5d}/{kills}  {done:40s} {running.progress()}")
            _say("waiting until everything has arrived")
            verdicts = running.finish()
    except NoProgress as error:
        _say(f"stopped: {error}")
    for line in deeds.lines():
        _say(line)
    for name, verdict in verdicts.items():
        _say(f"{name}:")
        for line in verdict.lines():
            _say(f"  {line}")
    return bool(verdicts) and all(verdict.flawless for verdict in verdicts.values())


def main(make: MakeTorture, description: str) -> int:
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="kills, faults, repeated batches and rebuilds")
    parser.add_argument("--minutes", type=float, default=MINUTES_MAX, help="after which no other is begun")
    add_engine_option(parser)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    _say(f"seed {seed}")
    directory = Path(tempfile.mkdtemp(prefix="penstock-torture-"))
    with engine_of(given, directory) as kafka:
        flawless = torture(make, directory, seed, given.kills, given.minutes, kafka)
    if not flawless:
        _say(f"FAILED: its files are in {directory}")
        return 1
    shutil.rmtree(directory)
    _say("every record arrived once")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
