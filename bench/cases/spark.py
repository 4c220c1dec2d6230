"""Spark's batch reads and writes and its smallest micro-batch, against Spark's own Kafka connector on a Kafka of this machine."""

from __future__ import annotations

import statistics

from bench.kafka import Kafka, connector_jars
from bench.processes import HOST, Broker, run_program
from bench.rounds import Plan, Row, compared
from bench.spark import MADE, SparkJob, SparkResult
from bench.spark_sides import PARTITIONS

ROWS = 2_000_000
ROWS_QUICK = 100_000
PAYLOAD_BYTES = 100
BATCHES = 40
BATCHES_QUICK = 10
READ_FILES_RATIO_MIN = 4.0
READ_RATIO_MIN = 1.0
WRITE_RATIO_MIN = 2.0
TO_NOOP_RATIO_MAX = 1.0
TO_TOPIC_RATIO_MAX = 1.3

OURS = "exactly once, on disk at commit (fsync)"
THEIRS = "Spark's Kafka connector, acks=all, at least once, in the page cache"


def measure(plan: Plan) -> list[Row]:
    jars = [str(jar) for jar in connector_jars()]
    directory = plan.directory / "spark"
    rows = plan.volume(ROWS, ROWS_QUICK)
    plan.say("spark: starting a broker, a Kafka and a Spark session")
    with (
        Kafka(plan.directory / "kafka", PARTITIONS) as kafka,
        Broker(plan.directory / "spark-broker") as broker,
        Broker(plan.directory / "spark-on-kafka", config=_on(kafka)) as on_kafka,
    ):
        directory.mkdir()
        plan.say(f"spark: {plan.rounds} rounds of {rows:,} rows written and read, and of the smallest micro-batch")
        job = SparkJob(
            penstock=f"{HOST}:{broker.port}",
            on_kafka=f"{HOST}:{on_kafka.port}",
            kafka=kafka.bootstrap,
            jars=jars,
            directory=str(directory),
            rows=rows,
            payload_bytes=PAYLOAD_BYTES,
            batches=plan.volume(BATCHES, BATCHES_QUICK),
            rounds=plan.rounds,
        )
        result = run_program("bench.spark", job, SparkResult)
    return [*batch_rows(result, rows), *floor_rows(result)]


def _on(kafka: Kafka) -> str:
    """Settings of a broker with its log in a Kafka, beside topics of others there."""
    return (
        f'engine = "kafka"\n\n[kafka]\nbootstrap = ["{kafka.bootstrap}"]\nreplication = 1\ntopic_prefix = "penstock."\n'
    )


def batch_rows(result: SparkResult, rows: int) -> list[Row]:
    def rates(seconds: list[float]) -> list[float]:
        return [rows / each for each in seconds]

    read = {side: rates(seconds) for side, seconds in result.read_s.items()}
    write = {side: rates(seconds) for side, seconds in result.write_s.items()}
    made = statistics.median(write[MADE])
    size = f"{rows:,} rows of {PAYLOAD_BYTES} B, {PARTITIONS} partitions"
    reading = [
        compared(
            "spark read",
            f"{size}, all columns, {how}",
            "rows/s",
            read[side],
            "Spark's Kafka connector",
            read["Kafka"],
            ratio_min=ratio_min,
        )
        for side, how, ratio_min in (
            ("Penstock", "from the files of the same machine", READ_FILES_RATIO_MIN),
            ("Penstock over the wire", "over TCP", READ_RATIO_MIN),
            ("Penstock on Kafka", "over TCP, the log in Kafka", READ_RATIO_MIN),
        )
    ]
    writing = [
        compared(
            "spark write",
            f"{size}, {how}",
            "rows/s",
            write[side],
            THEIRS,
            write["Kafka"],
            ratio_min=WRITE_RATIO_MIN if side == "Penstock" else None,
            note=f"making the rows alone: {made:,.0f} rows/s",
        )
        for side, how in (("Penstock", OURS), ("Penstock on Kafka", "exactly once, the log in Kafka"))
    ]
    return [*reading, *writing]


def floor_rows(result: SparkResult) -> list[Row]:
    """Against the Kafka connector, and against itself where tasks read what the driver could."""
    noop, topic = result.to_noop_ms, result.to_topic_ms
    return [
        compared(
            "spark micro-batch",
            f"one record a batch, {how}, median trigger",
            "ms",
            ours,
            against,
            theirs,
            ratio_max=ratio_max,
            note="less is better",
        )
        for how, ours, against, theirs, ratio_max in (
            ("topic to noop", noop["Penstock"], "Spark's Kafka connector", noop["Kafka"], TO_NOOP_RATIO_MAX),
            ("topic to noop", noop["Penstock"], "the same, read by tasks", noop["Penstock by tasks"], None),
            (f"topic to topic, {OURS}", topic["Penstock"], THEIRS, topic["Kafka"], TO_TOPIC_RATIO_MAX),
            (
                f"topic to topic by write_batch, {OURS}",
                topic["Penstock by write_batch"],
                THEIRS,
                topic["Kafka"],
                TO_TOPIC_RATIO_MAX,
            ),
        )
    ]
