"""Produce against NATS JetStream with a file store: one connection, few and many records in flight.

Each durability stands beside the one of NATS that promises the same: `fsync` beside a flush before each acknowledgement, `none` beside the
default, a flush every two minutes.
"""

from __future__ import annotations

from bench.cases.against_redis import Shape, broker_round
from bench.dialects import RecordLost
from bench.load import Job, LoadResult
from bench.nats import Nats
from bench.processes import HOST, Broker, run_load
from bench.rounds import Plan, Row, compared, cpu_note, cpu_us_each, interleave

SHAPES = (Shape(100, 1, 1), Shape(100, 1, 100), Shape(100, 1, 4_000))
MODES = {"fsync": "always", "none": "2m"}


def measure(plan: Plan) -> list[Row]:
    rows = []
    with Broker(plan.directory / "against-nats") as broker:
        for durability, sync_interval in MODES.items():
            for shape in SHAPES:
                plan.say(f"nats: {durability}, {shape}")
                with Nats(plan.directory / f"nats-{sync_interval}-{shape.in_flight}", sync_interval) as nats:
                    rows.append(_compare(plan, broker, nats, durability, sync_interval, shape))
    return rows


def _compare(plan: Plan, broker: Broker, nats: Nats, durability: str, sync_interval: str, shape: Shape) -> Row:
    results = interleave(
        {
            "penstock": lambda number: broker_round(plan, broker, durability, shape, number),
            "nats": lambda number: _nats_round(plan, nats, shape, number),
        },
        plan.rounds,
    )
    return compared(
        "nats",
        f"{durability}, {shape}",
        "records/s",
        [result.rate for result in results["penstock"]],
        f"JetStream, file store, sync_interval {sync_interval}",
        [result.rate for result in results["nats"]],
        ratio_min=1.0,
        note=cpu_note(results["penstock"], results["nats"], "NATS"),
        cpu_us=cpu_us_each(results["penstock"]),
        against_cpu_us=cpu_us_each(results["nats"]),
    )


def _nats_round(plan: Plan, nats: Nats, shape: Shape, number: int) -> LoadResult:
    stream = f"produce-{number}"
    nats.request(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [stream], "storage": "file"})
    job = Job(
        side="nats",
        host=HOST,
        port=nats.port,
        name=stream,
        payload_bytes=shape.payload_bytes,
        connections=shape.connections,
        in_flight=shape.in_flight,
        seconds=plan.seconds,
        server_pid=nats.pid,
    )
    result = run_load(job)
    held = nats.request(f"STREAM.INFO.{stream}")["state"]["messages"]
    if held != result.acknowledged[0]:
        raise RecordLost(f"NATS acknowledged {result.acknowledged[0]} messages and holds {held}")
    nats.request(f"STREAM.DELETE.{stream}")
    return result
