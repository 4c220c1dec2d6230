"""Transactional produce by the size of the transaction, beside plain produce in batches of that size."""

from __future__ import annotations

import statistics

from bench.batches import BatchJob, BatchResult
from bench.processes import HOST, Broker, check_held, run_program
from bench.rounds import Plan, Row, compared, cpu_note, cpu_us_each, interleave

SIZES = (1, 10, 100, 1000)
PAYLOAD_BYTES = 100
CONNECTIONS = 4


def measure(plan: Plan) -> list[Row]:
    with Broker(plan.directory / "transactions") as broker:
        return [_compare(plan, broker, size) for size in SIZES]


def _compare(plan: Plan, broker: Broker, size: int) -> Row:
    plan.say(f"transactions: of {size:,} records")

    def side(number: int, *, transactional: bool) -> BatchResult:
        topic = f"{'transactional' if transactional else 'plain'}-{size}-{number}"
        with broker.client() as client:
            client.create_topic(topic)
        job = BatchJob(
            host=HOST,
            port=broker.port,
            topic=topic,
            payload_bytes=PAYLOAD_BYTES,
            size=size,
            transactional=transactional,
            connections=CONNECTIONS,
            seconds=plan.seconds,
            server_pid=broker.pid,
        )
        result = run_program("bench.batches", job, BatchResult)
        check_held(broker, topic, {0: result.acknowledged})
        return result

    results = interleave(
        {
            "transactional": lambda number: side(number, transactional=True),
            "plain": lambda number: side(number, transactional=False),
        },
        plan.rounds,
    )
    transactional = results["transactional"]
    return compared(
        "transactional produce",
        f"fsync, {PAYLOAD_BYTES} B, transactions of {size:,}, {CONNECTIONS} connections with one open at a time",
        "records/s",
        [result.rate for result in transactional],
        f"plain produce, {size:,} in flight",
        [result.rate for result in results["plain"]],
        note=(
            f"{statistics.median(result.rate for result in transactional) / size:,.0f} transactions/s; "
            f"{cpu_note(transactional)}"
        ),
        cpu_us=cpu_us_each(transactional),
        against_cpu_us=cpu_us_each(results["plain"]),
    )
