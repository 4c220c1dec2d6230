"""The idempotent producer of Penstock's client beside the same client without: calls of `send_many`, and single sends at the same time.

Requests of an idempotent producer go through the journal with the entry that makes them repeatable, which is written to its table later. So
does what is spread over several partitions, of any producer; a topic with one partition is where it costs most.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.batches import BatchResult
from bench.client_load import ClientJob
from bench.processes import Broker, run_program
from bench.rounds import Plan, Row, compared, cpu_note, cpu_us_each, interleave

PAYLOAD_BYTES = 100
RATIO_MIN = 0.9


@dataclass(frozen=True, slots=True)
class Shape:
    records: int
    singly: bool
    partitions: int
    clients: int

    def __str__(self) -> str:
        call = f"{self.records:,} sends at a time" if self.singly else f"send_many of {self.records:,}"
        if self.records == 1:
            call = "one send at a time"
        return f"{call}, {self.partitions} partition{'s' * (self.partitions > 1)}, {self.clients} client{'s' * (self.clients > 1)}"


SHAPES = (
    Shape(10_000, False, 1, 1),
    Shape(10_000, False, 3, 1),
    Shape(10_000, False, 1, 4),
    Shape(100, False, 1, 4),
    Shape(100, True, 1, 4),
    Shape(1, True, 1, 1),
)


def measure(plan: Plan) -> list[Row]:
    with Broker(plan.directory / "idempotent") as broker:
        return [_compare(plan, broker, shape) for shape in SHAPES]


def _compare(plan: Plan, broker: Broker, shape: Shape) -> Row:
    plan.say(f"idempotent: {shape}")

    def side(number: int, *, idempotent: bool) -> BatchResult:
        topic = f"{'idempotent' if idempotent else 'plain'}-{SHAPES.index(shape)}-{number}"
        with broker.client() as client:
            client.create_topic(topic, shape.partitions)
        job = ClientJob(
            url=broker.url,
            topic=topic,
            payload_bytes=PAYLOAD_BYTES,
            records=shape.records,
            singly=shape.singly,
            idempotent=idempotent,
            clients=shape.clients,
            seconds=plan.seconds,
            server_pid=broker.pid,
        )
        result = run_program("bench.client_load", job, BatchResult)
        with broker.client() as client:
            held = sum(each.next_offset for each in client.describe_topic(topic).partitions)
        assert held == result.acknowledged, f"{result.acknowledged} records were acknowledged, {held} are held"
        return result

    results = interleave(
        {
            "idempotent": lambda number: side(number, idempotent=True),
            "plain": lambda number: side(number, idempotent=False),
        },
        plan.rounds,
    )

    return compared(
        "idempotent produce",
        f"fsync, {PAYLOAD_BYTES} B, {shape}",
        "records/s",
        [result.rate for result in results["idempotent"]],
        "the same client without",
        [result.rate for result in results["plain"]],
        ratio_min=RATIO_MIN,
        note=cpu_note(results["idempotent"], results["plain"], "without"),
        cpu_us=cpu_us_each(results["idempotent"]),
        against_cpu_us=cpu_us_each(results["plain"]),
    )
