"""A broker with its log in Kafka beside clients that speak to the same Kafka themselves.

Writes to the broker come from the load generator of the other cases, which sends prepared bytes; a direct client is one process that
makes records, batches them and sends them. So the rates of writes compare a broker with a client, both on the same Kafka and with as many
records in flight. Reads are those of Python clients on all sides, which make an object of each record. The note of each row has the CPU
time per record of the broker, of each direct client, and of Kafka with each of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from bench.cases.against_redis import Shape, broker_job
from bench.kafka import Kafka
from bench.kafka_load import KafkaJob
from bench.load import LoadResult, cpu_seconds
from bench.processes import HOST, Broker, check_held, run_load, run_program
from bench.reader import ReadJob, ReadResult
from bench.rounds import Plan, Row, amount, compared, interleave

RATIO_MIN = 0.7
CLIENTS = ("aiokafka", "confluent-kafka")
PARTITIONS = 64
WRITES = (
    (Shape(100, 16, 100), 1),
    (Shape(1024, 16, 100), 1),
    (Shape(100, 1, 1), 1),
    (Shape(100, 16, 1), 1),
    (Shape(100, 16, 100), PARTITIONS),
)
READ_BYTES = 100
READ_RECORDS = 1_000_000
READ_RECORDS_QUICK = 100_000


@dataclass(frozen=True, slots=True)
class _Round:
    rate: float
    process_us: float
    """Processor time of the broker, or of the client, for a record."""
    kafka_us: float


def measure(plan: Plan) -> list[Row]:
    with Kafka(plan.directory / "kafka", 1) as kafka:
        config = f'engine = "kafka"\n\n[kafka]\nbootstrap = ["{kafka.bootstrap}"]\nreplication = 1\n'
        with Broker(plan.directory / "kafka-engine", config=config) as broker:
            rows = [_write(plan, kafka, broker, shape, partitions) for shape, partitions in WRITES]
            rows.append(_read(plan, kafka, broker))
    return rows


def _write(plan: Plan, kafka: Kafka, broker: Broker, shape: Shape, partitions: int) -> Row:
    setting = f"{shape}, {partitions} partition{'s' * (partitions > 1)}"
    plan.say(f"kafka engine: produce, {setting}")

    def ours(number: int) -> _Round:
        topic = _topic(broker, "ours", shape, number, partitions)
        before = cpu_seconds(kafka.pid)
        result = run_load(broker_job(broker, topic, shape, partitions=tuple(range(partitions)), seconds=plan.seconds))
        spent_s = cpu_seconds(kafka.pid) - before
        check_held(broker, topic, result.acknowledged)
        return _Round(
            result.rate, 1e6 * result.server_cpu / result.rate, 1e6 * spent_s / sum(result.acknowledged.values())
        )

    def theirs(client: str) -> Callable[[int], _Round]:
        def side(number: int) -> _Round:
            job = KafkaJob(
                client=client,
                bootstrap=kafka.bootstrap,
                topic=_topic(broker, client, shape, number, partitions),
                payload_bytes=shape.payload_bytes,
                in_flight=shape.connections * shape.in_flight,
                partitions=partitions,
                seconds=plan.seconds,
                server_pid=kafka.pid,
            )
            result = run_program("bench.kafka_load", job, LoadResult)
            return _Round(result.rate, 1e6 * result.load_cpu / result.rate, 1e6 * result.server_cpu / result.rate)

        return side

    results = interleave({"penstock": ours, **{client: theirs(client) for client in CLIENTS}}, plan.rounds)
    return _row(f"produce, {setting}", results)


def _topic(broker: Broker, side: str, shape: Shape, number: int, partitions: int) -> str:
    """Make one through the broker, so that all sides write to topics with the same settings."""
    topic = f"{side}-{shape.payload_bytes}-{shape.connections}-{shape.in_flight}-{partitions}-{number}"
    with broker.client() as client:
        client.create_topic(topic, partitions)
    return topic


def _read(plan: Plan, kafka: Kafka, broker: Broker) -> Row:
    records = plan.volume(READ_RECORDS, READ_RECORDS_QUICK)
    plan.say(f"kafka engine: fetch, {records:,} records of {READ_BYTES} B")
    shape = Shape(READ_BYTES, 4, 500)
    topic = _topic(broker, "read", shape, 0, 1)
    load = broker_job(broker, topic, shape, warm_up_s=0, records=records)
    check_held(broker, topic, run_load(load).acknowledged)

    def ours(_: int) -> _Round:
        job = ReadJob(
            host=HOST,
            port=broker.port,
            topic=topic,
            payload_bytes=READ_BYTES,
            records=records,
            through_client=True,
            server_pid=broker.pid,
        )
        before = cpu_seconds(kafka.pid)
        result = run_program("bench.reader", job, ReadResult)
        rate = result.rate
        return _Round(rate, 1e6 * result.server_cpu / rate, 1e6 * (cpu_seconds(kafka.pid) - before) / records)

    def theirs(client: str) -> Callable[[int], _Round]:
        def side(_: int) -> _Round:
            job = KafkaJob(
                client=client, bootstrap=kafka.bootstrap, topic=topic, read_records=records, server_pid=kafka.pid
            )
            result = run_program("bench.kafka_load", job, ReadResult)
            rate = result.rate
            return _Round(rate, 1e6 * result.load_cpu / rate, 1e6 * result.server_cpu / rate)

        return side

    results = interleave({"penstock": ours, **{client: theirs(client) for client in CLIENTS}}, plan.rounds)
    return _row(f"fetch, {records:,} records of {READ_BYTES} B, Python client, 1 connection", results)


def _row(setting: str, results: dict[str, list[_Round]]) -> Row:
    def us(side: str, what: str) -> str:
        return amount(statistics.median(getattr(each, what) for each in results[side]))

    reference, other = CLIENTS
    other_rate = statistics.median(each.rate for each in results[other])
    return compared(
        "kafka engine",
        setting,
        "records/s",
        [each.rate for each in results["penstock"]],
        reference,
        [each.rate for each in results[reference]],
        ratio_min=RATIO_MIN,
        cpu_us=[each.process_us for each in results["penstock"]],
        against_cpu_us=[each.process_us for each in results[reference]],
        note=(
            f"{other} {amount(other_rate)}/s; cpu for a record: broker {us('penstock', 'process_us')}"
            f" + Kafka {us('penstock', 'kafka_us')} us,"
            f" {reference} {us(reference, 'process_us')} + Kafka {us(reference, 'kafka_us')} us,"
            f" {other} {us(other, 'process_us')} + Kafka {us(other, 'kafka_us')} us"
        ),
    )
