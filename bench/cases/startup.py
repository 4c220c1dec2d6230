"""Starting after kill -9 under load with a long log, against a start after a clean stop, and with no log at all."""

from __future__ import annotations

import time

from bench.load import Job, LoadResult
from bench.processes import HOST, Broker, check_held, finish_program, run_load, start_program
from bench.rounds import Plan, Row, compared, interleave

LOG_BYTES = 2200 << 20
LOG_BYTES_QUICK = 256 << 20
PAYLOAD_BYTES = 1024
LOAD_S = 2.0
"""How long the load runs before the kill."""


def measure(plan: Plan) -> list[Row]:
    records = plan.volume(LOG_BYTES, LOG_BYTES_QUICK) // PAYLOAD_BYTES
    empty = Broker(plan.directory / "startup-empty")
    broker = Broker(plan.directory / "startup")
    broker.start()
    try:
        plan.say(f"startup: writing {records:,} records of 1 KiB")
        _write(broker, records)

        def killed(number: int) -> float:
            plan.say(f"startup: kill -9, round {number + 1}")
            acknowledged = _kill_under_load(broker, number)
            seconds = broker.start()
            check_held(broker, f"tail-{number}", acknowledged)
            check_held(broker, "bulk", {0: records})
            return seconds

        def clean(_: int) -> float:
            broker.stop()
            return broker.start()

        def without_log(_: int) -> float:
            seconds = empty.start()
            empty.stop()
            return seconds

        results = interleave({"killed": killed, "clean": clean, "empty": without_log}, plan.rounds)
    finally:
        broker.stop()
    setting = (
        f"a log of {records * PAYLOAD_BYTES / 1e9:.1f} GB, fsync load of 16 connections x 100 in flight at the kill"
    )
    process_start = sorted(results["empty"])[len(results["empty"]) // 2]
    return [
        compared(
            "start-up after kill -9",
            setting,
            "s",
            results["killed"],
            "after a clean stop",
            results["clean"],
            note=f"{process_start:.2f} s with an empty log: the interpreter and its imports",
        )
    ]


def _write(broker: Broker, records: int) -> None:
    with broker.client() as client:
        client.create_topic("bulk", 1, durability="none")
    job = Job(
        side="flymq",
        host=HOST,
        port=broker.port,
        name="bulk",
        payload_bytes=PAYLOAD_BYTES,
        connections=4,
        in_flight=500,
        warm_up_s=0,
        records=records,
        server_pid=broker.pid,
    )
    check_held(broker, "bulk", run_load(job).acknowledged)


def _kill_under_load(broker: Broker, number: int) -> dict[int, int]:
    """Returns what the broker had acknowledged when it died."""
    topic = f"tail-{number}"
    with broker.client() as client:
        client.create_topic(topic, 1, durability="fsync")
    job = Job(
        side="flymq",
        host=HOST,
        port=broker.port,
        name=topic,
        payload_bytes=PAYLOAD_BYTES,
        connections=16,
        in_flight=100,
        warm_up_s=0,
        seconds=60,
        server_pid=broker.pid,
        until_killed=True,
    )
    load = start_program("bench.load", job)
    time.sleep(LOAD_S)
    broker.kill()
    return finish_program(load, LoadResult).acknowledged
