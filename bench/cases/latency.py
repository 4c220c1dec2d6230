"""Latency of produce at fixed rates, with coordinated omission corrected: shares of the highest rate that the same connections reach."""

from __future__ import annotations

import statistics

from bench.cases.against_redis import Shape, broker_round, check_held_by_redis, redis_round
from bench.latency_load import LatencyJob, LatencyResult
from bench.machine import flush_times_us
from bench.processes import HOST, Broker, Redis, check_held, run_program
from bench.rounds import Plan, Row, amount, compared, cpu_us_each, interleave

FULL = Shape(100, 16, 100)
SHARES = (0.1, 0.5)
FLUSHES_MAX = 3


def measure(plan: Plan) -> list[Row]:
    with Broker(plan.directory / "latency") as broker, Redis(plan.directory / "redis-latency", "always") as redis:
        plan.say(f"latency: the highest rate, {FULL}")
        highest = min(
            broker_round(plan, broker, "fsync", FULL, 0).rate,
            redis_round(plan, redis, FULL, 0).rate,
        )
        flush_us = flush_times_us(plan.directory)[49]
        return [_compare(plan, broker, redis, share, highest, flush_us) for share in SHARES]


def _compare(plan: Plan, broker: Broker, redis: Redis, share: float, highest: float, flush_us: float) -> Row:
    rate = share * highest
    plan.say(f"latency: {amount(rate)} records/s")

    def ours(number: int) -> LatencyResult:
        topic = f"latency-{number}"
        with broker.client() as client:
            client.create_topic(topic, 1, durability="fsync")
        result = run_program(
            "bench.latency_load", _job(plan, "flymq", broker.port, topic, rate, broker.pid), LatencyResult
        )
        check_held(broker, topic, result.acknowledged)
        with broker.client() as client:
            client.delete_topic(topic)
        return result

    def theirs(number: int) -> LatencyResult:
        stream = f"latency-{number}"
        result = run_program(
            "bench.latency_load", _job(plan, "redis", redis.port, stream, rate, redis.pid), LatencyResult
        )
        check_held_by_redis(redis, stream, result.acknowledged)
        redis.command("DEL", stream)
        return result

    results = interleave({"penstock": ours, "redis": theirs}, plan.rounds)

    def median(side: str, percentile: str) -> float:
        return statistics.median(result.percentiles_us[percentile] for result in results[side])

    late_us = max(statistics.median(result.late_us for result in each) for each in results.values())
    others = ", ".join(
        f"p{percentile} {amount(median('penstock', percentile))} ({amount(median('redis', percentile))})"
        for percentile in ("50", "90", "99.9")
    )
    row = compared(
        "latency",
        f"fsync, {FULL.payload_bytes} B, {FULL.connections} connections, {amount(rate)} records/s "
        f"({share:.0%} of the highest rate of both), p99",
        "us",
        [result.percentiles_us["99"] for result in results["penstock"]],
        "Redis Streams, appendfsync always",
        [result.percentiles_us["99"] for result in results["redis"]],
        note=f"{others} us, in brackets Redis; a flush takes {amount(flush_us)} us; the load was up to {amount(late_us)} us late (p99)",
        cpu_us=cpu_us_each(results["penstock"]),
        against_cpu_us=cpu_us_each(results["redis"]),
    )
    row.aim = f"below {FLUSHES_MAX} flushes"
    row.met = row.value < FLUSHES_MAX * flush_us
    return row


def _job(plan: Plan, side: str, port: int, name: str, rate: float, server_pid: int) -> LatencyJob:
    return LatencyJob(
        side=side,
        host=HOST,
        port=port,
        name=name,
        payload_bytes=FULL.payload_bytes,
        connections=FULL.connections,
        rate=rate,
        seconds=plan.seconds,
        server_pid=server_pid,
    )
