"""Felix over QUIC: durable binary batches from publish to delivery, to one reader and to ten, and cache operations on one stream.

With our own load, and with `felix-client` from PyPI: the latter reads as its users do, and asks one thing at a time.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from importlib.metadata import version
from typing import Literal

from bench.dialects import RecordLost
from bench.felix_load import FelixJob, FelixResult
from bench.load import cpu_seconds
from bench.processes import HOST, Broker, finish_program, run_program, start_program
from bench.rounds import Measured, Plan, Row, alone, cpu_note, cpu_us_each
from penstock.net.certificates import CERTIFICATE_FILE

CONFIG = f"""
[listeners.felix]
bind = "{HOST}:0"
auth = "none"
slow_subscriber = "pause"
"""
BATCH = 64
PAYLOAD_BYTES = 1024
BATCHES_IN_FLIGHT = 16
EVENTS = 1024 * BATCH
EVENTS_QUICK = 128 * BATCH
READER_PROCESSES_MAX = 2
"""One would be what is measured, where there are ten readers."""
FAN_OUTS = {1: 200_000.0, 10: 600_000.0}
"""By number of readers, deliveries a second that are aimed at."""
OFFICIAL_DELIVERIES_MIN = 120_000.0
OFFICIAL_PUBLISHES_MIN = 2_200.0
OFFICIAL_GETS_MIN = 8_750.0
CACHE_IN_FLIGHT = 32
CACHE_VALUE_BYTES = 100
OWN_LOAD = "bench.felix_load"
OFFICIAL_LOAD = "bench.felix_client_load"
OFFICIAL = f"felix-client {version('felix-client')}"


def measure(plan: Plan) -> list[Row]:
    rows = []
    with Broker(plan.directory / "felix", config=CONFIG) as broker:
        for readers, aim in FAN_OUTS.items():
            rows.append(_delivery_row(readers, aim, deliver(plan, broker, readers)))
        plan.say("felix: cache")
        rows.append(_cache(plan, broker))
        official = deliver(plan, broker, 1, reader=OFFICIAL_LOAD)
        rows.append(_delivery_row(1, OFFICIAL_DELIVERIES_MIN, official, who=f", {OFFICIAL} reads"))
        published = one_at_a_time(plan, broker, "publish", CACHE_VALUE_BYTES)
        rows.append(
            _one_at_a_time_row("felix publish", f"fsync, {CACHE_VALUE_BYTES} B", published, OFFICIAL_PUBLISHES_MIN)
        )
        got = one_at_a_time(plan, broker, "cache", CACHE_VALUE_BYTES)
        rows.append(_one_at_a_time_row("felix cache", f"gets of {CACHE_VALUE_BYTES} B", got, OFFICIAL_GETS_MIN))
    return rows


def deliver(
    plan: Plan, broker: Broker, readers: int, reader: str = OWN_LOAD, durability: str = "fsync"
) -> list[Measured]:
    """All rounds from the first publish to the last delivery, each with a stream of its own."""
    plan.say(f"felix: batches of {BATCH} to {readers} readers ({reader}), {durability}")
    return [_deliver_once(plan, broker, readers, number, reader, durability) for number in range(plan.rounds)]


def _deliver_once(plan: Plan, broker: Broker, readers: int, number: int, reader: str, durability: str) -> Measured:
    stream = f"felix-{durability}-{readers}-{number}-{reader.rpartition('.')[2]}"
    with broker.client() as client:
        client.create_topic(stream, 1, durability=durability)
    batches = plan.volume(EVENTS, EVENTS_QUICK) // BATCH

    def job(part: str, readers: int = 1) -> FelixJob:
        return FelixJob(
            part="read" if part == "read" else "publish",
            host=HOST,
            port=broker.ports["felix"],
            stream=stream,
            payload_bytes=PAYLOAD_BYTES,
            batch=BATCH,
            batches=batches,
            in_flight=BATCHES_IN_FLIGHT,
            readers=readers,
            certificate=_certificate(broker),
        )

    processes = min(readers, READER_PROCESSES_MAX)
    running = [start_program(reader, job("read", readers // processes)) for _ in range(processes)]
    for process in running:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise RecordLost("a reader could not subscribe; its error is above")
    before = cpu_seconds(broker.pid)
    published = run_program(OWN_LOAD, job("publish"), FelixResult)
    read = [finish_program(process, FelixResult) for process in running]
    seconds = max(each.ended for each in read) - published.started
    return Measured(
        sum(each.count for each in read) / seconds,
        (cpu_seconds(broker.pid) - before) / seconds,
        (published.cpu_s + sum(each.cpu_s for each in read)) / seconds,
    )


def _certificate(broker: Broker) -> str:
    """The broker's own, which it makes with its data directory."""
    return str(broker.data_dir / CERTIFICATE_FILE)


def _delivery_row(readers: int, aim: float, results: Sequence[Measured], who: str = "") -> Row:
    rates = [result.rate for result in results]
    return alone(
        "felix delivery",
        f"fsync, binary batches of {BATCH} x 1 KiB, {BATCHES_IN_FLIGHT} in flight, publish to delivery, "
        f"{readers} reader{'s' if readers > 1 else ''} with a connection each{who}",
        "deliveries/s",
        rates,
        at_least=aim,
        note=f"{statistics.median(rates) * PAYLOAD_BYTES / 1e6:.0f} MB/s; {cpu_note(results)}",
        cpu_us=cpu_us_each(results),
    )


def _cache(plan: Plan, broker: Broker) -> Row:
    job = FelixJob(
        part="cache",
        host=HOST,
        port=broker.ports["felix"],
        stream="bench",
        payload_bytes=CACHE_VALUE_BYTES,
        in_flight=CACHE_IN_FLIGHT,
        seconds=plan.seconds,
        server_pid=broker.pid,
    )
    results = [run_program(OWN_LOAD, job, FelixResult) for _ in range(plan.rounds)]
    return alone(
        "felix cache",
        f"puts and gets in turn, {CACHE_VALUE_BYTES} B, 1 stream, {CACHE_IN_FLIGHT} in flight",
        "operations/s",
        [result.rate for result in results],
        note=cpu_note(results),
        cpu_us=cpu_us_each(results),
    )


def one_at_a_time(
    plan: Plan, broker: Broker, part: Literal["publish", "cache"], payload_bytes: int, durability: str = "fsync"
) -> list[FelixResult]:
    """One request in flight from the official client: what a round trip costs."""
    plan.say(f"felix: {OFFICIAL}, {part} of {payload_bytes} B, one at a time, {durability}")
    stream = f"felix-official-{durability}"
    with broker.client() as client:
        if stream not in client.topics():
            client.create_topic(stream, 1, durability=durability)
    job = FelixJob(
        part=part,
        host=HOST,
        port=broker.ports["felix"],
        stream=stream,
        payload_bytes=payload_bytes,
        seconds=plan.seconds,
        certificate=_certificate(broker),
        server_pid=broker.pid,
    )
    return [run_program(OFFICIAL_LOAD, job, FelixResult) for _ in range(plan.rounds)]


def _one_at_a_time_row(case: str, what: str, results: Sequence[FelixResult], at_least: float) -> Row:
    return alone(
        case,
        f"{what}, {OFFICIAL}, 1 in flight",
        "operations/s",
        [result.rate for result in results],
        at_least=at_least,
        note=cpu_note(results),
        cpu_us=cpu_us_each(results),
    )
