"""Every row once on a standalone cluster, whose workers cannot see the broker's files, while executors and workers are killed.

    python -m tests.crash.spark_cluster --rounds 10 [--engine kafka]

Executors have Penstock from the archive of `penstock spark pack`, and read over TCP as from another machine (without the rights of root,
the broker's proof that its files are near is hidden instead; a log in Kafka has no such files). A round is a batch; a stream, which is
resumed; a task that Spark speculates on; an executor that is killed; two queries of one topic, one of which loses its worker; a Delta and
an Iceberg table of a pipeline, whose executors are killed before their tasks write; and a whole pipeline. Readers that are not Spark find
every row once. Ends with 1, and leaves its files where they are, if that is not so. `test_spark_cluster.py` runs one small round.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import penstock.spark
from bench.kafka import Kafka
from penstock.protocols.flymq.operations.blocks import TopicSpans
from penstock.spark.batch_writing import query_id
from penstock.spark.packing import pack
from penstock.spark.pipelines.failures import is_late_worker
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.opening import open_table
from penstock.spark.pipelines.running import Run
from penstock.spark.pipelines.tables.delta import DeltaLakeTable
from penstock.spark.pipelines.tables.iceberg import IcebergTable
from penstock.spark.pipelines.tables.table import Table
from penstock.testing import BrokerProcess
from tests.crash.engine_option import add_engine_option, engine_of, log_in_kafka
from tests.crash.spark_torture_report import judge
from tests.crash.standalone_cluster import Cluster, Stuck, can_hide, hiding, wait_for
from tests.spark.jvm import FAST_SETTINGS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

TASKS: Final = 4
STREAM_S_MAX: Final = 180
STARTS_MAX: Final = 4
"""Of a stream whose Python process did not come up within the ten seconds that Spark gives it."""
PIPELINE_RECORDS: Final = 2_500
PIPELINE_BYTES: Final = 20 << 20
"""More than the driver would read and write by itself."""
ORDER_SCHEMA: Final = '{"type": "object", "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}}'
JVM: Final = FAST_SETTINGS["spark.driver.extraJavaOptions"]
SETTINGS: Final = {
    **FAST_SETTINGS,
    "spark.executorEnv.PYTHONPATH": "penstock",
    "spark.executor.extraJavaOptions": JVM,
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.pyspark.python": sys.executable,
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "2",
    "spark.speculation.minTaskRuntime": "2s",
}
Say = Callable[[str], None]
Function = Callable[[Iterator[Any]], Iterator[Any]]


class Gate:
    """Holds up the first attempt of a job's first task until there is a second attempt, and tells which process that is."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True)

    @property
    def function(self) -> Function:
        """For `mapInArrow`; it travels by value."""
        directory, wait_s = str(self._directory), STREAM_S_MAX

        def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import os
            import time
            from pathlib import Path

            from pyspark import TaskContext

            context = TaskContext.get()
            if context is not None and context.partitionId() == 0:
                mark = Path(directory, f"attempt-{min(context.attemptNumber(), 1)}")
                mark.with_suffix(".new").write_text(str(os.getpid()))
                mark.with_suffix(".new").replace(mark)
                until_s = time.monotonic() + wait_s
                while context.attemptNumber() == 0 and not Path(directory, "attempt-1").exists():
                    if time.monotonic() > until_s:
                        raise TimeoutError("there is no second attempt")
                    time.sleep(0.05)
            yield from batches

        return wait

    def await_first(self) -> int:
        """Wait until the first attempt waits; returns its process."""
        mark = self._directory / "attempt-0"
        wait_for("the first attempt of a task", mark.exists)
        return int(mark.read_text())

    @property
    def was_repeated(self) -> bool:
        return (self._directory / "attempt-1").exists()


