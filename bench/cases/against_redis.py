"""One round of producing on either side, with the check that nothing was lost."""

from __future__ import annotations

import csv
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from bench.dialects import RecordLost
from bench.load import Job, LoadResult
from bench.processes import HOST, Broker, Redis, check_held, run_load
from bench.rounds import Plan


@dataclass(frozen=True, slots=True)
class Shape:
    """What the load looks like, the same for both sides."""

    payload_bytes: int
    connections: int
    in_flight: int

    def __str__(self) -> str:
        payload = f"{self.payload_bytes} B" if self.payload_bytes < 1024 else f"{self.payload_bytes // 1024} KiB"
        noun = "connection" if self.connections == 1 else "connections"
        return f"{payload}, {self.connections} {noun}, {self.in_flight} in flight each"


def broker_job(broker: Broker, topic: str, shape: Shape, **more: Any) -> Job:
    """The load of a shape on a topic; `more` are further fields of the job."""
    return Job(
        side="flymq",
        host=HOST,
        port=broker.port,
        name=topic,
        payload_bytes=shape.payload_bytes,
        connections=shape.connections,
        in_flight=shape.in_flight,
        server_pid=broker.pid,
        **more,
    )


def broker_round(plan: Plan, broker: Broker, durability: str, shape: Shape, number: int) -> LoadResult:
    topic = f"produce-{number}"
    with broker.client() as client:
        client.create_topic(topic, 1, durability=durability)
    result = run_load(broker_job(broker, topic, shape, seconds=plan.seconds))
    check_held(broker, topic, result.acknowledged)
    with broker.client() as client:
        client.delete_topic(topic)
    return result


def redis_round(plan: Plan, redis: Redis, shape: Shape, number: int) -> LoadResult:
    stream = f"produce-{number}"
    job = Job(
        side="redis",
        host=HOST,
        port=redis.port,
        name=stream,
        payload_bytes=shape.payload_bytes,
        connections=shape.connections,
        in_flight=shape.in_flight,
        seconds=plan.seconds,
        server_pid=redis.pid,
    )
    result = run_load(job)
    check_held_by_redis(redis, stream, result.acknowledged)
    redis.command("DEL", stream)
    return result


def check_held_by_redis(redis: Redis, stream: str, acknowledged: dict[int, int]) -> None:
    """Redis must hold every entry it acknowledged, and no other."""
    held = int(redis.command("XLEN", stream).removeprefix(b":"))
    if held != acknowledged[0]:
        raise RecordLost(f"Redis acknowledged {acknowledged[0]} entries and holds {held}")


def redis_own_rate(redis: Redis, shape: Shape, records: int) -> float | None:
    """What Redis' own benchmark program says of the same load, None where it is not installed."""
    program = shutil.which("redis-benchmark")
    if program is None:
        return None
    command = [
        program, "-h", HOST, "-p", str(redis.port), "-c", str(shape.connections), "-P", str(shape.in_flight),
        "-n", str(records), "--csv", "XADD", "own", "*", "v", "x" * shape.payload_bytes,
    ]  # fmt: skip
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    redis.command("DEL", "own")
    return float(list(csv.reader(output.splitlines()))[-1][1])
