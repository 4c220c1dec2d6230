"""RustLog: durable batches against Redis Streams with `appendfsync always`, and reading a long log in both dialects."""

from __future__ import annotations

from bench.cases.against_redis import Shape, redis_round
from bench.load import Job, LoadResult
from bench.processes import HOST, Broker, Redis, check_held, run_load, run_program
from bench.reader import ReadResult
from bench.rounds import Plan, Row, alone, compared, cpu_note, cpu_us_each, interleave
from bench.rustlog_reader import FETCH_RECORDS, IN_FLIGHT, RustLogReadJob

PAYLOAD_BYTES = 100
BATCH_RECORDS = 1000
BATCHES_IN_FLIGHT = 2
CONNECTIONS = (1, 4)
RATIO_MIN = 2.0
RATES_MIN = {1: None, 4: 2_500_000.0}
"""By connections, records a second that are aimed at beside the ratio."""
LOG_RECORDS = 2_000_000
LOG_RECORDS_QUICK = 200_000
READ_RATES_MIN = {"binary": 1_000_000.0, "json": None}
"""Of 100-byte records; the aim is that of every protocol's FETCH. JSON takes four characters for most bytes, and has none."""


def measure(plan: Plan) -> list[Row]:
    rows = []
    with Broker(plan.directory / "rustlog", config=f'[listeners.rustlog]\nbind = "{HOST}:0"\n') as broker:
        for connections in CONNECTIONS:
            plan.say(f"rustlog: batches of {BATCH_RECORDS}, {connections} connections")
            with Redis(plan.directory / f"redis-rustlog-{connections}", "always") as redis:
                rows.append(_compare(plan, broker, redis, connections))
        rows += _read(plan, broker)
    return rows


def _write(
    broker: Broker, topic: str, durability: str, connections: int, seconds: float, records: int | None
) -> LoadResult:
    with broker.client() as client:
        client.create_topic(topic, 1, durability=durability)
    job = Job(
        side="rustlog",
        host=HOST,
        port=broker.ports["rustlog"],
        name=topic,
        payload_bytes=PAYLOAD_BYTES,
        connections=connections,
        in_flight=BATCHES_IN_FLIGHT,
        batch_records=BATCH_RECORDS,
        warm_up_s=0 if records else 0.5,
        seconds=seconds,
        records=None if records is None else records // BATCH_RECORDS,
        server_pid=broker.pid,
    )
    result = run_load(job)
    check_held(broker, topic, result.acknowledged)
    return result


def _compare(plan: Plan, broker: Broker, redis: Redis, connections: int) -> Row:
    def ours(number: int) -> LoadResult:
        topic = f"batches-{connections}-{number}"
        result = _write(broker, topic, "fsync", connections, plan.seconds, None)
        with broker.client() as client:
            client.delete_topic(topic)
        return result

    def theirs(number: int) -> LoadResult:
        return redis_round(plan, redis, Shape(PAYLOAD_BYTES, connections, BATCH_RECORDS * BATCHES_IN_FLIGHT), number)

    results = interleave({"penstock": ours, "redis": theirs}, plan.rounds)
    noun = "connection" if connections == 1 else "connections"
    return compared(
        "rustlog",
        (
            f"fsync, {PAYLOAD_BYTES} B, {connections} {noun}, {BATCHES_IN_FLIGHT} batches of {BATCH_RECORDS:,} in flight each;"
            f" Redis: {BATCHES_IN_FLIGHT * BATCH_RECORDS:,} XADD in flight each"
        ),
        "records/s",
        [result.rate for result in results["penstock"]],
        "Redis Streams, appendfsync always",
        [result.rate for result in results["redis"]],
        ratio_min=RATIO_MIN,
        at_least=RATES_MIN[connections],
        note=cpu_note(results["penstock"], results["redis"], "Redis"),
        cpu_us=cpu_us_each(results["penstock"]),
        against_cpu_us=cpu_us_each(results["redis"]),
    )


def _read(plan: Plan, broker: Broker) -> list[Row]:
    records = plan.volume(LOG_RECORDS, LOG_RECORDS_QUICK)
    plan.say(f"rustlog: reading {records:,} records in both dialects")
    _write(broker, "long", "none", 4, 0, records)

    def reads(dialect: str) -> ReadResult:
        job = RustLogReadJob(
            host=HOST,
            port=broker.ports["rustlog"],
            topic="long",
            payload_bytes=PAYLOAD_BYTES,
            records=records,
            dialect=dialect,
            server_pid=broker.pid,
        )
        return run_program("bench.rustlog_reader", job, ReadResult)

    reads("binary")  # warm-up: whether the log is in the system's page cache must not depend on who reads first
    results = interleave({"binary": lambda _: reads("binary"), "json": lambda _: reads("json")}, plan.rounds)
    return [
        alone(
            "rustlog",
            f"fetch {records:,} records of {PAYLOAD_BYTES} B, {dialect}, 1 connection, {IN_FLIGHT} x {FETCH_RECORDS:,} records in flight",
            "records/s",
            [result.rate for result in results[dialect]],
            at_least=READ_RATES_MIN[dialect],
            note=cpu_note(results[dialect]),
            cpu_us=cpu_us_each(results[dialect]),
        )
        for dialect in results
    ]
