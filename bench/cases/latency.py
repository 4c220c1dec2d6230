"""Latency of produce at fixed rates, with coordinated omission corrected: shares of the highest rate that the same connections reach."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.cases.against_redis import Shape, broker_round, check_held_by_redis, redis_round
from bench.latency_load import LatencyJob, LatencyResult
from bench.machine import flush_times_us
from bench.processes import HOST, Broker, Redis, check_held, run_program
from bench.rounds import Plan, Row, alone, amount, compared, cpu_us_each, interleave

FULL = Shape(100, 16, 100)
SHARES = (0.1, 0.5)
"""Of the highest rate that both sides reach."""
OWN_SHARE = 0.5
"""Of the highest rate that Penstock reaches."""
OTHER_PERCENTILES = ("50", "90", "99.9")
FLUSHES_MAX = 3


def measure(plan: Plan) -> list[Row]:
    with Broker(plan.directory / "latency") as broker, Redis(plan.directory / "redis-latency", "always") as redis:
        plan.say(f"latency: the highest rates, {FULL}")
        own = broker_round(plan, broker, "fsync", FULL, 0).rate
        of_both = min(own, redis_round(plan, redis, FULL, 0).rate)
        flush_us = flush_times_us(plan.directory)[49]
        rows = [_compare(plan, broker, redis, share, of_both, flush_us) for share in SHARES]
        return [*rows, _alone(plan, broker, OWN_SHARE, own, flush_us)]


def _compare(plan: Plan, broker: Broker, redis: Redis, share: float, highest: float, flush_us: float) -> Row:
    rate = share * highest
    plan.say(f"latency: {amount(rate)} records/s")

    def theirs(number: int) -> LatencyResult:
        stream = f"latency-{number}"
        result = run_program(
            "bench.latency_load", _job(plan, "redis", redis.port, stream, rate, redis.pid), LatencyResult
        )
        check_held_by_redis(redis, stream, result.acknowledged)
        redis.command("DEL", stream)
        return result

    results = interleave({"penstock": lambda number: _round(plan, broker, rate, number), "redis": theirs}, plan.rounds)
    ours, against = results["penstock"], results["redis"]
    others = ", ".join(
        f"p{percentile} {amount(_median(ours, percentile))} ({amount(_median(against, percentile))})"
        for percentile in OTHER_PERCENTILES
    )
    row = compared(
        "latency",
        _setting(rate, f"{share:.0%} of the highest rate of both"),
        "us",
        [result.percentiles_us["99"] for result in ours],
        "Redis Streams, appendfsync always",
        [result.percentiles_us["99"] for result in against],
        note=f"{others} us, in brackets Redis; {_conditions(flush_us, ours, against)}",
        cpu_us=cpu_us_each(ours),
        against_cpu_us=cpu_us_each(against),
    )
    return _held_to_flushes(row, flush_us)


def _alone(plan: Plan, broker: Broker, share: float, highest: float, flush_us: float) -> Row:
    """At a rate that Redis may not reach."""
    rate = share * highest
    plan.say(f"latency: {amount(rate)} records/s, Penstock alone")
    results = [_round(plan, broker, rate, number) for number in range(plan.rounds)]
    others = ", ".join(f"p{percentile} {amount(_median(results, percentile))}" for percentile in OTHER_PERCENTILES)
    row = alone(
        "latency",
        _setting(rate, f"{share:.0%} of Penstock's own highest rate"),
        "us",
        [result.percentiles_us["99"] for result in results],
        note=f"{others} us; {_conditions(flush_us, results)}",
        cpu_us=cpu_us_each(results),
    )
    return _held_to_flushes(row, flush_us)


def _round(plan: Plan, broker: Broker, rate: float, number: int) -> LatencyResult:
    topic = f"latency-{number}"
    with broker.client() as client:
        client.create_topic(topic, 1, durability="fsync")
    result = run_program("bench.latency_load", _job(plan, "flymq", broker.port, topic, rate, broker.pid), LatencyResult)
    check_held(broker, topic, result.acknowledged)
    with broker.client() as client:
        client.delete_topic(topic)
    return result


def _setting(rate: float, share: str) -> str:
    return f"fsync, {FULL.payload_bytes} B, {FULL.connections} connections, {amount(rate)} records/s ({share}), p99"


def _median(results: Sequence[LatencyResult], percentile: str) -> float:
    return statistics.median(result.percentiles_us[percentile] for result in results)


def _conditions(flush_us: float, *sides: Sequence[LatencyResult]) -> str:
    late_us = max(statistics.median(result.late_us for result in side) for side in sides)
    return f"a flush takes {amount(flush_us)} us; the load was up to {amount(late_us)} us late (p99)"


def _held_to_flushes(row: Row, flush_us: float) -> Row:
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
