"""A backup under load: what it costs the producers, and whether everything acknowledged before it is in it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec

from bench.cases.against_redis import Shape
from bench.dialects import RecordLost
from bench.load import Job, LoadResult
from bench.processes import HOST, Broker, check_held, finish_program, start_program
from bench.rounds import Plan, Row, alone, amount, compared, cpu_us_each, interleave

SHAPE = Shape(100, 4, 100)


class Taken(msgspec.Struct):
    """How long a backup took, and how much of the topic was acknowledged before it began."""

    backup_s: float
    topic: str
    held_before: int


def measure(plan: Plan) -> list[Row]:
    target = plan.directory / "backups"
    taken: list[Taken] = []
    with Broker(plan.directory / "backup") as broker:

        def with_backup(number: int) -> LoadResult:
            plan.say(f"backup: under load, round {number + 1}")
            return _round(plan, broker, f"backed-up-{number}", taken, target)

        def without(number: int) -> LoadResult:
            plan.say(f"backup: load alone, round {number + 1}")
            return _round(plan, broker, f"alone-{number}", None, target)

        results = interleave({"with": with_backup, "without": without}, plan.rounds)
    restore_s, restored = _restore(plan, target, taken[-1])
    return [
        compared(
            "backup",
            f"fsync, {SHAPE}, while a backup is taken",
            "records/s",
            [result.rate for result in results["with"]],
            "without a backup",
            [result.rate for result in results["without"]],
            cpu_us=cpu_us_each(results["with"]),
            against_cpu_us=cpu_us_each(results["without"]),
        ),
        alone(
            "backup",
            "time of a backup under that load",
            "s",
            [each.backup_s for each in taken],
            note=f"the last restored and verified in {restore_s:.1f} s: {amount(restored)} records, none lost",
        ),
    ]


def _round(plan: Plan, broker: Broker, topic: str, taken: list[Taken] | None, target: Path) -> LoadResult:
    with broker.client() as client:
        client.create_topic(topic, 1, durability="fsync")
    job = Job(
        side="flymq",
        host=HOST,
        port=broker.port,
        name=topic,
        payload_bytes=SHAPE.payload_bytes,
        connections=SHAPE.connections,
        in_flight=SHAPE.in_flight,
        seconds=plan.seconds,
        server_pid=broker.pid,
    )
    load = start_program("bench.load", job)
    if taken is not None:
        time.sleep(job.warm_up_s + plan.seconds / 4)
        held = _held(broker, topic)
        started = time.perf_counter()
        _penstock("backup", "create", str(target), "--server", broker.url)
        taken.append(Taken(time.perf_counter() - started, topic, held))
    return finish_program(load, LoadResult)


def _held(broker: Broker, topic: str) -> int:
    with broker.client() as client:
        return client.describe_topic(topic).partitions[0].next_offset


def _restore(plan: Plan, target: Path, taken: Taken) -> tuple[float, int]:
    """Restore the latest backup, verify it and start a broker on it. Returns the seconds and the records held."""
    data_dir = plan.directory / "restored"
    started = time.perf_counter()
    _penstock("restore", str(target), str(data_dir))
    _penstock("verify", str(data_dir))
    seconds = time.perf_counter() - started
    with Broker(data_dir) as broker:
        check_held(broker, taken.topic, {0: taken.held_before})
        held = _held(broker, taken.topic)
        with broker.client() as client:
            read = sum(1 for _ in client.records(taken.topic))
        if read != held:
            raise RecordLost(f"the restored topic says it holds {held} records, and {read} can be read")
    return seconds, read


def _penstock(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "penstock", *words], check=True, stdout=subprocess.DEVNULL)
