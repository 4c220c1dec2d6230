"""One request in flight on each connection: what a program that waits for every acknowledgement gets."""

from __future__ import annotations

from bench.cases.against_redis import Shape, broker_round, redis_round
from bench.load import LoadResult
from bench.processes import Broker, Redis
from bench.rounds import Plan, Row, compared, cpu_note, cpu_us_each, interleave

CONNECTIONS = (1, 16)
PAYLOAD_BYTES = 100
AIMS = {("fsync", 1): (0.9, None), ("fsync", 16): (1.0, None), ("none", 1): (0.9, None), ("none", 16): (0.55, 45_000.0)}
"""By durability and connections: of Redis' rate, and records a second where that is an aim, too."""
# Each mode beside the one of Redis that promises the same.
MODES = {"fsync": "always", "none": "no"}


def measure(plan: Plan) -> list[Row]:
    rows = []
    with Broker(plan.directory / "one-in-flight") as broker:
        for durability, appendfsync in MODES.items():
            with Redis(plan.directory / f"redis-one-{appendfsync}", appendfsync) as redis:
                for connections in CONNECTIONS:
                    shape = Shape(PAYLOAD_BYTES, connections, 1)
                    plan.say(f"one in flight: {durability}, {shape}")
                    rows.append(_compare(plan, broker, redis, durability, appendfsync, shape))
    return rows


def _compare(plan: Plan, broker: Broker, redis: Redis, durability: str, appendfsync: str, shape: Shape) -> Row:
    def ours(number: int) -> LoadResult:
        return broker_round(plan, broker, durability, shape, number)

    def theirs(number: int) -> LoadResult:
        return redis_round(plan, redis, shape, number)

    results = interleave({"penstock": ours, "redis": theirs}, plan.rounds)
    ratio_min, at_least = AIMS[durability, shape.connections]
    return compared(
        "one in flight",
        f"{durability}, {shape}",
        "records/s",
        [result.rate for result in results["penstock"]],
        f"Redis Streams, appendfsync {appendfsync}",
        [result.rate for result in results["redis"]],
        ratio_min=ratio_min,
        at_least=at_least,
        note=cpu_note(results["penstock"], results["redis"], "Redis"),
        cpu_us=cpu_us_each(results["penstock"]),
        against_cpu_us=cpu_us_each(results["redis"]),
    )
