"""A driver that runs a pipeline and is meant to be killed; whenever the run ends, it begins another one in the same virtual machine.

Commands come one a line on standard input, each answered by a line that says what was done: `stop` ends the run, and another begins;
`forget` does so too, and in between takes back that the last batches were committed, as if the driver had died after the commits of the
tables; `fault` makes the next commit of a table fail right before or right after it; `rebuild` remakes silver beside the run; `finish`
reads to the end of all topics; `quit` ends the process.
"""

from __future__ import annotations

import argparse
import queue
import random
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock.spark
from penstock.errors import PenstockError
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.connection import open_client
from penstock.spark.pipelines.assembly import reference_of
from penstock.spark.pipelines.files import LocalFiles
from penstock.spark.pipelines.model import Pipeline, load_pipeline
from penstock.spark.pipelines.rebuild import Rebuild
from penstock.spark.pipelines.running import Run
from penstock.spark.pipelines.schemas import Plans
from penstock.spark.pipelines.tables.delta import DeltaLakeTable
from tests.spark.jvm import FAST_SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2,4]"
LOOK_S = 0.05
PAUSE_S = 0.5
FINISH_ATTEMPTS_MAX = 20


class Fault:
    """Makes one commit of a table fail, as a disk or a store would."""

    def __init__(self) -> None:
        self._armed = ""
        for name in ("append", "merge"):
            setattr(DeltaLakeTable, name, self._wrapped(getattr(DeltaLakeTable, name)))

    def arm(self, moment: str) -> None:
        self._armed = moment

    def _wrapped(self, commit: Any) -> Any:
        def failing(table: DeltaLakeTable, *given: Any, **settings: Any) -> None:
            armed, self._armed = self._armed, ""
            if armed == "before":
                raise OSError(f"injected before the commit of {table.path}")
            commit(table, *given, **settings)
            if armed == "after":
                raise OSError(f"injected after the commit of {table.path}")

        return failing


class Driver:
    def __init__(self, spark: SparkSession, pipeline: Pipeline, chance: random.Random) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._chance = chance
        self._fault = Fault()
        self._commands: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._rebuilding: threading.Thread | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def drive(self) -> None:
        while True:
            command = self._run_until_told()
            if command == "forget":
                forgotten = sum(map(_forget_last, Path(self._pipeline.directory, "_checkpoints").glob("*/*/commits")))
                _answer(f"{forgotten} batches forgotten" if forgotten else "no batch to forget")
            elif command == "stop":
                _answer("run stopped")
            elif command == "finish":
                _answer(self._finish())
            elif command == "quit":
                _answer("bye")
                return

    def _run_until_told(self) -> str:
        """One run; returns the command that ended it, or none if it ended by itself."""
        ended = threading.Event()
        run: list[Run] = []

        def work() -> None:
            try:
                with self._connected() as client:
                    run.append(Run(self._pipeline, self._spark, client))
                    outcome = run[0]()
                _say(f"the run is over: {outcome.state} {outcome.message[:500]}")
            except Exception as error:  # noqa: BLE001 - whatever it is, the next run is what this is about
                _say(f"the run is over: {type(error).__name__} {str(error)[:500]}")
            ended.set()

        thread = threading.Thread(target=work)
        thread.start()
        command = ""
        while not ended.is_set():
            with suppress(queue.Empty):
                command = self._commands.get(timeout=LOOK_S)
                if command == "rebuild":
                    _answer(self._rebuild())
                elif command == "fault":
                    moment = self._chance.choice(("before", "after"))
                    self._fault.arm(moment)
                    _answer(f"fault {moment} a commit")
                else:
                    break
                command = ""
        while not ended.is_set():
            if run:
                run[0].stop()
            ended.wait(LOOK_S)
        thread.join()
        if not command:
            time.sleep(PAUSE_S)
        return command

    def _rebuild(self) -> str:
        if self._rebuilding is not None and self._rebuilding.is_alive():
            return "a rebuild is under way"
        topic = self._chance.choice(("orders", "accounts"))

        def work() -> None:
            try:
                done = self._rebuilt(topic)
                _say(f"rebuilt {topic}: {done}")
            except Exception as error:  # noqa: BLE001 - it is done again at the end
                _say(f"the rebuild of {topic} failed: {type(error).__name__} {str(error)[:500]}")

        self._rebuilding = threading.Thread(target=work, daemon=True)
        self._rebuilding.start()
        return f"rebuild of {topic} begun"

    def _rebuilt(self, topic: str) -> str:
        with self._connected() as client:
            reference = reference_of(self._pipeline, client, topic)
            assert reference is not None
            plan = Plans(client, topic, reference, LocalFiles(), "nowhere").newest()
        return str(Rebuild(self._spark, self._pipeline, LocalFiles(), topic, plan)())

    def _finish(self) -> str:
        for _ in range(FINISH_ATTEMPTS_MAX):
            try:
                with self._connected() as client:
                    outcome = Run(self._pipeline, self._spark, client, once=True)()
            except PenstockError as error:
                _say(f"not finished: {error}")
                time.sleep(PAUSE_S)
                continue
            if outcome.state == "finished":
                return "finished"
            _say(f"not finished: {outcome.message[:500]}")
        return "not finished"

    def _connected(self) -> FlyMQClient:
        return open_client(self._pipeline.connection_settings(None))

    def _listen(self) -> None:
        for line in sys.stdin:
            self._commands.put(line.strip())
        self._commands.put("quit")


def _forget_last(commits: Path) -> bool:
    last = max((int(each.name) for each in commits.iterdir() if each.name.isdigit()), default=-1)
    begun = max((int(each.name) for each in commits.with_name("offsets").iterdir() if each.name.isdigit()), default=-1)
    if last < 0 or begun > last:
        return False
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    return True


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _answer(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("seed", type=int)
    given = parser.parse_args()
    config = {**FAST_SETTINGS, "spark.local.dir": str(given.scratch), "spark.sql.warehouse.dir": str(given.scratch)}
    spark = penstock.spark.session("torture", MASTER, config)
    _answer("ready")
    Driver(spark, load_pipeline(given.file), random.Random(given.seed)).drive()
    spark.stop()


if __name__ == "__main__":
    main()
