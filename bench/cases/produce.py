"""Durable pipelined produce: every acknowledgement after a flush, against Redis Streams with `appendfsync always`."""

from __future__ import annotations

import itertools

from bench.cases.against_redis import Shape, broker_round, redis_own_rate, redis_round
from bench.load import LoadResult
from bench.processes import Broker, Redis
from bench.rounds import Plan, Row, amount, compared, cpu_note, cpu_us_each, interleave

PAYLOADS_BYTES = (100, 1024)
CONNECTIONS = (1, 4, 16)
IN_FLIGHT = 100
LARGEST = Shape(100, 16, IN_FLIGHT)
"""Which has aims of its own; the others are to be ahead of Redis."""
LARGEST_RATIO_MIN = 2.5
LARGEST_RATE_MIN = 800_000.0


def measure(plan: Plan) -> list[Row]:
    rows = []
    with Broker(plan.directory / "produce") as broker:
        for payload_bytes, connections in itertools.product(PAYLOADS_BYTES, CONNECTIONS):
            shape = Shape(payload_bytes, connections, IN_FLIGHT)
            plan.say(f"produce: {shape}")
            # A Redis for each shape: its append-only file and its memory keep all that was ever written to it.
            with Redis(plan.directory / f"redis-{payload_bytes}-{connections}", "always") as redis:
                rows.append(_compare(plan, broker, redis, shape))
    return rows


def _compare(plan: Plan, broker: Broker, redis: Redis, shape: Shape) -> Row:
    def ours(number: int) -> LoadResult:
        return broker_round(plan, broker, "fsync", shape, number)

    def theirs(number: int) -> LoadResult:
        return redis_round(plan, redis, shape, number)

    results = interleave({"penstock": ours, "redis": theirs}, plan.rounds)
    note = cpu_note(results["penstock"], results["redis"], "Redis")
    own_rate = redis_own_rate(redis, shape, records=results["redis"][-1].records)
    if own_rate is not None:
        note += f"; redis-benchmark says {amount(own_rate)}"
    return compared(
        "produce",
        f"fsync, {shape}",
        "records/s",
        [result.rate for result in results["penstock"]],
        "Redis Streams, appendfsync always",
        [result.rate for result in results["redis"]],
        ratio_min=LARGEST_RATIO_MIN if shape == LARGEST else 1.0,
        at_least=LARGEST_RATE_MIN if shape == LARGEST else None,
        note=note,
        cpu_us=cpu_us_each(results["penstock"]),
        against_cpu_us=cpu_us_each(results["redis"]),
    )
