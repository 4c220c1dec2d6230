"""A real standalone cluster: a master and two workers, whose machines cannot see the broker's files and have Penstock from an archive.

    python -m tests.crash.spark_cluster [--records 200000]

Each worker runs in a mount namespace of its own, in which the broker's data directory is empty: tasks read over TCP, as they would from
another machine. Executors get `penstock spark pack`'s archive. Then, one after another: a batch, a stream, the stream resumed from its
checkpoint, a batch with a task that Spark speculates on, a batch whose executor is killed. Every row must be there once. Needs root (for
the namespaces) and Java, and takes about three minutes on two processors. Ends with 1 where a row is missing or there twice.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import penstock.spark
from penstock.spark.java import find_java
from penstock.spark.packing import pack
from penstock.testing import BrokerProcess

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

HOST: Final = "127.0.0.1"
START_S_MAX: Final = 90.0
LOOK_S: Final = 0.2
SLOW_S: Final = 25.0
"""How long the task sleeps that Spark is to speculate on."""
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def daemon(command: list[str], directory: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process and what it has started, ended together."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java(os.environ)),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_WORKER_DIR": str(directory / name),
        "SPARK_LOCAL_DIRS": str(directory / name),
        "SPARK_DAEMON_MEMORY": "384m",
        "PYSPARK_PYTHON": sys.executable,
    }
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + START_S_MAX
    while not condition():
        if time.monotonic() > until_s:
            raise SystemExit(f"{what} took more than {START_S_MAX:g} s; the logs are left where they are")
        time.sleep(LOOK_S)


@contextmanager
def cluster(directory: Path, hidden: Path) -> Iterator[str]:
    """A master and two workers to which `hidden` is an empty directory; the address of the master."""
    import pyspark

    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    port = free_port()
    master = f"spark://{HOST}:{port}"
    hide = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs tmpfs "{hidden}" && exec "$@"', "worker"]
    with ExitStack() as processes:
        web = ["--webui-port", str(free_port())]
        processes.enter_context(
            daemon([spark_class, _MASTER, "--host", HOST, "--port", str(port), *web], directory, "master")
        )
        wait_for("starting the master", lambda: "Starting Spark master" in (directory / "master.log").read_text())
        for number in (1, 2):
            name = f"worker-{number}"
            web = ["--webui-port", str(free_port())]
            command = [spark_class, _WORKER, "--host", HOST, "--cores", "1", "--memory", "1g", *web, master]
            processes.enter_context(daemon([*hide, *command], directory, name))
            log = directory / f"{name}.log"
            wait_for(f"starting {name}", lambda log=log: "Successfully registered with master" in log.read_text())  # type: ignore[misc]
        yield master


class Trial:
    """What is tried, and what must be there afterwards."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, directory: Path, records: int) -> None:
        self._spark = spark
        self._client = broker.connect()
        self._options = {"penstock.bootstrap": broker.addresses["flymq"]}
        self._directory = directory
        self._records = records
        self.failed = False

    def all(self) -> None:
        self._client.create_topic("in", 4)
        self._check("tasks see no files and have the archive", self._places() == {(0, True)})
        self._write(self._numbers(0, self._records), "in")
        self._check("batch", self._is_whole("in", self._records))
        for turn in (1, 2):
            self._copied("in", "out")
            self._check(f"stream, run {turn}", self._is_whole("out", turn * self._records // 2 + self._records // 2))
            if turn == 1:
                self._write(self._numbers(self._records, self._records + self._records // 2), "in")
        self._write(self._numbers(0, self._records, slowly=True), "speculated")
        self._check("speculation", self._is_whole("speculated", self._records))
        killer = threading.Thread(target=self._kill_executor)
        killer.start()
        self._write(self._numbers(0, self._records, slowly=True), "killed")
        killer.join()
        self._check("killed executor", self._is_whole("killed", self._records))

    def _check(self, what: str, holds: bool) -> None:
        say(f"{'ok    ' if holds else 'FAILED'} {what}")
        self.failed = self.failed or not holds

    def _numbers(self, first: int, last: int, *, slowly: bool = False) -> Any:
        numbers = self._spark.range(first, last, 1, 4)
        return numbers.mapInArrow(_slow_at_first, "id long") if slowly else numbers

    def _write(self, numbers: Any, topic: str) -> None:
        rows = numbers.selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
        rows.write.format("penstock").options(**self._options, topic=topic).mode("append").save()

    def _copied(self, source: str, target: str) -> None:
        options = {**self._options, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(self._records // 3)}
        rows = self._spark.readStream.format("penstock").options(**options, subscribe=source).load()
        query = (
            rows.select("key", "value")
            .writeStream.format("penstock")
            .options(**self._options, topic=target, checkpointLocation=str(self._directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _is_whole(self, topic: str, count: int) -> bool:
        rows = self._spark.read.format("penstock").options(**self._options, subscribe=topic).load()
        found = rows.selectExpr("count(*) AS rows", "count(DISTINCT value) AS values").first()
        assert found is not None
        if (found["rows"], found["values"]) == (count, count):
            return True
        say(f"       {topic}: {found['rows']} rows, {found['values']} different, of {count}")
        return False

    def _places(self) -> set[tuple[int, bool]]:
        directory = str(self._directory / "data")

        def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pathlib import Path

            import pyarrow as pa

            import penstock

            list(batches)
            archived = "/penstock/penstock/" in (penstock.__file__ or "")
            yield pa.record_batch([[len(list(Path(directory).iterdir()))], [archived]], names=["files", "archived"])

        rows = self._spark.range(0, 4, 1, 4).mapInArrow(look, "files int, archived boolean").collect()
        return {(row.files, row.archived) for row in rows}

    def _kill_executor(self) -> None:
        """Kill one of the two, as soon as they work."""
        context = self._spark.sparkContext
        tracker = context.statusTracker()
        wait_for("starting the tasks", lambda: any(_working(tracker, each) for each in tracker.getActiveJobsIds()))
        found = subprocess.run(
            ["pgrep", "-f", f"CoarseGrainedExecutorBackend.*{context.applicationId}"],
            capture_output=True,
            text=True,
            check=False,
        )
        pids = [int(pid) for pid in found.stdout.split() if "java" in Path(f"/proc/{pid}/comm").read_text()]
        os.kill(pids[0], signal.SIGKILL)
        say(f"       killed executor process {pids[0]} of {len(pids)}")


def _working(tracker: Any, job: int) -> bool:
    info = tracker.getJobInfo(job)
    stages = [] if info is None else [tracker.getStageInfo(stage) for stage in info.stageIds]
    return any(stage is not None and stage.numActiveTasks > 1 for stage in stages)


def _slow_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Its first partition takes its time, at the first attempt."""
    import time

    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.partitionId() == 0 and context.attemptNumber() == 0:
        time.sleep(SLOW_S)
    yield from batches


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000, help="rows of each trial, an even number")
    records = parser.parse_args().records
    directory = Path(tempfile.mkdtemp(prefix="penstock-cluster-"))
    archive = pack(directory / "penstock.tar.gz")
    config = {
        "spark.archives": f"{archive.path}#penstock",
        "spark.executorEnv.PYTHONPATH": "penstock",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.driver.memory": "1g",
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.pyspark.python": sys.executable,
        "spark.speculation": "true",
        "spark.speculation.multiplier": "2",
        "spark.speculation.minTaskRuntime": "2s",
        "spark.sql.shuffle.partitions": "2",
    }
    with BrokerProcess(directory / "data") as broker, cluster(directory, directory / "data") as master:
        spark = penstock.spark.session("cluster", master, config)
        try:
            trial = Trial(spark, broker, directory, records)
            trial.all()
        finally:
            spark.stop()
    if trial.failed:
        say(f"logs are in {directory}")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
