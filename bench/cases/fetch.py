"""Reading a long log from start to end, far more of it than the broker keeps in memory; and what a reply of mixed sizes costs to encode."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from bench.cases.against_redis import Shape, broker_job
from bench.processes import HOST, Broker, check_held, run_load, run_program
from bench.reader import FETCH_RECORDS, ReadJob, ReadResult
from bench.rounds import Plan, Row, alone, cpu_note, cpu_us_each, interleave
from penstock.log.block import Block, encode_block
from penstock.protocols.flymq.operations.records import Fetch
from penstock.protocols.flymq.server.fetching import PlainForm

WRITING = Shape(100, 4, 500)
LOG_BYTES = 600 << 20
LOG_BYTES_QUICK = 64 << 20
# What is aimed at, by payload.
AIMS = {100: ("records/s", 1_000_000.0), 1024: ("MB/s", 500.0)}
MIXED_RECORDS = 100_000
MIXED_RECORDS_QUICK = 10_000
MIXED_BLOCK_RECORDS = 1_000
MIXED_VALUES_BYTES = (50, 150)
MIXED_KEYS_BYTES = (8, 24)
ENCODED_NS_AIM = 160.0


def measure(plan: Plan) -> list[Row]:
    rows = _encode_mixed(plan)
    with Broker(plan.directory / "fetch") as broker:
        for payload_bytes in AIMS:
            records = plan.volume(LOG_BYTES, LOG_BYTES_QUICK) // payload_bytes
            topic = f"long-{payload_bytes}"
            plan.say(f"fetch: writing {records:,} records of {payload_bytes} B")
            _write(broker, topic, payload_bytes, records)
            plan.say(f"fetch: reading {records:,} records of {payload_bytes} B")
            rows += _read(plan, broker, topic, payload_bytes, records)
    return rows


def _write(broker: Broker, topic: str, payload_bytes: int, records: int) -> None:
    with broker.client() as client:
        client.create_topic(topic, 1, durability="none")
    shape = replace(WRITING, payload_bytes=payload_bytes)
    result = run_load(broker_job(broker, topic, shape, warm_up_s=0, records=records))
    check_held(broker, topic, result.acknowledged)


def _read(plan: Plan, broker: Broker, topic: str, payload_bytes: int, records: int) -> list[Row]:
    def job(*, through_client: bool) -> ReadJob:
        return ReadJob(
            host=HOST,
            port=broker.port,
            topic=topic,
            payload_bytes=payload_bytes,
            records=records,
            through_client=through_client,
            server_pid=broker.pid,
        )

    def raw(_: int) -> ReadResult:
        return run_program("bench.reader", job(through_client=False), ReadResult)

    def client(_: int) -> ReadResult:
        return run_program("bench.reader", job(through_client=True), ReadResult)

    raw(0)  # warm-up: whether the log is in the system's page cache must not depend on who reads first
    results = interleave({"raw socket": raw, "Python client": client}, plan.rounds)
    return [
        _row(how, payload_bytes, records, results[how], with_aim=how == "raw socket")
        for how in ("raw socket", "Python client")
    ]


def _encode_mixed(plan: Plan) -> list[Row]:
    """Processor time of laying out replies in the contract's layout, in this process, without a disk or a network."""
    records = plan.volume(MIXED_RECORDS, MIXED_RECORDS_QUICK)
    plan.say(f"fetch: encoding {records:,} records of mixed sizes")
    chance = random.Random(1)

    def cells(least: int, most: int) -> list[bytes]:
        return [chance.randbytes(chance.randint(least, most)) for _ in range(MIXED_BLOCK_RECORDS)]

    block = encode_block(0, 1_700_000_000_000, cells(*MIXED_VALUES_BYTES), cells(*MIXED_KEYS_BYTES))
    form = PlainForm(Fetch.opcode, native=False)
    cut = form.rows(Block(block, checked=True), 0, MIXED_BLOCK_RECORDS)

    def encode() -> None:
        form.encode([cut], MIXED_BLOCK_RECORDS)

    def cut_and_encode() -> None:
        form.encode([form.rows(Block(block, checked=True), 0, MIXED_BLOCK_RECORDS)], MIXED_BLOCK_RECORDS)

    def ns_each(act: Callable[[], None], _: int) -> float:
        started = time.process_time()
        for _ in range(records // MIXED_BLOCK_RECORDS):
            act()
        return 1e9 * (time.process_time() - started) / records

    sides = {"encoding alone": encode, "cutting the cells out of their block, too": cut_and_encode}
    results = interleave({how: partial(ns_each, act) for how, act in sides.items()}, plan.rounds)
    of = f"{MIXED_VALUES_BYTES[0]} to {MIXED_VALUES_BYTES[1]} B with keys of {MIXED_KEYS_BYTES[0]} to {MIXED_KEYS_BYTES[1]} B"
    return [
        alone(
            "fetch, mixed sizes",
            f"{of}, the contract's layout, replies of {MIXED_BLOCK_RECORDS:,} records, {how}",
            "ns each",
            rounds,
            below=ENCODED_NS_AIM if how == "encoding alone" else None,
            note="processor time of one process",
        )
        for how, rounds in results.items()
    ]


def _row(how: str, payload_bytes: int, records: int, results: list[ReadResult], *, with_aim: bool) -> Row:
    unit, aim = AIMS[payload_bytes]
    rates = [result.rate for result in results]
    megabytes = [rate * payload_bytes / 1e6 for rate in rates]
    figures, other = (rates, f"{statistics.median(megabytes):.0f} MB/s of values")
    if unit == "MB/s":
        figures, other = megabytes, f"{statistics.median(rates):,.0f} records/s"
    payload = f"{payload_bytes} B" if payload_bytes < 1024 else f"{payload_bytes // 1024} KiB"
    return alone(
        "fetch",
        f"{records:,} records of {payload}, {how}, 1 connection, {FETCH_RECORDS:,} records a request",
        unit,
        figures,
        at_least=aim if with_aim else None,
        note=f"{other}; {cpu_note(results)}",
        cpu_us=cpu_us_each(results),
    )