class Trial:
    """One round, with topics of its own."""

    def __init__(
        self, number: int, spark: SparkSession, broker: BrokerProcess, cluster: Cluster, directory: Path, records: int
    ) -> None:
        self._number = number
        self._spark = spark
        self._client = broker.connect()
        self._address = broker.address
        self._cluster = cluster
        self._directory = directory / f"round-{number}"
        self._records = records

    def __call__(self) -> Iterator[tuple[str, str]]:
        """What was tried, and what is wrong; nothing if all is well."""
        half = self._records // 2
        self._create("in")
        yield "tasks use the archive", self._check_archive()
        self._write("in", self._numbers(0, half))
        yield "batch", self._check("in", half)
        self._copy("in", "out")
        yield "stream", self._check("out", half)
        self._write("in", self._numbers(half, self._records))
        self._copy("in", "out")
        yield "stream resumed", self._check("out", self._records)

        gate = Gate(self._directory / "speculation")
        self._write("speculated", self._numbers(0, half).mapInArrow(gate.function, "id long"))
        yield "speculation", self._check("speculated", half, gate)

        gate = Gate(self._directory / "executor")
        with ExitStack() as stack:
            stack.callback(self._in_background(lambda: self._cluster.kill_executor_of(gate.await_first())))
            self._write("killed", self._numbers(0, half).mapInArrow(gate.function, "id long"))
        yield "killed executor", self._check("killed", half, gate)

        gate = Gate(self._directory / "worker")
        queries = [self._start("in", "first", gate), self._start("in", "second")]
        self._cluster.kill_worker_of(gate.await_first())
        for query in queries:
            self._await(query)
        yield "two queries, killed worker", self._check("first", self._records, gate)
        yield "the other of the two", self._check("second", self._records)
        self._cluster.start_worker()

        for table in self._tables():
            gate = Gate(self._directory / f"gate-{table.path.rpartition('/')[2]}")
            query = self._start_table("in", table, gate)
            self._cluster.kill_executor_of(gate.await_first())
            self._await(query)
            yield f"{type(table).__name__}, killed executor", self._check_table(table, gate)
        yield "pipeline", self._check_pipeline()

    # -- work -------------------------------------------------------------------------------------------------------------

    def _topic(self, name: str) -> str:
        return f"{name}-{self._number}"

    def _create(self, name: str) -> None:
        self._client.create_topic(self._topic(name), TASKS)

    def _tables(self) -> list[Table]:
        directory = self._directory / "tables"
        return [
            DeltaLakeTable(self._spark, f"{directory}/delta"),
            IcebergTable(self._spark, f"{directory}/iceberg", str(directory), ("cluster", "iceberg")),
        ]

    @property
    def _options(self) -> dict[str, str]:
        return {"penstock.bootstrap": self._address}

    def _numbers(self, first: int, last: int) -> DataFrame:
        return self._spark.range(first, last, 1, TASKS)

    def _write(self, topic: str, numbers: DataFrame) -> None:
        rows = numbers.selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
        rows.write.format("penstock").options(**self._options, topic=self._topic(topic)).mode("append").save()

    def _start(self, source: str, target: str, gate: Gate | None = None) -> StreamingQuery:
        """Copy what is in one topic now to another, in several batches."""
        writing = self._stream(source, gate).writeStream.format("penstock")
        return self._started(writing.options(**self._options, topic=self._topic(target)), target)

    def _start_table(self, source: str, table: Table, gate: Gate) -> StreamingQuery:
        """Copy what is in a topic now to a table, with files that tasks write."""
        name = table.path.rpartition("/")[2]

        def append(rows: DataFrame, batch_id: int) -> None:
            table.claim(query_id(rows), batch_id, name)
            table.append(rows, batch_id)

        return self._started(self._stream(source, gate).writeStream.foreachBatch(append), name)

    def _stream(self, source: str, gate: Gate | None) -> DataFrame:
        limits = {"maxOffsetsPerTrigger": str(self._records // 3), "minPartitions": str(TASKS)}
        options = {**self._options, **limits, "startingOffsets": "earliest", "subscribe": self._topic(source)}
        rows = self._spark.readStream.format("penstock").options(**options).load().select("key", "value")
        return rows if gate is None else rows.mapInArrow(gate.function, "key binary, value binary")

    def _started(self, writing: DataStreamWriter, target: str) -> StreamingQuery:
        writing = writing.option("checkpointLocation", str(self._directory / f"checkpoint-{target}"))
        for _ in range(STARTS_MAX):
            query = writing.trigger(availableNow=True).start()
            wait_for(f"starting {target}", lambda query=query: not _is_starting(query))  # type: ignore[misc]
            error = query.exception()
            if error is None or not is_late_worker(error):
                return query
        raise Stuck(f"{target} did not start: this machine is too busy")

    def _copy(self, source: str, target: str) -> None:
        self._await(self._start(source, target))

    def _await(self, query: StreamingQuery) -> None:
        if not query.awaitTermination(STREAM_S_MAX):
            raise Stuck(f"a stream took more than {STREAM_S_MAX} s: {query.status}")

    def _in_background(self, work: Callable[[], None]) -> Callable[[], None]:
        """Begin some work; returns what waits for its end, and raises what it raised."""
        failed: list[Exception] = []

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - raised below
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()

        def join() -> None:
            thread.join()
            if failed:
                raise failed[0]

        return join

    # -- what came of it --------------------------------------------------------------------------------------------------

    def _check(self, topic: str, count: int, gate: Gate | None = None) -> str:
        if gate is not None and not gate.was_repeated:
            return "no task had a second attempt, so nothing was tried"
        return _difference(count, (int(record.value or b"-1") for record in self._client.records(self._topic(topic))))

    def _check_table(self, table: Table, gate: Gate) -> str:
        if not gate.was_repeated:
            return "no task had a second attempt, so nothing was tried"
        return _difference(self._records, map(int, table.batches().read_all()["value"].to_pylist()))

    def _check_pipeline(self) -> str:
        """Whether a pipeline whose batches are large enough for tasks has each record in bronze and, decoded by them, in silver."""
        topic = self._topic("orders")
        self._client.create_topic(topic, TASKS)
        self._client.schemas.register(topic, ORDER_SCHEMA)
        note = "x" * (PIPELINE_BYTES // PIPELINE_RECORDS)
        self._client.send_many(
            topic, [(None, b'{"id": %d, "note": "%s"}' % (each, note.encode()), {}) for each in range(PIPELINE_RECORDS)]
        )
        pipeline = Pipeline.model_validate(
            {
                "name": f"cluster-{self._number}",
                "bootstrap": self._address,
                "topics": [topic],
                "directory": str(self._directory / "pipeline"),
                "bronze": {},
                "silver": {},
            }
        )
        outcome = Run(pipeline, self._spark, self._client, once=True)()
        if outcome.state != "finished":
            return outcome.message
        bronze, silver = (open_table(pipeline, stage, topic).batches().read_all() for stage in ("bronze", "silver"))
        return _difference(PIPELINE_RECORDS, (json.loads(each)["id"] for each in bronze["value"].to_pylist())) or (
            _difference(PIPELINE_RECORDS, silver["id"].to_pylist())
        )

    def _check_archive(self) -> str:
        """Whether executors have Penstock from the archive, and nothing of the broker's files."""
        plan = self._client.blocks.plan([TopicSpans(self._topic("in"), [])])
        proof = str(Path(plan.directory, plan.proof)) if plan.proof else ""

        def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pathlib import Path

            import pyarrow as pa

            import penstock

            list(batches)
            near = bool(proof) and Path(proof).exists()
            yield pa.record_batch([[near], [str(penstock.__file__)]], names=["near", "package"])

        found = self._numbers(0, TASKS).mapInArrow(look, "near boolean, package string").distinct().collect()
        if any(row.near for row in found):
            return f"a task sees {proof}"
        outside = [row.package for row in found if not row.package.endswith("/penstock/penstock/__init__.py")]
        return f"a task has Penstock from {outside[0]}" if outside else ""


def _difference(count: int, found: Iterable[int]) -> str:
    verdict = judge([], (b"%d" % number for number in range(count)), (b"%d" % number for number in found))
    return "" if verdict.flawless else "; ".join(verdict.lines())


def _is_starting(query: StreamingQuery) -> bool:
    return query.isActive and str(query.status["message"]).startswith("Initializing")


def run(directory: Path, records: int, rounds: int, say: Say, kafka: Kafka | None = None) -> bool:
    """Whether every row was there once, in every trial of every round. With `kafka`, the broker has its log there."""
    archive = pack(directory / "penstock.tar.gz")
    flawless = True
    with ExitStack() as stack:
        config = "" if kafka is None else log_in_kafka(kafka)
        broker = stack.enter_context(BrokerProcess(directory / "data", config=config))
        launcher = hiding(broker.data_dir) if can_hide(broker.data_dir) else []
        if not launcher and kafka is None:
            _hide_proof(broker)
        cluster = stack.enter_context(Cluster(directory, launcher))
        spark = penstock.spark.session(
            "cluster", cluster.master, {**SETTINGS, "spark.archives": f"{archive.path}#penstock"}
        )
        stack.callback(spark.stop)
        for number in range(1, rounds + 1):
            for what, wrong in Trial(number, spark, broker, cluster, directory, records)():
                say(f"round {number}  {'FAILED' if wrong else 'ok':6s}  {what}{f': {wrong}' if wrong else ''}")
                flawless = flawless and not wrong
    return flawless


def _hide_proof(broker: BrokerProcess) -> None:
    """Without it nobody takes the broker's files for files of the same machine."""
    with broker.connect() as client:
        plan = client.blocks.plan([])
    proof = Path(plan.directory, plan.proof)
    proof.rename(proof.with_name(f"{proof.name}.hidden"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000, help="of each trial, an even number")
    parser.add_argument("--rounds", type=int, default=5)
    add_engine_option(parser)
    given = parser.parse_args()

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    directory = Path(tempfile.mkdtemp(prefix="penstock-cluster-"))
    try:
        with engine_of(given, directory) as kafka:
            flawless = run(directory, given.records, given.rounds, say, kafka)
    except Stuck as error:
        say(f"stopped: {error}")
        flawless = False
    if not flawless:
        say(f"FAILED: what there was to see is in {directory}")
        return 1
    shutil.rmtree(directory)
    say("every row is there once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
