"""Fujin over QUIC: durable WRITEs pipelined on one stream, and with one in flight on one and on many streams of one connection."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from bench.fujin_load import FujinJob
from bench.load import LoadResult
from bench.processes import HOST, Broker, check_held, run_program
from bench.rounds import Plan, Row, alone, cpu_note, cpu_us_each

CONFIG = f'[listeners.fujin]\nbind = "{HOST}:0"\n'


@dataclass(frozen=True, slots=True)
class Shape:
    payload_bytes: int
    streams: int
    in_flight: int
    megabytes_per_s_min: float | None = None
    records_per_s_min: float | None = None
    durability: str = "fsync"

    @property
    def setting(self) -> str:
        size = self.payload_bytes
        payload = f"{size} B" if size < 1024 else f"{size // 1024} KiB"
        streams = "1 stream" if self.streams == 1 else f"{self.streams} streams"
        return f"{self.durability}, {payload}, 1 connection, {streams}, {self.in_flight:,} in flight each"


SHAPES = (
    Shape(1, 1, 4000),
    Shape(100, 1, 4000),
    Shape(1024, 1, 2000, megabytes_per_s_min=50.0),
    Shape(32 << 10, 1, 64),
    Shape(100, 1, 1, records_per_s_min=2_200.0),
    Shape(100, 16, 1),
)


def measure(plan: Plan) -> list[Row]:
    with Broker(plan.directory / "fujin", config=CONFIG) as broker:
        return [_row(shape, write(plan, broker, shape)) for shape in SHAPES]


def write(plan: Plan, broker: Broker, shape: Shape) -> list[LoadResult]:
    """All rounds of one shape, each with a topic of its own."""
    plan.say(f"fujin: {shape.setting}")
    return [_write_once(plan, broker, shape, number) for number in range(plan.rounds)]


def _write_once(plan: Plan, broker: Broker, shape: Shape, number: int) -> LoadResult:
    topic = f"fujin-{shape.durability}-{number}-{shape.payload_bytes}-{shape.streams}-{shape.in_flight}"
    with broker.client() as client:
        client.create_topic(topic, 1, durability=shape.durability)
    job = FujinJob(
        host=HOST,
        port=broker.ports["fujin"],
        topic=topic,
        payload_bytes=shape.payload_bytes,
        streams=shape.streams,
        in_flight=shape.in_flight,
        seconds=plan.seconds,
        server_pid=broker.pid,
    )
    result = run_program("bench.fujin_load", job, LoadResult)
    check_held(broker, topic, result.acknowledged)
    return result


def _row(shape: Shape, results: list[LoadResult]) -> Row:
    rates = [result.rate for result in results]
    megabytes = [rate * shape.payload_bytes / 1e6 for rate in rates]
    cpu, cpu_us = cpu_note(results), cpu_us_each(results)
    if shape.megabytes_per_s_min is not None:
        note = f"{statistics.median(rates):,.0f} records/s; {cpu}"
        return alone(
            "fujin write",
            shape.setting,
            "MB/s",
            megabytes,
            at_least=shape.megabytes_per_s_min,
            note=note,
            cpu_us=cpu_us,
        )
    note = f"{statistics.median(megabytes):.1f} MB/s; {cpu}"
    return alone(
        "fujin write",
        shape.setting,
        "records/s",
        rates,
        at_least=shape.records_per_s_min,
        note=note,
        cpu_us=cpu_us,
    )
