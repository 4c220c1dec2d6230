"""Each protocol under the load of the original's own benchmark: its message sizes, its workers, its requests in flight.

The originals acknowledge from memory, so each load runs with `none`, which promises the same, and with `fsync`. What an original made
elsewhere stands in the note, as its authors publish it and as its own benchmark said on a machine with 2 cores. Those are other machines
and other load generators: they are not a side of the comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.cases import blipmq, felix, fujin
from bench.cases.against_redis import Shape, broker_job
from bench.load import Job, LoadResult
from bench.processes import HOST, Broker, check_held, run_load
from bench.rounds import Load, Plan, Row, alone, cpu_note, cpu_us_each

DURABILITIES = ("none", "fsync")

FLYMQ_PARTITIONS = 6
FLYMQ = {
    Shape(100, 1, 1): "7.4 k/s published (Apple M3 Pro), 14.8 k/s on 2 cores",
    Shape(1024, 1, 1): "7.5 k/s published (Apple M3 Pro), 11.2 k/s on 2 cores",
    Shape(10 << 10, 1, 1): "5.1 k/s published (Apple M3 Pro), 5.1 k/s on 2 cores",
    Shape(100 << 10, 1, 1): "1.0 k/s published (Apple M3 Pro), 1.1 k/s on 2 cores",
    Shape(1024, 4, 1): "20.3 k/s published (Apple M3 Pro), 23.2 k/s on 2 cores",
    Shape(1024, 8, 1): "26.2 k/s published (Apple M3 Pro), 28.3 k/s on 2 cores",
    Shape(1024, 16, 1): "30.7 k/s published (Apple M3 Pro), 33.9 k/s on 2 cores",
}
"""By shape, what the original made elsewhere: producers without keys, each waiting for the reply to its last message."""
FLYMQ_AIMS = {("none", Shape(1024, 16, 1)): 34_000.0}

BLIPMQ = {
    (0, 1): "1-5 M/s published (8 cores), 13.7 k/s on 2 cores and the rest lost",
    (1, 1): "0.5-2 M/s published (8 cores), 1.0 k/s on 2 cores",
    (0, 4): "4.9 k/s on 2 cores",
    (1, 4): "20.0 k/s published for 512 B (8 cores)",
}
"""By QoS and pairs of a publisher and a reader."""

RUSTLOG_BYTES = 100
RUSTLOG_SINGLE_MIN = {"none": 13_750.0, "fsync": 1_750.0}
"""By durability, single produces a second that are aimed at."""
RUSTLOG = {1: "57 k/s on 2 cores", 1000: "1.4 M/s on 2 cores"}
"""By records in a request."""

FUJIN = {
    (1, 1, 4000): "1.5-1.7 M/s published (Apple M2, before the last reply), 0.7-1.0 M/s on 2 cores",
    (32, 1, 4000): "458 k/s on 2 cores",
    (1024, 1, 2000): "110-145 k/s on 2 cores",
    (32 << 10, 1, 64): "72-204 MB/s published (Apple M2, likewise), 5.4 k/s on 2 cores",
    (32, 1, 1): "21.5 k/s published for 128 B (Apple M2), 6.5 k/s on 2 cores",
    (32, 16, 1): "97 k/s published for 128 B (Apple M2), 38 k/s on 2 cores",
}
"""By payload, streams and writes in flight on each; the original stores nothing."""

FELIX_SIZES = {
    256: "p50 128 us published (Apple M4 Max)",
    1024: "p50 131 us published (Apple M4 Max), 4.0-5.2 k/s on 2 cores",
}
FELIX_DELIVERY = "450 k/s published (Apple M4 Max), 149-152 k/s on 2 cores"
FELIX_CACHE = "p50 165-177 us published, 4.4-5.1 k/s on 2 cores"


def measure(plan: Plan) -> list[Row]:
    return [*_flymq(plan), *_blipmq(plan), *_rustlog(plan), *_fujin(plan), *_felix(plan)]


def _row(
    protocol: str, setting: str, unit: str, results: Sequence[Load], elsewhere: str, at_least: float | None = None
) -> Row:
    return alone(
        f"original's benchmark: {protocol}",
        setting,
        unit,
        [result.rate for result in results],
        at_least=at_least,
        note=f"the original on other machines: {elsewhere}; {cpu_note(results)}",
        cpu_us=cpu_us_each(results),
    )


def _flymq(plan: Plan) -> list[Row]:
    rows = []
    with Broker(plan.directory / "original-flymq") as broker:
        for durability in DURABILITIES:
            for shape, elsewhere in FLYMQ.items():
                plan.say(f"originals: FlyMQ, {durability}, {shape}")
                results = [_produced(plan, broker, durability, shape, number) for number in range(plan.rounds)]
                setting = f"{durability}, {shape}, {FLYMQ_PARTITIONS} partitions"
                aim = FLYMQ_AIMS.get((durability, shape))
                rows.append(_row("FlyMQ", setting, "records/s", results, elsewhere, aim))
    return rows


def _produced(plan: Plan, broker: Broker, durability: str, shape: Shape, number: int) -> LoadResult:
    topic = f"original-{number}"
    with broker.client() as client:
        client.create_topic(topic, FLYMQ_PARTITIONS, durability=durability)
    result = run_load(broker_job(broker, topic, shape, seconds=plan.seconds))
    check_held(broker, topic, result.acknowledged)
    with broker.client() as client:
        client.delete_topic(topic)
    return result


def _blipmq(plan: Plan) -> list[Row]:
    rows = []
    for durability in DURABILITIES:
        flags = ("--set", f"durability={durability}")
        with Broker(plan.directory / f"original-blipmq-{durability}", *flags, config=blipmq.CONFIG) as broker:
            for (qos, pairs), elsewhere in BLIPMQ.items():
                results = blipmq.deliver(plan, broker, qos, pairs, polls_in_flight=1, prefix="original")
                setting = (
                    f"{durability}, QoS {qos}, {blipmq.PAYLOAD_BYTES} B, {pairs} x {pairs}, publishers in a stream, "
                    "readers poll one at a time"
                )
                rows.append(_row("BlipMQ", setting, "messages/s", results, elsewhere))
    return rows


def _rustlog(plan: Plan) -> list[Row]:
    rows = []
    with Broker(plan.directory / "original-rustlog", config=f'[listeners.rustlog]\nbind = "{HOST}:0"\n') as broker:
        for durability in DURABILITIES:
            for batch, elsewhere in RUSTLOG.items():
                plan.say(f"originals: RustLog, {durability}, batches of {batch:,}")
                results = [_batches(plan, broker, durability, batch, number) for number in range(plan.rounds)]
                requests = "single produces" if batch == 1 else f"batches of {batch:,}"
                setting = f"{durability}, {RUSTLOG_BYTES} B, 1 connection, {requests}, 1 in flight"
                aim = RUSTLOG_SINGLE_MIN[durability] if batch == 1 else None
                rows.append(_row("RustLog", setting, "records/s", results, elsewhere, aim))
    return rows


def _batches(plan: Plan, broker: Broker, durability: str, batch: int, number: int) -> LoadResult:
    topic = f"original-{durability}-{batch}-{number}"
    with broker.client() as client:
        client.create_topic(topic, 1, durability=durability)
    job = Job(
        side="rustlog",
        host=HOST,
        port=broker.ports["rustlog"],
        name=topic,
        payload_bytes=RUSTLOG_BYTES,
        connections=1,
        in_flight=1,
        batch_records=batch,
        seconds=plan.seconds,
        server_pid=broker.pid,
    )
    result = run_load(job)
    check_held(broker, topic, result.acknowledged)
    return result


def _fujin(plan: Plan) -> list[Row]:
    rows = []
    with Broker(plan.directory / "original-fujin", config=fujin.CONFIG) as broker:
        for durability in DURABILITIES:
            for (payload_bytes, streams, in_flight), elsewhere in FUJIN.items():
                shape = fujin.Shape(payload_bytes, streams, in_flight, durability=durability)
                results = fujin.write(plan, broker, shape)
                rows.append(_row("Fujin", shape.setting, "records/s", results, elsewhere))
    return rows


def _felix(plan: Plan) -> list[Row]:
    rows = []
    with Broker(plan.directory / "original-felix", config=felix.CONFIG) as broker:
        for durability in DURABILITIES:
            for size, elsewhere in FELIX_SIZES.items():
                results = felix.one_at_a_time(plan, broker, "publish", size, durability)
                setting = f"{durability}, publish {size:,} B, {felix.OFFICIAL}, 1 in flight, acknowledged"
                rows.append(_row("Felix", setting, "operations/s", results, elsewhere))
            for reader, who in ((felix.OWN_LOAD, "our load"), (felix.OFFICIAL_LOAD, felix.OFFICIAL)):
                delivered = felix.deliver(plan, broker, 1, reader, durability)
                setting = f"{durability}, {felix.BATCH} x 1 KiB to 1 subscriber, {who} reads"
                rows.append(_row("Felix", setting, "deliveries/s", delivered, FELIX_DELIVERY))
        got = felix.one_at_a_time(plan, broker, "cache", felix.CACHE_VALUE_BYTES)
        setting = f"cache get of {felix.CACHE_VALUE_BYTES} B, {felix.OFFICIAL}, 1 in flight"
        rows.append(_row("Felix", setting, "operations/s", got, FELIX_CACHE))
    return rows
