"""Every record once in every table of a pipeline, while everything that can be killed is killed.

    python -m tests.crash.pipeline_torture --kills 200 [--engine kafka]

Two topics are fed; a pipeline takes them to bronze, silver and gold, one of them by key, and gold to a topic too. Each round ends
something at a moment of its own: the broker, the driver with its virtual machine (at any moment, or right after a table was committed), a
Python process of Spark's; or it makes a commit fail, makes batches repeat whose commit is forgotten, begins a rebuild of silver, or starts
a second run beside the first. Small files are compacted all the time. In the end a reader that is not Spark finds every record of the
topics in the tables, once. Ends with 1, and leaves its files where they are, if that is not so or the pipeline stands still.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from bench.kafka import Kafka
from penstock.broker.deliveries.deadletters import dead_letter_topic
from penstock.errors import PenstockError
from penstock.spark.pipelines.compact import compact_tables
from penstock.spark.pipelines.model import Pipeline, load_pipeline
from penstock.spark.pipelines.tables.table import VACUUM_KEEP_S_MIN
from tests.crash.spark_torture_report import Verdict, judge
from tests.crash.torture import MakeRecord, NoProgress, Spark, Torture, main

DRIVER = "tests.crash.pipeline_torture_driver"
PARTITIONS = 2
LOOK_CLOSELY_S = 0.002
COMMIT_S_MAX = 20.0
COMPACT_EVERY_S = 5.0
FINISH_S_MAX = 900.0
ACCOUNTS = 20
SCHEMAS = {
    "orders": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}},
    "accounts": {
        "type": "object",
        "required": ["account", "n"],
        "properties": {"account": {"type": "integer"}, "n": {"type": "integer"}},
    },
}
FILE = """
name = "torture"
bootstrap = "{address}"
topics = ["orders", "accounts"]
directory = "{directory}"
trigger_ms = 0
batch_records_max = 20000
[bronze]
[silver]
[silver.topics.accounts]
key = ["account"]
[[gold]]
name = "ids"
sql = "SELECT id FROM orders"
topic = "results"
"""


def order_record(number: int) -> tuple[bytes | None, bytes | None]:
    """Now and then one that is no order."""
    return b"%d" % (number % 97), b"nonsense %d" % number if number % 10 == 0 else b'{"id": %d}' % number


def account_record(number: int) -> tuple[bytes | None, bytes | None]:
    """Changes of a few accounts, which are closed now and then."""
    account = number % ACCOUNTS
    value = None if number % 13 == 0 else b'{"account": %d, "n": %d}' % (account, number)
    return b"%d" % account, value


class PipelineTorture(Torture):
    WEIGHTS: ClassVar[Mapping[str, int]] = {
        "fault": 22,
        "forget": 18,
        "broker": 16,
        "worker": 14,
        "rebuild": 14,
        "driver": 6,
        "commit": 6,
        "second": 4,
    }
    FED: ClassVar[Mapping[str, MakeRecord]] = {"orders": order_record, "accounts": account_record}

    def __init__(self, directory: Path, seed: int, kafka: Kafka | None = None) -> None:
        self._drivers = 0
        self._file = directory / "pipeline.toml"
        super().__init__(directory, seed, kafka)
        self._pipeline: Pipeline = load_pipeline(self._file)
        self._over = threading.Event()
        self._compacting = threading.Thread(target=self._compact_all_the_time)
        self._compactions = 0

    def _create_topics(self) -> None:
        with self._broker.connect() as client:
            for topic, schema in SCHEMAS.items():
                client.create_topic(topic, PARTITIONS)
                client.schemas.register(topic, json.dumps(schema))
            client.create_topic("results", PARTITIONS)
        self._file.write_text(FILE.format(address=self._broker.address, directory=self._directory / "tables"))

    def _driver(self) -> Spark:
        self._drivers += 1
        scratch = self._directory / f"scratch-{self._drivers}"
        return Spark(DRIVER, self._directory, str(self._file), str(scratch), str(self._seed + self._drivers))

    def __enter__(self) -> Self:
        self._compacting.start()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_compacting()
        super().__exit__(kind, error, trace)

    def _stop_compacting(self) -> None:
        self._over.set()
        self._compacting.join()

    def _do(self, kind: str) -> str:
        if kind == "commit":
            return self._kill_after_a_commit()
        if kind == "second":
            return self._start_a_second_run()
        return super()._do(kind)

    def _kill_after_a_commit(self) -> str:
        """The driver, when a table has a new version and its checkpoint knows nothing of it yet."""
        stage = self._chance.choice(("bronze/orders", "silver/orders", "silver/accounts", "gold/ids"))
        log = Path(self._pipeline.directory, stage, "_delta_log")
        before = len(list(log.glob("*.json")))
        until_s = time.monotonic() + COMMIT_S_MAX
        while len(list(log.glob("*.json"))) == before and time.monotonic() < until_s:
            time.sleep(LOOK_CLOSELY_S)
        self._spark.kill()
        self._spark.start()
        return "driver killed after a commit"

    def _start_a_second_run(self) -> str:
        """Beside the first, as from another machine: without the lock that would keep it away."""
        Path(self._pipeline.directory, "_lock").unlink(missing_ok=True)
        second = self._driver()
        second.start()
        self._wait_for_more()
        self._spark.close()
        self._spark = second
        return "second run beside the first"

    def finish(self) -> dict[str, Verdict]:
        """Let the pipeline catch up, and compare what the tables have with what the topics have, by table."""
        self._stop_feeding()
        self._stop_compacting()
        told = self._spark.tell("finish", FINISH_S_MAX)
        if told != "finished":
            raise NoProgress("the pipeline did not come to its end; driver.log says why")
        self._spark.tell("quit")
        return dict(self._verdicts())

    def _verdicts(self) -> Iterator[tuple[str, Verdict]]:
        with self._broker.connect() as client:
            topics = {name: list(client.records(name)) for name in (*SCHEMAS, "results")}
            letters = [record.value or b"" for record in client.records(dead_letter_topic("orders"))]
        values = [record.value or b"" for record in topics["orders"]]
        ids = [b"%d" % json.loads(value)["id"] for value in values if value.startswith(b"{")]
        nonsense = [value for value in values if value.startswith(b"nonsense")]
        for topic, feeder in zip(SCHEMAS, self._feeders, strict=True):
            places = [b"%d-%d" % (record.partition, record.offset) for record in topics[topic]]
            yield (
                f"bronze/{topic}",
                judge([], places, [b"%(partition)d-%(offset)d" % _bytes(row) for row in self._rows(f"bronze/{topic}")]),
            )
            yield (
                f"topic {topic}",
                judge(
                    feeder.acknowledged,
                    feeder.acknowledged,
                    set(feeder.acknowledged) & {record.value or b"" for record in topics[topic]},
                ),
            )
        yield "silver/orders", judge([], ids, [b"%d" % row["id"] for row in self._rows("silver/orders")])
        yield "gold/ids", judge([], ids, [b"%d" % row["id"] for row in self._rows("gold/ids")])
        yield (
            "topic results",
            judge([], ids, [b"%d" % json.loads(record.value or b"")["id"] for record in topics["results"]]),
        )
        yield "rejects/orders", judge([], nonsense, [row["value"] for row in self._rows("rejects/orders")])
        yield "dead letters of orders", judge([], nonsense, letters)
        open_accounts = {
            record.key: record.value for record in sorted(topics["accounts"], key=lambda each: each.offset)
        }
        wanted = [b"%(account)d: %(n)d" % _bytes(json.loads(value)) for value in open_accounts.values() if value]
        yield (
            "silver/accounts",
            judge([], wanted, [b"%(account)d: %(n)d" % _bytes(row) for row in self._rows("silver/accounts")]),
        )

    def progress(self) -> str:
        return (
            f"{self._end('orders'):7d} orders, {self._written():6d} of them in silver, {self._compactions} compactions"
        )

    def _compact_all_the_time(self) -> None:
        while not self._over.wait(COMPACT_EVERY_S):
            # The loser of a race tries again; a table may not exist yet.
            with suppress(PenstockError, DeltaError, OSError):
                for _, done in compact_tables(self._pipeline, file_bytes=1 << 20, keep_s=VACUUM_KEEP_S_MIN):
                    self._compactions += done.files_after < done.files_before

    def _rows(self, table: str) -> list[dict[str, Any]]:
        path = Path(self._pipeline.directory, table)
        return DeltaTable(path).to_pyarrow_table().to_pylist() if path.exists() else []

    def _written(self) -> int:
        path = Path(self._pipeline.directory, "silver", "orders")
        try:
            return DeltaTable(path).count() if path.exists() else 0
        except (DeltaError, OSError):
            return 0


def _bytes(row: dict[str, Any]) -> dict[bytes, Any]:
    return {name.encode(): value for name, value in row.items()}


if __name__ == "__main__":
    sys.exit(main(PipelineTorture, __doc__ or ""))
