"""A node joins a cluster on Kafka and leaves it again, while clients of another node write at a fixed rate; then what two nodes store
together, and one alone.

What each node takes of the machine is in the figures: all of them share its cores with Kafka and the load. So nodes are also given a
part of a core each, as if each had a machine of its own, which leaves Kafka and the load enough for two of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from bench.cases.against_redis import Shape, broker_job
from bench.cpu_limits import limited_cpu
from bench.kafka import Kafka
from bench.latency_load import LatencyJob, LatencyResult
from bench.load import LoadResult
from bench.processes import HOST, Broker, check_held, finish_program, start_program
from bench.rounds import Measured, Plan, Row, amount, compared, cpu_us_each, interleave

RATE, RATE_QUICK = 10_000, 1_000
CONNECTIONS = 16
PAYLOAD_BYTES = 100
ALONE = "with the other node stopped"
IN_FLIGHT = (1, 100)
NODE_CORES = 0.25


def measure(plan: Plan) -> list[Row]:
    with (
        Kafka(plan.directory / "kafka", 1) as kafka,
        Broker(plan.directory / "node1", config=_config(kafka, "node1")) as stays,
    ):
        comes = Broker(plan.directory / "node2", config=_config(kafka, "node2"))
        sides = {
            ALONE: lambda number: _round(plan, stays, f"alone-{number}"),
            "while a node joins": lambda number: _round(plan, stays, f"joins-{number}", comes.start),
            "with two nodes": lambda number: _round(plan, stays, f"two-{number}"),
            "while a node leaves": lambda number: _round(plan, stays, f"leaves-{number}", comes.stop),
        }
        try:
            results = interleave(sides, plan.rounds)
            comes.start()
            rates = [_rates(plan, stays, comes, in_flight) for in_flight in IN_FLIGHT]
            with limited_cpu([stays.pid, comes.pid], NODE_CORES) as limited:
                if limited:
                    within = f", {NODE_CORES:.0%} of a core for each node"
                    rates += [_rates(plan, stays, comes, in_flight, within) for in_flight in IN_FLIGHT]
        finally:
            comes.stop()
    return [*(_row(plan, side, results[side], results[ALONE]) for side in sides if side != ALONE), *rates]


def _config(kafka: Kafka, name: str) -> str:
    return (
        f'engine = "kafka"\n\n[kafka]\nbootstrap = ["{kafka.bootstrap}"]\nreplication = 1\n\n'
        f'[cluster]\nbind = "{HOST}:0"\nnode = "{name}"\nsecret = "the secret of a benchmark"\n'
    )


def _round(plan: Plan, node: Broker, topic: str, meanwhile: Callable[[], float | None] | None = None) -> LatencyResult:
    plan.say(f"nodes: {topic}")
    with node.client() as client:
        client.create_topic(topic, 1)
    job = LatencyJob(
        side="flymq",
        host=HOST,
        port=node.port,
        name=topic,
        payload_bytes=PAYLOAD_BYTES,
        connections=CONNECTIONS,
        rate=plan.volume(RATE, RATE_QUICK),
        seconds=plan.seconds,
        server_pid=node.pid,
    )
    load = start_program("bench.latency_load", job)
    if meanwhile is not None:
        time.sleep(job.warm_up_s + plan.seconds / 4)
        meanwhile()
    result = finish_program(load, LatencyResult)
    check_held(node, topic, {0: round(result.rate * plan.seconds)})
    return result


def _rates(plan: Plan, one: Broker, other: Broker, in_flight: int, within: str = "") -> Row:
    """The same connections, all to one node or half of them to each; `within` says what the nodes are limited to."""

    def produced(*nodes: Broker) -> Callable[[int], Measured]:
        shape = Shape(PAYLOAD_BYTES, CONNECTIONS // len(nodes), in_flight)

        def side(number: int) -> Measured:
            plan.say(f"nodes: produce through {len(nodes)}, {shape}{within}")
            topics = [f"rate-{in_flight}-{bool(within)}-{len(nodes)}-{number}-{node.port}" for node in nodes]
            with one.client() as client:
                for topic in topics:
                    client.create_topic(topic, 1)
            loads = [
                start_program("bench.load", broker_job(node, topic, shape, seconds=plan.seconds))
                for node, topic in zip(nodes, topics, strict=True)
            ]
            results = [finish_program(load, LoadResult) for load in loads]
            for topic, result in zip(topics, results, strict=True):
                check_held(one, topic, result.acknowledged)
            return Measured(
                sum(result.rate for result in results),
                sum(result.server_cpu for result in results),
                sum(result.load_cpu for result in results),
            )

        return side

    results = interleave({"one": produced(one), "two": produced(one, other)}, plan.rounds)
    shape = Shape(PAYLOAD_BYTES, CONNECTIONS, in_flight)
    return compared(
        "nodes",
        f"on Kafka, {shape}, two nodes{within}",
        "records/s",
        [result.rate for result in results["two"]],
        "one node",
        [result.rate for result in results["one"]],
        cpu_us=cpu_us_each(results["two"]),
        against_cpu_us=cpu_us_each(results["one"]),
    )


def _row(plan: Plan, side: str, results: list[LatencyResult], alone: list[LatencyResult]) -> Row:
    def median(of: list[LatencyResult], percentile: str) -> str:
        return amount(statistics.median(result.percentiles_us[percentile] for result in of))

    others = ", ".join(f"p{each} {median(results, each)} ({median(alone, each)})" for each in ("50", "90", "99.9"))
    rate = statistics.median(result.rate for result in results)
    return compared(
        "nodes",
        f"on Kafka, {PAYLOAD_BYTES} B, {CONNECTIONS} connections, {plan.volume(RATE, RATE_QUICK):,} records/s, {side}, p99",
        "us",
        [result.percentiles_us["99"] for result in results],
        ALONE,
        [result.percentiles_us["99"] for result in alone],
        note=f"{others} us, in brackets {ALONE}; {amount(rate)} records/s were answered",
        cpu_us=cpu_us_each(results),
        against_cpu_us=cpu_us_each(alone),
    )
