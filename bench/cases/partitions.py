"""One partition against 64 that are all active at once, durable and pipelined."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from bench.cases.against_redis import Shape, broker_job
from bench.load import LoadResult
from bench.processes import Broker, check_held, run_load
from bench.rounds import Plan, Row, compared, cpu_us_each, interleave

PARTITIONS = 64
SHAPE = Shape(100, 16, 100)


@dataclass(frozen=True, slots=True)
class Spread:
    """How records are spread over partitions: which each connection names, and how many records in a row for one."""

    name: str
    partitions: int
    named: tuple[int, ...]
    run_length: int
    ratio_min: float = 0.5
    """What is aimed at, of the rate of one partition."""


ONE = Spread("1 partition", 1, (0,), 1)
SPREADS = (
    Spread("64 partitions, 25 records in a row for one", PARTITIONS, tuple(range(PARTITIONS)), 25),
    Spread("64 partitions, each record for the next", PARTITIONS, tuple(range(PARTITIONS)), 1, ratio_min=0.6),
    Spread("64 partitions, the broker chooses", PARTITIONS, (-1,), 1),
)


@dataclass(frozen=True, slots=True)
class _Round:
    load: LoadResult
    commits: float


def measure(plan: Plan) -> list[Row]:
    plan.say(f"partitions: {SHAPE}")
    with Broker(plan.directory / "partitions") as broker:
        sides: dict[str, Callable[[int], _Round]] = {
            spread.name: _side(plan, broker, spread) for spread in (ONE, *SPREADS)
        }
        results = interleave(sides, plan.rounds)
    one = results[ONE.name]
    return [
        compared(
            "partitions",
            f"fsync, {SHAPE}; {spread.name}",
            "records/s",
            [each.load.rate for each in results[spread.name]],
            ONE.name,
            [each.load.rate for each in one],
            ratio_min=spread.ratio_min,
            note=_note(results[spread.name], one),
            cpu_us=cpu_us_each(each.load for each in results[spread.name]),
            against_cpu_us=cpu_us_each(each.load for each in one),
        )
        for spread in SPREADS
    ]


def _side(plan: Plan, broker: Broker, spread: Spread) -> Callable[[int], _Round]:
    topic = f"spread-{SPREADS.index(spread) if spread in SPREADS else 'one'}"

    def run(number: int) -> _Round:
        with broker.client() as client:
            client.create_topic(topic, spread.partitions, durability="fsync")
        before = broker.metrics()
        result = run_load(
            broker_job(
                broker, topic, SHAPE, seconds=plan.seconds, partitions=spread.named, run_length=spread.run_length
            )
        )
        after = broker.metrics()
        check_held(broker, topic, result.acknowledged)
        with broker.client() as client:
            client.delete_topic(topic)
        return _Round(result, after["penstock_commits_total"] - before["penstock_commits_total"])

    return run


def _note(spread: list[_Round], one: list[_Round]) -> str:
    def per_commit(rounds: list[_Round]) -> float:
        return statistics.median(sum(each.load.acknowledged.values()) / each.commits for each in rounds)

    return f"{per_commit(spread):.0f} records a commit, {per_commit(one):.0f} with one partition; one flush for each commit"
